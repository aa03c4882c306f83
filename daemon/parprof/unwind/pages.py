"""A table as the unwinder in the kernel searches it: its rows behind an index by page of code.

The image is a run of 64-bit words: the index, a word of 0 (the row that holds before the first one), the rows. An entry
of the index stands for 2^PAGE_SHIFT bytes of code: the word of their first row, counted from the image's first, << 24 |
the number of rows. It holds wherever the image is put, so that it is made once for each file and kept with it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

PAGE_SHIFT = 9
WORD = 8
MAX_PAGES = 1 << 20
"""512 MiB of code between a file's first row and its last; files with more have no image."""
MAX_IMAGE_ROWS = (1 << 24) - 1
"""An entry holds its number of rows in 24 bits."""


def page_count(first_pc: int, last_pc: int) -> int:
    """The number of entries for rows from one address to another."""
    return (last_pc >> PAGE_SHIFT) - (first_pc >> PAGE_SHIFT) + 1


def make_image(rows: bytes | memoryview) -> bytes:
    """The image of rows; empty if there are none, or more than the kernel's search can tell apart."""
    numbers = memoryview(rows).cast("B").cast("I")
    count = len(numbers) // 2
    if not 0 < count <= MAX_IMAGE_ROWS:
        return b""
    pcs = array("I", numbers[::2].tolist())
    pages = page_count(pcs[0], pcs[-1])
    if pages > MAX_PAGES:
        return b""
    entries = array("Q")
    first_page, at = pcs[0] >> PAGE_SHIFT, 0
    for page in range(first_page, first_page + pages):
        following = bisect_left(pcs, (page + 1) << PAGE_SHIFT, at)
        entries.append((pages + 1 + at) << 24 | following - at)
        at = following
    return entries.tobytes() + bytes(WORD) + bytes(rows)
