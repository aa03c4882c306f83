"""The files whose unwind tables are in the store, by what the kernel knows of a mapping: see ``bpf/mappings.bpf.c``."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from parprof.kernel import bpf

_KEY = struct.Struct("<QII")
_TABLE = struct.Struct("<QQQ")
_RECORD = struct.Struct("<IIQQQQII")
_PATH_NAME_BYTES = 64
_MASK = (1 << 64) - 1
_MINOR_BITS = 20


class FoundMapping(NamedTuple):
    """Executable memory of a process image that a walk came upon: [start, end) shows a file from ``offset`` on."""

    image: int
    start: int
    end: int
    offset: int
    device: int
    """As ``os.makedev`` has it."""
    inode: int
    """0: there is no file."""
    epoch: int = 0
    """Of the load map, when that was."""
    path: bytes = b""
    """Where the file is in its file system, from the root of that on; empty if that is not known."""

    @classmethod
    def parse(cls, raw: bytes) -> FoundMapping:
        """A ``struct mapping_record``, or a ``struct mapped_file_record``."""
        _, image, start, end, offset, inode, device, epoch = _RECORD.unpack_from(raw)
        number = os.makedev(device >> _MINOR_BITS, device & (1 << _MINOR_BITS) - 1)
        return cls(image, start, end, offset, number, inode, epoch, _path(raw[_RECORD.size :]))


@lru_cache(maxsize=256)
def _path(names: bytes) -> bytes:
    """The path of a file by its name and those of the directories above it; empty if one is cut off or lacks.

    Processes that are started again and again map the same files.
    """
    parts: list[bytes] = []
    for at in range(0, len(names), _PATH_NAME_BYTES):
        name = names[at : at + _PATH_NAME_BYTES].split(b"\0", 1)[0]
        if name == b"/":
            return b"/" + b"/".join(reversed(parts))
        if not name or b"/" in name or len(name) == _PATH_NAME_BYTES - 1:
            break
        parts.append(name)
    return b""


def _key(device: int, inode: int) -> bytes:
    return _KEY.pack(inode, os.major(device) << _MINOR_BITS | os.minor(device), 0)


class FileTables:
    """Where the tables are. A file that finds no room is told of by load maps alone."""

    def __init__(self, fd: int) -> None:
        """``fd``: descriptor of the map."""
        self._fd = fd

    def put(self, device: int, inode: int, delta: int, pages: int, first_page: int) -> None:
        """The table of a file, in whose code an ELF address is its offset and ``delta``."""
        with suppress(OSError):
            bpf.map_update(self._fd, _key(device, inode), _TABLE.pack(delta & _MASK, pages, first_page))

    def remove(self, device: int, inode: int) -> None:
        """It is about to go."""
        bpf.map_delete(self._fd, _key(device, inode))
