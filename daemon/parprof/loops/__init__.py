"""Loops of hot functions, recovered from their machine code, as scopes of call paths.

`find_loops` has the loops of one function, `LoopScopes` puts them into call paths.
"""

from __future__ import annotations

from parprof.loops.nest import Loop, LoopNest, find_loops
from parprof.loops.scopes import LoopScopes

__all__ = ("Loop", "LoopNest", "LoopScopes", "find_loops")
