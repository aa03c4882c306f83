"""The child process that reads symbols and debug information: ``python -m parprof.symbols.worker FD``.

It answers requests on a socket: ``{"file", "addresses", "symbolic"}`` and a descriptor of the file, with
``{"frames": [[[name, file, line, start line], ...], ...], "problem": text}``, innermost frame first, one list
for each address. It ends with the socket. What it reads is hostile and what it reads it with is not ours:
so it gives up its privileges first, and its memory is limited.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import socket
import sys
from collections import OrderedDict
from contextlib import suppress
from importlib import import_module
from typing import Any

from parprof.elf import ElfError, ElfFile
from parprof.symbols import protocol
from parprof.symbols.names import readable, without_clone_suffixes
from parprof.symbols.table import find_functions

FrameRow = tuple[str, str, int, int]
MEMORY_LIMIT = 4 << 30
_MAX_DEPTH = 128
_MAX_PATH = 4096
_MAX_FILES = 8
_REQUEST_SECONDS = 60
_NOBODY = 65534
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 4, 38, 47, 4
_CAPABILITY_VERSION_3 = 0x20080522


class DebugFile:
    """One file: debug information by way of PyPI ``symbolic``, symbol table by way of our own reader."""

    def __init__(self, fd: int, use_symbolic: bool) -> None:
        """Take over the descriptor.

        Raises:
            ElfError: it is no ELF file.
        """
        self._fd = fd
        self.problem = ""
        self._cache: Any = None
        self._lines: dict[int, int] = {}
        self._hot: dict[str, int] = {}
        self._elf = ElfFile.open(fd)
        if use_symbolic:
            self._load()

    def _load(self) -> None:
        try:
            symbolic = import_module("symbolic")
        except ImportError:
            self.problem = "the Python package symbolic is missing: no lines, no inlined functions"
            return
        try:
            mapped = mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ)
            archive = symbolic.Archive.from_bytes(_buffer(mapped))
            found = next(archive.iter_objects())
            if "debug" in found.features:
                self._cache = found.make_symcache()
        except Exception as error:  # what a parser makes of damaged input is its own affair
            self.problem = f"no debug information: {type(error).__name__}: {error}"[:500]

    def resolve(self, addresses: list[int]) -> list[list[FrameRow]]:
        """The frames at each ELF virtual address, innermost first; none where nothing is known."""
        out = [self._frames(address) for address in addresses]
        missing = [address for address, frames in zip(addresses, out, strict=True) if not frames]
        try:
            functions = find_functions(self._elf, missing)
        except ElfError as error:
            self.problem = str(error)
            return out
        for index, address in enumerate(addresses):
            if not out[index] and address in functions:
                out[index] = [(readable(functions[address].name), "", 0, 0)]
        return out

    def _lookup(self, address: int) -> list[Any]:
        relative = address - self._elf.base
        if self._cache is None or not 0 <= relative < 0xFFFFFFFF:  # symbolic's addresses have 32 bits
            return []
        found: list[Any] = self._cache.lookup(relative)[-_MAX_DEPTH:]
        return found

    def _frames(self, address: int) -> list[FrameRow]:
        found = self._lookup(address)
        if not any(location.line or location.full_path for location in found):
            return []  # from the symbol table: ours is more exact about where functions end
        out = [(readable(at.symbol), (at.full_path or "")[:_MAX_PATH], at.line, 0) for at in found]
        name, file, line, _ = out[-1]
        out[-1] = (name, file, line, self._start_line(found[-1]))
        return out

    def _start_line(self, physical: Any) -> int:
        """Line of a function's first instruction; for the cold part that of the function it is from."""
        start: int = physical.sym_addr + self._elf.base
        if ".cold" in physical.symbol:
            name = without_clone_suffixes(physical.symbol)
            if name not in self._hot:
                hot = self._elf.lookup([name]).get(name, ())
                self._hot[name] = hot[0].value if hot else start
            start = self._hot[name]
        if start not in self._lines:
            found = self._lookup(start)
            self._lines[start] = found[-1].line if found else 0
        return self._lines[start]

    def close(self) -> None:
        """Give back memory and descriptor."""
        self._cache = None
        os.close(self._fd)


def _buffer(mapped: mmap.mmap) -> Any:
    """The mapped file as an argument for symbolic, without a copy."""
    return import_module("cffi").FFI().from_buffer(mapped)


def drop_privileges() -> None:
    """Become nobody where we are root, lose all capabilities, and bound memory and files for ever."""
    libc = ctypes.CDLL(None, use_errno=True)
    with suppress(OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    if os.geteuid() == 0:
        with suppress(OSError):
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    libc.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)())
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


class Worker:
    """Answers requests; keeps the files that were used last."""

    def __init__(self) -> None:
        """Nothing is open yet."""
        self._files: OrderedDict[tuple[object, bool], DebugFile] = OrderedDict()

    def answer(self, request: dict[str, Any], fd: int | None) -> dict[str, Any]:
        """The reply to a request; takes over the descriptor."""
        key = (request["file"], bool(request["symbolic"]))
        file = self._files.pop(key, None)
        try:
            if file is None:
                if fd is None:
                    return {"frames": [], "problem": "no descriptor"}
                file, fd = DebugFile(fd, key[1]), None
            self._files[key] = file
            while len(self._files) > _MAX_FILES:
                self._files.popitem(last=False)[1].close()
            return {"frames": file.resolve(request["addresses"]), "problem": file.problem}
        except ElfError as error:
            return {"frames": [], "problem": str(error)}
        finally:
            if fd is not None:
                os.close(fd)


def serve(connection: socket.socket) -> None:
    """Answer until the other end closes the socket."""
    worker = Worker()
    while (received := protocol.receive(connection)) is not None:
        signal.alarm(_REQUEST_SECONDS)  # ends us if the daemon is gone and a file keeps us busy
        protocol.send(connection, worker.answer(*received))
        signal.alarm(0)


def main() -> int:
    """Entry point of the child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the daemon, which still needs us
    connection = socket.socket(fileno=int(sys.argv[1]))
    with suppress(ImportError):
        import_module("symbolic")  # while we may still read its files
    readable("_Z1av")
    drop_privileges()
    with suppress(OSError, ValueError):
        serve(connection)
    return 0


if __name__ == "__main__":
    sys.exit(main())
