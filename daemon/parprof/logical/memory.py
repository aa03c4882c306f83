"""What is remembered of call paths, by the shape of stacks: processes that run the same files share it."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from parprof.logical.bichord import Bichord, LogicalPath, logical_projection
from parprof.logical.callers import Before
from parprof.logical.folding import Folded, Folder
from parprof.logical.ourselves import PROFILING
from parprof.logical.overhead import TAG, OverheadKinds
from parprof.logical.owners import FunctionId
from parprof.logical.pooled import Task, WaitedPools
from parprof.logical.unwound import Unwound
from parprof.model import Path
from parprof.runtimes import Agent
from parprof.runtimes.pools import Pool
from parprof.values import dataclass

_HANDLER = Bichord.of((PROFILING,), (PROFILING,))
Below = tuple[Bichord, ...]
"""Frames of the kernel that a user stack ends with."""
StackShape = Hashable
"""Stacks of the same shape have the same frames, wherever their process has its files."""


@dataclass(frozen=True)
class Located:
    """Where a sample was taken. ``path`` and ``physical`` are root first and end with the kernel's frames.

    ``complete``: the logical path begins at the program's entry and has no gap; that of a runtime's idle worker,
    which nobody called, is complete too. ``overhead``: its kind if the sample hit parallel overhead, else empty.
    ``unknown``: it is work that another thread created, but nobody saw where. ``bodies``: others may show these with
    who created the work: then the body of parallel work that it is in, if it is one; in a thread of a library's pool
    those that it may have been given to run, the outermost first. ``profiling``: it hit a handler of ours, which ends
    both paths as one frame.
    """

    bichords: LogicalPath
    physical: Path
    complete: bool
    overhead: str
    unknown: bool = False
    bodies: tuple[FunctionId, ...] = ()
    profiling: bool = False

    def in_handler(self) -> Located:
        """The same place, with a handler of ours that ran there."""
        bichords = (*self.bichords, _HANDLER)
        return replace(
            self, bichords=bichords, physical=(*self.physical, PROFILING), overhead="", profiling=True
        )

    @cached_property
    def path(self) -> Path:
        """The logical call path."""
        return logical_projection(self.bichords)


class StackInContext(NamedTuple):
    """A user stack within its context. ``complete``: the path up to the work that it is in is."""

    located: Located
    folded: Folded
    complete: bool
    begin: FunctionId | None = None
    """The function that the work began with, where all of its frames are known."""
    task: Task | None = None
    """The piece of work of a pool that it is in, for somebody who waits for it."""
    waits: tuple[Pool, Before] | None = None
    """For which pool it waits that has work from here, and the call path of that."""
    has_partner: bool = False
    """Whether who created its work does a part of it himself at that time."""
    in_pool: str = ""
    """The pool of a library that it is in, if callers take part there: as one of its threads, or as a caller."""


class PathMemory:
    """Unwound and folded stacks of processes with the same runtimes.

    Everything in it is a function of its key, and may be forgotten at any time.
    """

    def __init__(self, folder: Folder, kinds: OverheadKinds) -> None:
        """``folder`` and ``kinds`` know the runtimes; see `of`."""
        self.folder = folder
        self.kinds = kinds
        self.pools = WaitedPools()
        self.unwound: dict[StackShape, Unwound] = {}
        self.places: dict[tuple[StackShape, Before | None], StackInContext] = {}
        self.joined: dict[tuple[StackShape, Before, FunctionId | None], Located] = {}
        """By stack, who created its work, and what tells that; None: that he waited for it."""
        self.created: dict[tuple[StackShape, Before | None], Before | None] = {}
        self._kernel: dict[int, Below] = {}
        """By kernel stack."""
        self._below: dict[Below, Below] = {}
        self._with_kernel: dict[tuple[int, int], tuple[Located, Located]] = {}
        """By identity of a place, which is kept here, and of what is below it."""
        self._befores: dict[tuple[Path, bool], Before] = {}

    @classmethod
    def of(cls, agents: Sequence[Agent] | None = None, tag: re.Pattern[str] = TAG) -> PathMemory:
        """For processes with these runtimes, by default all. ``tag``: see `parprof.logical.overhead`."""
        folder = Folder(agents)
        return cls(folder, OverheadKinds(folder, tag))

    def __len__(self) -> int:
        """Number of stacks that are remembered."""
        return len(self.unwound) + len(self.places) + len(self._with_kernel) + len(self._kernel)

    def before(self, path: Path, complete: bool) -> Before:
        """The one `Before` of a path."""
        known = self._befores.get((path, complete))
        if known is None:
            known = self._befores[path, complete] = Before(path, complete)
        return known

    def below(self, kernel: int, make: Callable[[], Path]) -> Below:
        """The frames of a kernel stack, root first: one object for all stacks that have the same."""
        found = self._kernel.get(kernel)
        if found is None:
            found = self._kernel[kernel] = self.below_of(make())
        return found

    def below_of(self, frames: Path) -> Below:
        """Frames of the kernel, root first: one object for the same frames."""
        made = tuple(map(self.folder.plain, frames))
        return self._below.setdefault(made, made)

    def with_kernel(self, here: Located, below: Below) -> Located:
        """A place continued by frames of the kernel, which `below` gave."""
        if here.profiling:
            return here
        found = self._with_kernel.get((id(here), id(below)))
        if found is None:
            if any(PROFILING in bichord.physical for bichord in below):
                located = here.in_handler()
            else:
                physical = (*here.physical, *logical_projection(below))
                located = replace(here, bichords=(*here.bichords, *below), physical=physical)
            found = self._with_kernel[id(here), id(below)] = (here, located)
        return found[1]

    def forget_kernel(self) -> None:
        """Names of the kernel's functions may be known by now that were not before."""
        self._kernel.clear()
        self._below.clear()
        self._with_kernel.clear()
