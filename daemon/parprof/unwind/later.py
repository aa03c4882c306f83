"""Tables of which much was left out, made whole when there is time.

Code without call frame information is followed instruction by instruction, which takes seconds where there is much of
it: OpenCV has 22 MiB of Intel's image processing. Whoever looks at such a file gets its table without that at once. A
child that steps back behind the program makes it whole, and puts it in the place of the first on disk. Who watches
processes with that file is told, and the next session has it.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress

from parprof.errors import TargetError
from parprof.files.dso import Dso, FileKey
from parprof.resources import Closing
from parprof.unwind.asking import TableClient
from parprof.unwind.cache import Table, TableCache
from parprof.unwind.returns import LATER_SECONDS, MAX_BYTES
from parprof.unwind.table import UNFOLLOWED, UnwindTable
from parprof.workers.client import WorkerFailed

_NICE = 5
"""A quarter of a core that the program wants, too. With less it came to no end beside one that wants all cores."""
_MAX_FILES = 64


class LaterTables(Closing):
    """Makes tables on disk whole, one at a time. To be used by one thread."""

    def __init__(self, cache: TableCache, follow_bytes: int = MAX_BYTES) -> None:
        """``follow_bytes``: so much code without call frame information is followed."""
        self._cache = cache
        self._follow_bytes = follow_bytes
        self._client = TableClient()
        self._thread: ThreadPoolExecutor | None = None
        self._coming: list[Future[None]] = []
        self._asked: set[str] = set()
        self._keys: dict[str, set[FileKey]] = {}
        """By the name of its content: files that have it, of which a table is to be made whole."""
        self._whole: deque[str] = deque()
        """Of those whose tables are."""
        self._closed = False

    def complete(self, table: Table, dso: Dso) -> None:
        """Make a file's table whole, some time, if it is not. ``table``: as it is on disk."""
        if UNFOLLOWED not in table.notes or self._closed:
            return
        name = dso.content_name()  # for which the file is asked
        if name in self._asked:
            self._keys.setdefault(name, set()).add(dso.key)
            return
        if not name or len(self._asked) >= _MAX_FILES:
            return
        self._asked.add(name)
        self._keys[name] = {dso.key}
        try:
            fd = dso.file().lend()
        except (TargetError, OSError):  # it is gone, or does not answer
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "parprof-later")
        self._coming.append(self._thread.submit(self._complete, name, table, dso.path, fd))

    def take_whole(self) -> set[FileKey]:
        """Files whose tables on disk were made whole since this was last asked."""
        out: set[FileKey] = set()
        while self._whole:
            out |= self._keys.pop(self._whole.popleft(), set())
        return out

    def _complete(self, name: str, table: Table, path: str, fd: int) -> None:
        notes = {kind: count for kind, count in table.notes.items() if kind != UNFOLLOWED}
        try:
            if self._closed:
                return
            self._client.prepare()
            with suppress(OSError):  # there is no child
                os.setpriority(os.PRIO_PROCESS, self._client.pid or -1, _NICE)
            try:
                rows = self._client.build(path, fd, table.build_id, LATER_SECONDS, self._follow_bytes).rows
                is_whole = True
            except (WorkerFailed, OSError):
                if self._closed:
                    return
                rows, is_whole = table.rows, False  # as good as it gets: it is not tried each time
            if self._cache.store(name, UnwindTable(rows, table.build_id, notes)) and is_whole:
                self._whole.append(name)
        finally:
            os.close(fd)

    def trim(self, idle_seconds: float) -> None:
        """End the child, and give back its memory, if it had nothing to do for so long."""
        if self._thread is not None and not self._closed and all(one.done() for one in self._coming):
            self._coming.clear()
            self._thread.submit(self._client.stop_if_idle, idle_seconds).result()

    def close(self) -> None:
        """End the child now, whatever it does."""
        self._closed = True
        while wait(self._coming, timeout=0.05).not_done:
            self._client.interrupt()
        if self._thread is not None:
            self._thread.shutdown()
        self._client.close()
