"""The executable mappings of a process: asked for one by one where the kernel can be asked, else from the text of all.

With thousands of mappings, of which one in six is code, the question ``PROCMAP_QUERY`` (since Linux 6.11) takes a
fifth of the time, ours and that in which the process cannot map anything.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from parprof.files.maps_line import MapsLine, parse_line
from parprof.resources import Closing

_MAX_LINE = 1 << 15
_PATH_MAX = 4096

# struct procmap_query of linux/fs.h
_QUESTION = struct.Struct("=QQQ6QIIIIQQ")
_ANSWER = struct.Struct("=QQQQQQII")
_ANSWER_AT = 24
_WORD, _PATH_BYTES = struct.Struct("=Q"), struct.Struct("=I")
_ADDRESS_AT, _END_AT, _PATH_BYTES_AT, _PATH_AT = 16, 32, 80, 88
_PROCMAP_QUERY = 3 << 30 | _QUESTION.size << 16 | ord("f") << 8 | 17
_EXECUTABLE, _COVERING_OR_NEXT = 0x04, 0x10


class Raw(NamedTuple):
    """An executable mapping as the kernel told it. Equal to the next reading's if nothing of it has changed."""

    told: bytes
    """A line of text, or what the kernel answered."""
    path: bytes | None
    """Of an answer; None: ``told`` is a line, with all in it."""

    def parsed(self) -> MapsLine | None:
        """What it says; None if it is not understood."""
        if self.path is None:
            return parse_line(self.told)
        start, end, _, _, offset, inode, major, minor = _ANSWER.unpack(self.told)
        path = self.path.replace(b"\n", b"\\012")  # as in the text
        return MapsLine(start, end, True, offset, os.makedev(major, minor), inode, path)


class ExecutableMappings(Closing):
    """Those of one process, in order of address.

    The page ``[vsyscall]`` is told by the text alone: it is nobody's code, and what runs there traps.
    """

    _can_ask = True
    """Of this kernel: as far as is known."""

    def __init__(self, pid: int) -> None:
        """Open them.

        Raises:
            OSError: there is no such process, or we may not look into it.
        """
        self._path = ctypes.create_string_buffer(_PATH_MAX)
        self._path_at = ctypes.addressof(self._path)
        flags = _EXECUTABLE | _COVERING_OR_NEXT
        self._question = bytearray(_QUESTION.pack(_QUESTION.size, flags, *(0,) * 13))
        self._fd = os.open(f"/proc/{pid}/maps", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close them."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self) -> Iterator[Raw]:
        """All of them as they are now. None: the process has ended, or is a kernel thread.

        Raises:
            OSError: they cannot be read.
        """
        any_answer = False
        if ExecutableMappings._can_ask:
            for one in self._asked():
                any_answer = True
                yield one
        if (
            not any_answer
        ):  # the kernel cannot be asked; or in the middle of an exec: the text has [vsyscall] even so
            yield from self._text()

    def _asked(self) -> Iterator[Raw]:
        question, path_at, end = self._question, self._path_at, 0
        while self._ask(end):
            (end,) = _WORD.unpack_from(question, _END_AT)
            (length,) = _PATH_BYTES.unpack_from(question, _PATH_BYTES_AT)
            told = bytes(question[_ANSWER_AT:_PATH_BYTES_AT])
            yield Raw(told, ctypes.string_at(path_at, length - 1) if length else b"")

    def _ask(self, address: int, path_bytes: int = _PATH_MAX) -> bool:
        """For the first at an address or behind it, with its path if that has fewer bytes; False: there is none."""
        _WORD.pack_into(self._question, _ADDRESS_AT, address)
        _PATH_BYTES.pack_into(self._question, _PATH_BYTES_AT, path_bytes)
        _WORD.pack_into(self._question, _PATH_AT, self._path_at if path_bytes else 0)
        try:
            fcntl.ioctl(self._fd, _PROCMAP_QUERY, self._question)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG and path_bytes:
                return self._ask(address, 0)
            if error.errno not in (errno.ENOENT, errno.ESRCH):
                ExecutableMappings._can_ask = False
            return False
        return True

    def _text(self) -> Iterator[Raw]:
        with open(self._fd, "rb", closefd=False) as file:
            for line in file:
                permissions = line.find(b" ") + 3
                if line[permissions : permissions + 1] == b"x" and len(line) < _MAX_LINE:
                    yield Raw(line, None)


@cache
def own_vdso() -> MapsLine | None:
    """Where the kernel's code in user space is in our own process: it has one such image for all 64-bit programs."""
    with suppress(OSError), ExecutableMappings(os.getpid()) as mappings:
        for raw in mappings.read():
            line = raw.parsed()
            if line is not None and line.path == b"[vdso]":
                return line
    return None
