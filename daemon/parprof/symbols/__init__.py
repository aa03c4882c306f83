"""Addresses to frames: names, files, lines and inlined functions.

Debug information and symbol tables are read by a child process (`parprof.symbols.worker`), so that the daemon
stays small and survives whatever a hostile file does to the readers. What cannot be told is still told apart:
``libfoo.so+0x12f0``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

from parprof.dso import Dso, Key
from parprof.errors import TargetError
from parprof.model import Frame
from parprof.symbols.client import WorkerClient, WorkerFailed
from parprof.symbols.debugfiles import find_debug_file
from parprof.untrusted import visible

__all__ = ("Request", "Symbolizer")

Request = tuple[Dso, int, bool]
"""(file, ELF virtual address, is a return address)."""

FILE_SECONDS = 20.0
_BATCH = 256
_MAX_NAME = 4200
_MAX_REMEMBERED = 1 << 15
_MAX_REMEMBERED_TEXT = 1 << 25
"""Characters of names and files in what is remembered; most are shared, so this is an upper bound."""
_MAX_TOKENS = 1 << 12
_MAX_PROBLEMS = 256


class Symbolizer:
    """Resolves addresses, many at a time; remembers what it resolved. For one thread."""

    def __init__(self, file_seconds: float = FILE_SECONDS) -> None:
        """Give up on a file that takes longer than ``file_seconds`` to read, and fall back on its names."""
        self._worker = WorkerClient()
        self._file_seconds = file_seconds
        self._remembered: dict[tuple[Key, int, bool], tuple[Frame, ...]] = {}
        self._text = 0
        self._attempts: dict[Key, bool | None] = {}
        self._tokens: dict[Key, int] = {}
        self._next_token = 0
        self.problems: dict[str, str] = {}
        """Path of a file -> why less is known of it than could be, for notes in reports."""

    @property
    def worker_pid(self) -> int:
        """Process id of the child that reads the files now, 0 if there is none."""
        return self._worker.pid

    def frames(self, dso: Dso, vaddr: int, is_return_address: bool) -> tuple[Frame, ...]:
        """The frames at one address, the innermost inlined function first, the function itself last."""
        known = self._remembered.get((dso.key, vaddr, is_return_address))
        if known is not None:
            return known
        request = (dso, vaddr, is_return_address)
        return self.resolve([request])[request]

    def resolve(self, requests: Iterable[Request]) -> dict[Request, tuple[Frame, ...]]:
        """The frames of many addresses; see `frames`. Every request is answered.

        A return address is looked up one byte earlier, inside of the call; ``Frame.address`` stays as asked.
        """
        out: dict[Request, tuple[Frame, ...]] = {}
        missing: dict[Key, tuple[Dso, list[Request]]] = {}
        for request in requests:
            if request in out:
                continue
            known = self._remembered.get((request[0].key, *request[1:]))
            if known is not None:
                out[request] = known
            else:
                missing.setdefault(request[0].key, (request[0], []))[1].append(request)
        for dso, asked in missing.values():
            build_id = dso.build_id
            addresses = sorted({vaddr - is_return for _, vaddr, is_return in asked})
            rows = self._read(dso, addresses)
            for request in asked:
                _, vaddr, is_return = request
                found = None if rows is None else rows.get(vaddr - is_return)
                out[request] = _make_frames(dso, build_id, vaddr, found)
                if rows is not None:
                    self._remember((dso.key, vaddr, is_return), out[request])
        return out

    def _remember(self, key: tuple[Key, int, bool], frames: tuple[Frame, ...]) -> None:
        self._text += _text_size(frames) - _text_size(self._remembered.pop(key, ()))
        self._remembered[key] = frames
        while len(self._remembered) > _MAX_REMEMBERED or self._text > _MAX_REMEMBERED_TEXT:
            self._text -= _text_size(self._remembered.pop(next(iter(self._remembered))))

    def trim(self, idle_seconds: float = 60.0) -> None:
        """End the child, and give back its memory, if it had nothing to do for so long."""
        if self._worker.stop_if_idle(idle_seconds):
            self._tokens.clear()

    def _read(self, dso: Dso, addresses: list[int]) -> dict[int, object] | None:
        """Ask the child: with ``symbolic``, after a failure without, after another one no more.

        None if the file cannot be had now, which may change.
        """
        if dso.key[0] not in ("file", "vdso"):
            return {}
        while (use_symbolic := self._attempts.get(dso.key, True)) is not None:
            try:
                return self._ask(dso, addresses, use_symbolic)
            except WorkerFailed as error:
                self._tokens.clear()
                self._note(dso, str(error))
                self._attempts[dso.key] = False if use_symbolic else None
                if len(self._attempts) > _MAX_REMEMBERED:
                    del self._attempts[next(iter(self._attempts))]
            except (TargetError, OSError) as error:
                self._note(dso, str(error))
                return None
        return {}

    def _ask(self, dso: Dso, addresses: list[int], use_symbolic: bool) -> dict[int, object]:
        out: dict[int, object] = {}
        deadline = time.monotonic() + self._file_seconds
        with ExitStack() as stack:
            fd = dso.fd()
            if dso.elf is None:
                self._note(dso, dso.problem)
                return {}
            separate = find_debug_file(dso)
            if separate is not None:
                fd = stack.enter_context(separate).fileno()
            if dso.key not in self._tokens:
                if len(self._tokens) >= _MAX_TOKENS:
                    self._tokens.clear()
                self._next_token += 1
                self._tokens[dso.key] = self._next_token
            for at in range(0, len(addresses), _BATCH):
                batch = addresses[at : at + _BATCH]
                request = {"file": self._tokens[dso.key], "addresses": batch, "symbolic": use_symbolic}
                answer = self._worker.ask(request, fd, deadline)
                if answer.get("problem"):
                    self._note(dso, str(answer["problem"]))
                frames = answer.get("frames")
                if not isinstance(frames, list):
                    raise WorkerFailed("reading its symbols gave no answer")
                out.update(zip(batch, frames, strict=False))
        return out

    def _note(self, dso: Dso, problem: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.setdefault(dso.path, visible(problem, 500))

    def close(self) -> None:
        """End the child."""
        self._worker.close()
        self._tokens.clear()

    def __enter__(self) -> Self:
        """Nothing to do."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def _text(value: object) -> str:
    return sys.intern(visible(value, _MAX_NAME)) if isinstance(value, str) else ""


def _text_size(frames: tuple[Frame, ...]) -> int:
    return sum(len(frame.name) + len(frame.file) for frame in frames)


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 32 else 0


def _make_frames(dso: Dso, build_id: str, vaddr: int, rows: object) -> tuple[Frame, ...]:
    """Frames from the child's rows, which are checked: it may have fallen to a file that it read."""
    out = []
    if isinstance(rows, list):
        for row in rows[:256]:
            if not isinstance(row, list) or len(row) != 4 or not _text(row[0]):
                continue
            name, file, line, start_line = row
            where = _text(file), _number(line), _number(start_line)
            out.append(Frame(_text(name), *where, dso.name, build_id, vaddr, inlined=True))
    if out:
        out[-1] = replace(out[-1], inlined=False)
        return tuple(out)
    name = dso.name if dso.key[0] == "label" else f"{dso.name}+{vaddr:#x}"
    return (Frame(name, module=dso.name, build_id=build_id, address=vaddr),)
