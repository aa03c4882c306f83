"""Gets the unwind tables of files: from disk, or built by a child process.

The files are hostile and may be huge: whatever they do to the child, the daemon stays small and goes on.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from parprof.errors import TargetError
from parprof.files.dso import Dso, FileKey
from parprof.resources import Closing
from parprof.untrusted import visible
from parprof.unwind.asking import TableClient
from parprof.unwind.cache import Table, TableCache
from parprof.unwind.later import LaterTables
from parprof.unwind.returns import AT_ONCE_BYTES
from parprof.workers.client import WorkerFailed

FILE_SECONDS = 20.0
"""How long one file may take."""
_ATTEMPTS = 2
"""How often a file may crash the child or keep it busy for too long."""
_MAX_PROBLEMS = 1 << 12
_MAX_COMING, _MAX_LEFT, _MAX_KEPT = 64, 1 << 14, 1 << 20
"""Files that are kept open for `TableBuilder.prefetch`, and those that are yet to be; bytes of a table that are kept in
memory."""
_MAX_TEXT = 500


class _Wanted(NamedTuple):
    """A table to be got for a file, from which it is to be built through ``fd``; to be given out: ``keep`` it."""

    key: FileKey
    path: str
    build_id: str
    name: str
    """On disk."""
    fd: int
    keep: bool


class _Queue:
    """Files whose tables are to be got, one at a time, by another thread than the one that asks."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[FileKey, tuple[_Wanted, Future[Table | None]]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, wanted: _Wanted) -> Future[Table | None]:
        """At its end."""
        future: Future[Table | None] = Future()
        with self._lock:
            self._waiting[wanted.key] = wanted, future
        return future

    def hurry(self, key: FileKey) -> None:
        """To its begin, if it is waiting."""
        with self._lock:
            if key in self._waiting:
                self._waiting.move_to_end(key, last=False)

    def take_back(self, but: Collection[FileKey]) -> _Wanted | None:
        """The last one that is none of those, which waits no more; None: there is none."""
        with self._lock:
            last = next((key for key in reversed(self._waiting) if key not in but), None)
            return None if last is None else self._waiting.pop(last)[0]

    def do_next(self, get: Callable[[_Wanted], Table | None]) -> None:
        """Get the first one's table, if one is waiting. In the other thread."""
        with self._lock:
            if not self._waiting:
                return
            _, (wanted, future) = self._waiting.popitem(last=False)
        try:
            future.set_result(get(wanted))
        except BaseException as error:  # it is told to whoever waits for it
            future.set_exception(error)


class TableBuilder(Closing):
    """Tables of files, each gone when it is no more used. To be used by one thread."""

    def __init__(
        self,
        cache: TableCache | None = None,
        file_seconds: float = FILE_SECONDS,
        follow_bytes: int = AT_ONCE_BYTES,
    ) -> None:
        """Give up on a file that takes longer than ``file_seconds``. Without a cache every table is built.

        ``follow_bytes``: so much code without call frame information is followed at once; what is beyond that later.
        """
        self._cache = cache
        self._later = LaterTables(cache) if cache is not None else None
        self._file_seconds = file_seconds
        self._follow_bytes = follow_bytes
        self._client = TableClient()
        self._thread = ThreadPoolExecutor(1, "parprof-unwind")
        self._closed = False
        self._queue = _Queue()
        self._coming: dict[FileKey, Future[Table | None]] = {}
        self._parked: set[FileKey] = set()
        self._left: set[FileKey] = set()
        """Those for which there was no room when they were to be prefetched."""
        self._failures: dict[FileKey, int] = {}
        self._problems: dict[str, str] = {}
        self.built = self.loaded = 0
        """How many tables were built, and how many that were asked for came from disk."""

    @property
    def problems(self) -> dict[str, str]:
        """Path of a file -> why it has no table, for notes in reports."""
        return dict(self._problems)

    @property
    def worker_pid(self) -> int:
        """Process id of the child that builds tables now, 0 if there is none."""
        return self._client.pid

    def table(self, dso: Dso) -> Table | None:
        """A file's table; waits for it. None if it cannot have one: ``problems`` says why.

        Without rows if the file has no call frame information: frame pointers are all there is then.
        """
        future = self._coming.pop(dso.key, None)
        self._left.discard(dso.key)
        self._queue.hurry(dso.key)
        table = None if future is None else future.result()
        if future is None or dso.key in self._parked:
            self._parked.discard(dso.key)
            table = self._from_disk(dso)
            if table is None:
                self._request(dso, keep=True)
                self._queue.hurry(dso.key)
                future = self._coming.pop(dso.key, None)
                table = None if future is None else future.result()
        if table is not None and self._later is not None:
            self._later.complete(table, dso)
        return table

    def take_whole(self) -> set[FileKey]:
        """Files of which `table` gave out what lacked much, and whose tables on disk have become whole since."""
        return self._later.take_whole() if self._later is not None else set()

    def at_hand(self, dso: Dso) -> Table | None:
        """A file's table if it is on disk, and nobody waits for it; for whoever must not wait."""
        return None if dso.key in self._coming else self._from_disk(dso)

    def _from_disk(self, dso: Dso) -> Table | None:
        """Our own files are no danger and answer at once: the other thread would only cost time."""
        if self._closed or self._cache is None or not (name := dso.content_name()):
            return None
        table = self._cache.load(name, dso.build_id)
        self.loaded += table is not None
        return table

    def _is_on_disk(self, dso: Dso) -> bool:
        return self._cache is not None and bool(name := dso.content_name()) and self._cache.has(name)

    def prefetch(self, dsos: Iterable[Dso]) -> None:
        """Begin to build tables that `table` will be asked for soon; returns at once.

        They are on disk then. Small ones are kept in memory too where there is no cache.
        """
        wanted = {dso.key: dso for dso in dsos}
        for key, dso in wanted.items():
            is_known = key in self._coming or key in self._left or len(self._left) >= _MAX_LEFT
            if not is_known and not self._is_on_disk(dso):
                self._left.add(key)
        self.go_on(wanted.values())

    def go_on(self, dsos: Iterable[Dso]) -> None:
        """Begin with those of them for which there was no room before, as far as there is now."""
        wanted = {dso.key: dso for dso in dsos}
        for key, dso in wanted.items():
            if key not in self._left:
                continue
            if not self._has_room(wanted.keys()):
                return
            self._left.discard(key)
            self._request(dso, keep=False)

    def hurry(self, dsos: Iterable[Dso]) -> None:
        """Get those of them that wait, first things first, before all others: somebody looks at a process with them."""
        wanted = {dso.key: dso for dso in dsos}
        for key, dso in reversed(wanted.items()):
            if key in self._left:
                if not self._has_room(wanted.keys()) and not self._make_room(wanted.keys()):
                    continue
                self._left.discard(key)
                self._request(dso, keep=False)
            self._queue.hurry(key)

    def _make_room(self, wanted: Collection[FileKey]) -> bool:
        """Whether another one that waits could be put off."""
        other = self._queue.take_back(wanted)
        if other is None:
            return False
        os.close(other.fd)
        del self._coming[other.key]
        self._left.add(other.key)
        return True

    def ready(self, dso: Dso) -> bool:
        """Whether a table that was prefetched is there, so that `table` need not wait."""
        future = self._coming.get(dso.key)
        return future is not None and future.done()

    def expected(self, dso: Dso) -> bool:
        """Whether it is worth while to come back later for the table of a file that was prefetched."""
        future = self._coming.get(dso.key)
        if future is not None:
            return not future.done()
        return not self._closed and dso.key in self._left

    def _has_room(self, wanted: Collection[FileKey]) -> bool:
        """Whether there is room for one more, if need be that of a table that was not asked for, nor ``wanted``."""
        if len(self._coming) >= _MAX_COMING:
            done = (key for key, future in self._coming.items() if future.done() and key not in wanted)
            if (oldest := next(done, None)) is None:
                return False
            del self._coming[oldest]
            self._parked.discard(oldest)
        return True

    def _request(self, dso: Dso, keep: bool) -> None:
        if self._closed or self._failures.get(dso.key, 0) >= _ATTEMPTS:
            return
        if dso.elf is None:
            if dso.key[0] == "unopened":
                self._note(dso.path, dso.problem)
            return
        build_id = dso.build_id
        try:
            file = dso.file()
            wanted = _Wanted(dso.key, dso.path, build_id, dso.content_name(), file.lend(), keep)
        except (TargetError, OSError) as error:
            self._note(dso.path, getattr(error, "strerror", None) or str(error))
            return
        self._coming[dso.key] = self._queue.put(wanted)
        self._thread.submit(self._queue.do_next, self._get)  # it must not use the Dso

    # in the other thread

    def _get(self, wanted: _Wanted) -> Table | None:
        try:
            if self._closed:
                return None
            table, stored = self._load_or_build(wanted)
            self._problems.pop(wanted.path, None)
            if not wanted.keep and (stored or len(table.rows) > _MAX_KEPT):
                self._parked.add(wanted.key)
                return None
            return table
        except (WorkerFailed, OSError) as error:
            if len(self._failures) >= _MAX_PROBLEMS:
                self._failures.clear()
            self._failures[wanted.key] = self._failures.get(wanted.key, 0) + 1
            self._note(wanted.path, str(error))
            return None
        finally:
            os.close(wanted.fd)

    def _load_or_build(self, wanted: _Wanted) -> tuple[Table, bool]:
        """A table, and whether it is on disk now. It counts as loaded if it was there before."""
        found = self._cache.load(wanted.name, wanted.build_id) if self._cache is not None else None
        if found is not None:
            self.loaded += wanted.keep
            return found, True
        table = self._client.build(
            wanted.path, wanted.fd, wanted.build_id, self._file_seconds, self._follow_bytes
        )
        self.built += 1
        return table, self._cache is not None and self._cache.store(wanted.name, table)

    def _note(self, path: str, problem: str) -> None:
        if len(self._problems) >= _MAX_PROBLEMS:
            self._problems.clear()
        self._problems[path] = visible(problem, _MAX_TEXT)

    # the end

    def trim(self, idle_seconds: float = 60.0) -> None:
        """End the child, and give back its memory, if it had nothing to do for so long."""
        if not self._closed and all(future.done() for future in self._coming.values()):
            self._thread.submit(self._client.stop_if_idle, idle_seconds).result()
            if self._later is not None:
                self._later.trim(idle_seconds)

    def close(self) -> None:
        """End the child now, whatever it does; `table` has none any more."""
        self._closed = True
        self._thread.shutdown(wait=False)
        while wait(self._coming.values(), timeout=0.05).not_done:
            self._client.interrupt()
        self._thread.shutdown()
        self._client.close()
        self._coming.clear()
        if self._later is not None:
            self._later.close()
