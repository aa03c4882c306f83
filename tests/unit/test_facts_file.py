# SPDX-License-Identifier: Apache-2.0
"""Files of facts: what is read is what was written, and nothing that anybody may write does harm."""

from __future__ import annotations

import copy
import functools
import gzip
import io
import json
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parprof.errors import OutputError, ProfileFormatError
from parprof.exporters import json_report, pprof
from parprof.exporters.pprof_reader import read_as
from parprof.facts import reading
from parprof.facts.cores import CoresHeld
from parprof.facts.drain import Drain
from parprof.facts.measurement import Measurement
from parprof.facts.reading import decode
from parprof.facts.replay import (
    RecordedImage,
    RecordedNames,
    RememberingNamer,
)
from parprof.facts.scopes import ScopeTimes
from parprof.facts.writing import COLUMNS, MAX_BYTES, encode, save
from parprof.files.dso import Dso
from parprof.kernel.recording import Recording
from parprof.kernel.records import Cost
from parprof.kernel.stacks import INTERRUPTED, STACK_ENDS, Context, RawStack, StackTable
from parprof.languages import SavedLanguage
from parprof.languages.front_ends import replayed
from parprof.model import SCOPE, Count, Frame, SampleKey, ThreadState
from parprof.process.identity import Process
from parprof.profile.assemble import make_profile
from parprof.runtimes import agents

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"
NAMES = sorted(path.stem for path in RECORDINGS.glob("*.facts"))
KERNEL_STACK = len(STACK_ENDS)


def words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def made(cores: int | None = 3) -> tuple[Measurement, RecordedNames]:
    """A measurement with one of everything. ``cores``: n, as the user said."""
    program, jit = Dso(("file", 1, 2, 3, 4), "/workloads/a b"), Dso(("label", "[anon]"), "[anon]")
    stacks = StackTable()
    stacks.put(1 << 63, RawStack(words(0x1010, 0x1020, 0x1030 | INTERRUPTED), 0, b"", 0, 2))
    stacks.put(77, RawStack(words(0x1040, 0x1050), 2, words(5, 6), 1, 0))
    stacks.put(78, RawStack(words(0xFFFFFFFF81000000), KERNEL_STACK, b"", 0, 0))
    stacks.put(79, RawStack(words(0x9000, 0x1050), 0, b"", 0, 0))
    stacks.put_context(11, Context(77, 13, 1))
    stacks.put_context(13, Context(1 << 63, 15, 1))  # 15 never came
    stacks.put_context(21, Context(77, 23, 1))
    stacks.put_context(23, Context(79, 21, 1))  # in a circle
    names = RecordedNames(
        ["the loops of 1 of 2 hot functions were not looked for"], {"/workloads/a b": "odd"}
    )
    spin = Frame("spin \u00e9", "/workloads/a.c", 7, 5, "a b", "beef", 0x10)
    for address, is_return in ((0x10, False), (0x20, True), (0x30, False), (0x40, False), (0x50, True)):
        function = Frame("main", "/workloads/a.c", address, 1, "a b", "beef", address)
        loop = Frame("loop at a.c:7-9", "/workloads/a.c", 7, 7, "a b", "beef", address, True, True)
        names.named[program.key, address, is_return] = (loop, spin, function)
    names.named[jit.key, 0x9000, False] = (Frame("[anon]", module="[anon]", address=0x9000),)
    names.jit[1, 0x9000] = "compiled"
    names.kernel[0xFFFFFFFF81000000, False] = (Frame("do_syscall_64", module="[kernel]"),)
    frames = ((Frame("f", "a.py", 3, 1, "python"), False), (None, True))
    python = replayed(SavedLanguage(((0x1040, 0x1048),), frozenset({"a b"}), {77: frames}, 3))
    places = {address: (program, address - 0x1000) for address in range(0x1010, 0x1060, 0x10)}
    images = {
        1: RecordedImage(
            1, Process(4096, 0, "a b", "./a b -x", ""), agents()[:2], "libgomp+libiomp5", 4, "exact", 5, 1.25,
            ("no probe",), ("no probe", "n_w source exact -> memory: x"), python,
            {0: places, 2: {**places, 0x9000: (jit, 0x9000)}},
            {8: CoresHeld(8, 4, 0.75), 2: CoresHeld(2, 2, 0.5)},
        ),
        2: RecordedImage(2, Process(1, 0, "", "", ""), (), "none", 1, "scheduler", 0, 0.0, (), (), None, {}),
    }  # fmt: skip
    key = SampleKey(1, 4097, 0, ThreadState.WORKING, 2, 1 << 63, 78, 0, 0, 1, 0)
    facts = {
        key: Count(10, 100, 1),
        key._replace(user=77, kernel=0, epoch=2, context=11): Count(7, 70),
        key._replace(user=77, kernel=0, epoch=2, context=21): Count(5),
        key._replace(user=77, kernel=0, epoch=2, context=23): Count(2),
        key._replace(user=77, kernel=0, context=2): Count(3),
        key._replace(user=77, kernel=0, context=99): Count(4),
        key._replace(user=77, kernel=0, context=101): Count(4),
        key._replace(user=79, epoch=2, state=ThreadState.SPINNING): Count(6),
        key._replace(image=2, user=0, fine=3): Count(1),
        key._replace(image=9, tid=1): Count(1),
        key._replace(event=1): Count(0, 12345678901234),
    }
    counted = {"samples": 43, "ticks": 1}
    kernel = Recording(("cpu-clock", "page-faults"), 499, 0.01, {}, stacks, counted, {"stack_ring": 2})
    by_cores = {
        one: {8: Count(count.samples, count.total, count.unsure)}
        for one, count in facts.items()
        if one.image == 1
    }
    by_cores[key] = {8: Count(7, 60), 2: Count(3, 40, 1)}
    drain = Drain(facts, stacks, images, {(1, 4097): "worker"}, kernel.events, 499, by_cores)
    paid = {kind: float(kind) for kind in Cost}
    measured = Measurement(
        drain,
        images,
        kernel,
        1,
        1.7e9,
        2.5,
        0.125,
        paid,
        2,
        150.5,
        cores,
        ("cpu-clock instead",),
        {"/x": "why"},
        scope="cgroup",
    )
    return measured, names


def saved(name: str) -> tuple[Measurement, RecordedNames]:
    return read_as(RECORDINGS / f"{name}.facts", decode)


@pytest.mark.parametrize(
    "source", [made, functools.partial(made, None), *(functools.partial(saved, name) for name in NAMES)]
)
def test_what_is_read_makes_the_same_profile(source: Callable[[], tuple[Measurement, RecordedNames]]) -> None:
    measured, names = source()
    again, recorded = decode(encode(measured, names))
    first, second = make_profile(measured, names), make_profile(again, recorded)
    assert len(first.samples) > 5
    assert first.samples == second.samples, "row for row, in the same order"
    assert first == second, "and all that is said of them"


def test_the_job_has_its_histogram_and_its_scope_again() -> None:
    measured, names = made()
    measured = replace(
        measured, scopes=(ScopeTimes((1_000_000_000, 1_500_000_000), 1_500_000_000, True, (1,)),)
    )
    again = make_profile(*decode(encode(measured, names)))
    assert again.extra[SCOPE] == "cgroup"
    assert again.accounting is not None and again.accounting.level_s[:2] == (1.0, 1.5)


def test_what_another_namer_says_is_remembered() -> None:
    measured, names = made()
    remembering = RememberingNamer(names)
    first = make_profile(measured, remembering)
    again, recorded = decode(encode(measured, remembering))
    assert first == make_profile(again, recorded)
    shown = {frame.name for row in first.samples for frame in row.path}
    assert {"spin \u00e9", "do_syscall_64", "compiled", "loop at a.c:7-9"} <= shown


def test_writing_is_repeatable_and_numbers_are_small(tmp_path: Path) -> None:
    measured, names = made()
    save(encode(measured, names), str(tmp_path / "a"))
    save(encode(*read_as(tmp_path / "a", decode)), str(tmp_path / "b"))
    save(encode(*read_as(tmp_path / "b", decode)), str(tmp_path / "c"))
    assert (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()
    document = json.loads(gzip.decompress((tmp_path / "a").read_bytes()))
    user, context = COLUMNS.index("user"), COLUMNS.index("context")
    assert max(row[user] for row in document["facts"]) == 4
    assert max(row[context] for row in document["facts"]) < 20


def test_idleness_goes_by_the_cores_of_its_time() -> None:
    measured, names = decode(encode(*made(None)))
    (key,) = (key for key, divided in measured.drain.by_cores.items() if len(divided) > 1)
    assert measured.drain.by_cores[key] == {8: Count(7, 60), 2: Count(3, 40, 1)}
    only = replace(measured, drain=replace(measured.drain, facts={key: measured.drain.facts[key]}))
    profile = make_profile(only, names)
    assert (profile.total().samples, key.n_working) == (10, 2)
    assert profile.total().idleness_ns == pytest.approx(7 * (4 - 2) / 2 * 1e9 / 499), "n was 4, then 2"
    assert profile.process.cores == 4, "for longest"
    said = make_profile(replace(only, cores=3), names)
    assert said.total().idleness_ns == pytest.approx(10 * (3 - 2) / 2 * 1e9 / 499), (
        "as the user would have it"
    )
    assert said.process.cores == 3


def test_files_of_before_have_one_n() -> None:
    old = document()
    del old["by_cores"]
    for image in old["images"]:
        del image["cores_held"]
    measured, _ = decode(json.dumps(old).encode())
    assert not measured.drain.by_cores
    assert measured.images[1].cores_held() == (CoresHeld(4, 4, 1.25),)
    assert (measured.images[1].parallel_cores(), measured.images[1].parallel_cores(8)) == (4, 4)


@pytest.mark.parametrize("lacks", [("glimpse",), ("awaits", "glimpse"), ("away", "awaits", "glimpse")])
def test_files_of_before_lack_the_last_columns(lacks: tuple[str, ...]) -> None:
    old = document()
    first = old["columns"].index(lacks[0])
    for row in (old["columns"], *old["facts"]):
        del row[first : first + len(lacks)]
    measured, _ = decode(json.dumps(old).encode())
    assert {(key.awaits, key.glimpse) for key in measured.drain.facts} == {(0, 0)}
    assert sum(count.samples for count in measured.drain.facts.values()) == 43
    old["columns"].remove("fine")
    refused(old, "other columns")


def test_places_without_a_name_are_shown_by_file_and_address() -> None:
    measured, _ = made()
    shown = {frame.name for row in make_profile(measured, RecordedNames()).samples for frame in row.path}
    assert {"a b+0x20", "[kernel]", "[anon]"} <= shown


def refused(document: object, match: str) -> None:
    with pytest.raises(ProfileFormatError, match=match):
        decode(document if isinstance(document, bytes) else json.dumps(document).encode())


@functools.cache
def _document() -> str:
    return encode(*made()).decode()


def document() -> dict[str, Any]:
    return dict(json.loads(_document()))


def test_other_files_are_told_apart() -> None:
    refused(
        {**document(), "version": 2, "writer": "parprof 9.9\x1b[31m"}, r"newer parprof \(parprof 9\.9\\x1b"
    )
    refused({**document(), "format": "x"}, "neither a profile nor facts")
    refused({}, "no 'format'")
    refused([], "no 'format'")
    refused(_document().encode()[:-9], "truncated or damaged")
    refused(b'{"a":' + b"[" * 200_000, "truncated or damaged")
    refused(b'{"a":' + b"9" * 10_000 + b"}", "truncated or damaged")
    refused(_document().replace('"duration_s":2.5', '"duration_s":NaN').encode(), "truncated or damaged")
    refused(_document().replace('"duration_s":2.5', '"duration_s":1e999').encode(), "duration_s is no number")


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("frequency_hz", 0, "frequency_hz is no number from 1"),
        ("frequency_hz", True, "frequency_hz is no number"),
        ("main", 7, "no main process"),
        ("events", ["cpu-clock"], "events without a name"),
        ("columns", ["image"], "other columns"),
        ("facts", [[1]], "a row that is none"),
        ("contexts", [[0, 1, 1]], "before the one that it lies in"),
        ("contexts", [[0, 3, 1]], "before the one that it lies in"),
        ("strings", [], "a frame that is none"),
        ("files", [], "is no number"),
        ("names", [[0, 0, [1], [[]]]], "without a frame"),
        ("words", [1 << 63, 1 << 63], "too large"),
        ("stacks", [[0, 0, 0, [99], []]], "is no number"),
        ("notes", "x", "no array"),
        ("by_cores", [[99, 2, 1, 1, 0]], "samples of no row"),
        ("by_cores", [[0, 0, 1, 1, 0]], "with no cores"),
        ("by_cores", [[0, 2, 1]], "samples of no row"),
        ("by_cores", [[0, 2, 9, 100, 1]], "more or fewer"),
        ("paid_ns", {}, "no 'probes'"),
    ],
)
def test_what_cannot_be_is_named(name: str, value: object, match: str) -> None:
    refused({**document(), name: value}, match)


def test_what_unpacks_to_too_much_is_refused_at_once() -> None:
    start = time.process_time()
    refused(b"{" + b" " * MAX_BYTES, "more than 64 MiB")
    assert time.process_time() - start < 5


def test_what_nobody_would_read_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="shorter time"):
        save(bytes(MAX_BYTES + 1), str(tmp_path / "facts"))
    assert not list(tmp_path.iterdir())


def test_call_paths_that_would_fill_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_PATH_FRAMES", 10)
    refused(document(), "more than 10 frames")


@given(st.binary(max_size=400))
def test_any_bytes_are_an_error_or_a_profile(data: bytes) -> None:
    for content in (data, b"{" + data):
        with pytest.raises(ProfileFormatError):
            decode(content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=9)
    | st.sampled_from([0, 1, 2, 3, -1, 255, 4096, (1 << 32) - 1, (1 << 64) - 1]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


def replace_somewhere(value: Any, draw: Callable[[Any], Any]) -> Any:
    """A document in which one value, chosen on the way down, is another."""
    keys = (
        list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    )
    if not keys or draw(st.integers(0, 9)) == 0:
        return draw(JSON)
    at = draw(st.sampled_from(keys))
    out = copy.copy(value)
    out[at] = replace_somewhere(value[at], draw)
    return out


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_changed_file_is_an_error_or_makes_a_profile(data: st.DataObject) -> None:
    changed: Any = document()
    for _ in range(data.draw(st.integers(1, 3))):
        changed = replace_somewhere(changed, data.draw)
    try:
        measured, names = decode(json.dumps(changed).encode())
    except ProfileFormatError:
        return
    profile = make_profile(measured, names)
    json_report.report(profile)
    pprof.encode(profile)


def test_profiles_are_not_taken_for_facts(tmp_path: Path) -> None:
    measured, names = made()
    save(encode(measured, names), str(tmp_path / "facts"))
    with pytest.raises(ProfileFormatError, match="facts that were saved are for `parprof report`"):
        pprof.read(str(tmp_path / "facts"))
    pprof.write(make_profile(measured, names), str(tmp_path / "profile"))
    assert not reading.is_facts(gzip.decompress((tmp_path / "profile").read_bytes()))
    packed = io.BytesIO((tmp_path / "facts").read_bytes())
    assert reading.is_facts(gzip.GzipFile(fileobj=packed).read())
