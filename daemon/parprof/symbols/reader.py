"""What is known of the addresses of one file: asked of the child, with all that is needed to ask it.

That is the file itself or its separate debug file, from here or from a debuginfod server, and the cache on
disk of what the child once made of it. The child may open none of these: it gets descriptors.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import NamedTuple

from parprof.cache import DiskCache
from parprof.errors import TargetError
from parprof.files.dso import Dso, FileKey
from parprof.files.open_file import FileStatus
from parprof.symbols.debugfiles import find_debug_file, identity, lacks_lines
from parprof.symbols.debuginfod import Debuginfod
from parprof.untrusted import visible
from parprof.workers.client import WorkerClient, WorkerFailed

CACHE_BYTES = 1 << 30
"""Size of the cache on disk."""
_BATCH = 4096
_MAX_TOKENS = 1 << 12
_MAX_PROBLEMS = 256
_MAX_ATTEMPTS = 1 << 15
_SAVE_SECONDS = 5.0


class _Worker(WorkerClient):
    module = "parprof.symbols.worker"
    doing = "reading its symbols"


class _Source(NamedTuple):
    fd: int
    identity: str
    """Empty where nothing may be kept on disk: the file has no build id."""


class SymbolReader:
    """Answers for one file at a time; remembers which files made the child crash or hang."""

    def __init__(self, file_seconds: float, log: Callable[[str], None]) -> None:
        """Give up on a file that takes longer than ``file_seconds`` to read, and fall back on its names."""
        self.worker = _Worker()
        self.cache = DiskCache("symbols", CACHE_BYTES)
        self.debuginfod = Debuginfod.from_environment(log)
        self._file_seconds = file_seconds
        self._attempts: dict[FileKey, bool | None] = {}
        self._tokens: dict[tuple[FileKey, str], int] = {}
        self._next_token = 0
        self.problems: dict[str, str] = {}
        """Path of a file -> why less is known of it than could be."""

    def prepare(self, dsos: Iterable[Dso]) -> None:
        """Fetch the debug files of these, in order, as far as they are missing and there is a server to ask."""
        if self.debuginfod is None:
            return
        wanted: dict[str, str] = {}
        for dso in dsos:
            if dso.key[0] == "file" and lacks_lines(dso):
                found = find_debug_file(dso)
                if found is None:
                    wanted.setdefault(dso.build_id, dso.path)
                else:
                    found.close()
        for path, problem in self.debuginfod.fetch(wanted).items():
            self.note(path, problem)

    def read(self, dso: Dso, addresses: list[int]) -> dict[int, object] | None:
        """Rows of frames by ELF virtual address, unchecked, from ``symbolic`` or after a failure without it.

        None if the file cannot be had now, which may change.
        """
        if dso.key[0] not in ("file", "vdso"):
            return {}
        while (use_symbolic := self._attempts.get(dso.key, True)) is not None:
            try:
                return self._ask(dso, addresses, use_symbolic)
            except WorkerFailed as error:
                self._tokens.clear()
                self.note(dso.path, str(error))
                self._attempts[dso.key] = False if use_symbolic else None
                if len(self._attempts) > _MAX_ATTEMPTS:
                    del self._attempts[next(iter(self._attempts))]
            except (TargetError, OSError) as error:
                self.note(dso.path, str(error))
                return None
        return {}

    def _source(self, dso: Dso, stack: ExitStack) -> _Source:
        """The file that has the debug information."""
        status = dso.file().status()
        separate = find_debug_file(dso)
        downloaded = False
        if separate is None and self.debuginfod is not None and lacks_lines(dso):
            separate = self.debuginfod.open(dso.build_id)
            downloaded = separate is not None
        if separate is not None:
            fd = stack.enter_context(separate).fileno()
            status = FileStatus.of(os.fstat(fd))
        else:
            fd = dso.file().lend()
            stack.callback(os.close, fd)
        # the cache of downloads notes their last use, which changes them
        return _Source(fd, identity(status, changes=not downloaded) if dso.build_id else "")

    def _ask(self, dso: Dso, addresses: list[int], use_symbolic: bool) -> dict[int, object]:
        deadline = time.monotonic() + self._file_seconds
        if dso.elf is None:
            dso.file()  # says why
            self.note(dso.path, dso.problem)
            return {}
        with ExitStack() as stack:
            source = self._source(dso, stack)
            name = f"{dso.build_id}-{source.identity}" if source.identity and use_symbolic else ""
            fds = [source.fd]
            cached = self.cache.open(name) if name else None
            if cached is not None:
                fds.append(stack.enter_context(open(cached, "rb", buffering=0)).fileno())
            token = self._token(dso, source)
            try:
                out, unsaved = self._ask_all(dso, token, addresses, use_symbolic, fds, deadline)
            except WorkerFailed:
                if cached is not None:
                    self.cache.remove(name)
                raise
        if unsaved and name:
            self._save(token, name)
        return out

    def _token(self, dso: Dso, source: _Source) -> int:
        """What the child knows the file by."""
        key = (dso.key, source.identity)
        if key not in self._tokens:
            if len(self._tokens) >= _MAX_TOKENS:
                self._tokens.clear()
            self._next_token += 1
            self._tokens[key] = self._next_token
        return self._tokens[key]

    def _ask_all(
        self, dso: Dso, token: int, addresses: list[int], use_symbolic: bool, fds: list[int], deadline: float
    ) -> tuple[dict[int, object], bool]:
        out: dict[int, object] = {}
        unsaved = False
        at = 0
        while at < len(addresses):
            batch = addresses[at : at + _BATCH]
            request = {"file": token, "addresses": batch, "symbolic": use_symbolic}
            answer = self.worker.ask(request, fds, deadline)
            if answer.get("problem"):
                self.note(dso.path, str(answer["problem"]))
            frames = answer.get("frames")
            if not isinstance(frames, list):
                raise WorkerFailed("reading its symbols gave no answer")
            out.update(zip(batch, frames, strict=False))
            unsaved = answer.get("unsaved") is True
            at += min(len(frames), len(batch)) or len(batch)
        return out, unsaved

    def _save(self, token: int, name: str) -> None:
        """Let the child write the file that we opened for it."""
        new = self.cache.new(name)
        if new is None:
            return
        with new:
            request = {"file": token, "symbolic": True, "save": True}
            try:
                answer = self.worker.ask(request, [new.fd], time.monotonic() + _SAVE_SECONDS)
            except WorkerFailed:
                self._tokens.clear()
                return
            if answer.get("saved") is True:
                new.commit()

    def note(self, path: str, problem: str) -> None:
        """Remember why less is known of a file than could be."""
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.setdefault(path, visible(problem, 500))

    def trim(self, idle_seconds: float) -> None:
        """End the child, and give back its memory, if it had nothing to do for so long."""
        if self.worker.stop_if_idle(idle_seconds):
            self._tokens.clear()

    def close(self) -> None:
        """End the child."""
        self.worker.close()
        self._tokens.clear()
