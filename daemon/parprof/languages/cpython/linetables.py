"""Instructions to lines: the tables of CPython's code objects, one format each for 3.9, 3.10 and 3.11 on.

Each decoder gives (first byte of code, line) in order; a range ends where the next one begins. Line 0: the
instructions belong to no line. The tables are a target's memory: whatever they hold, decoding ends.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

Ranges = list[tuple[int, int]]
_NO_LINE_310 = -128
_NO_LINE, _LONG, _NO_COLUMNS = 15, 14, 13
_ONE_LINE_0, _ONE_LINE_2 = 10, 12
_MAX_LINE = 1 << 31


def _signed(byte: int) -> int:
    return byte - 256 if byte >= 128 else byte


def decode_lnotab(table: bytes, first_line: int) -> Ranges:
    """3.9: pairs of (bytes of code to the next range, how many lines that is further on)."""
    out, at, line = [(0, first_line)], 0, first_line
    for index in range(0, len(table) - 1, 2):
        line += _signed(table[index + 1])
        if table[index]:
            at += table[index]
            out.append((at, line))
        else:
            out[-1] = (at, line)
    return out


def decode_pairs(table: bytes, first_line: int) -> Ranges:
    """3.10: pairs of (bytes of code in this range, its line less the one before)."""
    out, at, line = [], 0, first_line
    for index in range(0, len(table) - 1, 2):
        change = _signed(table[index + 1])
        if change != _NO_LINE_310:
            line += change
        if table[index]:
            out.append((at, line if change != _NO_LINE_310 else 0))
            at += table[index]
    out.append((at, 0))
    return out


def decode_locations(table: bytes, first_line: int) -> Ranges:
    """3.11 on: entries of a head byte (kind, code units) and what the kind calls for."""
    out, at, line, index = [], 0, first_line, 0
    while index < len(table):
        head = table[index]
        index += 1
        if not head & 128:  # not a head: the rest of the entry before
            continue
        kind = head >> 3 & 15
        if kind in (_LONG, _NO_COLUMNS):
            value = shift = 0
            while index < len(table) and shift < 36:
                value |= (table[index] & 63) << shift
                shift += 6
                index += 1
                if not table[index - 1] & 64:
                    break
            line += -(value >> 1) if value & 1 else value >> 1
        elif _ONE_LINE_0 <= kind <= _ONE_LINE_2:
            line += kind - _ONE_LINE_0
        out.append((at, 0 if kind == _NO_LINE else line))
        at += ((head & 7) + 1) * 2
    out.append((at, 0))
    return out


class LineTable:
    """The table of one code object, which is decoded when a line is asked for.

    Code objects come while the program runs, lines are asked for by its report: decoding is most of what they cost.
    """

    def __init__(self, minor: int, table: bytes, first_line: int, *, is_whole: bool = True) -> None:
        """A table of Python 3.``minor``, or the beginning of one."""
        self._minor, self._table, self._is_whole = minor, table, is_whole
        self._unit = 2 if minor == 10 else 1
        self._first_line = first_line
        self._starts: array[int] | None = None
        """Where ranges begin. None: not decoded yet."""
        self._lines = array("I")
        """Of the ranges; 0: they belong to none."""

    def _decoded(self) -> array[int]:
        """Where ranges begin, in 8 bytes with the line of each: as tuples they would take twelve times as much."""
        if self._starts is None:
            decode = {9: decode_lnotab, 10: decode_pairs}.get(self._minor, decode_locations)
            ranges = decode(self._table, self._first_line)
            self._table = b""
            if not self._is_whole and self._minor == 9:  # the other formats say where the last range ends
                ranges[-1] = (ranges[-1][0], 0)
            self._starts = array("I", [start for start, _ in ranges])
            self._lines = array("I", [line if 0 < line < _MAX_LINE else 0 for _, line in ranges])
        return self._starts

    def line(self, instruction: int) -> int:
        """The line of an instruction (as the version counts them, 32 bits); 0 if it has none."""
        if instruction >= 1 << 31:  # before the first one
            return self._first_line
        place = bisect_right(self._decoded(), instruction * self._unit) - 1
        return self._lines[place] if place >= 0 else 0
