"""Reads our pprof files again. Their content is not trusted: anything odd is one clear error."""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from itertools import chain
from typing import IO, TypeVar

from google.protobuf.message import DecodeError

from parprof import pprof_pb2 as pb
from parprof.errors import ProfileFormatError
from parprof.exporters.pprof_header import (
    LEVEL_COLUMNS,
    LOCATIONS,
    LOGICAL,
    LOOP_SYSTEM_NAME,
    OWN_LABELS,
    PHYSICAL,
    SCALE_KIND,
    checksum,
    from_comments,
    is_label_name,
)
from parprof.exporters.pprof_intervals import unpack
from parprof.exporters.pprof_private import PREFIX, HiddenLoop, Private
from parprof.exporters.pprof_private import checksum as private_checksum
from parprof.metrics import METRICS, Metric, Metrics
from parprof.model import Frame, Levels, Origin, Path, PathSample, Profile

MAX_BYTES = 256 << 20
"""Refuse files that unpack to more. Real profiles are a few MB; parsing needs several times the size."""

MAX_FRAMES = 50_000_000
"""Refuse files whose paths hold more frames than this in all: a few bytes can stand for thousands."""

_GZIP = b"\x1f\x8b"
"""Gzipped files begin so; no profile does, for its first byte says which of its fields follows."""
_CHUNK = 1 << 20
_REWRITTEN = (
    "another tool rewrote this file, which has kept only one projection of the call paths: the first one; and no loops"
    " but those that were frames"
)
_T = TypeVar("_T")


def read(path: str | os.PathLike[str]) -> Profile:
    """Read a profile from a file (``-``: standard input).

    Raises:
        ProfileFormatError: it cannot be opened, or is not a profile of parprof.
    """
    return read_as(path, decode)


def read_as(path: str | os.PathLike[str], decode: Callable[[bytes], _T]) -> _T:
    """What ``decode`` makes of the content of a file, gzipped or not (``-``: standard input).

    Raises:
        ProfileFormatError: the file cannot be opened, or ``decode`` says so.
    """
    name = os.fspath(path)
    shown = "standard input" if name == "-" else name
    try:
        source = nullcontext(sys.stdin.buffer) if name == "-" else open(name, "rb")
        with source as file:
            return decode(_decompress(file))
    except ProfileFormatError as error:
        raise ProfileFormatError(f"cannot read {shown}: {error}") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise ProfileFormatError(f"cannot read {shown}: {reason}; name a file that parprof wrote") from error


def read_from(file: IO[bytes]) -> Profile:
    """Read a profile from a binary file object.

    Raises:
        ProfileFormatError: it is not a profile of parprof.
    """
    return decode(_decompress(file))


class _FromStart:
    """A file of which some bytes have been read already: to be read from these on."""

    def __init__(self, begin: bytes, file: IO[bytes]) -> None:
        self._begin = begin
        self._file = file

    def read(self, size: int) -> bytes:
        """Up to so many bytes."""
        found, self._begin = self._begin[:size], self._begin[size:]
        return found or self._file.read(size)


def _decompress(file: IO[bytes]) -> bytes:
    """The content of a file that may be gzipped, as far as it has room."""
    begin = file.read(len(_GZIP))
    source = _FromStart(begin, file)
    chunks: list[bytes] = []
    size = 0
    try:
        with ExitStack() as stack:
            stream: gzip.GzipFile | _FromStart = source
            if begin == _GZIP:
                stream = stack.enter_context(gzip.GzipFile(fileobj=source, mode="rb"))  # type: ignore[call-overload]
            while chunk := stream.read(_CHUNK):
                size += len(chunk)
                if size > MAX_BYTES:
                    raise ProfileFormatError(f"it unpacks to more than {MAX_BYTES >> 20} MiB")
                chunks.append(chunk)
    except EOFError as error:
        raise ProfileFormatError("it is truncated; record it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ProfileFormatError("it is damaged; name a file that parprof wrote") from error
    if not chunks:
        raise ProfileFormatError("it is empty; record it again")
    return b"".join(chunks)


def decode(data: bytes) -> Profile:
    """The profile in an uncompressed protobuf message.

    Raises:
        ProfileFormatError: it is not a profile of parprof.
    """
    if data[:1] == b"{":
        raise ProfileFormatError("it holds no profile; facts that were saved are for `parprof report`")
    try:
        message = pb.Profile.FromString(data)
    except (DecodeError, ValueError) as error:
        raise ProfileFormatError(
            "it is not a pprof profile, or damaged; name a file that parprof wrote"
        ) from error
    if any(message.string_table[at : at + 1] == [SCALE_KIND] for at in message.comment):
        raise ProfileFormatError(
            "it is of work and span (`parprof scale --pprof`), which cannot be added up: `parprof report` shows it, "
            "`parprof diff` compares two"
        )
    return _Decoder(message).profile()


class _Decoder:
    def __init__(self, message: pb.Profile) -> None:
        self._message = message
        self._strings = list(message.string_table)
        self._mappings: dict[int, tuple[str, str]] = {0: ("", "")}
        self._functions: dict[int, tuple[str, str, int, bool]] = {}
        self._locations: dict[int, tuple[Frame, ...]] = {}
        self._frames = 0
        self._both = False
        """Whether the location ids in labels can be trusted."""
        self._paths: dict[bytes, Path] = {}
        """By location ids: samples of equal paths share one."""
        self._projections: dict[int, Path] = {}
        self._levels: dict[Levels, Levels] = {}

    def profile(self) -> Profile:
        message = self._message
        columns = self._columns()
        comments = [self._text(index) for index in message.comment]
        private = self._private_in(comments)
        comments += private.head
        profile = from_comments(comments, message.time_nanos, message.duration_nanos)
        for mapping in message.mapping:
            _define(self._mappings, mapping.id, (self._text(mapping.filename), self._text(mapping.build_id)))
        for function in message.function:
            name, system_name = self._text(function.name), self._text(function.system_name)
            is_loop = system_name == LOOP_SYSTEM_NAME != name
            file = self._text(function.filename)
            row = (name if is_loop else name or system_name, file, function.start_line, is_loop)
            _define(self._functions, function.id, row)
        for location in message.location:
            loops = private.loops.get(location.id, [])
            _define(self._locations, location.id, self._location(location, loops))
        if private.checksum and not (private.path_of or private.loops or private.intervals):
            profile.notes.append(_REWRITTEN)
        said = next((line for line in reversed(comments) if line.startswith(f"{LOCATIONS}: ")), "")
        if said:
            self._both = said == f"{LOCATIONS}: {checksum(message.location)}"
            if not self._both:
                profile.notes.append(_REWRITTEN)
        samples = [self._sample(sample, columns) for sample in message.sample]
        profile.samples.extend(self._with_both_paths(samples, private))
        try:
            profile.intervals = unpack(private.intervals, len(samples))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ProfileFormatError("it is corrupt: what it says of intervals is damaged") from error
        return profile

    def _private_in(self, comments: list[str]) -> Private:
        """What is for us alone. What it says of locations and samples holds only as long as they are as they were."""
        found = [Private.decode(comment) for comment in comments if comment.startswith(PREFIX)]
        if not found:
            return Private()
        private = replace(found[-1], head=[line for one in found for line in one.head])
        if private.checksum and private.checksum != private_checksum(self._message):
            private.loops, private.paths, private.path_of, private.intervals = {}, [], [], {}
        elif private.path_of and len(private.path_of) != len(self._message.sample):
            raise ProfileFormatError("it is corrupt: it has other samples than paths of them")
        return private

    def _with_both_paths(self, samples: list[PathSample], private: Private) -> list[PathSample]:
        paths = [self._path(ids) for ids in private.paths]
        for sample, at in zip(samples, private.path_of, strict=False):
            if at < 0:
                continue
            if at >= len(paths):
                raise ProfileFormatError(f"it is corrupt: there is no path {at}")
            self._spend(len(paths[at]))
            if private.projection == LOGICAL:
                sample.path, sample.physical = paths[at], sample.path
            else:
                sample.physical = paths[at]
        return samples

    def _columns(self) -> list[Metric | str | int]:
        """What each column holds: a metric, an element of `Levels`, or the event of this name. Those that every file
        has come first."""
        columns = [(self._text(kind.type), self._text(kind.unit)) for kind in self._message.sample_type]
        fixed = [metric.sample_type for metric in METRICS if not metric.optional]
        if columns[: len(fixed)] != fixed:
            found = ", ".join(f"{name}/{unit}" for name, unit in columns[: len(fixed)]) or "nothing"
            raise ProfileFormatError(
                f"it is not a profile of parprof, it holds {found[:100]!r}; try `go tool pprof` on it"
            )
        known: dict[tuple[str, str], Metric | int] = {kind: at for at, kind in enumerate(LEVEL_COLUMNS)}
        known.update((metric.sample_type, metric) for metric in METRICS)
        # a second one of that name is an event
        return [known.pop(column, column[0]) for column in columns]

    def _text(self, index: int) -> str:
        if not 0 <= index < len(self._strings):
            raise ProfileFormatError(f"it is corrupt: there is no string {index}")
        return self._strings[index]

    def _spend(self, frames: int) -> None:
        self._frames += frames
        if self._frames > MAX_FRAMES:
            raise ProfileFormatError(f"its call paths hold more than {MAX_FRAMES} frames")

    def _location(self, location: pb.Location, loops: list[HiddenLoop]) -> tuple[Frame, ...]:
        """The frames of an address, innermost first."""
        module, build_id = _lookup(self._mappings, location.mapping_id, "mapping")
        address = location.address
        if not location.line:
            name = f"{os.path.basename(module)}+{address:#x}" if module else f"{address:#x}"
            return (Frame(name, module=module, build_id=build_id, address=address),)
        rows: list[tuple[str, str, int, int, bool]] = []
        for line in location.line:
            name, file, start_line, is_loop = _lookup(self._functions, line.function_id, "function")
            rows.append((name, file, line.line, start_line, is_loop))
        for loop in loops:  # the outer ones come last, after which their places are right
            rows.insert(loop.position, (loop.name, loop.file, loop.line, loop.start_line, True))
        self._spend(len(rows))
        last = len(rows) - 1
        return tuple(
            Frame(name, file, line, start_line, module, build_id, address, position < last, is_loop)
            for position, (name, file, line, start_line, is_loop) in enumerate(rows)
        )

    def _sample(self, sample: pb.Sample, columns: list[Metric | str | int]) -> PathSample:
        path = self._path(sample.location_id)
        physical: Path = ()
        pid = tid = 0
        own: dict[str, str] = {}
        users: dict[str, str] = {}
        for label in sample.label:
            key = self._text(label.key)
            if key == "pid":
                pid = label.num
            elif key == "tid" and not label.str:
                tid = label.num
            elif key == PHYSICAL and self._both:
                physical = self._projection(label.str)
            elif key == LOGICAL and self._both:
                physical, path = path, self._projection(label.str)
            elif key in OWN_LABELS:
                own[key] = self._text(label.str)
            elif label.str and is_label_name(key):
                users[key] = self._text(label.str)
        origin = Origin(
            pid=pid,
            comm=own.get("comm", ""),
            thread=own.get("thread", ""),
            runtime=own.get("runtime", ""),
            overhead=own.get("overhead", ""),
            labels=tuple(sorted(users.items())),
            tid=tid,
        )
        metrics, levels = self._values(list(sample.value), columns)
        return PathSample(path, metrics, origin, physical, levels)

    def _values(self, values: list[int], columns: list[Metric | str | int]) -> tuple[Metrics, Levels]:
        if len(values) != len(columns):
            raise ProfileFormatError("it is corrupt: a sample does not fit the columns")
        if min(values) < 0:
            raise ProfileFormatError("it holds negative values; use `parprof diff` to compare profiles")
        out = Metrics()
        events: dict[str, int] = {}
        levels: list[float] = []
        for column, value in zip(columns, values, strict=True):
            if not value:
                continue
            if isinstance(column, str):
                events[column] = value
            elif isinstance(column, int):
                levels += [0] * (column + 1 - len(levels))
                levels[column] = value
            else:
                out.values[column] = value
        out.events = events
        return out, self._interned(tuple(levels)) if levels else ()

    def _interned(self, levels: Levels) -> Levels:
        """One object for all rows that have the same: those of single samples are many."""
        return self._levels.setdefault(levels, levels)

    def _path(self, numbers: Iterable[int]) -> Path:
        """The frames of location ids, root first."""
        ids = array("Q", numbers)
        key = ids.tobytes()
        known = self._paths.get(key)
        if known is not None:
            self._spend(len(known))
            return known
        try:
            parts = [self._locations[number] for number in ids]
        except KeyError as error:
            raise ProfileFormatError(f"it is corrupt: there is no location {error.args[0]}") from None
        self._spend(sum(map(len, parts)))
        frames = list(chain.from_iterable(parts))
        frames.reverse()
        path = self._paths[key] = tuple(frames)
        return path

    def _projection(self, index: int) -> Path:
        """The path whose location ids a label holds."""
        known = self._projections.get(index)
        if known is not None:
            self._spend(len(known))
            return known
        words = self._text(index).split(" ") if index else []
        if not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words):
            raise ProfileFormatError(
                "it is corrupt: a label that should hold location ids holds something else"
            )
        path = self._projections[index] = self._path(map(int, words))
        return path


def _define(table: dict[int, _T], number: int, value: _T) -> None:
    if number == 0 or number in table:
        raise ProfileFormatError(f"it is corrupt: the id {number} is 0 or used twice")
    table[number] = value


def _lookup(table: dict[int, _T], number: int, kind: str) -> _T:
    try:
        return table[number]
    except KeyError:
        raise ProfileFormatError(f"it is corrupt: there is no {kind} {number}") from None
