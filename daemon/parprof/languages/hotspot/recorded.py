"""The Java functions of a process that is gone, as they were saved."""

from __future__ import annotations

from collections.abc import Mapping

from parprof.kernel.stacks import Stack
from parprof.languages import SavedLanguage
from parprof.languages.hotspot.instance import HotSpotInstance, from_saved, java_merge
from parprof.model import StackMerge
from parprof.values import dataclass


@dataclass(frozen=True, slots=True)
class RecordedHotSpot:
    """Stands for a `HotSpotInstance` where its process is no more: see `parprof.languages.Replayed`."""

    state: SavedLanguage

    def merge(self, digest: int, stack: Stack) -> StackMerge | None:
        """What puts the names of Java's functions in place of their addresses; None if there are none."""
        return java_merge(from_saved(self.state.stacks.get(digest, ())))

    def counts(self) -> Mapping[str, int]:
        """By `HotSpotInstance.COUNTERS`."""
        return dict(zip(HotSpotInstance.COUNTERS, (self.state.unresolved,), strict=True))

    def saved(self, stacks: Mapping[int, Stack]) -> SavedLanguage:
        """The same, of these stacks."""
        return self.state.of(stacks)
