"""Whether a program can be started: that there is one, and under Valgrind, which loads it in the kernel's place.

What Valgrind says where it cannot comes among the words of its own, and with exit codes that vary.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress

from parprof.errors import CommandError
from parprof.files.elf import EM_X86_64, ET_DYN, ET_EXEC, ElfFile
from parprof.files.elf_image import PF_X, PT_LOAD, ElfError
from parprof.untrusted import open_regular, visible

_MAX_SCRIPTS = 5
"""Scripts whose interpreters are scripts: as many as the kernel follows."""
_LINE_BYTES = 256
_CLASS_32 = b"\x7fELF\1"
_CAPABILITIES = "security.capability"


def find(name: str) -> str:
    """The path of the program that a command names.

    Raises:
        CommandError: there is none, or it is not executable.
    """
    program = shutil.which(name)
    if program is not None:
        return program
    if not name.strip():
        raise CommandError("the name of the command is empty: is a variable not set?", is_missing=True)
    exists = os.path.exists(name)
    reason = "is not executable" if exists else "was not found"
    raise CommandError(f"{visible(name)} {reason}", is_missing=not exists)


def check(program: str) -> None:
    """Look at the file of a program, and at its interpreter's if it is a script.

    Raises:
        CommandError: it cannot be started; the text says why.
    """
    for _ in range(_MAX_SCRIPTS):
        start = _start(program)
        _check_rights(program)
        if start.startswith(b"\x7fELF"):
            _check_elf(program, start)
            return
        interpreter = _interpreter(start)
        if not interpreter:
            _check_text(program, start)
            return
        _check_there(program, interpreter, "is a script for the interpreter")
        program = os.fsdecode(interpreter)


def _failed(program: str, why: str, *, is_missing: bool = False) -> CommandError:
    return CommandError(f"{visible(program)} cannot be run: {why}", is_missing=is_missing)


def _start(program: str) -> bytes:
    try:
        descriptor = open_regular(program)
        with open(descriptor, "rb") as file:
            return file.read(_LINE_BYTES)
    except OSError as error:
        raise _failed(
            program, f"it cannot be read, as Valgrind must: {error.strerror or 'it is no file'}"
        ) from error


def _check_rights(program: str) -> None:
    capabilities = False
    with suppress(OSError):
        capabilities = bool(os.getxattr(program, _CAPABILITIES))
    if capabilities or os.stat(program).st_mode & (stat.S_ISUID | stat.S_ISGID):
        raise _failed(
            program,
            "it is set-uid, set-gid or has capabilities, and under Valgrind it would not get these rights: "
            "run a copy of it (made by cp), as a user who has them",
        )


def _check_elf(program: str, start: bytes) -> None:
    if start.startswith(_CLASS_32) and start[5:6] == b"\1":
        raise _failed(program, "it is a 32-bit program, and the tool is for x86-64: build it for 64 bits")
    try:
        with ElfFile.open(program) as elf:
            code = [segment for segment in elf.segments if segment.type == PT_LOAD]
            if elf.machine != EM_X86_64:
                raise _failed(program, "it is built for another processor than x86-64")
            if elf.type not in (ET_EXEC, ET_DYN) or not any(segment.flags & PF_X for segment in code):
                raise _failed(program, "it is no program, but a part of one (an object file?): link it")
            size = os.fstat(elf.fileno()).st_size
            if any(segment.offset + segment.file_size > size for segment in code):
                raise _failed(program, "its file is damaged, it ends before its code does")
            loader = elf.interp
    except ElfError as error:
        raise _failed(program, f"its file is damaged ({error})") from error
    if loader:
        _check_there(program, os.fsencode(loader), "asks for the loader")


def _interpreter(start: bytes) -> bytes:
    """What a script's first line names; empty: the file is no script, or names none."""
    words = start.partition(b"\n")[0][2:].split() if start.startswith(b"#!") else []
    return words[0] if words else b""


def _check_there(program: str, needed: bytes, what: str) -> None:
    try:
        os.stat(needed)
    except (OSError, ValueError) as error:
        raise _failed(program, f"it {what} {visible(needed)}, which is not there", is_missing=True) from error
    if not os.access(needed, os.X_OK):
        raise _failed(program, f"it {what} {visible(needed)}, which is not executable")


def _check_text(program: str, start: bytes) -> None:
    """Of a text without such a line Valgrind makes a shell's script, as shells do."""
    if b"\0" in start.partition(b"\n")[0]:
        raise _failed(program, "it is neither a program nor a script (Exec format error)")
