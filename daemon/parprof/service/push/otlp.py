"""OTLP profiles over HTTP, as opentelemetry-proto 1.45.2 has them (``v1development``: they still change).

The schema is that package's, an optional extra: ``pip install 'parprofd[otlp]'``.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from parprof import __version__
from parprof import pprof_pb2 as pb
from parprof.errors import UsageError
from parprof.service.push.backend import Delivery, PushRequest, Reply, judge_status
from parprof.service.push.shape import Payload
from parprof.untrusted import visible

if TYPE_CHECKING:
    from opentelemetry.proto.profiles.v1development import profiles_pb2 as otlp_pb

_REMEDY = "pip install 'parprofd[otlp]' (opentelemetry-proto 1.45.2)"
_TYPE = "application/x-protobuf"
# "All other 4xx or 5xx response status codes MUST NOT be retried" (OTLP/HTTP), 500 among them.
_RETRIED = frozenset({429, 502, 503, 504})

_ATTRIBUTES = {
    "service_name": "service.name",
    "comm": "process.executable.name",
    "pid": "process.pid",
    "uid": "process.user.id",
    "cgroup": "process.linux.cgroup",
    "container": "container.id",
    "pod": "k8s.pod.uid",
    "pod_name": "k8s.pod.name",
    "namespace": "k8s.namespace.name",
    "node": "host.name",
    "unit": "parprof.unit",
    "runtime": "parprof.runtime",
    "n_w_source": "parprof.n_w_source",
}
"""Our labels by the names of the semantic conventions, where those have one."""
_NUMBERS = frozenset({"pid", "uid"})


class Otlp:
    """``POST /v1development/profiles``: the OpenTelemetry collector, and what else takes OTLP."""

    name = "otlp"

    def __init__(self) -> None:
        """Find the schema.

        Raises:
            UsageError: it is not installed, or another version of it is, which lacks something.
        """
        try:
            from opentelemetry.proto.collector.profiles.v1development import (
                profiles_service_pb2 as service_pb,
            )
            from opentelemetry.proto.profiles.v1development import profiles_pb2 as otlp_pb
        except ImportError as error:
            raise UsageError(f"push.otlp needs the OTLP schema: {_REMEDY}") from error
        self._schema = service_pb
        if "stack_table" not in otlp_pb.ProfilesDictionary.DESCRIPTOR.fields_by_name:
            raise UsageError(f"push.otlp needs another version of the OTLP schema: {_REMEDY}")

    def encode(self, payload: Payload, labels: Mapping[str, str]) -> PushRequest:
        """One resource, with a profile for each column, as one of these has one type of sample only."""
        out = self._schema.ExportProfilesServiceRequest()
        resource = out.resource_profiles.add()
        for name, value in sorted(labels.items()):
            one = resource.resource.attributes.add(key=_ATTRIBUTES.get(name, name))
            if name in _NUMBERS and value.isascii() and value.isdigit():
                one.value.int_value = int(value)
            else:
                one.value.string_value = value
        scope = resource.scope_profiles.add()
        scope.scope.name = "parprof"
        scope.scope.version = __version__
        _Translator(payload.message, out.dictionary, scope).translate()
        body = gzip.compress(out.SerializeToString(), 6, mtime=0)
        return PushRequest("/v1development/profiles", _TYPE, body, "gzip")

    def judge(self, reply: Reply) -> tuple[Delivery, str]:
        """By status; a partial success is a rejection, because none of it may be sent again."""
        verdict, problem = judge_status(reply, _RETRIED, _TYPE)
        if verdict is not Delivery.SENT:
            return verdict, problem
        try:
            partial = self._schema.ExportProfilesServiceResponse.FromString(reply.body).partial_success
        except (DecodeError, ValueError):
            return Delivery.RETRY, "the answer is not one of OTLP; check the URL"
        text = visible(partial.error_message, 200)
        return (
            (Delivery.REJECTED, f"rejected: {text}") if partial.rejected_profiles else (Delivery.SENT, text)
        )


class _Translator:
    """A pprof as OTLP profiles. Tables of both have an entry 0 that stands for nothing, so numbers stay."""

    def __init__(
        self, source: pb.Profile, tables: otlp_pb.ProfilesDictionary, scope: otlp_pb.ScopeProfiles
    ) -> None:
        self._source = source
        self._tables = tables
        self._scope = scope
        self._strings = {"": 0}
        self._stacks: dict[tuple[int, ...], int] = {(): 0}
        self._attributes: dict[tuple[str, str], int] = {}

    def translate(self) -> None:
        tables = self._tables
        for table in (
            tables.mapping_table,
            tables.location_table,
            tables.function_table,
            tables.link_table,
            tables.attribute_table,
            tables.stack_table,
        ):
            table.add()
        self._places()
        samples = [
            (self._stack(tuple(one.location_id)), self._labels(one), list(one.value))
            for one in self._source.sample
        ]
        for column, kind in enumerate(self._source.sample_type):
            self._column(column, kind, samples)
        tables.string_table.extend(self._strings)

    def _text(self, index: int) -> int:
        """The number here of a string there. Only what is used comes along."""
        return self._number(self._source.string_table[index])

    def _number(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _places(self) -> None:
        for mapping in self._source.mapping:
            new = self._tables.mapping_table.add(
                memory_start=mapping.memory_start,
                memory_limit=mapping.memory_limit,
                file_offset=mapping.file_offset,
                filename_strindex=self._text(mapping.filename),
            )
            if build_id := self._source.string_table[mapping.build_id]:
                new.attribute_indices.append(self._attribute("process.executable.build_id.gnu", build_id))
        for function in self._source.function:
            self._tables.function_table.add(
                name_strindex=self._text(function.name),
                system_name_strindex=self._text(function.system_name),
                filename_strindex=self._text(function.filename),
                start_line=function.start_line,
            )
        for location in self._source.location:
            place = self._tables.location_table.add(
                mapping_index=location.mapping_id, address=location.address
            )
            for line in location.line:
                place.lines.add(function_index=line.function_id, line=line.line)

    def _stack(self, locations: tuple[int, ...]) -> int:
        number = self._stacks.get(locations)
        if number is None:
            number = self._stacks[locations] = len(self._stacks)
            self._tables.stack_table.add(location_indices=locations)
        return number

    def _labels(self, sample: pb.Sample) -> list[int]:
        strings = self._source.string_table
        return [
            self._attribute(f"parprof.{strings[one.key]}", strings[one.str])
            for one in sample.label
            if one.str
        ]

    def _attribute(self, key: str, value: str) -> int:
        number = self._attributes.get((key, value))
        if number is None:
            number = self._attributes[key, value] = len(self._attributes) + 1
            new = self._tables.attribute_table.add(key_strindex=self._number(key))
            new.value.string_value = value
        return number

    def _column(
        self, column: int, kind: pb.ValueType, samples: list[tuple[int, list[int], list[int]]]
    ) -> None:
        source = self._source
        out = self._scope.profiles.add(
            time_unix_nano=source.time_nanos,
            duration_nano=source.duration_nanos,
            period=source.period,
            profile_id=os.urandom(16),
        )
        out.sample_type.type_strindex = self._text(kind.type)
        out.sample_type.unit_strindex = self._text(kind.unit)
        out.period_type.type_strindex = self._text(source.period_type.type)
        out.period_type.unit_strindex = self._text(source.period_type.unit)
        for stack, attributes, values in samples:
            if values[column]:
                out.samples.add(stack_index=stack, attribute_indices=attributes, values=[values[column]])
