"""Calls of functions that other files have: through slots that the dynamic linker fills (x86-64)."""

from __future__ import annotations

import struct
from collections.abc import Callable

from parprof.files.elf import ElfError, ElfFile
from parprof.patterns import regex

_SLOT = regex(r"qword ptr \[rip ([+-]) (0x[0-9a-f]+|\d+)\]\Z")
_RELOCATION = struct.Struct("<QIIq")  # offset, type, symbol, addend
_GLOB_DAT, _JUMP_SLOT = 6, 7
_MAX_RELOCATIONS = 1 << 23
_MAX_SYMBOLS = 1 << 17


def slot(operands: str, following: int) -> int:
    """Address of the slot that an indirect jump or call goes through, ``following`` behind it; -1 if it does not.

    >>> slot("qword ptr [rip + 0x10]", 0x1000), slot("rax", 0x1000)
    (4112, -1)
    """
    found = _SLOT.match(operands)
    return following + int(found[1] + found[2], 0) if found else -1


def slots_of(elf: ElfFile, is_meant: Callable[[bytes], bool]) -> frozenset[int]:
    """The slots for functions with such names, as ELF virtual addresses; none where the file cannot be read."""
    try:
        symbols = _dynamic_symbols(elf, is_meant)
    except ElfError:
        return frozenset()
    out = set()
    for section in (b".rela.plt", b".rela.dyn") if symbols else ():
        raw = elf.section_data(section, _MAX_RELOCATIONS)
        for offset, kind, symbol, _ in _RELOCATION.iter_unpack(raw[: len(raw) - len(raw) % _RELOCATION.size]):
            if kind in (_JUMP_SLOT, _GLOB_DAT) and symbol in symbols:
                out.add(offset)
    return frozenset(out)


def _dynamic_symbols(elf: ElfFile, is_meant: Callable[[bytes], bool]) -> set[int]:
    """Indexes of the dynamic symbols with such names."""
    tables = elf.symbol_tables
    if not tables or tables[-1].count > _MAX_SYMBOLS:
        return set()
    strings = tables[-1].strings
    return {index for index, entry in enumerate(tables[-1].entries()) if is_meant(strings.get(entry[0]))}
