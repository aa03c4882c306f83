"""Where functions begin and end: from the call frame information of their file, else from its symbols."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import ExitStack

from parprof.files.dso import Dso
from parprof.files.elf import ElfFile
from parprof.symbols.debugfiles import find_debug_file
from parprof.symbols.table import find_functions

Extent = tuple[int, int]
"""(ELF virtual address, size in bytes)"""

_PT_GNU_EH_FRAME = 0x6474E550
_HEADER = struct.Struct("<BBBBiI")
_USUAL = (1, 0x1B, 0x03, 0x3B)
"""Version 1, and pointers as all linkers write them: 4 bytes, the table's relative to the section."""
_FDE = struct.Struct("<IIiI")
_MAX_ROWS = 1 << 21


def functions_around(dso: Dso, addresses: Iterable[int]) -> dict[int, Extent]:
    """The function around each of these ELF virtual addresses of a file; those in none are left out.

    Raises:
        ElfError: the file cannot be read.
    """
    elf = dso.elf
    if elf is None:
        return {}
    missing = set(addresses)
    out = _by_frames(elf, sorted(missing))
    with ExitStack() as stack:
        tables = [elf]
        for table in tables:
            missing -= out.keys()
            if not missing:
                break
            for address, symbol in find_functions(table, missing).items():
                if symbol.size:
                    out[address] = (symbol.value, symbol.size)
            if table is elf and (separate := find_debug_file(dso)):
                tables.append(stack.enter_context(separate))
    return out


def function_at(elf: ElfFile, address: int) -> Extent | None:
    """The function around an ELF virtual address, as far as the file itself tells.

    Raises:
        ElfError: the file cannot be read.
    """
    found = _by_frames(elf, [address]).get(address)
    if found is None and (symbol := find_functions(elf, {address}).get(address)) is not None and symbol.size:
        found = symbol.value, symbol.size
    return found


def _by_frames(elf: ElfFile, addresses: list[int]) -> dict[int, Extent]:
    """By the sorted table in ``.eh_frame_hdr``, which the unwinders of exceptions use."""
    start = next((s.vaddr for s in elf.segments if s.type == _PT_GNU_EH_FRAME), 0)
    raw = elf.read(start, _HEADER.size) if start else b""
    if len(raw) < _HEADER.size or _HEADER.unpack(raw)[:4] != _USUAL:
        return {}
    raw = elf.read(start + _HEADER.size, min(_HEADER.unpack(raw)[5], _MAX_ROWS) * 8)
    table = array("i", raw[: len(raw) // 8 * 8])  # pairs: code, its FDE
    rows = range(len(table) // 2)
    out = {}
    for address in addresses:
        row = bisect_right(rows, address - start, key=lambda row: table[2 * row]) - 1
        if row >= 0:
            begin, at = table[2 * row] + start, table[2 * row + 1] + start
            fde = elf.read(at, _FDE.size)
            if len(fde) == _FDE.size:
                _, _, distance, size = _FDE.unpack(fde)
                if at + 8 + distance == begin and begin <= address < begin + size:
                    out[address] = (begin, size)
    return out
