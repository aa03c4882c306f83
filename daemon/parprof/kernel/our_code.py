"""Where our BPF programs lie in the kernel.

Samples hit them, too. ``/proc/kallsyms`` has their names, but a pass over it takes as long as a tenth of a short
recording; the kernel says of each program where it is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from parprof.kernel import bpf
from parprof.model import Frame


class _Extent(NamedTuple):
    start: int
    end: int
    program: Frame


class OurCode:
    """The machine code of the programs that were loaded."""

    def __init__(self) -> None:
        """Of none yet."""
        self._extents: list[_Extent] = []
        self._guard = threading.Lock()
        self._low, self._high = 1 << 64, 0
        """All of them lie in between, and most addresses of the kernel do not."""

    def add(self, name: str, fd: int) -> None:
        """A program was loaded. Where the kernel hides its addresses, even from us, it is found by name alone. In any
        thread."""
        with suppress(OSError):
            tag, places = bpf.program_code(fd)
            program = Frame(f"bpf_prog_{tag}_{name}", module="[bpf]")
            self.add_places(program, places)

    def add_places(self, program: Frame, places: Iterable[tuple[int, int]]) -> None:
        """The functions of a program, each with its size in bytes."""
        found = [_Extent(start, start + size, program) for start, size in places if start]
        self._extents.extend(found)
        with self._guard:
            self._low = min([self._low, *(extent.start for extent in found)])
            self._high = max([self._high, *(extent.end for extent in found)])

    def find(self, address: int) -> tuple[Frame, int] | None:
        """The program at an address of the kernel, and how far behind the begin of its function that is."""
        if not self._low <= address < self._high:
            return None
        for start, end, program in self._extents:
            if start <= address < end:
                return program, address - start
        return None
