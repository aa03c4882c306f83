"""A consumer of BPF ring buffers over plain mmap: no callbacks, no wake-ups unless the producer forces one."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

_BUSY, _DISCARD = 1 << 31, 1 << 30
_HEADER = 8


class RingBuffer:
    """Reads the records of one ring buffer map. ``size`` is its max_entries, in bytes."""

    def __init__(self, fd: int, size: int) -> None:
        page = mmap.PAGESIZE
        self.fd = fd
        self.size = size
        self._consumer = mmap.mmap(fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0)
        # the producer's page, then the data twice over, so that no record is ever split
        self._producer = mmap.mmap(fd, page + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        self._data = page

    def read(self) -> Iterator[bytes]:
        """Yield all records that are complete; each is given back to the kernel when the next is asked for."""
        position = struct.unpack_from("<Q", self._consumer, 0)[0]
        while position < struct.unpack_from("<Q", self._producer, 0)[0]:
            start = self._data + (position & (self.size - 1))
            length = struct.unpack_from("<I", self._producer, start)[0]
            if length & _BUSY:
                break
            size = length & ~(_BUSY | _DISCARD)
            if not length & _DISCARD:
                yield self._producer[start + _HEADER : start + _HEADER + size]
            position += (size + _HEADER + 7) & ~7
            struct.pack_into("<Q", self._consumer, 0, position)

    def close(self) -> None:
        """Unmap; the map's descriptor stays with its owner."""
        self._consumer.close()
        self._producer.close()
