"""Which programs a library can be preloaded into."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import struct
from contextlib import closing
from typing import IO

from parprof.files.elf import ElfFile
from parprof.files.elf_image import ElfError
from parprof.runtimes import agents

_PT_INTERP = 3
_MAX_HEADERS = 1 << 12
_MAX_OFFSET = 1 << 40
_MAX_PATH = 256


def obstacle(command: str) -> str:
    """Why the dynamic loader will not preload a library of ours into a command, and what to do; empty: it will.

    Scripts are not looked into: their interpreters decide.
    """
    path = shutil.which(command) or command
    try:
        status = os.stat(path)
        with open(path, "rb") as file:
            ident = file.read(64)
            headers = _program_headers(ident)
            file.seek(headers[0] if headers else 0)
            table = file.read(headers[1] * headers[2]) if headers else b""
            interpreter = _interpreter(file, table, headers[1]) if headers else None
    except OSError:
        return ""  # running it will say why
    if status.st_mode & (stat.S_ISUID | stat.S_ISGID) and status.st_uid != os.getuid():
        return (
            f"{path} is setuid or setgid, so nothing can be preloaded into it: "
            "run it as the user that it changes to, or a copy without that bit"
        )
    if ident[:4] != b"\x7fELF":
        return ""
    if ident[4:5] != b"\2" and platform.architecture()[0] == "64bit":
        return f"{path} is a 32-bit program: build it for 64 bits"
    if headers and interpreter is None:
        return (
            f"{path} is linked statically, so nothing can be preloaded into it: link it dynamically "
            "(without -static), or see `parprof record`, which needs no preloading"
        )
    if interpreter and b"/ld-musl" in interpreter:
        return f"{path} is a program of musl, whose loader takes no library of glibc: build it for glibc"
    return ""


def runtime_inside(command: str) -> str:
    """Why wrappers of a parallel runtime's functions would not be called, and what to do; empty: they would.

    A runtime that is linked into the program calls itself, whatever is preloaded. A stripped program does not tell.
    """
    path = shutil.which(command) or command
    markers = {agent.marker: agent for agent in agents() if agent.marker}
    try:
        elf = ElfFile.open(path)
    except (OSError, ElfError):
        return ""
    with closing(elf):
        try:
            found = elf.lookup(markers)
        except ElfError:
            return ""
    for name, agent in markers.items():
        if name in found:
            return (
                f"{path} has its parallel runtime ({agent.name}) linked into it, so that nothing can be put in front "
                "of it: link it with the shared one (for gcc, without libgomp.a), or see `parprof record`"
            )
    return ""


def _program_headers(ident: bytes) -> tuple[int, int, int] | None:
    """Offset, size and number of the program headers of a 64-bit ELF file."""
    if len(ident) < 64 or ident[:6] != b"\x7fELF\2\1":
        return None
    (offset,) = struct.unpack_from("<Q", ident, 32)
    size, count = struct.unpack_from("<HH", ident, 54)
    return (offset, size, count) if size >= 56 and count <= _MAX_HEADERS and offset < _MAX_OFFSET else None


def _interpreter(file: IO[bytes], table: bytes, size: int) -> bytes | None:
    """The path of the dynamic loader that a program asks for; None: for none."""
    for at in range(0, len(table) - size + 1, size):
        if struct.unpack_from("<I", table, at)[0] == _PT_INTERP:
            (offset,) = struct.unpack_from("<Q", table, at + 8)
            file.seek(min(offset, _MAX_OFFSET))
            return file.read(_MAX_PATH)
    return None
