"""The list of what a JIT compiler registers with debuggers, in the memory of a process.

Its layout is that of GDB's manual ("JIT Compilation Interface", version 1). The list is the target's to write: it is
read with bounds, and all that is taken of it is addresses and sizes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

MAX_OBJECTS = 1 << 12
MAX_OBJECT_BYTES = 1 << 24
MAX_BYTES = 1 << 26
"""Of all objects; more are left out."""
_HEAD = struct.Struct("<IIQQ")  # version, what was done last, with which entry, the first entry
_ENTRY = struct.Struct("<QQQQ")  # the next one, the one before, where the object is, its size
_VERSION = 1

Read = Callable[[int, int], bytes]
"""(address, size) -> so many bytes of a process's memory. Raises OSError where they are not mapped."""


class RegisteredObject(NamedTuple):
    """An ELF object in the memory of a process: an address, and bytes."""

    address: int
    size: int


def registered_objects(read: Read, head: int) -> list[RegisteredObject]:
    """What a list has now, the newest first in LLVM's; empty where it is none that we know. ``head``: its address."""
    out: list[RegisteredObject] = []
    left = MAX_BYTES
    with suppress(OSError):
        for one in islice(_entries(read, head), MAX_OBJECTS):
            if 0 < one.size <= min(MAX_OBJECT_BYTES, left):
                left -= one.size
                out.append(one)
    return out


def _entries(read: Read, head: int) -> Iterator[RegisteredObject]:
    version, _, _, at = _HEAD.unpack(read(head, _HEAD.size))
    seen: set[int] = set()
    while version == _VERSION and at and at not in seen:
        seen.add(at)
        at, _, address, size = _ENTRY.unpack(read(at, _ENTRY.size))
        yield RegisteredObject(address, size)
