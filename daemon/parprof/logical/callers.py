"""Who creates parallel work: the logical call paths of its creators."""

from __future__ import annotations

from collections.abc import Sequence

from parprof.logical.join import Shares
from parprof.model import Path
from parprof.values import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Before:
    """The logical call path that created a piece of work; ``complete``: it begins at the program's entry.

    One of each path is made, so that identity is equality.
    """

    path: Path
    complete: bool


class Callers:
    """Call paths that create work of one function, with the samples of it under each."""

    def __init__(self) -> None:
        self.samples: dict[Before, int] = {}
        self._shares: dict[int, Shares] = {}
        self._stale: set[int] = set()

    def add(self, before: Before, samples: int) -> None:
        """Note samples of such work that this call path created."""
        self.samples[before] = self.samples.get(before, 0) + samples
        self._stale.update(self._shares)

    def split(self, samples: int, stream: int) -> list[tuple[Before, int]]:
        """The call paths that get a share, and theirs."""
        shares = self._shares.get(stream)
        if shares is None:
            shares = self._shares[stream] = Shares(list(self.samples.values()))
        elif stream in self._stale:
            self._stale.discard(stream)
            shares.reweigh(list(self.samples.values()))
        split = zip(self.samples, shares.split(samples), strict=True)
        return [(before, share) for before, share in split if share]


def shared(weights: Sequence[tuple[Before | None, int]], samples: int) -> list[tuple[Before | None, int]]:
    """Samples in proportion to weights, without those that get none; as they are where they add up to the same."""
    those = [(before, weight) for before, weight in weights if weight]
    if not those:
        return [(None, samples)]
    split = Shares([weight for _, weight in those]).split(samples)
    return [(before, share) for (before, _), share in zip(those, split, strict=True) if share]
