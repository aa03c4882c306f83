"""Where unwind tables and load maps go in the store."""

from __future__ import annotations

import struct
from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from parprof.unwind.placing import PAGE_SHIFT, page_index


@given(st.sets(st.integers(0, 1 << 20), min_size=1, max_size=300), st.integers(1, 1 << 24), st.data())
def test_the_index_leads_to_the_row_that_a_search_finds(
    pcs: set[int], word: int, data: st.DataObject
) -> None:
    ordered = sorted(pcs)
    rows = b"".join(struct.pack("<II", pc, index) for index, pc in enumerate(ordered))
    first, entries = page_index(rows, word)
    address = data.draw(st.integers(ordered[0], ordered[-1]))
    entry = entries[(address >> PAGE_SHIFT) - first]
    base, count = (entry >> 24) - word, entry & 0xFFFFFF
    here = base + bisect_right(ordered[base : base + count], address) - 1
    assert here == bisect_right(ordered, address) - 1
    assert count <= 1 << PAGE_SHIFT
