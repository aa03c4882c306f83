"""Which programs a library can be preloaded into."""

from __future__ import annotations

import os
import platform
import shutil
import stat
from contextlib import closing

from parprof.files.elf import ElfFile
from parprof.files.elf_image import ElfError
from parprof.runtimes import agents


def obstacle(command: str) -> str:
    """Why the dynamic loader will not preload a library of ours into a command, and what to do; empty: it will.

    Scripts are not looked into: their interpreters decide.
    """
    path = shutil.which(command) or command
    try:
        status = os.stat(path)
        with open(path, "rb") as file:
            ident = file.read(5)
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
    try:
        with ElfFile.open(path) as elf:
            loader = elf.interp
    except (OSError, ElfError):
        return ""
    if not loader:
        return (
            f"{path} is linked statically, so nothing can be preloaded into it: link it dynamically "
            "(without -static), or see `parprof record`, which needs no preloading"
        )
    if "/ld-musl" in loader:
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
