"""Where a file keeps the offset of a thread-local variable that its code uses: slots that ld.so fills in."""

from __future__ import annotations

import struct

from parprof.files.elf import ElfFile
from parprof.values import dataclass

_PT_DYNAMIC = 2
_DT_RELA, _DT_RELASZ = 7, 8
_DTPMOD64, _TPOFF64 = 16, 18
_DYNAMIC = struct.Struct("<QQ")
_RELA = struct.Struct("<QQq")  # place, symbol << 32 | type, addend
_MAX_DYNAMIC = 1 << 16
_MAX_RELOCATIONS = _RELA.size << 16
_CHUNK = _RELA.size << 12


@dataclass(frozen=True, slots=True)
class TlsSlots:
    """ELF virtual addresses of the slots for one variable; 0 = none."""

    offset: int = 0
    """Holds the signed distance from a thread's fsbase to the variable; 0 until ld.so has relocated the file."""
    module: int = 0
    """Holds the number of the variable's module: the code asks ld.so for the place."""


def tls_slots(elf: ElfFile, name: str) -> TlsSlots:
    """The slots of a thread-local variable by its dynamic symbol.

    Raises:
        ElfError: the file cannot be read any more.
    """
    start, size = _relocations(elf)
    if not size or not elf.symbol_tables:
        return TlsSlots()
    table = elf.symbol_tables[-1]  # the dynamic one, as the file has a dynamic section
    wanted = next(
        (index for index, entry in enumerate(table.entries()) if entry[0] and table.name(entry) == name), 0
    )
    found = {_TPOFF64: 0, _DTPMOD64: 0}
    while wanted and size > 0:
        raw = elf.read(start, min(size, _CHUNK))
        if len(raw) < _RELA.size:
            break
        for place, info, _ in _RELA.iter_unpack(raw[: len(raw) - len(raw) % _RELA.size]):
            if info >> 32 == wanted and info & 0xFFFFFFFF in found:
                found[info & 0xFFFFFFFF] = place
        start += _CHUNK
        size -= _CHUNK
    return TlsSlots(found[_TPOFF64], found[_DTPMOD64])


def _relocations(elf: ElfFile) -> tuple[int, int]:
    """ELF virtual address and bytes of the table of relocations with addend."""
    tags: dict[int, int] = {}
    for segment in elf.segments:
        if segment.type == _PT_DYNAMIC:
            raw = elf.read_at(segment.offset, min(segment.file_size, _MAX_DYNAMIC))
            tags.update(_DYNAMIC.iter_unpack(raw[: len(raw) - len(raw) % _DYNAMIC.size]))
            break
    return tags.get(_DT_RELA, 0), min(tags.get(_DT_RELASZ, 0), _MAX_RELOCATIONS)
