"""The unwinder's store: one large array of 64-bit words in the kernel, in chunks.

Python writes through mmap, without system calls; the programs read. See ``bpf/unwind_tables.bpf.c`` for the content.
For each new chunk the kernel waits until all programs that may run have ended: 10 to 20 ms in which stacks would be cut
short: a thread of its own makes some ahead.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from bisect import bisect_left, insort
from collections.abc import Iterable
from contextlib import suppress

from parprof.errors import KernelUnsupported
from parprof.kernel import bpf

CHUNK_WORDS = 1 << 17
SPARE_CHUNKS = 6
"""Beyond those in use, of 1 MiB each: large libraries' tables take three each."""
WORD = 8
_GRACE_SECONDS = 0.05
"""A walk that still reads freed words ends within microseconds; they are reused after this long."""


class StoreFull(Exception):
    """There is no room for so many words in a row."""


class Store:
    """Allocates, writes and frees runs of words. A run may cross chunks."""

    def __init__(self, outer_fd: int, definition: dict[str, int], max_chunks: int) -> None:
        """``definition`` is that of a chunk's map."""
        self._outer = outer_fd
        self._definition = definition
        self._limit = max_chunks * CHUNK_WORDS
        self._chunks: dict[int, tuple[int, mmap.mmap]] = {}
        self._changing = threading.Lock()
        """Held to add chunks, or to remove them."""
        self._thread: threading.Thread | None = None
        self._closed = False
        self._free: list[tuple[int, int]] = [(0, self._limit)]
        self._resting: list[tuple[float, int, int]] = []
        self.used_words = 0
        self._prepare()

    @property
    def size_bytes(self) -> int:
        """Kernel memory held, in bytes."""
        return len(self._chunks) * CHUNK_WORDS * WORD

    def allocate(self, words: int) -> int:
        """The index of a run of ``words`` words.

        Raises:
            StoreFull: no free run is long enough.
            KernelUnsupported: the kernel gives no memory for a chunk.
        """
        self._wake(time.monotonic())
        position = next((at for at, (_, size) in enumerate(self._free) if size >= words), -1)
        if position < 0:
            raise StoreFull(f"{words} words")
        start, size = self._free[position]
        needed = range(start // CHUNK_WORDS, (start + words - 1) // CHUNK_WORDS + 1)
        if any(chunk not in self._chunks for chunk in needed):
            with self._changing:
                for chunk in needed:
                    self._add_chunk(chunk)
        if size > words:
            self._free[position] = (start + words, size - words)
        else:
            del self._free[position]
        self.used_words += words
        self._prepare()
        return start

    def _spare(self) -> range:
        """The chunks that should be there though nothing is in them."""
        first = -(-self._free[-1][0] // CHUNK_WORDS) if self._free else self._limit // CHUNK_WORDS
        return range(first, min(first + SPARE_CHUNKS, self._limit // CHUNK_WORDS))

    def _prepare(self) -> None:
        """Begin to make the spare chunks that are missing; returns at once."""
        missing = [chunk for chunk in self._spare() if chunk not in self._chunks]
        if missing and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(
                target=self._add_ahead, args=(missing,), name="parprof-store", daemon=True
            )
            self._thread.start()

    def _add_ahead(self, chunks: Iterable[int]) -> None:
        with suppress(KernelUnsupported):  # whoever needs one will be told
            for chunk in chunks:
                with self._changing:
                    if self._closed:
                        return
                    self._add_chunk(chunk)

    def _add_chunk(self, chunk: int) -> None:
        if chunk in self._chunks:
            return
        d = self._definition
        try:
            fd = bpf.map_create(
                d["type"], d["key_size"], d["value_size"], d["max_entries"], d["flags"], "store_chunk"
            )
            try:
                view = mmap.mmap(fd, CHUNK_WORDS * WORD)
                bpf.map_update(self._outer, struct.pack("<I", chunk), struct.pack("<I", fd))
            except OSError:
                os.close(fd)
                raise
        except OSError as error:
            raise KernelUnsupported(f"no memory for unwind tables: {error.strerror}") from error
        self._chunks[chunk] = (fd, view)

    def write(self, index: int, data: bytes | memoryview) -> None:
        """Write whole words at ``index``, which `allocate` gave."""
        raw = memoryview(data).cast("B")
        done = 0
        while done < len(raw):
            chunk, at = divmod(index + done // WORD, CHUNK_WORDS)
            part = min(len(raw) - done, (CHUNK_WORDS - at) * WORD)
            self._chunks[chunk][1][at * WORD : at * WORD + part] = raw[done : done + part]
            done += part

    def free(self, index: int, words: int) -> None:
        """Give a run back. It rests for a moment before it is used again."""
        self.used_words -= words
        self._resting.append((time.monotonic() + _GRACE_SECONDS, index, words))

    def _wake(self, now: float) -> None:
        rested = [(index, words) for end, index, words in self._resting if end <= now]
        self._resting = [item for item in self._resting if item[0] > now]
        for index, words in rested:
            self._release(index, words)

    def _release(self, index: int, words: int) -> None:
        position = bisect_left(self._free, (index, 0))
        if position < len(self._free) and self._free[position][0] == index + words:
            words += self._free.pop(position)[1]
        if position and sum(self._free[position - 1]) == index:
            index, before = self._free.pop(position - 1)
            words += before
        insort(self._free, (index, words))
        first, last, spare = -(-index // CHUNK_WORDS), (index + words) // CHUNK_WORDS, self._spare()
        wholly_free = [c for c in list(self._chunks) if first <= c < last and c not in spare]
        if not wholly_free:
            return  # without waiting for a chunk that is being made
        with self._changing:
            for chunk in wholly_free:
                fd, view = self._chunks.pop(chunk)
                bpf.map_delete(self._outer, struct.pack("<I", chunk))
                view.close()
                os.close(fd)

    def close(self) -> None:
        """Unmap and close all chunks."""
        with self._changing:
            self._closed = True
            for fd, view in self._chunks.values():
                view.close()
                with suppress(OSError):
                    os.close(fd)
            self._chunks.clear()
