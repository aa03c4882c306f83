"""The load maps of a process over time: which file an address meant when it was sampled.

An epoch ends with each change that ld.so reports (froyd-2005 sec. 2.5.1). The kernel counts them as they
happen; we read the map somewhat later, and not for every one when they come thick and fast.
"""

from __future__ import annotations

from bisect import bisect_right

from parprof.files.dso import Dso
from parprof.process.loadmap import LoadMap

_KEPT = 512


class LoadMaps:
    """Load maps by the epoch in which they were read. The newest are kept."""

    def __init__(self) -> None:
        self.epoch = 0
        """The newest epoch that the kernel told us of."""
        self._epochs: list[int] = []
        self._maps: list[LoadMap] = []
        """What was mapped in each of them at some time."""
        self._noted_epochs: list[int] = []
        self._noted: list[LoadMap] = []
        """What samples showed until then."""
        self.newest: LoadMap | None = None
        """The map read last: what is mapped now."""

    def begin(self, epoch: int) -> None:
        """The kernel reported the beginning of an epoch."""
        self.epoch = max(self.epoch, epoch)

    def add(self, epoch: int, load_map: LoadMap) -> None:
        """A map was read while ``epoch`` was the newest that we knew of."""
        self.newest = load_map
        if self._epochs and self._epochs[-1] == epoch:
            # more of the same epoch: mappings that ld.so had no part in, and which may be gone by now
            self._maps[-1] = load_map.keeping(self._maps[-1])
            return
        self._epochs.append(epoch)
        self._maps.append(load_map)
        del self._epochs[:-_KEPT], self._maps[:-_KEPT]

    def note(self, epoch: int, mappings: LoadMap) -> None:
        """These were mapped in an epoch, as samples showed that came to their code: there may be more."""
        if self._noted:
            mappings = mappings.keeping(self._noted[-1])
        epoch = max([epoch, *self._noted_epochs[-1:]])
        if self._noted_epochs[-1:] == [epoch]:
            self._noted[-1] = mappings
            return
        self._noted_epochs.append(epoch)
        self._noted.append(mappings)
        del self._noted_epochs[:-_KEPT], self._noted[:-_KEPT]

    def find(self, address: int, epoch: int) -> tuple[Dso, int] | None:
        """File and ELF address behind an address sampled in an epoch; None when that can't be told."""
        found = self._find_read(address, epoch)
        at = bisect_right(self._noted_epochs, epoch) - 1
        return self._noted[at].find(address) if found is None and at >= 0 else found

    def _find_read(self, address: int, epoch: int) -> tuple[Dso, int] | None:
        """The same, by the maps that were read.

        In an epoch whose map was never read an address means what it meant both before and after; where those
        differ - one library went and another came to its place - it is unknown rather than guessed.
        """
        at = bisect_right(self._epochs, epoch) - 1
        before = self._maps[at].find(address) if at >= 0 else None
        if at >= 0 and (self._epochs[at] == epoch or at + 1 == len(self._maps)):
            return before
        if at < 0 and len(self._maps) == _KEPT:
            return None  # older than what was kept
        after = self._maps[at + 1].find(address) if at + 1 < len(self._maps) else None
        if before is None or after is None:
            # ld.so reports twice: before it changes anything, and when all is in place
            return before or (after if at < 0 or self._epochs[at + 1] == epoch + 1 else None)
        return before if (before[0].key, before[1]) == (after[0].key, after[1]) else None
