"""The facts about files that planning needs, each found once: remembered, on disk by build id, or asked of a child."""

from __future__ import annotations

import json
import os
import time
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from parprof.cache import DiskCache
from parprof.errors import TargetError
from parprof.files.dso import Dso, FileKey
from parprof.probes.file_facts import FileFacts, ProbedFunction, from_json, function_from_json, rules, to_json
from parprof.remembered import Remembered
from parprof.resources import Closing
from parprof.workers.client import WorkerClient, WorkerFailed

FILE_SECONDS = 20.0
"""How long one file may take."""
MAX_BYTES = 1 << 26
"""What all facts on disk may take."""
_MAX_FILE = 1 << 24
_KEPT = 4096
_MAX_COMING = 64
"""Files that are kept open for `FactsBook.coming`."""
_INTERRUPT_SECONDS = 0.01
_ATTEMPTS = 2
"""How often a file may crash the child or keep it busy for too long."""
NOTHING = FileFacts()


class _Client(WorkerClient):
    module = "parprof.probes.facts_worker"
    doing = "looking for what can be probed"


class FactsBook(Closing):
    """What is known of files. To be used by one thread; it starts its child when that is first needed."""

    def __init__(self, base: Path | None = None, file_seconds: float = FILE_SECONDS) -> None:
        """Keep facts in ``base``, or in parprof's own cache directory; give up on a file after ``file_seconds``."""
        self._disk = DiskCache("facts", MAX_BYTES, base)
        self._file_seconds = file_seconds
        self._client = _Client()
        self._known: OrderedDict[tuple[FileKey, str], FileFacts] = OrderedDict()
        self._failures = Remembered[FileKey, int](_KEPT)
        self._thread: ThreadPoolExecutor | None = None
        """The only one that talks to the child."""
        self._coming: dict[tuple[FileKey, str], Future[dict[str, Any]]] = {}
        self._missing: set[tuple[FileKey, str]] = set()
        """Those that are not on disk, and were yet to be asked for when there was no room."""
        self._closing = False
        self.found = 0
        """How many files the child has looked into."""

    @property
    def worker_pid(self) -> int:
        """Process id of the child, 0 if there is none now."""
        return self._client.pid

    def facts(self, dso: Dso) -> FileFacts:
        """The facts about a file; waits for them. Empty where it cannot be read."""
        key = dso.key, dso.name
        found = self._known.get(key)
        if found is not None:
            self._known.move_to_end(key)
            return found
        if dso.elf is None:
            return NOTHING  # may be better the next time
        name = self._name(dso)
        found = self._load(name) if name else None
        if found is None:
            found = self._find(dso)
            if found is None:
                return NOTHING
            if name and name == self._name(dso):  # not written to meanwhile
                self._store(name, found)
        self._remember(dso, found)
        return found

    def coming(self, dsos: Iterable[Dso]) -> int:
        """Begin to find what is missing of the facts about these files; of how many `facts` would have to wait."""
        waiting = 0
        for dso in dsos:
            key = dso.key, dso.name
            future = self._coming.get(key)
            if future is None and key not in self._missing and self._has(dso):
                continue
            if future is not None and future.done():
                if future.result():
                    self.facts(dso)  # which makes room for another one
                    continue
                del self._coming[key]  # it failed: once more, or never again
                future = None
                if self._failures.get(dso.key, 0) >= _ATTEMPTS:
                    continue
            if future is None:
                if len(self._coming) >= _MAX_COMING:
                    waiting += 1
                    if len(self._missing) >= _KEPT:
                        self._missing.clear()
                    self._missing.add(key)
                    continue
                self._missing.discard(key)
                future = self._request(dso)
            waiting += future is not None and not future.done()
        return waiting

    @property
    def is_busy(self) -> bool:
        """Whether the child looks into a file now."""
        return any(not future.done() for future in self._coming.values())

    def _has(self, dso: Dso) -> bool:
        """Whether `facts` answers at once: it knows, or has given up."""
        if (dso.key, dso.name) in self._known or dso.elf is None:
            return True
        if (dso.key, dso.name) not in self._coming and (name := self._name(dso)):
            found = self._load(name)
            if found is not None:
                self._remember(dso, found)
                return True
        return self._failures.get(dso.key, 0) >= _ATTEMPTS

    def _remember(self, dso: Dso, facts: FileFacts) -> None:
        self._known[dso.key, dso.name] = facts
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)

    def _find(self, dso: Dso) -> FileFacts | None:
        """What the child says; asked again, within the same time, where it was ended over something else."""
        answer: dict[str, Any] = {}
        deadline = time.monotonic() + self._file_seconds
        while not answer and self._failures.get(dso.key, 0) < _ATTEMPTS and time.monotonic() < deadline:
            future = self._coming.pop((dso.key, dso.name), None) or self._request(dso)
            if future is None:
                break
            answer = future.result()
            self._coming.pop((dso.key, dso.name), None)
        self.found += 1
        try:
            return from_json(answer.get("facts"))
        except ValueError:  # no such file, or its child gave no sensible answer
            return NOTHING if "problem" in answer else None

    def _request(self, dso: Dso) -> Future[dict[str, Any]] | None:
        """Have the thread ask the child for a file's facts."""
        future = self.ask(dso, {})
        if future is not None:
            self._coming[dso.key, dso.name] = future
        return future

    def function(self, dso: Dso, vaddr: int, size: int, seconds: float) -> ProbedFunction | None:
        """Where the function at an ELF virtual address is to be probed; None if the child does not say so in time.

        ``size`` in bytes, 0 = unknown.
        """
        future = self.ask(dso, {"function": [vaddr, size]})
        with suppress(NotYet, ValueError):
            answer = future.result(seconds) if future is not None else {}
            found = function_from_json(answer.get("function"))
            return found if found.vaddr == vaddr else None
        return None

    def ask(self, dso: Dso, request: dict[str, Any]) -> Future[dict[str, Any]] | None:
        """Have the thread ask the child something about a file: see `parprof.probes.facts_worker`.

        The answer is empty if the child failed; None: the file cannot be opened.
        """
        try:
            fd = dso.file().lend()
        except (TargetError, OSError):
            return None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "parprof-facts")
        # it must not use the Dso
        return self._thread.submit(self._ask, dso.key, {"file": dso.path, **request}, fd)

    def _ask(self, key: FileKey, request: dict[str, Any], fd: int) -> dict[str, Any]:
        """What the child says; empty if it failed. In the thread."""
        try:
            if self._closing:
                return {}
            return self._client.ask(request, [fd], time.monotonic() + self._file_seconds)
        except WorkerFailed:
            self._failures[key] = self._failures.get(key, 0) + 1
            return {}
        finally:
            os.close(fd)

    # on disk

    def _name(self, dso: Dso) -> str:
        """What its facts are called there; empty where they are not to be kept. The name tells a runtime's library."""
        if not (content := dso.content_name()):
            return ""
        other = sha256(f"{dso.name}\0{rules()}".encode(errors="replace")).hexdigest()[:16]
        return f"{content}-{other}"

    def _load(self, name: str) -> FileFacts | None:
        fd = self._disk.open(name)
        if fd is None:
            return None
        try:
            with suppress(OSError, ValueError, RecursionError):
                return from_json(json.loads(os.pread(fd, _MAX_FILE, 0)))
        finally:
            os.close(fd)
        self._disk.remove(name)
        return None

    def _store(self, name: str, facts: FileFacts) -> None:
        raw = json.dumps(to_json(facts)).encode()
        if len(raw) <= _MAX_FILE:
            self._disk.write(name, raw)

    # the end

    def trim(self, idle_seconds: float = 60.0) -> None:
        """End the child, and give back its memory, if it had nothing to do for so long."""
        if self._thread is not None and not self.is_busy:
            self._thread.submit(self._client.stop_if_idle, idle_seconds).result()

    def close(self) -> None:
        """End the child, whatever it does; it is started again if need be."""
        if self._thread is not None:
            self._closing = True
            last = self._thread.submit(
                lambda: None
            )  # behind all that was asked, of which only one keeps it busy
            while wait([last], timeout=_INTERRUPT_SECONDS).not_done:
                self._client.interrupt()
            self._thread.shutdown()
            self._thread, self._closing = None, False
            self._coming.clear()
        self._client.close()


BOOK = FactsBook()
"""Of this process: what a file is does not depend on who asks."""


def file_facts(dso: Dso) -> FileFacts:
    """The facts about a file."""
    return BOOK.facts(dso)
