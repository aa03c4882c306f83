"""A consumer of BPF ring buffers over plain mmap: no callbacks, no wake-ups unless the producer forces one."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

_BUSY, _DISCARD = 1 << 31, 1 << 30
_HEADER = 8
_WORD, _LENGTH = struct.Struct("<Q"), struct.Struct("<I")


class RingBuffer:
    """Reads the records of one ring buffer map. ``size`` is its max_entries, in bytes."""

    def __init__(self, fd: int, size: int) -> None:
        page = mmap.PAGESIZE
        self.fd = fd
        self.size = size
        self._consumer = mmap.mmap(fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0)
        # the producer's page, then the data. The kernel maps those twice over, so that no record is ever split,
        # but each page counts as ours, and a record that is split can be joined.
        self._producer = mmap.mmap(fd, page + size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        self._data = page

    def read(self) -> Iterator[bytes]:
        """Yield all records that are complete; each is given back to the kernel when the next is asked for."""
        position = _WORD.unpack_from(self._consumer)[0]
        while position < _WORD.unpack_from(self._producer)[0]:
            start = position & (self.size - 1)
            length = _LENGTH.unpack_from(self._producer, self._data + start)[0]
            if length & _BUSY:
                break
            size = length & ~(_BUSY | _DISCARD)
            if not length & _DISCARD:
                yield self._slice((start + _HEADER) & (self.size - 1), size)
            position += (size + _HEADER + 7) & ~7
            _WORD.pack_into(self._consumer, 0, position)

    def _slice(self, start: int, size: int) -> bytes:
        data = self._data
        if start + size <= self.size:
            return self._producer[data + start : data + start + size]
        return (
            self._producer[data + start : data + self.size]
            + self._producer[data : data + start + size - self.size]
        )

    def close(self) -> None:
        """Unmap; the map's descriptor stays with its owner."""
        self._consumer.close()
        self._producer.close()
