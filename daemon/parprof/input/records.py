"""The record files of ``instrument/input_record.h``. A target wrote them: whatever is in them is only counted."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import field
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import NamedTuple

from parprof.errors import ProfileFormatError
from parprof.untrusted import open_regular, visible
from parprof.values import dataclass

SUFFIX = ".input"
VERSION = 3
MAGIC = b"ppinput\n"
HEADER_BYTES = 4096
MAX_ROWS = 1 << 21
_HEADER = struct.Struct("<8s6I7Q256s")
_ROW = struct.Struct("<II17Q")
_MODULE = struct.Struct("<II2Q120s")
_MAX_BYTES = HEADER_BYTES + MAX_ROWS * _ROW.size
_UNKNOWN = (1 << 64) - 1
_MAX_PIECES = 64
_MAX_THREADS = 1 << 12


class BackEnd(IntEnum):
    """What wrote a record."""

    TSAN = 1
    VALGRIND = 2


class Lacking(IntFlag):
    """What a record lacks."""

    ROUNDED = 1
    OUT_OF_MEMORY = 2
    TOO_DEEP = 4
    NO_BLOCKS = 8
    NO_TIME = 16
    CONTEXTS = 32


class _Kind(IntEnum):
    POINT = 1
    ROUTINE = 2
    MODULE = 3
    THREAD = 4
    CONTEXT = 5


class PointRow(NamedTuple):
    """Activations of one routine by one thread that had one size of input; sums are over them."""

    thread: int
    routine: int
    trms: int
    rms: int
    calls: int
    trms_sum: int
    rms_sum: int
    induced_sum: int
    external_sum: int
    blocks_sum: int
    blocks_max: int
    ticks_sum: int
    ticks_max: int
    self_blocks: int
    self_ticks: int
    unfinished: int
    inner_blocks: int
    inner_ticks: int


class RoutinePlace(NamedTuple):
    """Where a routine is: a file's path (empty: in none) and an ELF address in it."""

    path: bytes
    address: int
    is_return_address: bool


class RoutineContext(NamedTuple):
    """A routine, and the context that called it; 0 for none."""

    caller: int
    routine: int


class ThreadTotals(NamedTuple):
    """What the threads that had one slot read in all, each read counted once."""

    first: int
    induced: int
    external: int
    threads: int


@dataclass(frozen=True, slots=True)
class InputRecord:
    """What one process left."""

    back_end: BackEnd
    is_closed: bool
    """Whether the process came to its end; otherwise it was killed, or became another program."""
    flags: Lacking
    pid: int
    command: str
    rows_lost: int
    seen_read_bytes: int
    seen_sent_bytes: int
    all_read_bytes: int | None
    """What the kernel counted; None where that is not known."""
    all_sent_bytes: int | None
    ticks_per_second: int
    cell_bytes: int
    points: list[PointRow] = field(default_factory=list)
    places: dict[int, RoutinePlace] = field(default_factory=dict)
    threads: dict[int, ThreadTotals] = field(default_factory=dict)
    contexts: dict[int, RoutineContext] = field(default_factory=dict)
    """What stands for a routine in points, with `Lacking.CONTEXTS`."""


def find(directory: Path) -> list[Path]:
    """The record files in a directory, by process, and of each process in the order of the programs that it was."""
    found = [path for path in directory.iterdir() if path.name.endswith(SUFFIX)]
    return sorted(found, key=_start)


def _start(path: Path) -> tuple[int, ...]:
    """By number of process, and how many programs it was before."""
    return tuple(int(part) if part.isdecimal() else 0 for part in path.name.split(".")[:2])


def count_rows(path: Path) -> int:
    """The rows that the record in a file has by now, as its process says; 0 where it has not begun."""
    try:
        with open(open_regular(os.fspath(path)), "rb") as file:
            header = file.read(_HEADER.size)
    except OSError:
        return 0
    return min(_HEADER.unpack(header)[7], MAX_ROWS) if len(header) == _HEADER.size else 0


def read(path: Path) -> InputRecord:
    """The record in a file, finished or not.

    Raises:
        ProfileFormatError: it is none, or cannot be read.
    """
    try:
        descriptor = open_regular(os.fspath(path))
        with open(descriptor, "rb") as file:
            return decode(file.read(min(os.fstat(descriptor).st_size, _MAX_BYTES)))
    except OSError as error:
        raise ProfileFormatError(
            f"cannot read the record {visible(path.name)}: {error.strerror or error}"
        ) from error


def decode(data: bytes) -> InputRecord:
    """The record in a file's bytes; what does not make sense in them is left out.

    Raises:
        ProfileFormatError: there is no header, or one of another version.
    """
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC):
        raise ProfileFormatError(
            "not a record of parprof input: the process was killed at its very start, or there was no memory for the "
            "shadow of its own (`ulimit -v`, a cgroup's limit)"
        )
    header = _HEADER.unpack_from(data)
    _, version, back_end, state, flags, pid, cell_bytes, n_rows, lost, *seen, rate, command = header
    if version != VERSION or back_end not in (1, 2):
        raise ProfileFormatError(
            f"a record of version {version} and back end {back_end}: made by another parprof"
        )
    record = InputRecord(
        back_end=BackEnd(back_end),
        is_closed=state == 1,
        flags=Lacking(flags & 63),
        pid=pid,
        command=visible(command.split(b"\0", 1)[0], 256),
        rows_lost=lost,
        seen_read_bytes=seen[0],
        seen_sent_bytes=seen[1],
        all_read_bytes=None if seen[2] == _UNKNOWN else seen[2],
        all_sent_bytes=None if seen[3] == _UNKNOWN else seen[3],
        ticks_per_second=rate,
        cell_bytes=cell_bytes,
    )
    _Rows(record).take(data, min(n_rows, MAX_ROWS, (len(data) - HEADER_BYTES) // _ROW.size))
    return record


class _Rows:
    """Sorts rows by what they are of."""

    def __init__(self, record: InputRecord) -> None:
        self._record = record
        self._modules: dict[int, dict[int, bytes]] = {}
        self._routines: dict[int, tuple[int, int, bool]] = {}

    def take(self, data: bytes, n_rows: int) -> None:
        end = HEADER_BYTES + n_rows * _ROW.size
        for at, words in zip(
            range(HEADER_BYTES, end, _ROW.size), _words(data, HEADER_BYTES, end), strict=True
        ):
            kind, thread, first, second, third, fourth = words[:6]
            if kind == _Kind.POINT:
                if fourth:
                    self._record.points.append(PointRow(thread, *words[2:]))
            elif kind == _Kind.ROUTINE:
                self._routines[first] = second, third, bool(fourth)
            elif kind == _Kind.MODULE:
                self._add_piece(data, at)
            elif kind == _Kind.CONTEXT:
                self._record.contexts[first] = RoutineContext(second, third)
            elif kind == _Kind.THREAD and thread < _MAX_THREADS:
                self._record.threads[thread] = ThreadTotals(first, second, third, fourth)
        for routine, (module, address, is_return) in self._routines.items():
            self._record.places[routine] = RoutinePlace(self._path(module), address, is_return)

    def _add_piece(self, data: bytes, at: int) -> None:
        _, _, module, piece, text = _MODULE.unpack_from(data, at)
        if piece < _MAX_PIECES:
            self._modules.setdefault(module, {})[piece] = text.split(b"\0", 1)[0]

    def _path(self, module: int) -> bytes:
        pieces = self._modules.get(module, {})
        return b"".join(pieces[piece] for piece in sorted(pieces))


def _words(data: bytes, start: int, end: int) -> Iterator[tuple[int, ...]]:
    return _ROW.iter_unpack(memoryview(data)[start:end])
