"""Debug files from debuginfod servers, by build id, as elfutils and gdb fetch them.

Only where the user set ``DEBUGINFOD_URLS``. The talking is done by a child process
(`parprof.symbols.fetcher`), which is ended when the time is up: whatever a server does, results wait no longer
than ``DEBUGINFOD_TIMEOUT`` for all of their files together. What arrived is kept on disk, and for a day also
the news that no server has a file.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self
from urllib.parse import urlsplit

from parprof.cache import CacheFile, DiskCache
from parprof.files.elf import ElfError, ElfFile
from parprof.files.elf_image import SHT_NOBITS
from parprof.symbols.debugfiles import open_build
from parprof.untrusted import visible
from parprof.workers import protocol
from parprof.workers.client import end_child, start_child

CACHE_BYTES = 4 << 30
"""Size of the cache on disk."""
_SECONDS = 10.0
_MAX_SIZE = 2 << 30
_MAX_WANTED = 64
_MAX_REMEMBERED = 1 << 13
_MAX_URLS = 8
_MISSING_SECONDS = 86400.0
_PAUSE_SECONDS = 600.0
"""How long nothing is tried again after a failure."""
_SAY_SECONDS = 2.0


class Debuginfod:
    """The servers and the cache. For one thread."""

    def __init__(
        self, urls: list[str], seconds: float, max_size: int, cache: DiskCache, log: Callable[[str], None]
    ) -> None:
        """Ask ``urls``, in order; see the module. ``log`` is told of progress, a line at a time."""
        self._urls = urls
        self._seconds = seconds
        self._max_size = max_size
        self._cache = cache
        self._log = log
        self._not_before: dict[str, float] = {}
        self._asked = hashlib.sha256("\n".join(urls).encode("utf-8", "replace")).hexdigest()[:16]

    @classmethod
    def from_environment(cls, log: Callable[[str], None]) -> Self | None:
        """As the environment asks for; None if it does not."""
        words = os.environ.get("DEBUGINFOD_URLS", "").split()
        urls = [word.rstrip("/") for word in words if _is_web(word)][:_MAX_URLS]
        if not urls:
            return None
        seconds = _positive("DEBUGINFOD_TIMEOUT", _SECONDS)
        max_size = int(min(_positive("DEBUGINFOD_MAXSIZE", _MAX_SIZE), 1 << 40))
        return cls(urls, min(seconds, 86400.0), max_size, DiskCache("debuginfod", CACHE_BYTES), log)

    def open(self, build_id: str) -> ElfFile | None:
        """The debug file, if it was fetched some time."""
        fd = self._cache.open(_file_name(build_id))
        if fd is None:
            return None
        try:
            found = open_build(f"/proc/self/fd/{fd}", build_id)
        finally:
            os.close(fd)
        if found is None:
            self._cache.remove(_file_name(build_id))
        return found

    def fetch(self, wanted: Mapping[str, str]) -> dict[str, str]:
        """Fetch the debug files of these builds, which have the paths given; as far as they are not here.

        Returns path -> problem for those that may exist but did not arrive.
        """
        now = time.monotonic()
        missing = [b for b in wanted if now >= self._not_before.get(b, 0.0) and self._is_unknown(b)]
        if not missing or now < self._not_before.get("", 0.0):
            return {}
        run = _Run(self._cache, self._log, {build_id: wanted[build_id] for build_id in missing[:_MAX_WANTED]})
        try:
            run.talk(self._urls, self._seconds, self._max_size)
        finally:
            run.close()
        for build_id in run.absent:
            new = self._cache.new(self._none_name(build_id))
            if new is not None:
                with new:
                    new.commit()
            self._not_before[build_id] = now + _MISSING_SECONDS
        if len(self._not_before) > _MAX_REMEMBERED:
            self._not_before.clear()
        later = time.monotonic() + _PAUSE_SECONDS
        self._not_before.update(dict.fromkeys(run.problems, later))
        if run.problems and not run.arrived and not run.absent:
            self._not_before[""] = later  # no server works
        return {wanted[build_id]: problem for build_id, problem in run.problems.items()}

    def _none_name(self, build_id: str) -> str:
        return f"{build_id}-{self._asked}.none"

    def _is_unknown(self, build_id: str) -> bool:
        """Whether the file is neither here nor known to be nowhere."""
        found = self.open(build_id)
        if found is not None:
            found.close()
            return False
        fd = self._cache.open(self._none_name(build_id))
        if fd is None:
            return True
        age = time.time() - os.fstat(fd).st_mtime
        os.close(fd)
        return not 0 <= age < _MISSING_SECONDS


class _Run:
    """One child and the files that it is to fetch."""

    def __init__(self, cache: DiskCache, log: Callable[[str], None], wanted: dict[str, str]) -> None:
        self._log = log
        self._paths = wanted
        self._said = time.monotonic()
        self._new: dict[str, CacheFile] = {}
        self.arrived: set[str] = set()
        self.absent: set[str] = set()
        self.problems: dict[str, str] = {}
        for build_id in wanted:
            new = cache.new(_file_name(build_id))
            if new is None:
                self.problems[build_id] = f"debuginfod is not asked: {cache.problem}"
            else:
                self._new[build_id] = new

    def talk(self, urls: list[str], seconds: float, max_size: int) -> None:
        """Let a child fetch them, and end it when it is done or the time is up."""
        deadline = time.monotonic() + seconds
        if not self._new:
            return
        self._log(f"debuginfod: asking for {len(self._new)} debug files, at most {seconds:g} s")
        with suppress(OSError, ValueError):  # each file still here is noted below
            space = os.fstatvfs(next(iter(self._new.values())).fd)
            max_size = min(max_size, space.f_bavail * space.f_frsize // 2)
            child, connection = start_child("parprof.symbols.fetcher", str(max_size))
            try:
                for build_id, new in self._new.items():
                    connection.settimeout(max(0.05, deadline - time.monotonic()))
                    request = {"build_id": build_id, "urls": urls, "seconds": deadline - time.monotonic()}
                    protocol.send(connection, request, [new.fd])
                protocol.send(connection, {})
                while self._new:
                    connection.settimeout(max(0.05, deadline - time.monotonic()))
                    received = protocol.receive(connection)
                    if received is None or time.monotonic() > deadline:
                        break
                    protocol.close_all(received[1])
                    self._take(received[0])
            finally:
                connection.close()
                end_child(child)
        for build_id in self._new:
            problem = f"debuginfod did not deliver its debug file in {seconds:g} s (DEBUGINFOD_TIMEOUT)"
            self.problems[build_id] = problem

    def _take(self, answer: dict[str, Any]) -> None:
        """One message of the child, which may have fallen to a server that it asked."""
        build_id, state = answer.get("build_id"), answer.get("state")
        if not isinstance(build_id, str) or build_id not in self._new:
            return
        if state == "progress":
            now = time.monotonic()
            if now - self._said >= _SAY_SECONDS:
                self._said = now
                mib = "".join(c for c in str(answer.get("bytes")) if c.isdecimal())[:16] or "0"
                self._log(f"debuginfod: {self._paths[build_id]}: {int(mib) >> 20} MiB")
            return
        with self._new.pop(build_id) as new:
            if state == "absent":
                self.absent.add(build_id)
            elif state != "done":
                self.problems[build_id] = visible(f"debuginfod: {answer.get('problem')}", 500)
            elif not _is_whole(new.fd, build_id):
                self.problems[build_id] = "debuginfod delivered a file of another build, or a damaged one"
            elif new.commit():
                self.arrived.add(build_id)

    def close(self) -> None:
        """Remove what did not arrive."""
        for new in self._new.values():
            new.close()
        self._new.clear()


def _is_whole(fd: int, build_id: str) -> bool:
    """Whether that is the build's file, to its end."""
    found = open_build(fd, build_id)
    if found is None:
        return False
    size = os.fstat(fd).st_size
    try:
        ends = [section.offset + section.size for section in found.sections if section.type != SHT_NOBITS]
    except ElfError:
        return False
    return max(ends, default=size + 1) <= size


def _file_name(build_id: str) -> str:
    return f"{build_id}.debug"


def _is_web(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def _positive(variable: str, default: float) -> float:
    try:
        value = float(os.environ.get(variable, ""))
    except ValueError:
        return default
    return value if 0 < value < float("inf") else default
