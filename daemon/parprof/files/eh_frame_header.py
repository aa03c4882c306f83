"""Where functions begin and end by the sorted table in ``.eh_frame_hdr``, which stripped files have, too."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable

from parprof.files.elf import ElfFile

Extent = tuple[int, int]
"""(ELF virtual address, size in bytes)"""

_PT_GNU_EH_FRAME = 0x6474E550
_HEADER = struct.Struct("<BBBBiI")
_USUAL = (1, 0x1B, 0x03, 0x3B)
"""Version 1, and pointers as all linkers write them: 4 bytes, the table's relative to the section."""
_FDE = struct.Struct("<IIiI")
_MAX_ROWS = 1 << 21


def extents_around(elf: ElfFile, addresses: Iterable[int]) -> dict[int, Extent]:
    """The function around each of these ELF virtual addresses; those in none are left out.

    Unwinders of exceptions use the same table (Linux Standard Base 5.0, Core, section 10.6.2).

    Raises:
        ElfError: the file cannot be read.
    """
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
