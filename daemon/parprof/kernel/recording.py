"""A kernel whose samples were taken before: needs no root, and says the same each time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field

from parprof.kernel.stacks import StackTable
from parprof.model import Facts
from parprof.values import dataclass


@dataclass(slots=True)
class Recording:
    """What a `parprof.kernel.interface.Kernel` handed over in one measurement."""

    events: tuple[str, ...]
    frequency_hz: int
    budget_ratio: float
    facts: Facts
    """What the next drain takes."""
    stacks: StackTable = field(default_factory=StackTable)
    counted: Mapping[str, int] = field(default_factory=dict)
    losses: Mapping[str, int] = field(default_factory=dict)

    def drain(self) -> Facts:
        """All samples, the first time."""
        taken, self.facts = self.facts, {}
        return taken

    def lost(self) -> dict[str, int]:
        """Losses, by reason."""
        return dict(self.losses)

    def statistics(self) -> dict[str, int]:
        """What the programs had counted; 0 of what this file does not have."""
        return Counter(self.counted)
