"""Unwind tables of code that JIT compilers have made, out of the call frame information of registered objects, and for
functions that have none out of the code itself: numba's say nothing where they call nothing that throws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

from parprof.unwind.eh_frame import Fde, FrameParser
from parprof.unwind.emit import emit_rows
from parprof.unwind.frames import FrameSection
from parprof.unwind.returns import add_returns

MAX_CODE_BYTES = 1 << 32
"""Of one mapping: rows have addresses of 32 bits."""


class CodeSection(NamedTuple):
    """Code and its address, of one section of an object."""

    data: bytes
    address: int

    @property
    def end(self) -> int:
        """Behind it."""
        return self.address + len(self.data)


class _Sections:
    """Code by its distance from the begin of a mapping."""

    def __init__(self, sections: Iterable[CodeSection], start: int) -> None:
        self._sections = list(sections)
        self._start = start

    def read(self, address: int, size: int) -> bytes:
        """Of one section; nothing where there is none."""
        at = address + self._start
        for one in self._sections:
            if one.address <= at < one.end:
                return one.data[at - one.address : at - one.address + size]
        return b""

    def ranges(self) -> list[tuple[int, int]]:
        """In order, apart from each other."""
        out: list[tuple[int, int]] = []
        for one in sorted(self._sections, key=lambda one: one.address):
            low, high = one.address - self._start, one.end - self._start
            if not out or low >= out[-1][1]:
                out.append((low, high))
        return out


def rows_of(frames: Iterable[FrameSection], code: Collection[CodeSection], start: int, end: int) -> bytes:
    """The rows of the code in a process's memory from ``start`` up to ``end``: as `parprof.unwind.rows` describes them,
    addresses counted from ``start``. Empty where nothing is known of it.

    Raises:
        UnwindError: there is too much of it.
    """
    if end - start >= MAX_CODE_BYTES:
        return b""
    notes: Counter[str] = Counter()
    fdes: list[Fde] = []
    for section in frames:
        fdes += (
            (low - start, high - start, at, stop, cie)
            for low, high, at, stop, cie in FrameParser(section, notes).fdes
            if start <= low < end
        )
    rows = emit_rows(fdes, [(0, end - start)], notes)
    sections = _Sections((one for one in code if start <= one.address and one.end <= end), start)
    return add_returns(rows, sections, sections.ranges(), (fde[:2] for fde in fdes))[0].tobytes()
