"""Pools of threads inside libraries that need no probes: n_w is told by what their threads are found running.

What is to be known of them is whose work they do. Threads of a pool are started once, often while the library is
loaded, and what runs then says nothing of their work. But who hands work to them takes part in it: he is seen in the
same function, below the one that hands out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from parprof.model import Frame


@dataclass(frozen=True, slots=True)
class Pool:
    """One library's pool; adding one is adding an entry to `POOLS`."""

    name: str
    """As in ``[OpenBLAS worker]``."""
    library: re.Pattern[str]
    """Matches the base name of the files that it lies in."""
    serves: re.Pattern[str]
    """Matches the functions that its threads run for good, where it is linked into something else."""
    hands_out: re.Pattern[str]
    """Matches its functions that hand out work and then call the caller's part of it, or a thread's."""

    def has(self, frame: Frame) -> bool:
        """Whether a function belongs to the library."""
        return bool(self.library.match(frame.module) or self.serves.fullmatch(frame.name))

    def is_body(self, frame: Frame) -> bool:
        """Whether a function may be one that is handed out, or what that calls of the library."""
        return not frame.is_loop and self.has(frame) and not self.hands_out.fullmatch(frame.name)


POOLS = (
    Pool(
        "OpenBLAS",
        re.compile(r"lib\w*openblas"),
        re.compile(r"blas_thread_server"),
        re.compile(r"exec_blas(?:_async)?(?:64_|_64)?|exec_threads"),
    ),
)
"""All that are known."""
