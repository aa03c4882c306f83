"""Loops of functions on disk, so that nobody looks for them twice.

Those that are dear to find, of large functions such as an interpreter's, have a file each. Those of other functions
stand in one file with all that is known of their code's file: a measurement of code that was measured before then
needs no child to disassemble, whose start alone takes 0.13 s of CPU time.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any

from parprof import __version__
from parprof.cache import DiskCache
from parprof.files.dso import Dso
from parprof.files.eh_frame_header import Extent
from parprof.loops.nest import LoopNest
from parprof.loops.nest_json import MAX_NUMBERS, from_json, to_json
from parprof.values import dataclass

FORMAT = 1
"""To be raised with each change of what is found."""
DEAR_SECONDS = 0.02
"""CPU time from which on a function has a file for itself."""
_MAX_BYTES = 1 << 24
_MAX_DEAR = 1 << 22
_MAX_BOOK, _MAX_PAGE = 1 << 18, 1 << 14
"""Bytes of what is known of one file, and of one function there."""
_MAX_BOOKS = 64


@dataclass(slots=True)
class _Book:
    """What is known of the functions of one file: the text of each, by its place."""

    pages: dict[str, str] = field(default_factory=dict)
    size: int = 0
    is_new: bool = False

    def add(self, place: str, text: str) -> None:
        """Keep a function, if there is room."""
        if len(text) <= _MAX_PAGE and self.size + len(text) <= _MAX_BOOK:
            self.pages[place] = text
            self.size += len(text)
            self.is_new = True


class Shelf:
    """For one thread. What is put there is on disk after `save`."""

    def __init__(self, base: Path | None = None) -> None:
        """Keep all in ``base``, or in parprof's own cache directory."""
        self._disk = DiskCache("loops", _MAX_BYTES, base)
        self._books: OrderedDict[str, _Book] = OrderedDict()

    def knows(self, dso: Dso) -> bool:
        """Whether anything is kept of a file: most of what is hot there, then, as it was when it was measured."""
        name = _name(dso)
        return bool(name) and bool(self._book(name).pages)

    def get(self, dso: Dso, extent: Extent) -> LoopNest | None:
        """The loops of a function; None if they are not there, or are damaged."""
        name = _name(dso)
        if not name:
            return None
        book, place = self._book(name), _place(extent)
        if place in book.pages:
            with suppress(ValueError):
                return from_json(json.loads(book.pages[place]))
            book.size -= len(book.pages.pop(place))
        dear = f"{name}-{place}"
        raw = self._disk.read(dear)
        if raw is None:
            return None
        with suppress(ValueError):
            return from_json(json.loads(raw))
        self._disk.remove(dear)
        return None

    def put(self, dso: Dso, extent: Extent, nest: LoopNest, seconds: float) -> None:
        """Keep what was found in ``seconds`` of CPU time."""
        name = _name(dso)
        if not name or len(nest.addresses) > MAX_NUMBERS:
            return
        text = json.dumps(to_json(nest), separators=(",", ":"))
        if seconds <= DEAR_SECONDS:
            self._book(name).add(_place(extent), text)
        elif len(text) <= _MAX_DEAR:
            self._disk.write(f"{name}-{_place(extent)}", text.encode())

    def save(self) -> None:
        """Write what is new."""
        for name, book in self._books.items():
            if book.is_new:
                self._disk.write(name, json.dumps(book.pages).encode())
                book.is_new = False

    def _book(self, name: str) -> _Book:
        book = self._books.get(name)
        if book is None:
            if len(self._books) >= _MAX_BOOKS:
                self.save()
                self._books.popitem(last=False)
            book = self._books[name] = _read(self._disk.read(name))
        return book


def _read(raw: bytes | None) -> _Book:
    """What is kept of a file; nothing if that is damaged."""
    loaded: Any = None
    if raw is not None and len(raw) <= 2 * _MAX_BOOK:
        with suppress(ValueError, RecursionError):
            loaded = json.loads(raw)
    book = _Book()
    for place, text in loaded.items() if isinstance(loaded, dict) else ():
        if isinstance(text, str):
            book.add(place, text)
    book.is_new = False
    return book


def _name(dso: Dso) -> str:
    content = dso.content_name()
    return f"{content}-{FORMAT}-{__version__}" if content else ""


def _place(extent: Extent) -> str:
    return f"{extent[0]:x}-{extent[1]:x}"
