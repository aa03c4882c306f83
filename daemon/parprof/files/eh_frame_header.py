"""Where functions begin and end by the sorted table in ``.eh_frame_hdr``, which stripped files have, too.

Linkers leave that out of static programs, which have what it is made of: ``.eh_frame``.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import groupby
from weakref import WeakKeyDictionary

from parprof.files.elf import ElfFile
from parprof.files.elf_image import PT_GNU_EH_FRAME

Extent = tuple[int, int]
"""(ELF virtual address, size in bytes)"""

_HEADER = struct.Struct("<BBBBiI")
"""Version; encodings of the pointer to .eh_frame, of the count and of the table; that pointer; the count."""
_USUAL = (1, 0x1B, 0x03, 0x3B)
"""Version 1, and pointers as all linkers write them: 4 bytes, the table's relative to the section."""
_FDE = struct.Struct("<IIiI")
"""Its length without this field; the way back to what it shares with others, 0 in that; where code begins; its size."""
_CODE_AT = 8
_ROW_BYTES = 8
_BLOCK_ROWS = 1 << 9
"""Rows of the table that are read at once: a page."""
_MOST_BLOCKS = 1 << 12
"""Blocks of one file's table that are kept while functions are looked for in it."""
_PIECE = 1 << 22
"""Bytes of ``.eh_frame`` that are read at once."""
_MAX_ENTRIES = 1 << 23
"""Of one file, which may be made to keep us busy. One with as many functions gets no unwind tables, which is told."""
_REACH = 1 << 31
"""Functions are no farther than that from the section that tells where they are: its pointers have 32 bits."""


class Extents:
    """The functions of a file, sorted. They take 8 bytes each: there may be a million."""

    def __init__(self, base: int, packed: Iterable[int]) -> None:
        """``packed``: how far behind ``base`` a function begins, in the upper 32 bits, and its size, in any order."""
        self._base = base
        self._packed = array("Q", (one for one, _ in groupby(sorted(packed))))

    def __len__(self) -> int:
        """How many there are."""
        return len(self._packed)

    def __iter__(self) -> Iterator[Extent]:
        """Each of them, the lowest first."""
        return map(self._extent, self._packed)

    def around(self, address: int) -> Extent | None:
        """The function that an ELF virtual address is in."""
        row = bisect_right(self._packed, (address - self._base << 32) + 0xFFFFFFFF) - 1
        found = self._extent(self._packed[row]) if row >= 0 else (0, 0)
        return found if address < sum(found) else None

    def gap_around(self, address: int) -> tuple[int, int] | None:
        """Where the code between two functions begins and ends that an ELF virtual address is in."""
        behind = bisect_right(self._packed, (address - self._base << 32) + 0xFFFFFFFF)
        if not 0 < behind < len(self._packed):
            return None
        begin = sum(self._extent(self._packed[behind - 1]))
        return (begin, self._extent(self._packed[behind])[0]) if begin <= address else None

    def _extent(self, packed: int) -> Extent:
        return self._base + (packed >> 32), packed & 0xFFFFFFFF


_extents: WeakKeyDictionary[ElfFile, Extents] = WeakKeyDictionary()
"""Of files without the table: functions are asked for one by one."""


class _Table:
    """The rows of a search table: a large program has megabytes of them, a search needs some twenty."""

    def __init__(self, elf: ElfFile, start: int, count: int) -> None:
        self._elf, self._at = elf, start + _HEADER.size
        self.start = start
        """What its rows are relative to, an ELF virtual address."""
        self.count = count
        """Of rows, as the header says."""
        self._blocks: dict[int, array[int]] = {}

    @classmethod
    def of(cls, elf: ElfFile, start: int) -> _Table | None:
        """The table in the section that begins there; None if it is of another form."""
        raw = elf.read(start, _HEADER.size)
        if len(raw) < _HEADER.size or _HEADER.unpack(raw)[:4] != _USUAL:
            return None
        return cls(elf, start, _HEADER.unpack(raw)[5])

    def _block(self, number: int) -> array[int]:
        block = self._blocks.get(number)
        if block is None:
            if len(self._blocks) >= _MOST_BLOCKS:
                self._blocks.clear()
            raw = self._elf.read(self._at + number * _BLOCK_ROWS * _ROW_BYTES, _BLOCK_ROWS * _ROW_BYTES)
            block = self._blocks[number] = array("i", raw[: len(raw) // _ROW_BYTES * _ROW_BYTES])
        return block

    def begin(self, row: int) -> int:
        """Where a function begins, relative to the start; beyond all if the file has no such row."""
        block, at = self._block(row // _BLOCK_ROWS), row % _BLOCK_ROWS * 2
        return block[at] if at < len(block) else _REACH

    def fde(self, row: int) -> int:
        """Where a function's entry is, relative to the start. The row is there."""
        return self._block(row // _BLOCK_ROWS)[row % _BLOCK_ROWS * 2 + 1]

    def row_at(self, address: int) -> int:
        """The last one whose function begins at or before an ELF virtual address; -1: none does."""
        return bisect_right(range(self.count), address - self.start, key=self.begin) - 1

    def extent(self, row: int) -> Extent | None:
        """The function of a row, if the file has that, and its entry says the same."""
        if row < 0 or self.begin(row) == _REACH:
            return None
        begin, at = self.begin(row) + self.start, self.fde(row) + self.start
        fde = self._elf.read(at, _FDE.size)
        if len(fde) != _FDE.size:
            return None
        _, _, distance, size = _FDE.unpack(fde)
        return (begin, size) if at + _CODE_AT + distance == begin else None

    def begins(self) -> Iterator[int]:
        """Where all functions begin, ELF virtual addresses."""
        rows = min(self.count, _MAX_ENTRIES)
        for number in range((rows + _BLOCK_ROWS - 1) // _BLOCK_ROWS):
            block = self._block(number)
            if not block:
                return
            yield from (self.start + begin for begin in block[: 2 * (rows - number * _BLOCK_ROWS) : 2])


def _table_at(elf: ElfFile) -> int:
    """The ELF virtual address of the section that has the table; 0 if the file has none."""
    return next((segment.vaddr for segment in elf.segments if segment.type == PT_GNU_EH_FRAME), 0)


def extents_around(elf: ElfFile, addresses: Iterable[int]) -> dict[int, Extent]:
    """The function around each of these ELF virtual addresses; those in none are left out.

    Unwinders of exceptions use the same table (Linux Standard Base 5.0, Core, section 10.6.2).

    Raises:
        ElfError: the file cannot be read.
    """
    start = _table_at(elf)
    if not start:
        extents = frame_extents(elf)
        return {address: found for address in addresses if (found := extents.around(address)) is not None}
    table = _Table.of(elf, start)
    out: dict[int, Extent] = {}
    if table is None:
        return out
    for address in sorted(addresses):  # so that neighbours find the same blocks
        found = table.extent(table.row_at(address))
        if found is not None and address < sum(found):
            out[address] = found
    return out


def function_begins(elf: ElfFile) -> array[int]:
    """Where the functions of a file begin, ELF virtual addresses, ascending; none if that is not told.

    Raises:
        ElfError: the file cannot be read.
    """
    start = _table_at(elf)
    if start:
        table = _Table.of(elf, start)
        found = table.begins() if table is not None else iter(())
    else:
        found = (begin for begin, _ in frame_extents(elf))
    return array("Q", (begin for begin, _ in groupby(sorted(begin for begin in found if begin >= 0))))


def gaps_around(elf: ElfFile, addresses: Iterable[int]) -> dict[int, tuple[int, int]]:
    """For ELF virtual addresses in no function: where the code between two functions begins and ends.

    Those that are not between two are left out.

    Raises:
        ElfError: the file cannot be read.
    """
    start = _table_at(elf)
    table = _Table.of(elf, start) if start else None
    if table is None:
        extents = frame_extents(elf)
        found = ((address, extents.gap_around(address)) for address in addresses)
        return {address: gap for address, gap in found if gap is not None}
    out: dict[int, tuple[int, int]] = {}
    for address in sorted(addresses):
        row = table.row_at(address)
        before = table.extent(row)
        if before is None or row + 1 >= table.count or table.begin(row + 1) == _REACH:
            continue
        if sum(before) <= address:
            out[address] = (sum(before), table.begin(row + 1) + start)
    return out


def frame_extents(elf: ElfFile) -> Extents:
    """The functions of a file by ``.eh_frame`` itself.

    Its entries have pointers as assemblers write them: 4 bytes, relative to where they are (Linux Standard Base 5.0,
    Core, section 10.6.1). Where they are others, they do not point to code.

    Raises:
        ElfError: the file cannot be read.
    """
    known = _extents.get(elf)
    if known is None:
        section = elf.named_section(b".eh_frame")
        if section is None:
            known = Extents(0, ())
        else:
            base = section.address - _REACH
            known = Extents(base, _entries(elf, base, section.address, section.offset, section.size))
        _extents[elf] = known
    return known


def _entries(elf: ElfFile, base: int, address: int, offset: int, left: int) -> Iterator[int]:
    """What `Extents` are made of: by the entries in ``left`` bytes at a file offset, which belong at ``address``."""
    code = [(part.vaddr, part.vaddr + part.file_size) for part in elf.code]
    entries = 0
    while True:
        piece = elf.read_at(offset, min(left, _PIECE))
        last = len(piece) - _FDE.size
        at = 0
        while at <= last:
            length, back, distance, size = _FDE.unpack_from(piece, at)
            entries += 1
            if not 4 <= length < 0xFFFFFFFF or entries > _MAX_ENTRIES:  # the end, or lengths of 64 bits
                return
            begin = address + at + _CODE_AT + distance
            if back and 0 <= begin - base < 1 << 32:
                for start, end in code:
                    if start <= begin and begin + size <= end:
                        yield begin - base << 32 | size
                        break
            at += 4 + length
        if not at or at >= left:
            return
        address, offset, left = address + at, offset + at, left - at
