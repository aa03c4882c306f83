"""Logical call paths: what the author of a parallel program would call its stacks (tallent-2009 sec. 3 and 4).

`fold` turns one physical stack, with the context that created its work, into bichords; `LogicalPaths` does so for
all samples of a process image. Their tree is `parprof.cct.tree.CallingContextTree`, into which reports put the logical
or the physical path of each sample: the two projections of the paper's logical CCT (sec. 3.2.1).
"""

from __future__ import annotations

from parprof.logical.bichord import Association, Bichord
from parprof.logical.folding import UNKNOWN_CONTEXT, Folder
from parprof.logical.memory import Located, PathMemory, StackShape
from parprof.logical.paths import LogicalPaths

__all__ = (
    "UNKNOWN_CONTEXT",
    "Association",
    "Bichord",
    "Folder",
    "Located",
    "LogicalPaths",
    "PathMemory",
    "StackShape",
)
