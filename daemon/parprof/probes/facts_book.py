"""The facts about files that planning needs, each found once: remembered, on disk by build id, or asked of a child."""

from __future__ import annotations

import json
import os
import time
from collections import OrderedDict
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from parprof.cache import DiskCache
from parprof.errors import TargetError
from parprof.files.dso import Dso, Key
from parprof.probes.file_facts import FileFacts, from_json, rules, to_json
from parprof.resources import Closing
from parprof.workers.client import WorkerClient, WorkerFailed

FILE_SECONDS = 20.0
"""How long one file may take."""
MAX_BYTES = 1 << 26
"""What all facts on disk may take."""
_MAX_FILE = 1 << 24
_KEPT = 4096
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
        self._known: OrderedDict[tuple[Key, str], FileFacts] = OrderedDict()
        self._failures: dict[Key, int] = {}
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
            if name:
                self._store(name, found)
        self._known[key] = found
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return found

    def _find(self, dso: Dso) -> FileFacts | None:
        answer = self._ask(dso)
        self.found += 1
        try:
            return from_json(answer.get("facts"))
        except ValueError:  # no such file, or its child gave no sensible answer
            return NOTHING if "problem" in answer else None

    def _ask(self, dso: Dso) -> dict[str, Any]:
        """What the child says; asked again, within the same time, where it was ended over something else."""
        deadline = time.monotonic() + self._file_seconds
        while self._failures.get(dso.key, 0) < _ATTEMPTS and time.monotonic() < deadline:
            try:
                fd = dso.file().lend()
            except (TargetError, OSError):
                return {}
            try:
                return self._client.ask({"file": dso.path}, [fd], deadline)
            except WorkerFailed:
                if len(self._failures) >= _KEPT:
                    self._failures.clear()
                self._failures[dso.key] = self._failures.get(dso.key, 0) + 1
            finally:
                os.close(fd)
        return {}

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
        self._client.stop_if_idle(idle_seconds)

    def close(self) -> None:
        """End the child; it is started again if need be."""
        self._client.close()


BOOK = FactsBook()
"""Of this process: what a file is does not depend on who asks."""


def file_facts(dso: Dso) -> FileFacts:
    """The facts about a file."""
    return BOOK.facts(dso)
