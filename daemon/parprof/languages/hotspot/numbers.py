"""HotSpot's compressed numbers (UNSIGNED5), and the two streams of them that are of interest: tables of lines, and the
descriptions of which methods were inlined where.

They are a target's memory: whatever they hold, decoding ends.
"""

from __future__ import annotations

from bisect import bisect_right

from parprof.languages.hotspot.memory import Unreadable

_MOST_BYTES = 5
_BITS = 6
_HIGH = 64
"""Codes of a byte that say that another one follows; the others are the lower ones."""
_LONG = 0xFF
_MOST_LINES = 1 << 16
_MOST_LINE = 1 << 31


class CompressedNumbers:
    """Reads one number after another."""

    def __init__(self, data: bytes, *, without_zero: bool, at: int = 0) -> None:
        """``without_zero``: as JDK 20 and later write them, in which no byte is 0."""
        self._data = data
        self._least = 1 if without_zero else 0
        self._at = at

    def byte(self) -> int:
        """The next byte.

        Raises:
            Unreadable: there is none.
        """
        at = self._at
        if not 0 <= at < len(self._data):
            raise Unreadable("the end of a stream")
        self._at = at + 1
        return self._data[at]

    def next(self) -> int:
        """The next number.

        Raises:
            Unreadable: there is none.
        """
        least = self._least
        low = 256 - _HIGH - least
        out = 0
        for index in range(_MOST_BYTES):
            code = self.byte() - least
            if code < 0:
                raise Unreadable("no number")
            out += code << _BITS * index
            if code < low:
                break
        return out & 0xFFFFFFFF

    def signed(self) -> int:
        """The next number, of those that may be negative."""
        value = self.next()
        return value >> 1 ^ -(value & 1)


class JavaLines:
    """The lines of a method, by the byte of its bytecode."""

    def __init__(self, data: bytes, *, without_zero: bool) -> None:
        """``data``: a compressed table, and whatever is behind it. What is damaged has no lines."""
        self._starts: list[int] = []
        self._lines: list[int] = []
        try:
            self._decode(CompressedNumbers(data, without_zero=without_zero))
        except Unreadable:
            pass

    def _decode(self, numbers: CompressedNumbers) -> None:
        start = line = 0
        while (code := numbers.byte()) and len(self._starts) < _MOST_LINES:
            if code == _LONG:
                start += numbers.signed()
                line += numbers.signed()
            else:
                start += code >> 3
                line += code & 7
            if not 0 <= line < _MOST_LINE or start < (self._starts[-1] if self._starts else 0):
                return
            self._starts.append(start)
            self._lines.append(line)

    def line(self, place: int) -> int:
        """The line of an instruction; 0 if it has none."""
        at = bisect_right(self._starts, place) - 1
        return self._lines[at] if at >= 0 else 0

    @property
    def first(self) -> int:
        """The first line; 0 if there is none."""
        return min(self._lines, default=0)
