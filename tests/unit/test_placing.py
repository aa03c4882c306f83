"""Where unwind tables go in the store, and how the kernel finds a row there."""

from __future__ import annotations

import struct
from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from parprof.unwind.pages import MAX_PAGES, PAGE_SHIFT, make_image
from parprof.unwind.table import UnwindTable


def rows_of(pcs: list[int]) -> bytes:
    return b"".join(struct.pack("<II", pc, index) for index, pc in enumerate(pcs))


@given(st.sets(st.integers(0, 1 << 20), min_size=1, max_size=300), st.data())
def test_the_index_leads_to_the_row_that_a_search_finds(pcs: set[int], data: st.DataObject) -> None:
    ordered = sorted(pcs)
    table = UnwindTable(rows_of(ordered))
    words = memoryview(table.image).cast("Q")
    address = data.draw(st.integers(ordered[0], ordered[-1]))
    entry = words[(address >> PAGE_SHIFT) - table.first_page]
    base, count = entry >> 24, entry & 0xFFFFFF
    here = [word & 0xFFFFFFFF for word in words[base : base + count]]
    row = words[base + bisect_right(here, address) - 1]
    assert row >> 32 == bisect_right(ordered, address) - 1
    assert count <= 1 << PAGE_SHIFT
    assert words[table.pages] == 0, "nothing holds before the first row"
    assert len(words) == table.pages + 1 + table.count


def test_what_the_search_cannot_tell_apart_has_no_image() -> None:
    assert make_image(b"") == b""
    assert make_image(rows_of([0, (MAX_PAGES - 1) << PAGE_SHIFT]))
    assert make_image(rows_of([0, MAX_PAGES << PAGE_SHIFT])) == b""
