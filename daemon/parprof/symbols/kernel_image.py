"""Names of the functions in the kernel's own image, kept by its build id.

A pass over ``/proc/kallsyms`` takes 0.07 s of CPU time, a tenth of what a short recording takes in all. The functions
of the image, all but those of modules and of BPF, stand at the same distance from its begin (``_text``) at each start
of the machine. Kept are these distances, not addresses: those tell where the kernel is (KASLR), and stay secret.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from parprof.cache import DiskCache
from parprof.files.elf import build_id_in
from parprof.symbols.kallsyms import DIGITS, KALLSYMS, address_of, functions, name_of

NOTES = Path("/sys/kernel/notes")
_FORMAT = 1
_CACHE_BYTES = 64 << 20
"""Some ten kernels."""
_HEADER = struct.Struct("<QII")
"""From the begin to the end of the code, in bytes; how many functions; how many bytes of names."""
_U32 = 4
_MAX_IMAGE, _MAX_FUNCTIONS, _MAX_NAMES = 1 << 31, 1 << 20, 1 << 27
_PAGE_BYTES, _MOST_PAGES = 1 << 12, 128
_MAX_NAME = 1 << 12
_BEGIN, _END = b"_text", b"_etext"


class KernelFunction(NamedTuple):
    """A function of the image; addresses are the kernel's."""

    start: int
    end: int
    """Where the next one starts."""
    name: bytes


class _Index(NamedTuple):
    """The begin of a file that was kept."""

    size: int
    """Bytes from the image's begin to its end."""
    offsets: array[int]
    """Where functions start, from the image's begin, in order."""
    ends: array[int]
    """Where their names end, in all that follow."""
    names_at: int
    """Where the first name begins in the file."""


class KernelImage:
    """The functions of the kernel that runs. Keeps nothing in memory."""

    def __init__(self, kallsyms: Path = KALLSYMS, notes: Path = NOTES, base: Path | None = None) -> None:
        """``base``: directory of the cache, if not that of all of them."""
        self._kallsyms = kallsyms
        self._disk = DiskCache("kernel", _CACHE_BYTES, base)
        self._name = _name(notes)
        self._is_kept = True
        """As far as we know."""

    def find(self, addresses: Iterable[int]) -> Iterator[KernelFunction]:
        """The functions around these addresses, as far as they are in the image and it was kept."""
        fd = self._disk.open(self._name) if self._name else None
        self._is_kept = fd is not None
        if fd is None:
            return
        try:
            index = _read_index(fd)
            begin = _begin(self._kallsyms) if index else 0
            if index is None or not begin:
                return
            for address in addresses:
                offset = address - begin
                at = bisect_right(index.offsets, offset) - 1
                if at >= 0 and offset < index.size:
                    last = at + 1 == len(index.offsets)
                    yield KernelFunction(
                        begin + index.offsets[at],
                        begin + (index.size if last else index.offsets[at + 1]),
                        _read_name(fd, index, at),
                    )
        except OSError:
            return
        finally:
            os.close(fd)

    def keep(self) -> None:
        """Find the functions of the image and keep them, if `find` has missed them: twice what a pass takes."""
        if self._is_kept or not self._name:
            return
        self._is_kept = True  # or it could not be: not tried again
        try:
            data = _encode(self._kallsyms)
        except OSError:
            return
        if data:
            self._disk.write(self._name, data)


def _name(notes: Path) -> str:
    try:
        build_id = build_id_in(notes.read_bytes())
    except OSError:
        return ""
    return f"{_FORMAT}-{build_id}" if build_id else ""


def _begin(path: Path) -> int:
    """Where the image begins; 0: nobody says. Little stands before that: the variables of each CPU, in some kernels."""
    for lines in islice(functions(path, _PAGE_BYTES), _MOST_PAGES):
        for line in lines:
            if name_of(line) == (_BEGIN, b""):
                return int(address_of(line), 16)
    return 0


def _encode(path: Path) -> bytes:
    """What is kept of the functions in a file like ``/proc/kallsyms``; nothing if it hides or lacks them."""
    found: list[bytes] = []
    for lines in functions(path):
        found += [line for line in lines if b"\t" not in line]
    found.sort(key=address_of)  # of several at an address the first in the file comes first
    bounds = {name: address_of(line) for line in found if (name := name_of(line)[0]) in (_BEGIN, _END)}
    low, high = bounds.get(_BEGIN, b""), bounds.get(_END, b"")
    if not low.strip(b"0") or not low < high or len(low) != DIGITS:
        return b""
    begin = int(low, 16)
    size = int(high, 16) - begin
    offsets, ends, names = array("I"), array("I"), bytearray()
    before = b""
    for line in found:
        address = address_of(line)
        if low <= address < high and address != before:
            before = address
            names += name_of(line)[0]
            offsets.append(int(address, 16) - begin)
            ends.append(len(names))
    if size > _MAX_IMAGE or len(offsets) > _MAX_FUNCTIONS or len(names) > _MAX_NAMES:
        return b""
    return _HEADER.pack(size, len(offsets), len(names)) + offsets.tobytes() + ends.tobytes() + names


def _read_index(fd: int) -> _Index | None:
    """None: it is damaged."""
    header = os.pread(fd, _HEADER.size, 0)
    if len(header) != _HEADER.size:
        return None
    size, count, names_size = _HEADER.unpack(header)
    names_at = _HEADER.size + 2 * _U32 * count
    if count > _MAX_FUNCTIONS or os.fstat(fd).st_size != names_at + names_size:
        return None
    words = array("I")
    words.frombytes(os.pread(fd, 2 * _U32 * count, _HEADER.size))
    return _Index(size, words[:count], words[count:], names_at)


def _read_name(fd: int, index: _Index, at: int) -> bytes:
    begin = index.ends[at - 1] if at else 0
    size = min(max(index.ends[at] - begin, 0), _MAX_NAME)  # whatever a damaged file says
    return os.pread(fd, size, index.names_at + begin)
