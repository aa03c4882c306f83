"""Unwind tables of code that JIT compilers have made, out of the call frame information of registered objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from parprof.unwind.eh_frame import Fde, FrameParser
from parprof.unwind.emit import emit_rows
from parprof.unwind.frames import FrameSection

MAX_CODE_BYTES = 1 << 32
"""Of one mapping: rows have addresses of 32 bits."""


def rows_of(frames: Iterable[FrameSection], start: int, end: int) -> bytes:
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
    return emit_rows(fdes, [(0, end - start)], notes).tobytes() if fdes else b""
