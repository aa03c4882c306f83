"""Where unwind tables go in the store, and how the kernel finds a row there."""

from __future__ import annotations

import struct
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.kernel.store import StoreFull
from parprof.unwind.cache import TableCache
from parprof.unwind.pages import (
    COUNT_BITS,
    HERE,
    MAX_REGIONS,
    PAGE_SHIFT,
    REGION_PAGES,
    REGION_SHIFT,
    WORD,
    make_image,
    rows_of,
)
from parprof.unwind.placed import Placed, add, place, release
from parprof.unwind.table import UnwindTable

_LOW = (1 << 32) - 1
PCS = st.sets(st.integers(0, 1 << 18), min_size=1, max_size=300)


def raw_rows(pcs: list[int]) -> bytes:
    return b"".join(struct.pack("<II", pc, index + 1) for index, pc in enumerate(pcs))


class Words:
    """Stands in for the store: runs in places that are far from each other, and as the programs read them."""

    def __init__(self, words: int = 1 << 30) -> None:
        self.words = words
        self.taken: dict[int, int] = {}
        self.memory: dict[int, int] = {}
        self._next = 1 << 20

    def allocate(self, words: int) -> int:
        if sum(self.taken.values()) + words > self.words:
            raise StoreFull
        self._next += -1000 if len(self.taken) == 1 else 100_000
        self.taken[self._next] = words
        for at in range(words):
            self.memory[self._next + at] = 0xDEAD  # what was there before
        return self._next

    def write(self, index: int, data: bytes | memoryview) -> None:
        for at, word in enumerate(memoryview(bytes(data)).cast("Q")):
            assert index + at in self.memory
            self.memory[index + at] = word

    def free(self, start: int, words: int) -> None:
        assert self.taken.pop(start) == words


def found(store: Words, placed: Placed, address: int) -> int | None:
    """The rule that the search in the kernel finds; None: the block is not here."""
    region = (address >> REGION_SHIFT) - placed.first_region
    if not 0 <= region < placed.regions:
        return 0
    word = store.memory[placed.start + region]
    if not word & HERE:
        return None
    block = (word + placed.start) & _LOW
    page = (address >> PAGE_SHIFT) % REGION_PAGES
    entry = store.memory[block + page // 2] >> 32 * (page % 2) & _LOW
    base, count = block + (entry >> COUNT_BITS), entry & (1 << COUNT_BITS) - 1
    assert count <= 1 << PAGE_SHIFT
    here = [store.memory[base + at] & _LOW for at in range(count)]
    return store.memory[base + bisect_right(here, address) - 1] >> 32


def right(pcs: list[int], address: int) -> int:
    return bisect_right(pcs, address)


@given(PCS, st.data())
def test_the_index_leads_to_the_row_that_a_search_finds(pcs: set[int], data: st.DataObject) -> None:
    ordered = sorted(pcs)
    table = UnwindTable(raw_rows(ordered))
    store = Words()
    placed = place(store, table)  # type: ignore[arg-type]
    address = data.draw(st.integers(0, 1 << 18) | st.sampled_from(ordered))
    assert table.rule(address) == right(ordered, address)
    inside = ordered[0] >> REGION_SHIFT <= address >> REGION_SHIFT <= ordered[-1] >> REGION_SHIFT
    assert found(store, placed, address) == (right(ordered, address) if inside else 0)
    assert bytes(rows_of(table.offsets, table.blocks(0, table.regions))) == table.rows
    release(store, placed)  # type: ignore[arg-type]
    assert not store.taken


@given(PCS, st.lists(st.sets(st.integers(-1, 17), max_size=6), min_size=1, max_size=5))
def test_what_is_placed_in_parts_is_found_and_the_rest_is_told(pcs: set[int], steps: list[set[int]]) -> None:
    ordered = sorted(pcs)
    table = UnwindTable(raw_rows(ordered))
    store = Words()
    placed = place(store, table, steps[0])  # type: ignore[arg-type]
    for step in steps[1:]:
        add(store, placed, table, step)  # type: ignore[arg-type]
    here = set().union(*steps)
    assert placed.all_words == sum(store.taken.values())
    for region in range(table.regions):
        for address in {(table.first_region + region << REGION_SHIFT) + at for at in (0, 5000, 16383)}:
            expected = right(ordered, address) if region in here else None
            assert found(store, placed, address) == expected
    add(store, placed, table, range(table.regions))  # type: ignore[arg-type]
    assert placed.here is None
    assert found(store, placed, ordered[-1]) == len(ordered)
    release(store, placed)  # type: ignore[arg-type]
    assert not store.taken


@given(PCS)
def test_a_table_from_disk_is_the_same(tmp_path_factory: pytest.TempPathFactory, pcs: set[int]) -> None:
    table = UnwindTable(raw_rows(sorted(pcs)), "12")
    cache = TableCache(tmp_path_factory.mktemp("cache"))
    assert cache.store("name", table)
    stored = cache.load("name", "12")
    assert stored is not None
    assert (stored.regions, stored.first_region, stored.count) == (
        table.regions,
        table.first_region,
        table.count,
    )
    assert stored.offsets == table.offsets
    assert bytes(stored.blocks(0, stored.regions)) == table.blocks(0, table.regions)
    for address in (0, *sorted(pcs)[:5], 1 << 18, 1 << 30):
        is_beyond = address >> REGION_SHIFT >= table.first_region + table.regions
        assert stored.rule(address) == (0 if is_beyond else table.rule(address))


@pytest.mark.parametrize("wanted", [None, [0, 1]])
def test_where_there_is_no_room_nothing_stays(wanted: list[int] | None) -> None:
    table = UnwindTable(raw_rows([0, 100, 1 << REGION_SHIFT]))
    store = Words(table.regions + 3)
    with pytest.raises(StoreFull):
        place(store, table, wanted)  # type: ignore[arg-type]
    assert not store.taken


def test_what_the_search_cannot_tell_apart_has_no_image() -> None:
    assert make_image(b"").regions == 0
    assert make_image(raw_rows([0, (MAX_REGIONS - 1) << REGION_SHIFT])).regions == MAX_REGIONS
    assert make_image(raw_rows([0, MAX_REGIONS << REGION_SHIFT])).regions == 0
    assert make_image(raw_rows([5] * ((1 << REGION_SHIFT) + 1))).regions == 0, "more rows than addresses"
    assert make_image(raw_rows([1 << 20, 5])).regions == 0, "not in order"
    assert len(make_image(raw_rows([5])).blocks) % WORD == 0
