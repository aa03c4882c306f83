"""Loops of hot functions, recovered from their machine code, as scopes of call paths.

`find_loops` has the loops of one function, `KeptLoops` has a child look for them, as code is what others wrote, and
`LoopScopes` puts them into call paths.
"""

from __future__ import annotations

from parprof.loops.kept import KeptLoops
from parprof.loops.nest import Loop, LoopNest, find_loops
from parprof.loops.scopes import LoopScopes

__all__ = ("KeptLoops", "Loop", "LoopNest", "LoopScopes", "find_loops")
