"""A table as the unwinder in the kernel searches it: its rows in blocks, one for each region of code.

The image is a run of 64-bit words: the index, then the blocks. An entry of the index stands for 2^REGION_SHIFT bytes of
code: HERE | the word of its block, counted from the index's first, modulo 2^32. A block is complete in itself, wherever
it is put, so that only those need be placed that a process uses; the entry of one that is not placed is 0. In a block
come, in this order:

    an entry of 32 bits for each 2^PAGE_SHIFT bytes of the region: the word of their first row, counted from the block's
    first, << COUNT_BITS | the number of rows
    a word: the row that holds at the begin of the region, 0 if there is none
    the rows of the region
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import field
from itertools import pairwise

from parprof.values import dataclass

PAGE_SHIFT = 9
REGION_SHIFT = 14
"""A fault maps 64 KiB of a file at once, wherever these begin: regions are smaller, so that few of them are placed for
their edges alone."""
WORD = 8
COUNT_BITS = 10
HERE = 1 << 63
MAX_REGIONS = 1 << 16
"""1 GiB of code between a file's first row and its last; files with more have no image."""
REGION_PAGES = 1 << REGION_SHIFT - PAGE_SHIFT
_ROWS_AT = REGION_PAGES // 2
"""In a block: the word of the row that holds at its begin."""
HEAD_WORDS = _ROWS_AT + 1
"""Of a block, in front of its rows."""
_MAX_ROWS = 1 << REGION_SHIFT
"""Of a region: no two are at one address."""


@dataclass(frozen=True, slots=True)
class TableImage:
    """What the kernel searches. Without regions where it cannot."""

    first_region: int = 0
    """The number of the first one: its first address >> REGION_SHIFT."""
    offsets: array[int] = field(default_factory=lambda: array("I"))
    """Bytes from the first block to each of them, and to the end of the last one: one more than there are regions."""
    blocks: bytes | memoryview = b""

    @property
    def regions(self) -> int:
        """How many there are."""
        return max(len(self.offsets) - 1, 0)


def index_words(offsets: array[int], words_before: int) -> array[int]:
    """The entries of an index for blocks that lie so, so many words behind the index's first word."""
    return array("Q", [HERE | words_before + (offset >> 3) & (1 << 32) - 1 for offset in offsets[:-1]])


def make_image(rows: bytes | memoryview) -> TableImage:
    """The image of rows; without regions if there are no rows, or what the kernel's search cannot tell apart."""
    whole = memoryview(rows).cast("B")
    numbers = whole.cast("I")
    count = len(numbers) // 2
    if not count:
        return TableImage()
    pcs = array("I", numbers[::2].tolist())
    first = pcs[0] >> REGION_SHIFT
    regions = (pcs[-1] >> REGION_SHIFT) - first + 1
    if not 0 < regions <= MAX_REGIONS:
        return TableImage()
    blocks, offsets, at = bytearray(), array("I", [0]), 0
    for region in range(first, first + regions):
        begin, end = at, bisect_left(pcs, region + 1 << REGION_SHIFT, at)
        if end - begin > _MAX_ROWS:
            return TableImage()
        entries = array("I")
        for page in range(region * REGION_PAGES + 1, (region + 1) * REGION_PAGES + 1):
            following = bisect_left(pcs, page << PAGE_SHIFT, at, end)
            entries.append(HEAD_WORDS + at - begin << COUNT_BITS | min(following - at, (1 << COUNT_BITS) - 1))
            at = following
        blocks += entries.tobytes()
        blocks += whole[WORD * (begin - 1) : WORD * begin] if begin else bytes(WORD)
        blocks += whole[WORD * begin : WORD * end]
        at = end
        offsets.append(len(blocks))
    return TableImage(first, offsets, bytes(blocks))


def rows_of(offsets: array[int], blocks: bytes | memoryview) -> memoryview:
    """The rows that an image was made of."""
    whole = memoryview(blocks)
    parts = (whole[begin + WORD * HEAD_WORDS : end] for begin, end in pairwise(offsets))
    return memoryview(b"".join(parts))


def rule_in(block: bytes | memoryview, address: int) -> int:
    """The packed rule at an address of a block's region, 0 where there is none."""
    numbers = memoryview(block).cast("I")
    entry = numbers[(address >> PAGE_SHIFT) % REGION_PAGES]
    first, count = entry >> COUNT_BITS, entry & (1 << COUNT_BITS) - 1
    before = bisect_left(range(count), address + 1, key=lambda row: numbers[2 * (first + row)])
    return numbers[2 * (first + before - 1) + 1]
