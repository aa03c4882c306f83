"""Profiles as gzipped pprof files (DESIGN.md section 6): the writer; the reader is in `pprof_reader`."""

from __future__ import annotations

import gzip
import os
from typing import IO

from parprof import pprof_pb2 as pb
from parprof.exporters.output import check_writable, open_output
from parprof.exporters.pprof_header import (
    BLAME,
    DEFAULT_SAMPLE_TYPE,
    LOCATIONS,
    LOGICAL,
    LOOP_SYSTEM_NAME,
    PHYSICAL,
    PROFILING,
    SAMPLE_TYPES,
    checksum,
    to_comments,
)
from parprof.exporters.pprof_reader import read
from parprof.model import Frame, Metrics, Path, PathSample, Profile

__all__ = ["check_writable", "encode", "read", "write"]

_NS = 10**9


def write(profile: Profile, target: str | os.PathLike[str] | IO[bytes], *, physical: bool = False) -> None:
    """Write a profile to a binary file object or a path (``-``: standard output), the path atomically.

    Equal profiles make equal bytes. ``physical``: other tools are to see the physical call paths instead of
    the logical ones; `read` gives both, either way.

    Raises:
        OutputError: the path cannot be written.
    """
    data = encode(profile, physical=physical).SerializeToString(deterministic=True)
    if isinstance(target, (str, os.PathLike)):
        with open_output(os.fspath(target)) as file:
            _compress(data, file)
    else:
        _compress(data, target)


def _compress(data: bytes, file: IO[bytes]) -> None:
    with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as out:
        out.write(data)


def encode(profile: Profile, *, physical: bool = False) -> pb.Profile:
    """The protobuf message of a profile. Times become whole nanoseconds; column totals keep within one."""
    return _Encoder(profile, physical).out


class _Encoder:
    def __init__(self, profile: Profile, physical: bool) -> None:
        self.out = pb.Profile()
        self._physical = physical
        self._strings: dict[str, int] = {}
        self._mappings: dict[tuple[str, str], pb.Mapping] = {}
        self._functions: dict[tuple[str, str, int, bool], int] = {}
        self._locations: dict[tuple[Frame, ...], int] = {}
        self._events = sorted({name for sample in profile.samples for name in sample.metrics.events})
        self._blame = [BLAME] if any(sample.metrics.blame_ns for sample in profile.samples) else []
        handlers = any(sample.metrics.profiling_ns for sample in profile.samples)
        self._profiling = [PROFILING] if handlers else []
        self._carry = [0.0] * (len(SAMPLE_TYPES) + 2)
        self._text("")
        fixed = (*SAMPLE_TYPES, *self._blame, *self._profiling)
        for name, unit in (*fixed, *((event, "count") for event in self._events)):
            self.out.sample_type.add(type=self._text(name), unit=self._text(unit))
        self.out.default_sample_type = self._text(DEFAULT_SAMPLE_TYPE)
        self.out.period_type.type = self._text("cpu")
        self.out.period_type.unit = self._text("nanoseconds")
        self.out.period = round(_NS / profile.frequency_hz) if profile.frequency_hz else 0
        self.out.time_nanos = _nanoseconds(profile.start_time_s)
        self.out.duration_nanos = _nanoseconds(profile.duration_s)
        self.out.comment.extend(self._text(line) for line in to_comments(profile))
        # Readers take the first mapping for the program.
        frames = (frame for sample in profile.samples for frame in sample.path)
        if program := next((frame for frame in frames if _is_program(frame.module)), None):
            self._mapping(program)
        for sample in profile.samples:
            self._sample(sample)
        if any(sample.physical for sample in profile.samples):
            self.out.comment.append(self._text(f"{LOCATIONS}: {checksum(self.out.location)}"))
        self.out.string_table.extend(self._strings)

    def _text(self, text: str) -> int:
        """The index of a string. What UTF-8 cannot hold (undecodable file names) is spelled out."""
        clean = text.encode("utf-8", "backslashreplace").decode()
        return self._strings.setdefault(clean, len(self._strings))

    def _sample(self, sample: PathSample) -> None:
        first, second, key = sample.path, sample.physical or sample.path, PHYSICAL
        if self._physical:
            first, second, key = second, first, LOGICAL
        out = self.out.sample.add(location_id=self._path(first), value=self._values(sample.metrics))
        if second != first:
            out.label.add(key=self._text(key), str=self._text(" ".join(map(str, self._path(second)))))
        if sample.pid:
            out.label.add(key=self._text("pid"), num=sample.pid)
        for key in ("comm", "thread", "runtime", "overhead"):
            if text := getattr(sample, key):
                out.label.add(key=self._text(key), str=self._text(text))

    def _path(self, path: Path) -> list[int]:
        return [self._location(group) for group in _locations(path)]

    def _values(self, metrics: Metrics) -> list[int]:
        times = [metrics.work_ns, metrics.idleness_ns, metrics.overhead_ns, metrics.spin_ns]
        if self._blame:
            times.append(metrics.blame_ns)
        if self._profiling:
            times.append(metrics.profiling_ns)
        return [
            metrics.samples,
            *(self._whole(column, value) for column, value in enumerate(times)),
            *(metrics.events.get(event, 0) for event in self._events),
        ]

    def _whole(self, column: int, value: float) -> int:
        """Round, and hand the rest on to the column's next value."""
        if not value:
            return 0
        exact = value + self._carry[column]
        whole = round(exact)
        self._carry[column] = exact - whole
        return whole

    def _location(self, group: tuple[Frame, ...]) -> int:
        """The id of an address: a function, after what is inlined into it there (innermost first)."""
        number = self._locations.get(group)
        if number is None:
            number = self._locations[group] = len(self._locations) + 1
            outer = group[-1]
            out = self.out.location.add(id=number, mapping_id=self._mapping(outer), address=outer.address)
            for frame in group:
                out.line.add(function_id=self._function(frame), line=frame.line)
        return number

    def _mapping(self, frame: Frame) -> int:
        key = (frame.module, frame.build_id)
        if key == ("", ""):
            return 0
        mapping = self._mappings.get(key)
        if mapping is None:
            mapping = self._mappings[key] = self.out.mapping.add(
                id=len(self._mappings) + 1,
                filename=self._text(frame.module),
                build_id=self._text(frame.build_id),
                has_functions=True,
                has_filenames=True,
                has_line_numbers=True,
                has_inline_frames=True,
            )
        # Readers join mappings that touch; an end that is not 0 keeps ours, which all start at 0, apart.
        mapping.memory_limit = max(mapping.memory_limit, min(frame.address + 1, 2**64 - 1))
        return mapping.id

    def _function(self, frame: Frame) -> int:
        key = (frame.name, frame.file, frame.start_line, frame.is_loop)
        number = self._functions.get(key)
        if number is None:
            number = self._functions[key] = len(self._functions) + 1
            name = self._text(frame.name)
            self.out.function.add(
                id=number,
                name=name,
                system_name=self._text(LOOP_SYSTEM_NAME) if frame.is_loop else name,
                filename=self._text(frame.file),
                start_line=frame.start_line,
            )
        return number


def _locations(path: Path) -> list[tuple[Frame, ...]]:
    """Split a path (root first) into its addresses, leaf first; inlined frames go with their function."""
    groups: list[list[Frame]] = []
    open_group = False
    for frame in reversed(path):
        if open_group and _place(groups[-1][-1]) == _place(frame):
            groups[-1].append(frame)
        else:
            groups.append([frame])
        open_group = frame.inlined
    return [tuple(group) for group in groups]


def _place(frame: Frame) -> tuple[int, str, str]:
    return frame.address, frame.module, frame.build_id


def _is_program(module: str) -> bool:
    """Whether a module may be the program itself, not a library, ``[vdso]`` or the kernel."""
    name = os.path.basename(module)
    return bool(name) and not name.startswith("[") and ".so" not in name


def _nanoseconds(seconds: float) -> int:
    """Exact to the nanosecond, where ``round(seconds * 1e9)`` is not."""
    whole, part = divmod(seconds, 1)
    return int(whole) * _NS + round(part * _NS)
