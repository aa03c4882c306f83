"""The interpreter of one process: its functions, found while they are in memory, and put into native stacks."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from parprof.kernel.stacks import CodeAt, SentCode, Stack
from parprof.languages import Instance, SavedLanguage
from parprof.languages.cpython.asleep import Sleeping, awaits_end
from parprof.languages.cpython.functions import PythonStacks
from parprof.languages.cpython.merge import python_merge
from parprof.model import StackMerge


class CPythonInstance(Instance):
    """CPython in one process image."""

    COUNTERS = ("python_unnamed", "python_mismatched")
    """Frames whose function could not be read any more; stacks that did not match the native ones."""

    def __init__(self, stacks: PythonStacks) -> None:
        """``stacks``: of the process image."""
        self.stacks = stacks
        self._sleeping = Sleeping(stacks.python, stacks.memory)

    def kernel_facts(self) -> Mapping[str, int]:
        """What the programs in the kernel must know."""
        return self.stacks.python.kernel_facts()

    def for_child(self, pid: int) -> CPythonInstance:
        """The same for a forked child."""
        return CPythonInstance(self.stacks.for_child(pid))

    def take(self, functions: Iterable[SentCode]) -> None:
        """Keep what the kernel sent of functions, for the stacks that come next."""
        self.stacks.take(functions)

    def resolve(self, stacks: Iterable[tuple[int, tuple[CodeAt, ...]]]) -> None:
        """Look up the functions of stacks that came just now."""
        self.stacks.resolve(stacks)

    def keep(self, stacks: Container[int]) -> None:
        """Forget all other stacks than these."""
        self.stacks.keep(stacks)

    def asleep(self, tid: int) -> tuple[bytes, int]:
        """The frames of a thread that sleeps."""
        return self._sleeping.frames(tid)

    def awaits_end(self, digest: int) -> bool:
        """Whether the thread of a stack that was resolved waits for the end of another."""
        return awaits_end(self.stacks.stack(digest) or ())

    def merge(self, digest: int, stack: Stack) -> StackMerge | None:
        """How to merge one stack; None when it has no Python frames that were resolved."""
        return python_merge(self.stacks, digest, stack)

    def saved(self, stacks: Mapping[int, Stack]) -> SavedLanguage:
        """What was found of these stacks, for a file of facts."""
        found = ((digest, self.stacks.stack(digest)) for digest in stacks)
        python = self.stacks.python
        known = {digest: frames for digest, frames in found if frames is not None}
        return SavedLanguage(python.loops, python.modules, known, self.stacks.unresolved)

    def counts(self) -> Mapping[str, int]:
        """By `COUNTERS`."""
        return dict(zip(self.COUNTERS, (self.stacks.unresolved, len(self.stacks.mismatched)), strict=True))

    @property
    def is_open(self) -> bool:
        """Whether `close` is still to be called."""
        return self.stacks.is_open

    def close(self) -> None:
        """Close the process's memory; what was resolved stays."""
        self.stacks.close()
