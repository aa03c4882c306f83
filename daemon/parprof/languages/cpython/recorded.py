"""The Python functions of a process that is gone, as they were saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from parprof.kernel.stacks import Stack
from parprof.languages import FrameOrMark, SavedLanguage
from parprof.languages.cpython.instance import CPythonInstance
from parprof.languages.cpython.merge import python_merge
from parprof.model import StackMerge
from parprof.values import dataclass


@dataclass(frozen=True, slots=True)
class RecordedInterpreter:
    """Where the code of an interpreter was."""

    loops: tuple[tuple[int, int], ...]
    modules: frozenset[str]

    def is_loop(self, address: int, is_return: bool) -> bool:
        """Whether the frame at an address is an activation of the interpreter loop."""
        return any(start <= address - is_return < end for start, end in self.loops)


@dataclass(slots=True)
class RecordedCPython:
    """Stands for a `CPythonInstance` where its process is no more: see `parprof.languages.Replayed`."""

    python: RecordedInterpreter
    state: SavedLanguage
    mismatched: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, saved: SavedLanguage) -> RecordedCPython:
        """What was saved."""
        return cls(RecordedInterpreter(saved.loops, saved.modules), saved)

    def stack(self, digest: int) -> tuple[FrameOrMark, ...] | None:
        """The Python frames of a stack, innermost first."""
        return self.state.stacks.get(digest)

    def merge(self, digest: int, stack: Stack) -> StackMerge | None:
        """How to merge one stack; None when it has no Python frames that were resolved."""
        return python_merge(self, digest, stack)

    def counts(self) -> Mapping[str, int]:
        """By `CPythonInstance.COUNTERS`."""
        return dict(zip(CPythonInstance.COUNTERS, (self.state.unresolved, len(self.mismatched)), strict=True))

    def saved(self, stacks: Mapping[int, Stack]) -> SavedLanguage:
        """The same, of these stacks."""
        return self.state.of(stacks)
