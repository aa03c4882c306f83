"""Which pages of memory a process has in its page tables: what it executes is there, most of its libraries are not."""

from __future__ import annotations

import os
from collections.abc import Iterator

_PAGE = 4096
_ENTRY = 8
_AT_ONCE = 1 << 16
"""Pages."""
_PRESENT_FIRST = 0x80
"""Of the last byte of an entry of ``/proc/PID/pagemap``: the page is present."""
_IS_PRESENT = bytes(byte >= _PRESENT_FIRST for byte in range(256))


def present_pages(pid: int, start: int, end: int, step: int) -> Iterator[int]:
    """Addresses of pages from ``start`` up to ``end`` that are present: of each ``step`` bytes, counted from address 0,
    the first one at the most.

    Raises:
        OSError: the process is gone, or may not be looked at.
    """
    fd = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        page, last = start // _PAGE, -(-end // _PAGE)
        while page < last:
            wanted = min(last - page, _AT_ONCE)
            entries = os.pread(fd, wanted * _ENTRY, page * _ENTRY)
            if len(entries) != wanted * _ENTRY:
                return
            is_present = entries[_ENTRY - 1 :: _ENTRY].translate(_IS_PRESENT)
            following = page
            while (at := is_present.find(1, following - page)) >= 0:
                address = (page + at) * _PAGE
                yield address
                following = (address // step + 1) * step // _PAGE
            page = max(page + wanted, following)
    finally:
        os.close(fd)
