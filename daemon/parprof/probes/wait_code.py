"""Which code of a parallel runtime waits: all else that a thread is found in there is work, if only for the runtime.

A thread that spins tells the processor so, by the instruction ``pause``. The functions that have one are those that
wait; where functions begin is told by what unwinders of exceptions need, which stripped files keep as well.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from parprof.files.eh_frame_header import function_begins
from parprof.files.elf import EM_X86_64, ElfError, ElfFile
from parprof.kernel.records import MAX_WAIT_RANGES

_PAUSE = b"\xf3\x90"
_PIECE = 8 << 20
MAX_CODE = 1 << 30
"""Bytes of one file's code that are searched, at most: those of the largest programs have a quarter of that."""

Range = tuple[int, int]


def lies_in(address: int, ranges: Iterable[Range]) -> bool:
    """Whether an address is in one of these ranges [start, end)."""
    return any(start <= address < end for start, end in ranges)


def wait_code(elf: ElfFile, within: Sequence[Range] = ()) -> list[Range]:
    """ELF address ranges [start, end), at most MAX_WAIT_RANGES; none where it cannot be told.

    Where there are more, those that lie closest together become one, with what lies between them. ``within``: such
    ranges, of functions that begin outside of which nothing is wanted; empty: of all of the file.
    """
    try:
        starts = function_starts(elf)
        waits = functions_with_pause(elf, starts) if starts else set()
    except ElfError:
        return []
    found = sorted((starts[index], starts[index + 1]) for index in waits)
    if within:
        found = [(start, end) for start, end in found if lies_in(start, within)]
    return merged(found, MAX_WAIT_RANGES)


def merged(ranges: list[Range], most: int) -> list[Range]:
    """At most so many ranges that cover sorted ones, with as little as can be between them.

    >>> merged([(0, 1), (2, 3), (9, 10)], 2)
    [(0, 3), (9, 10)]
    """
    apart: list[Range] = []
    for start, end in ranges:
        if apart and start <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(end, apart[-1][1])
        else:
            apart.append((start, end))
    gaps = sorted(range(1, len(apart)), key=lambda index: apart[index][0] - apart[index - 1][1])
    closed = set(gaps[: max(len(apart) - most, 0)])
    out: list[Range] = []
    for index, (start, end) in enumerate(apart):
        if index in closed:
            out[-1] = out[-1][0], end
        else:
            out.append((start, end))
    return out


def function_starts(elf: ElfFile) -> Sequence[int]:
    """Where functions begin, sorted, and behind them the end of the last one's code; empty if that is not told.

    Raises:
        ElfError: the file cannot be read.
    """
    starts = function_begins(elf) if elf.machine == EM_X86_64 else ()
    return (*starts, max(elf.code_end(starts[-1]), starts[-1])) if starts else ()


def functions_with_pause(elf: ElfFile, starts: Sequence[int]) -> set[int]:
    """Which of these functions, by index, have the instruction.

    Raises:
        ElfError: the file cannot be read.
    """
    found = set()
    for start, code in _code(elf):
        at = code.find(_PAUSE)
        while at >= 0:
            index = bisect_right(starts, start + at) - 1
            if 0 <= index < len(starts) - 1:
                found.add(index)
            at = code.find(_PAUSE, at + 1)
    return found


def _code(elf: ElfFile) -> Iterable[tuple[int, bytes]]:
    """The file's code piece by piece; each has the next one's first byte, too."""
    left = MAX_CODE
    for segment in elf.code:
        start, end = segment.vaddr, segment.vaddr + segment.file_size
        while start < end and left > 0:
            piece = elf.read(start, min(_PIECE + len(_PAUSE) - 1, end - start))
            if not piece:
                break
            yield start, piece
            start += _PIECE
            left -= _PIECE
