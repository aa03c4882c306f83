"""Bounded reads of a JVM's memory. What is there is the process's business: nothing is believed."""

from __future__ import annotations

import os

_PAGE_BITS = 12
_PAGE = 1 << _PAGE_BITS
_USER_SPACE = 1 << 47
_MOST_BYTES = 1 << 20
_MOST_PAGES = 1 << 14
"""Read for one request."""


class Unreadable(Exception):
    """Something is not there, or not what it must be."""


class JvmMemory:
    """The memory of one process image. Pages are kept until `begin`."""

    def __init__(self, fd: int) -> None:
        """``fd`` of a file with it stays the caller's."""
        self._fd = fd
        self._pages: dict[int, bytes] = {}

    def begin(self, fd: int) -> None:
        """Look at everything anew, and at as much as before, by another descriptor of the same."""
        self._fd = fd
        self._pages.clear()

    def read(self, address: int, size: int) -> bytes:
        """``size`` bytes.

        Raises:
            Unreadable: not all of them can be read, or they are too many.
        """
        if not 0 < address < _USER_SPACE - _MOST_BYTES or not 0 <= size <= _MOST_BYTES:
            raise Unreadable(f"{size} bytes at {address:#x}")
        page, at = address >> _PAGE_BITS, address & (_PAGE - 1)
        data = self._page(page)
        if at + size > _PAGE:
            last = address + size - 1 >> _PAGE_BITS
            data = b"".join(map(self._page, range(page, last + 1)))
        return data[at : at + size]

    def _page(self, page: int) -> bytes:
        data = self._pages.get(page)
        if data is None:
            if len(self._pages) >= _MOST_PAGES:
                raise Unreadable("too much of it was looked at")
            try:
                data = os.pread(self._fd, _PAGE, page << _PAGE_BITS)
            except (OSError, OverflowError) as error:
                raise Unreadable(f"{page << _PAGE_BITS:#x}") from error
            if len(data) < _PAGE:
                raise Unreadable(f"{page << _PAGE_BITS:#x}")
            self._pages[page] = data
        return data

    def number(self, address: int, size: int = 8, *, signed: bool = False) -> int:
        """A number of ``size`` bytes.

        Raises:
            Unreadable: it cannot be read.
        """
        return int.from_bytes(self.read(address, size), "little", signed=signed)

    def text(self, address: int, most: int = 256) -> str:
        """A text that ends in a zero byte, or is cut off.

        Raises:
            Unreadable: it cannot be read.
        """
        out = b""
        while len(out) < most:
            room = _PAGE - (address + len(out) & (_PAGE - 1))
            part = self.read(address + len(out), min(room, most - len(out)))
            end = part.find(0)
            if end >= 0:
                return (out + part[:end]).decode("utf-8", "replace")
            out += part
        return out.decode("utf-8", "replace")
