"""The lines of ``/proc/kallsyms``: an address of 16 digits, a blank, a type, a blank, a name; a module's has a tab and
its name behind that."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

KALLSYMS = Path("/proc/kallsyms")
DIGITS = 16
"""Of an address. Lines can be compared as they are: the order of the digits is that of the numbers."""
address_of = itemgetter(slice(DIGITS))
_TYPE = DIGITS + 1
_NAME = _TYPE + 2
_FUNCTION_TYPES = frozenset((b"t", b"T", b"w", b"W"))
_BLOCK_BYTES = 1 << 18


def functions(path: Path, block_bytes: int = _BLOCK_BYTES) -> Iterator[list[bytes]]:
    """The lines of functions, in the file's order, those of so many bytes at a time.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        while lines := file.readlines(block_bytes):
            yield [line for line in lines if line[_TYPE : _TYPE + 1] in _FUNCTION_TYPES]


def name_of(line: bytes) -> tuple[bytes, bytes]:
    """The function's name and its module's, which is empty for the kernel itself."""
    name, _, module = line[_NAME:].rstrip(b"\n").partition(b"\t")
    return name, module
