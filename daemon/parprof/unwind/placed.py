"""An unwind table in the store of the unwinder in the kernel: all of it, or those regions of code that are in use."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import pairwise

from parprof.kernel.store import Store, StoreFull
from parprof.unwind.cache import Table, TableDamaged
from parprof.unwind.pages import WORD, index_words
from parprof.values import dataclass

_AT_ONCE_BYTES = 1 << 20
"""Of a table so much is read and written at a time."""


@dataclass(slots=True)
class Placed:
    """A table in the store: where its index is, and with it the first blocks; how many load maps lead to it.

    Without words: the file has no table, or there was no room for it.
    """

    start: int
    words: int
    regions: int
    first_region: int
    file: tuple[int, int] = (0, 0)
    """Device and inode."""
    users: int = 0
    parts: list[tuple[int, int]] = field(default_factory=list)
    """The other words that it has: where a run begins, and how long it is."""
    here: bytearray | None = None
    """Of each region whether its block is here; None: all are."""
    misses: int = 0
    """How often one of them was executed."""

    @property
    def index(self) -> int:
        """Where its index is, as the unwinder wants to be told."""
        return self.start << 32 | self.regions

    @property
    def all_words(self) -> int:
        """That it has in the store."""
        return self.words + sum(words for _, words in self.parts)


def nothing() -> Placed:
    """What stands for a table that is not there."""
    return Placed(0, 0, 0, 0)


def place(store: Store, table: Table, wanted: Iterable[int] | None = None) -> Placed:
    """Put a table into the store: all of it, or the blocks of the regions that are ``wanted``, counted from its first.

    Raises:
        StoreFull: there is no room for it; TableDamaged.
    """
    regions = table.regions
    words = regions + (table.offsets[-1] // WORD if wanted is None else 0)
    here = None if wanted is None else bytearray(regions)
    placed = Placed(store.allocate(words), words, regions, table.first_region, here=here)
    try:
        if wanted is None:
            _write(store, placed.start + regions, table, range(regions))
            store.write(placed.start, index_words(table.offsets, regions).tobytes())
        else:
            store.write(placed.start, bytes(regions * WORD))
            add(store, placed, table, wanted)
    except (StoreFull, TableDamaged):
        release(store, placed)
        raise
    return placed


def add(store: Store, placed: Placed, table: Table, wanted: Iterable[int]) -> None:
    """Put the blocks of regions into the store, as far as they are absent.

    Raises:
        StoreFull: there is no room for them; TableDamaged.
    """
    here = placed.here
    if here is None:
        return
    lacking = sorted({region for region in wanted if 0 <= region < placed.regions and not here[region]})
    if not lacking:
        return
    words = sum(table.offsets[region + 1] - table.offsets[region] for region in lacking) // WORD
    start = store.allocate(words)
    placed.parts.append((start, words))
    at = start
    for run in _runs(lacking):
        _write(store, at, table, run)
        offsets = table.offsets[run.start : run.stop + 1]
        entries = index_words(array("I", [offset - offsets[0] for offset in offsets]), at - placed.start)
        store.write(placed.start + run.start, entries.tobytes())
        at += (offsets[-1] - offsets[0]) // WORD
        here[run.start : run.stop] = bytes([1]) * len(run)
    if all(here):
        placed.here = None


def release(store: Store, placed: Placed) -> None:
    """Give back all words of a table."""
    for start, words in ((placed.start, placed.words), *placed.parts):
        store.free(start, words)


def _runs(numbers: Sequence[int]) -> Iterator[range]:
    """Numbers, in order, as ranges without holes."""
    first = numbers[0]
    for number, following in pairwise([*numbers, -1]):
        if following != number + 1:
            yield range(first, number + 1)
            first = following


def _write(store: Store, at: int, table: Table, regions: range) -> None:
    """Write the blocks of regions one behind the other, not too much at a time."""
    first = regions.start
    for region in regions:
        is_last = region + 1 == regions.stop
        if is_last or table.offsets[region + 2] - table.offsets[first] > _AT_ONCE_BYTES:
            store.write(at, table.blocks(first, region + 1))
            at += (table.offsets[region + 1] - table.offsets[first]) // WORD
            first = region + 1
