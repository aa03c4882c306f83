"""Addresses to frames: names, files, lines and inlined functions.

Debug information and symbol tables are read by a child process (`parprof.symbols.worker`), so that the daemon
stays small and survives whatever a hostile file does to the readers. What cannot be told is still told apart:
``libfoo.so+0x12f0``. docs/symbols.md says where names come from.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterable

from parprof.files.dso import Dso, FileKey
from parprof.model import Frame
from parprof.resources import Closing
from parprof.symbols.reader import SymbolReader
from parprof.untrusted import visible

__all__ = ("NameRequest", "Symbolizer")

NameRequest = tuple[Dso, int, bool]
"""(file, ELF virtual address, is a return address)."""

FILE_SECONDS = 20.0
_MAX_NAME = 4200
_MAX_ROWS = 256
_MAX_REMEMBERED = 1 << 15
_MAX_REMEMBERED_TEXT = 1 << 25
"""Characters of names and files in what is remembered; most are shared, so this is an upper bound."""


class Symbolizer(Closing):
    """Resolves addresses, many at a time; remembers what it resolved. For one thread."""

    def __init__(
        self,
        file_seconds: float = FILE_SECONDS,
        log: Callable[[str], None] | None = None,
        pass_seconds: float = math.inf,
    ) -> None:
        """Give up on a file that takes longer than ``file_seconds`` to read, and fall back on its names.

        ``log`` is told, a line at a time, what takes long: downloads from debuginfod servers. `resolve` begins no
        further file after ``pass_seconds``.
        """
        self._pass_seconds = pass_seconds
        self._reader = SymbolReader(file_seconds, log or logging.getLogger(__name__).info)
        self._remembered: dict[tuple[FileKey, int, bool], tuple[Frame, ...]] = {}
        self._text = 0

    @property
    def problems(self) -> dict[str, str]:
        """Path of a file -> why less is known of it than could be, for notes in reports."""
        return self._reader.problems

    @property
    def worker_pid(self) -> int:
        """Process id of the child that reads the files now, 0 if there is none."""
        return self._reader.worker.pid

    def prepare(self) -> None:
        """Start the child that reads the files, which takes a while: it will be needed."""
        self._reader.worker.prepare()

    def frames(self, dso: Dso, vaddr: int, is_return_address: bool) -> tuple[Frame, ...]:
        """The frames at one address, the innermost inlined function first, the function itself last."""
        known = self._remembered.get((dso.key, vaddr, is_return_address))
        if known is not None:
            return known
        request = (dso, vaddr, is_return_address)
        return self.resolve([request])[request]

    def resolve(self, requests: Iterable[NameRequest]) -> dict[NameRequest, tuple[Frame, ...]]:
        """The frames of many addresses; see `frames`. Every request is answered, and asked for anew the next time
        if it was answered without its file.

        A return address is looked up one byte earlier, inside of the call; ``Frame.address`` stays as asked.
        """
        out: dict[NameRequest, tuple[Frame, ...]] = {}
        missing: dict[FileKey, tuple[Dso, list[NameRequest]]] = {}
        for request in requests:
            if request in out:
                continue
            known = self._remembered.get((request[0].key, *request[1:]))
            if known is not None:
                out[request] = known
            else:
                missing.setdefault(request[0].key, (request[0], []))[1].append(request)
        until_s = time.monotonic() + self._pass_seconds
        by_need = sorted(missing.values(), key=lambda item: -len(item[1]))
        self._reader.prepare(dso for dso, _ in by_need)
        for dso, asked in by_need:
            build_id = dso.build_id
            texts: dict[str, str] = {}
            addresses = sorted({vaddr - is_return for _, vaddr, is_return in asked})
            rows = self._reader.read(dso, addresses) if time.monotonic() < until_s else None
            for request in asked:
                _, vaddr, is_return = request
                found = None if rows is None else rows.get(vaddr - is_return)
                out[request] = _make_frames(dso, build_id, vaddr, found, texts)
                if rows is not None:
                    self._remember((dso.key, vaddr, is_return), out[request])
        return out

    def _remember(self, key: tuple[FileKey, int, bool], frames: tuple[Frame, ...]) -> None:
        self._text += _text_size(frames) - _text_size(self._remembered.pop(key, ()))
        self._remembered[key] = frames
        while len(self._remembered) > _MAX_REMEMBERED or self._text > _MAX_REMEMBERED_TEXT:
            self._text -= _text_size(self._remembered.pop(next(iter(self._remembered))))

    def trim(self, idle_seconds: float = 60.0) -> None:
        """End the child, and give back its memory, if it had nothing to do for so long."""
        self._reader.trim(idle_seconds)

    def close(self) -> None:
        """End the child."""
        self._reader.close()


def _text_size(frames: tuple[Frame, ...]) -> int:
    return sum(len(frame.name) + len(frame.file) for frame in frames)


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 32 else 0


def _make_frames(
    dso: Dso, build_id: str, vaddr: int, rows: object, texts: dict[str, str]
) -> tuple[Frame, ...]:
    """Frames from the child's rows, which are checked: it may have fallen to a file that it read.

    ``texts`` remembers what is safe to show.
    """

    def text(value: object) -> str:
        if not isinstance(value, str):
            return ""
        known = texts.get(value)
        if known is None:
            known = texts[value] = sys.intern(visible(value, _MAX_NAME))
        return known

    good = [
        (name, text(row[1]), _number(row[2]), _number(row[3]))
        for row in (rows[:_MAX_ROWS] if isinstance(rows, list) else ())
        if isinstance(row, list) and len(row) == 4 and (name := text(row[0]))
    ]
    if not good:
        name = dso.name if dso.key[0] == "label" else f"{dso.name}+{vaddr:#x}"
        return (Frame(name, module=dso.name, build_id=build_id, address=vaddr),)
    if good[-1][0].startswith("+0x"):
        good[-1] = (dso.name + good[-1][0], *good[-1][1:])
    last = len(good) - 1
    return tuple(Frame(*row, dso.name, build_id, vaddr, at < last) for at, row in enumerate(good))
