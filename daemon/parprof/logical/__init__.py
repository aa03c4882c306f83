"""Logical call paths: what the author of a parallel program would call its stacks (tallent-2009 sec. 3 and 4).

`fold` turns one physical stack, with the context that created its work, into bichords; `LogicalPaths` does so for
all samples of a process image; `LogicalCct` is the tree of bichords of the paper's appendix.
"""

from __future__ import annotations

from parprof.logical.bichord import Association, Bichord
from parprof.logical.folding import UNKNOWN_CONTEXT, Folder
from parprof.logical.join import join_by_function
from parprof.logical.memory import Located, PathMemory, Shape
from parprof.logical.paths import LogicalPaths
from parprof.logical.tree import LogicalCct

__all__ = (
    "UNKNOWN_CONTEXT",
    "Association",
    "Bichord",
    "Folder",
    "Located",
    "LogicalCct",
    "LogicalPaths",
    "PathMemory",
    "Shape",
    "join_by_function",
)
