"""Places in allocators at which bytes are counted, as the programs know them (bpf/amounts.bpf.c)."""

from __future__ import annotations

from parprof.kernel.cookies import COOKIE_DEAR
from parprof.values import dataclass

PRELOADED = "libparprof_alloc"
"""What the file of our library in front of a command's allocator is called; a number follows."""
ALLOCATION_TIMES_SHIFT, ALLOCATION_OUTER = 4, 1 << 8


@dataclass(frozen=True, slots=True)
class AllocationProbe:
    """A function that allocates, or by which samples of allocations are handed on: file and offset in it."""

    path: str
    offset: int
    bytes_argument: int = 0
    """Number of the argument that says how many bytes; 0: it only tells (instrument/alloc.c)."""
    times_argument: int = 0
    """Of that by which they are multiplied; 0: none."""
    is_outer: bool = False
    """It may call another one of these, which is the same allocation."""
    dear: bool = False
    """The kernel has to execute the instruction there out of line."""
    returns: bool = False
    moves: bool = True
    """Never a return probe, not even for a moment."""

    @property
    def cookie(self) -> int:
        """What the program is told."""
        outer, dear = self.is_outer and ALLOCATION_OUTER, self.dear and COOKIE_DEAR
        return self.bytes_argument | self.times_argument << ALLOCATION_TIMES_SHIFT | outer | dear
