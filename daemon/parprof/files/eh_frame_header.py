"""Where functions begin and end by the sorted table in ``.eh_frame_hdr``, which stripped files have, too.

Linkers leave that out of static programs, which have what it is made of: ``.eh_frame``.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

from parprof.files.elf import ElfFile

Extent = tuple[int, int]
"""(ELF virtual address, size in bytes)"""

_PT_GNU_EH_FRAME = 0x6474E550
_HEADER = struct.Struct("<BBBBiI")
_USUAL = (1, 0x1B, 0x03, 0x3B)
"""Version 1, and pointers as all linkers write them: 4 bytes, the table's relative to the section."""
_FDE = struct.Struct("<IIiI")
_MAX_ROWS = 1 << 21
_MAX_ENTRIES = 1 << 17
_ENTRY = struct.Struct("<IIiI")
"""Its length without this field; the way back to what it shares with others, 0 in that; where code begins; its size."""
_CODE_AT = 8
_sorted: WeakKeyDictionary[ElfFile, tuple[Extent, ...]] = WeakKeyDictionary()
"""Of files without the table: functions are asked for one by one."""


def extents_around(elf: ElfFile, addresses: Iterable[int]) -> dict[int, Extent]:
    """The function around each of these ELF virtual addresses; those in none are left out.

    Unwinders of exceptions use the same table (Linux Standard Base 5.0, Core, section 10.6.2).

    Raises:
        ElfError: the file cannot be read.
    """
    start = next((s.vaddr for s in elf.segments if s.type == _PT_GNU_EH_FRAME), 0)
    if not start:
        return _around(frame_extents(elf), addresses)
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


def _around(extents: Sequence[Extent], addresses: Iterable[int]) -> dict[int, Extent]:
    out = {}
    for address in addresses:
        row = bisect_right(extents, address, key=lambda extent: extent[0]) - 1
        if row >= 0 and address < sum(extents[row]):
            out[address] = extents[row]
    return out


def frame_extents(elf: ElfFile) -> tuple[Extent, ...]:
    """The functions of a file by ``.eh_frame`` itself, sorted.

    Its entries have pointers as assemblers write them: 4 bytes, relative to where they are (Linux Standard Base 5.0,
    Core, section 10.6.1). Where they are others, they do not point to code.

    Raises:
        ElfError: the file cannot be read.
    """
    known = _sorted.get(elf)
    if known is None:
        known = _sorted[elf] = tuple(sorted(set(_entries(elf))))
    return known


def _entries(elf: ElfFile) -> Iterable[Extent]:
    section = elf.named_section(b".eh_frame")
    if section is None:
        return
    raw = elf.read_at(section.offset, section.size)
    code = [(part.vaddr, part.vaddr + part.file_size) for part in elf.code]
    at = 0
    for _ in range(_MAX_ENTRIES):
        if at + _ENTRY.size > len(raw):
            return
        length, back, distance, size = _ENTRY.unpack_from(raw, at)
        if not 4 <= length < 0xFFFFFFFF:  # the end, or lengths of 64 bits
            return
        begin = section.address + at + _CODE_AT + distance
        if back and any(start <= begin and begin + size <= end for start, end in code):
            yield begin, size
        at += 4 + length
