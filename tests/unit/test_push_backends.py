# SPDX-License-Identifier: Apache-2.0
"""What is sent to each kind of store, decoded with its published schema, and what its answers mean."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as otlp_pb

sys.path.insert(0, str(Path(__file__).parent))

from parprof import pprof_pb2
from parprof.errors import OutputError, UsageError
from parprof.exporters import pprof_reader
from parprof.metrics import Metrics
from parprof.model import Frame, Origin, PathSample, Profile
from parprof.service.model import Labels
from parprof.service.push import parca_pb2, pyroscope_pb2
from parprof.service.push.backend import Backend, Delivery, PushRequest, Reply
from parprof.service.push.config import PushConfig
from parprof.service.push.labels import MAX_VALUE, process_labels
from parprof.service.push.otlp import Otlp
from parprof.service.push.parca import Parca
from parprof.service.push.pyroscope import PyroscopeIngest, PyroscopePush
from parprof.service.push.shape import MAX_BYTES, Payload, message, shaped
from profiles import any_profile, frame, heat
from push_server import Received, form_of, grpc_message, push_config_of

LABELS = {"service_name": "heat", "comm": "heat", "pid": "42", "cluster": "north"}
BACKENDS = [PyroscopePush(), PyroscopeIngest(), Parca(), Otlp()]


def received(request: PushRequest) -> Received:
    split = urlsplit(request.path)
    return Received(split.path, parse_qs(split.query), {"content-type": request.content_type}, request.body)


def read_pprof(data: bytes) -> Profile:
    return pprof_reader.decode(gzip.decompress(data))


def totals(profile: Profile) -> list[float]:
    total = profile.total()
    return [total.samples, total.work_ns, total.idleness_ns, total.overhead_ns, total.spin_ns]


def with_everything() -> Profile:
    """heat with threads, physical paths, a secret and an event that PromQL would not take."""
    profile = heat()
    profile.process = replace(profile.process, command="./heat --password=secret")
    for number, row in enumerate(profile.samples):
        row.origin = row.origin._replace(thread=f"thread-{number}")
        row.physical = (frame("clone"), *row.path)
        row.metrics.events = {"cache-misses": 5}
        row.metrics.blame_ns = 3.0
        row.metrics.profiling_ns = 2.0
    return profile


# Schemas: the numbers are those of the published .proto files


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (pyroscope_pb2.PushRequest, {"series": 1}),
        (pyroscope_pb2.RawProfileSeries, {"labels": 1, "samples": 2}),
        (pyroscope_pb2.LabelPair, {"name": 1, "value": 2}),
        (pyroscope_pb2.RawSample, {"raw_profile": 1, "ID": 2}),
        (parca_pb2.WriteRawRequest, {"series": 2, "normalized": 3}),
        (parca_pb2.RawProfileSeries, {"labels": 1, "samples": 2}),
        (parca_pb2.LabelSet, {"labels": 1}),
        (parca_pb2.Label, {"name": 1, "value": 2}),
        (parca_pb2.RawSample, {"raw_profile": 1}),
    ],
)
def test_field_numbers(kind: type[Message], fields: dict[str, int]) -> None:
    assert {one.name: one.number for one in kind.DESCRIPTOR.fields} == fields


# Requests


def pprof_in(backend: Backend, request: PushRequest) -> bytes:
    """The profile in a request, after a check of what is around it."""
    if isinstance(backend, PyroscopePush):
        assert (request.path, request.content_type) == ("/push.v1.PusherService/Push", "application/proto")
        (series,) = pyroscope_pb2.PushRequest.FromString(request.body).series
        assert {one.name: one.value for one in series.labels} == {"__name__": "parprof", **LABELS}
        (sample,) = series.samples
        assert len(sample.ID) == 36
        return sample.raw_profile
    if isinstance(backend, PyroscopeIngest):
        got = received(request)
        assert got.path == "/ingest"
        assert got.query == {
            "name": ["heat{cluster=north,comm=heat,pid=42}"], "from": ["1700000000"], "until": ["1700000001"],
            "sampleRate": ["1000"], "spyName": ["parprof"],
        }  # fmt: skip
        form = form_of(got)
        assert json.loads(form["sample_type_config"])["work"]["display-name"] == "cpu"
        return form["profile"]
    assert request.path == "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw"
    assert request.content_type == "application/grpc-web+proto"
    write = parca_pb2.WriteRawRequest.FromString(grpc_message(request.body))
    assert write.normalized
    (stored,) = write.series
    assert {one.name: one.value for one in stored.labels.labels} == {"__name__": "parprof", **LABELS}
    (raw,) = stored.samples
    return raw.raw_profile


@pytest.mark.parametrize("backend", BACKENDS[:3], ids=lambda one: type(one).__name__)
def test_pprof_requests(backend: Backend) -> None:
    profile = with_everything()
    request = backend.encode(Payload(profile), LABELS)
    assert request == backend.encode(Payload(profile), LABELS)
    data = pprof_in(backend, request)
    stored = read_pprof(data)
    assert totals(stored) == totals(profile)
    assert stored.total().events == {"cache_misses": 30}
    assert {(row.origin._replace(overhead=""), row.physical) for row in stored.samples} == {(Origin(), ())}
    assert {row.origin.overhead for row in stored.samples} == {"", "sync"}
    assert b"secret" not in gzip.decompress(data)
    out = pprof_pb2.Profile.FromString(gzip.decompress(data))
    # Parca takes ids in sequence only, Pyroscope takes no "-" in columns.
    for table in (out.mapping, out.location, out.function):
        assert [one.id for one in table] == list(range(1, len(table) + 1))
    assert not [one for one in out.sample_type if "-" in out.string_table[one.type]]


@pytest.mark.skipif(shutil.which("go") is None, reason="needs go tool pprof")
def test_go_reads_what_is_pushed(tmp_path: Path) -> None:
    file = tmp_path / "pushed.pb.gz"
    file.write_bytes(pprof_in(BACKENDS[0], BACKENDS[0].encode(Payload(with_everything()), LABELS)))
    done = subprocess.run(
        ["go", "tool", "pprof", "-top", "-sample_index=idleness", "-unit=ms", file],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "100% of 960ms total" in done.stdout
    assert "vfprintf" in done.stdout


def test_otlp_request() -> None:
    profile = with_everything()
    request = Otlp().encode(Payload(profile), LABELS)
    assert (request.path, request.encoding) == ("/v1development/profiles", "gzip")
    assert request.content_type == "application/x-protobuf"
    out = otlp_pb.ExportProfilesServiceRequest.FromString(gzip.decompress(request.body))
    (resource,) = out.resource_profiles
    attributes = {one.key: one.value for one in resource.resource.attributes}
    assert attributes["service.name"].string_value == "heat"
    assert attributes["process.executable.name"].string_value == "heat"
    assert attributes["process.pid"].int_value == 42
    assert attributes["cluster"].string_value == "north"
    (scope,) = resource.scope_profiles
    words = out.dictionary.string_table
    found = {
        (words[one.sample_type.type_strindex], words[one.sample_type.unit_strindex]): [
            value for sample in one.samples for value in sample.values
        ]
        for one in scope.profiles
    }
    whole = profile.total()
    assert {key: sum(values) for key, values in found.items()} == {
        ("samples", "count"): whole.samples,
        ("work", "nanoseconds"): whole.work_ns,
        ("idleness", "nanoseconds"): whole.idleness_ns,
        ("overhead", "nanoseconds"): whole.overhead_ns,
        ("spin", "nanoseconds"): whole.spin_ns,
        ("blame", "nanoseconds"): whole.blame_ns,
        ("profiling", "nanoseconds"): whole.profiling_ns,
        ("cache_misses", "count"): 30,
    }
    assert all(value for values in found.values() for value in values)
    for one in scope.profiles:
        assert (one.time_unix_nano, one.duration_nano) == (1_700_000_000_250_000_000, 1_500_000_000)
        assert (one.period, len(one.profile_id)) == (1_000_000, 16)
        assert words[one.period_type.type_strindex] == "cpu"
    assert len({one.profile_id for one in scope.profiles}) == len(scope.profiles)


def check_dictionary(out: otlp_pb.ExportProfilesServiceRequest) -> None:
    """Entry 0 stands for nothing, nothing is there twice or for nobody, and all that is named is there."""
    tables = out.dictionary
    assert tables.string_table[0] == ""
    assert len(set(tables.string_table)) == len(tables.string_table)
    for field, table in tables.ListFields():
        if field.name != "string_table":
            assert table[0].ByteSize() == 0, field.name
    stacks = [tuple(one.location_indices) for one in tables.stack_table]
    assert len(set(stacks)) == len(stacks)
    texts = {0}
    for mapping in tables.mapping_table:
        texts.add(mapping.filename_strindex)
        assert max(mapping.attribute_indices, default=0) < len(tables.attribute_table)
    for function in tables.function_table:
        texts |= {function.name_strindex, function.system_name_strindex, function.filename_strindex}
    for attribute in tables.attribute_table:
        texts.add(attribute.key_strindex)
    for location in tables.location_table:
        assert location.mapping_index < len(tables.mapping_table)
        assert all(line.function_index < len(tables.function_table) for line in location.lines)
    for stack in stacks:
        assert all(0 < place < len(tables.location_table) for place in stack)
    used = {0}
    for one in out.resource_profiles[0].scope_profiles[0].profiles:
        texts |= {one.sample_type.type_strindex, one.sample_type.unit_strindex}
        texts |= {one.period_type.type_strindex, one.period_type.unit_strindex}
        used |= {sample.stack_index for sample in one.samples}
        assert all(len(sample.values) == 1 for sample in one.samples)
    assert texts == set(range(len(tables.string_table)))
    assert used <= set(range(len(stacks)))


def frames_of(out: otlp_pb.ExportProfilesServiceRequest, stack: int) -> list[tuple[str, int]]:
    tables = out.dictionary
    return [
        (tables.string_table[tables.function_table[line.function_index].name_strindex], line.line)
        for place in tables.stack_table[stack].location_indices
        for line in tables.location_table[place].lines
    ]


def test_otlp_dictionary_and_stacks() -> None:
    inner = Frame("inner", "x.h", 3, 1, "/bin/x", "ab", 16, inlined=True)
    outer = Frame("outer", "x.c", 9, 8, "/bin/x", "ab", 16)
    profile = heat()
    profile.samples.append(
        PathSample((frame("main", 1), outer, inner), Metrics(1, 7.0), Origin(overhead="sync"))
    )
    out = otlp_pb.ExportProfilesServiceRequest.FromString(
        gzip.decompress(Otlp().encode(Payload(profile), LABELS).body)
    )
    check_dictionary(out)
    work = out.resource_profiles[0].scope_profiles[0].profiles[1]
    (sample,) = (one for one in work.samples if list(one.values) == [7])
    assert frames_of(out, sample.stack_index) == [("inner", 3), ("outer", 9), ("main", 1)]
    words = out.dictionary.string_table
    (label,) = (out.dictionary.attribute_table[number] for number in sample.attribute_indices)
    assert (words[label.key_strindex], label.value.string_value) == ("parprof.overhead", "sync")
    mapping = out.dictionary.mapping_table[1]
    build_id = out.dictionary.attribute_table[mapping.attribute_indices[0]]
    assert words[build_id.key_strindex] == "process.executable.build_id.gnu"


@settings(max_examples=60, deadline=None)
@given(any_profile)
def test_any_profile_can_be_encoded(profile: Profile) -> None:
    whole = profile.total()
    for backend in BACKENDS[:3]:
        data = backend.encode(Payload(profile), LABELS)
        if not isinstance(backend, PyroscopeIngest):
            continue
        stored = read_pprof(form_of(received(data))["profile"])
        assert stored.total().work_ns == whole.work_ns
        assert sum(stored.total().events.values()) == sum(whole.events.values())
    out = otlp_pb.ExportProfilesServiceRequest.FromString(
        gzip.decompress(Otlp().encode(Payload(profile), LABELS).body)
    )
    check_dictionary(out)


# Limits


def test_folds_until_it_fits() -> None:
    rows = [
        PathSample(
            (frame("main", 1), Frame("f" * 50 + str(number), f"/src/{number}.c")), Metrics(1, 1e6 + number)
        )
        for number in range(4000)
    ]
    profile = Profile(heat().process, 1.0, 99, rows)
    assert message(profile).ByteSize() > 200_000
    small = message(profile, 200_000)
    assert small.ByteSize() <= 200_000
    stored = pprof_reader.decode(small.SerializeToString())
    assert totals(stored) == totals(profile)
    assert 100 < len(stored.samples) < 4000
    assert any(row.path[-1].name == "[folded]" for row in stored.samples)
    assert len(shaped(profile, 50).samples) <= 50
    assert len(gzip.decompress(Payload(profile).packed)) <= MAX_BYTES
    with pytest.raises(OutputError, match="does not fit"):
        message(profile, 10)


# Labels


def test_labels() -> None:
    labels = Labels(comm="a,b\n{}=\u202e\x1b", unit="x.service", cgroup="/c" * 500)
    names = ("comm", "unit", "container", "cgroup", "runtime")
    out = process_labels(heat(), labels, names, {"zone": "eu 1"})
    assert out["comm"] == out["service_name"] == "a,b\\x0a{}=\\u202e\\x1b"
    assert (out["unit"], out["zone"], out["runtime"]) == ("x.service", "eu 1", "libgomp")
    assert "container" not in out
    assert len(out["cgroup"]) <= MAX_VALUE + 3
    assert process_labels(heat(), labels, (), {"service_name": "s"}) == {"service_name": "s"}
    assert process_labels(heat(), labels, (), {}, "unit") == {"service_name": "x.service"}
    assert process_labels(heat(), labels, (), {}, "pod") == {"service_name": "unknown"}


def test_hostile_labels_stay_values_in_an_address() -> None:
    """GIVEN a comm made to add labels of its own THEN the name has just those it should."""
    labels = process_labels(heat(), Labels(comm="x,service_name=root}{"), ("comm",), {})
    (name,) = received(PyroscopeIngest().encode(Payload(heat()), labels)).query["name"]
    assert name == "x_service_name_root__{comm=x_service_name_root__}"


# Answers

OK_FRAMES = struct.pack(">BI", 0, 0) + struct.pack(">BI", 0x80, 14) + b"grpc-status: 0"


def trailer(text: str) -> bytes:
    return struct.pack(">BI", 0x80, len(text)) + text.encode()


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (301, Delivery.REJECTED), (400, Delivery.REJECTED), (401, Delivery.REJECTED), (404, Delivery.REJECTED),
        (413, Delivery.REJECTED), (422, Delivery.REJECTED), (429, Delivery.RETRY), (501, Delivery.REJECTED),
        (502, Delivery.RETRY), (503, Delivery.RETRY), (504, Delivery.RETRY),
    ],
)  # fmt: skip
def test_status(backend: Backend, status: int, verdict: Delivery) -> None:
    found, problem = backend.judge(Reply(status, {}, b"why\x1b[31m\nnot"))
    assert found is verdict
    assert str(status) in problem
    assert problem.isprintable()


def test_server_errors_are_retried_but_by_otlp() -> None:
    for status in (408, 500):
        assert [backend.judge(Reply(status, {}, b""))[0] for backend in BACKENDS] == [
            Delivery.RETRY, Delivery.RETRY, Delivery.RETRY, Delivery.REJECTED,
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("headers", "body", "verdict"),
    [
        ({}, OK_FRAMES, Delivery.SENT),
        ({"grpc-status": "0"}, b"", Delivery.SENT),
        ({"grpc-status": "14", "grpc-message": "try%20later"}, b"", Delivery.RETRY),
        ({"grpc-status": "3", "grpc-message": "x"}, b"", Delivery.REJECTED),
        ({}, trailer("grpc-status:8\r\ngrpc-message:slow"), Delivery.RETRY),
        ({}, trailer("Grpc-Status: 16\r\nGrpc-Message: who"), Delivery.REJECTED),
        ({}, trailer("grpc-status: what\r\n"), Delivery.REJECTED),
        ({}, b"", Delivery.RETRY),
        ({}, b"<html>", Delivery.RETRY),
        ({}, OK_FRAMES[:-1], Delivery.RETRY),
        ({}, b"\x80\xff\xff\xff\xff", Delivery.RETRY),
    ],
)
def test_grpc_web_answers(headers: dict[str, str], body: bytes, verdict: Delivery) -> None:
    found, problem = Parca().judge(Reply(200, headers, body))
    assert found is verdict
    assert bool(problem) == (verdict is not Delivery.SENT)


def test_connect_and_otlp_answers() -> None:
    page = Reply(200, {"content-type": "text/html; charset=utf-8"}, b"<html>log in")
    assert PyroscopePush().judge(page)[0] is Otlp().judge(page)[0] is Delivery.RETRY
    assert PyroscopePush().judge(Reply(200, {"content-type": "application/proto"}, b""))[0] is Delivery.SENT
    fields = {"content-type": "application/x-protobuf"}
    answer = otlp_pb.ExportProfilesServiceResponse()
    assert Otlp().judge(Reply(200, fields, b"")) == (Delivery.SENT, "")
    answer.partial_success.error_message = "deprecated"
    assert Otlp().judge(Reply(200, fields, answer.SerializeToString())) == (Delivery.SENT, "deprecated")
    answer.partial_success.rejected_profiles = 2
    assert Otlp().judge(Reply(200, fields, answer.SerializeToString()))[0] is Delivery.REJECTED
    assert Otlp().judge(Reply(200, fields, b"\xff\xff\xff"))[0] is Delivery.RETRY


@settings(max_examples=300, deadline=None)
@given(
    st.integers(100, 599),
    st.dictionaries(st.sampled_from(["content-type", "grpc-status", "grpc-message"]), st.text(max_size=20)),
    st.binary(max_size=60),
)
def test_no_answer_breaks_anything(status: int, headers: dict[str, str], body: bytes) -> None:
    for backend in BACKENDS:
        verdict, problem = backend.judge(Reply(status, headers, body))
        assert isinstance(verdict, Delivery)
        assert "\n" not in problem and "\x1b" not in problem


# Configuration


def test_configuration() -> None:
    config = push_config_of(
        {
            "spool": "/x", "spool_bytes": 1 << 20, "labels": {"zone": "eu"}, "process_labels": ["comm", "pid"],
            "pyroscope": {"url": "https://p:4040", "protocol": "ingest", "tenant": "t", "timeout_s": 3},
            "parca": {"url": "http://127.0.0.1:7070"},
            "otlp": {"url": "http://127.0.0.1:4318", "headers": {"X-A": "b"}},
        }
    )  # fmt: skip
    assert [type(one.backend).__name__ for one in config.stores] == ["PyroscopeIngest", "Parca", "Otlp"]
    assert (config.stores[0].endpoint.tenant, config.stores[0].endpoint.timeout_s) == ("t", 3)
    assert config.labels["zone"] == "eu"
    assert config.labels["node"]
    assert config.process_labels == ("comm", "pid")
    assert push_config_of({}).stores == PushConfig().stores == ()
    assert isinstance(push_config_of({"pyroscope": {"url": "http://x"}}).stores[0].backend, PyroscopePush)


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"pyroscop": {}}, r"push\.pyroscop: unknown key"),
        ({"pyroscope": {}}, r"push\.pyroscope\.url: is missing"),
        ({"pyroscope": {"url": "http://x", "protocol": "ftp"}}, "push.pyroscope.protocol"),
        ({"pyroscope": {"url": "http://x", "token": "x"}}, r"push\.pyroscope\.token: unknown key"),
        ({"pyroscope": "http://x"}, r"push\.pyroscope: is a table"),
        ({"parca": {"url": 7}}, "push.parca.url"),
        ({"parca": {"url": "http://x", "timeout_s": 0}}, "push.parca.timeout_s"),
        ({"parca": {"url": "http://x", "headers": {"a": 1}}}, "push.parca.headers"),
        ({"labels": {"a-b": "c"}}, "push.labels"),
        ({"labels": {"__name__": "c"}}, "push.labels"),
        ({"labels": {f"l{n}": "x" for n in range(17)}}, "push.labels"),
        ({"labels": ["a"]}, "push.labels"),
        ({"process_labels": ["command"]}, "push.process_labels"),
        ({"process_labels": "comm"}, "push.process_labels"),
        ({"service": "x"}, "push.service"),
        ({"spool_bytes": True}, "push.spool_bytes"),
        ({"interval_s": "1"}, "push.interval_s"),
    ],
)
def test_wrong_configuration(table: dict[str, object], key: str) -> None:
    with pytest.raises(UsageError, match=key):
        push_config_of(table)


def test_schema_of_otlp_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.collector.profiles.v1development", None)
    with pytest.raises(UsageError, match=r"parprofd\[otlp\]"):
        push_config_of({"otlp": {"url": "http://x"}})
