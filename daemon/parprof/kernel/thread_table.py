"""The threads that the programs in the kernel know, as far as we tell them of some, or to forget some."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from parprof.kernel import bpf, records
from parprof.kernel.objects import LoadedObject

_NO_GENERATION = 0xFFFF
"""Of a thread of which nobody knows whether it sleeps: that of its process, once it has shown itself."""


class ThreadTable:
    """Of all watched processes; the programs add most threads to it themselves."""

    def __init__(self, loaded: LoadedObject, losing: Callable[[str], AbstractContextManager[None]]) -> None:
        """``losing``: within what it returns, a map without room is a loss for that reason, and no error."""
        self._object = loaded
        self._losing = losing

    def prepare(self) -> None:
        """Put in what the programs make new threads of."""
        self._object.put("threads", struct.pack("<I", 0), self._object.layouts["thread"]())

    def add(
        self, pid: int, image: int, tid: int, *, works: bool, unknown: bool, scope: int | None = None
    ) -> None:
        """Tell the programs of a thread that was there before us, unless they met it already.

        ``works`` is what it is thought to do once it runs; ``unknown`` says that this is a guess.
        """
        thread: Any = self._object.layouts["thread"]()
        thread.tgid, thread.image, thread.is_main = pid, image, pid == tid
        thread.base_work, thread.blocked = works, 1
        thread.unknown = records.GUESSED_ASLEEP if unknown else records.NO_RUNTIME
        thread.tid, thread.scope = tid, scope or image
        thread.wait_since_ns = time.monotonic_ns()
        thread.generation = _NO_GENERATION
        # It starts as blocked and not counted: the next event or sample of the thread puts that right through
        # the one place where n_working changes. A running thread has one within a sampling period.
        with suppress(FileExistsError), self._losing("threads_full"):
            self._object.put("threads", struct.pack("<I", tid), thread, bpf.NOEXIST)

    def forget(self, pid: int) -> None:
        """Those of a process that is watched no more and has some."""
        key, layout = struct.pack("<I", pid), self._object.layouts["thread"]
        size, at = self._object.definitions["threads"]["value_size"], layout.tgid.offset
        fd = self._object.maps["threads"]
        stale = [tid for tid, raw in bpf.map_read_all(fd, 4, size, chunk=256) if raw[at : at + 4] == key]
        bpf.map_delete_batch(fd, stale)
