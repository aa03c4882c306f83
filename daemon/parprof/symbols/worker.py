"""The child process that reads symbols and debug information: ``python -m parprof.symbols.worker FD``.

It answers requests on a socket: ``{"file", "addresses", "symbolic"}`` and a descriptor of the file, with
``{"frames": [[[name, file, line, start line], ...], ...], "problem": text, "unsaved": bool}``, innermost
frame first, one list for each address. The name of a function that has none is where it begins, ``+0x12f0``.
Fewer lists mean that the answer would be too long: the rest is to be asked for again. A second descriptor is
that of a cache file (see `parprof.symbols.symcache`); ``unsaved`` says that there was none, or a bad one, and
that one can be had: ``{"file", "symbolic", "save": true}`` and a descriptor to write to is answered with
``{"saved": bool}``.

The child ends with the socket. What it reads is hostile and what it reads it with is not ours: so it gives up
its privileges first, and its memory is limited.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from typing import Any

from parprof.files.eh_frame_header import extents_around, gaps_around
from parprof.files.elf import ElfError, ElfFile, Symbol
from parprof.files.go_functions import GoFunctions, go_functions
from parprof.symbols import symcache
from parprof.symbols.entry import main_function
from parprof.symbols.names import readable, without_clone_suffixes
from parprof.symbols.table import find_functions
from parprof.symbols.wrapped import wrapped_functions
from parprof.workers import protocol
from parprof.workers.serving import run

FrameRow = tuple[str, str, int, int]
MEMORY_LIMIT = 4 << 30
_MAX_DEPTH = 128
_MAX_PATH = 4096
_MAX_FILES = 8
_MAX_TEXT = 1 << 20
_ROW_TEXT = 24
"""Characters of names and paths in one answer; each takes up to six bytes in a message."""


class DebugFile:
    """One file: debug information by way of PyPI ``symbolic``, symbol table by way of our own reader."""

    def __init__(self, fd: int, use_symbolic: bool, cached: int | None) -> None:
        """Take over the descriptor of the file, but not that of the cache file.

        Raises:
            ElfError: it is no ELF file.
        """
        self._fd = fd
        self.problem = ""
        self.unsaved = False
        """Whether there is a cache to be saved."""
        self._cache: Any = None
        self._lines: dict[int, int] = {}
        self._hot: dict[str, int | None] = {}
        self._elf = ElfFile.open(fd)
        if use_symbolic and (
            cached is not None or self._elf.has_debug_info
        ):  # symbolic would read all symbols
            self._load(cached)

    def _load(self, cached: int | None) -> None:
        if not symcache.preload():
            self.problem = "the Python package symbolic is missing: no lines, no inlined functions"
            return
        self._cache = symcache.load(cached) if cached is not None else None
        if self._cache is not None:
            return
        try:
            self._cache = symcache.build(self._fd)
            self.unsaved = self._cache is not None
        except Exception as error:  # what a parser makes of damaged input is its own affair
            self.problem = f"no debug information: {type(error).__name__}: {error}"[:500]

    def save(self, fd: int) -> bool:
        """Write the cache to a descriptor, which is closed; whether that was possible."""
        self.unsaved = False
        return self._cache is not None and symcache.save(self._cache, fd)

    def resolve(self, addresses: list[int]) -> list[list[FrameRow]]:
        """The frames at each ELF virtual address, innermost first; none where nothing is known.

        Where that would become too much text, those of the first addresses only.
        """
        found = [self._lookup(address) for address in addresses]
        self._find_hot(at[-1].symbol for at in found if at)
        out: list[list[FrameRow]] = []
        text = 0
        for locations in found:
            frames = self._frames(locations)
            text += sum(len(name) + len(file) + _ROW_TEXT for name, file, _, _ in frames)
            if text > _MAX_TEXT and out:
                break
            out.append(frames)
        missing = [address for address, frames in zip(addresses, out, strict=False) if not frames]
        try:
            named = self._from_tables(missing)
        except ElfError as error:
            self.problem = str(error)
            return out
        for index, frames in enumerate(out):
            if not frames and (row := named.get(addresses[index])) is not None:
                text += len(row[0]) + len(row[1]) + _ROW_TEXT
                if text > 2 * _MAX_TEXT and index:
                    return out[:index]
                out[index] = [row]
        return out

    def _from_tables(self, addresses: list[int]) -> dict[int, FrameRow]:
        """The functions at addresses by the symbol table, and by what a stripped Go program keeps for itself.

        Those that have no name there go by where they begin; and code that is in no function, as that of assemblers, by
        the functions that it is between.
        """
        found = find_functions(self._elf, addresses)
        out: dict[int, FrameRow] = {at: (readable(symbol.name), "", 0, 0) for at, symbol in found.items()}
        left = [address for address in addresses if address not in out]
        known = self._go if left else None
        if known is not None:
            for address in left:
                function = known.at(address)
                if function is not None and (name := known.name(function)):
                    out[address] = (name, *known.line(function, address), known.start_line(function))
        nameless = [address for address in left if address not in out]
        if nameless:
            around = extents_around(self._elf, nameless)
            told = self._told if around else {}
            out.update(
                (address, (told.get(begin) or f"+{begin:#x}", "", 0, 0))
                for address, (begin, _) in around.items()
            )
            out.update(
                (address, (f"+{begin:#x}..{end:#x}", "", 0, 0))
                for address, (begin, end) in gaps_around(self._elf, set(nameless) - around.keys()).items()
            )
        return out

    @cached_property
    def _told(self) -> dict[int, str]:
        """What can be told of functions that no symbol names, by where they begin."""
        out = wrapped_functions(self._elf)
        main = main_function(self._elf)
        return out if main is None else {main: "main", **out}

    @cached_property
    def _go(self) -> GoFunctions | None:
        return go_functions(self._elf)

    def _lookup(self, address: int) -> list[Any]:
        relative = address - self._elf.base
        if self._cache is None or not 0 <= relative < 0xFFFFFFFF:  # symbolic's addresses have 32 bits
            return []
        found: list[Any] = self._cache.lookup(relative)[-_MAX_DEPTH:]
        return found

    def _frames(self, found: list[Any]) -> list[FrameRow]:
        if not any(location.line or location.full_path for location in found):
            return []  # from the symbol table: ours is more exact about where functions end
        out = [(readable(at.symbol), (at.full_path or "")[:_MAX_PATH], at.line, 0) for at in found]
        name, file, line, _ = out[-1]
        out[-1] = (name, file, line, self._start_line(found[-1]))
        return out

    def _find_hot(self, symbols: Iterable[str]) -> None:
        """Look for the functions that cold parts are from: all at once, because it takes a pass."""
        hot = {without_clone_suffixes(symbol) for symbol in symbols if ".cold" in symbol} - self._hot.keys()
        if hot:
            found: dict[str, tuple[Symbol, ...]] = {}
            with suppress(ElfError):
                found = self._elf.lookup(hot)
            self._hot.update((name, found[name][0].value if name in found else None) for name in hot)

    def _start_line(self, physical: Any) -> int:
        """Line of a function's first instruction; for the cold part that of the function it is from."""
        start: int = physical.sym_addr + self._elf.base
        if ".cold" in physical.symbol:
            hot = self._hot.get(without_clone_suffixes(physical.symbol))
            start = start if hot is None else hot
        if start not in self._lines:
            found = self._lookup(start)
            self._lines[start] = found[-1].line if found else 0
        return self._lines[start]

    def close(self) -> None:
        """Give back memory and descriptor."""
        self._cache = None
        os.close(self._fd)


class SymbolWorker:
    """Answers requests; keeps the files that were used last."""

    def __init__(self) -> None:
        """Nothing is open yet."""
        self._files: OrderedDict[tuple[object, bool], DebugFile] = OrderedDict()

    def answer(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """The reply to a request; takes over the descriptors that it takes out of the list."""
        try:
            key = (request["file"], bool(request["symbolic"]))
            file = self._files.pop(key, None)
            if request.get("save"):
                if file is not None:
                    self._files[key] = file
                return {"saved": bool(file and fds and file.save(fds.pop()))}
            if file is None:
                if not fds:
                    return {"frames": [], "problem": "no descriptor"}
                fds[0] = protocol.borrowed(fds[0])
                file = DebugFile(fds[0], key[1], fds[1] if len(fds) > 1 else None)
                del fds[0]  # it is the file's now
            self._files[key] = file
            while len(self._files) > _MAX_FILES:
                self._files.popitem(last=False)[1].close()
            frames = file.resolve(request["addresses"])
            return {"frames": frames, "problem": file.problem, "unsaved": file.unsaved}
        except (ElfError, OSError) as error:
            return {"frames": [], "problem": str(error)}


if __name__ == "__main__":
    symcache.preload()
    readable("_Z1av")
    run(SymbolWorker().answer, MEMORY_LIMIT, symcache.MAX_FILE)
