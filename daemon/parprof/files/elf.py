"""ELF files of x86-64, as far as a profiler needs them: identity, libraries and symbols.

Works for files without section headers too: the dynamic symbols are found as the dynamic linker finds them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from functools import cached_property

from parprof.files.elf_image import SHT_NOBITS, ElfError, ElfImage, Section, Segment
from parprof.files.elf_symbols import Strings, Symbol, SymbolTable, count_from_gnu_hash, count_from_hash

__all__ = ("EM_X86_64", "ET_DYN", "ET_EXEC", "ElfError", "ElfFile", "Section", "Segment", "Symbol")

ET_EXEC, ET_DYN, EM_X86_64 = 2, 3, 62
_PT_DYNAMIC, _PT_INTERP, _PT_NOTE = 2, 3, 4
_SHT_SYMTAB, _SHT_NOTE, _SHT_DYNSYM = 2, 7, 11
_SHF_TLS = 0x400
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SONAME = 1, 4, 5, 6, 10, 14
_DT_GNU_HASH, _DT_VERSYM = 0x6FFFFEF5, 0x6FFFFFF0
_DYNAMIC = struct.Struct("<QQ")
_SYMBOL_SIZE = 24
_MAX_NOTE_TABLES, _MAX_NOTES, _MAX_DYNAMIC, _MAX_NEEDED = 1024, 1 << 16, 1 << 16, 1024
_MAX_ALIASES = 64


def build_id_in(notes: bytes, align: int = 4) -> str:
    """The build id among notes, in hexadecimal digits; empty if it is not there. ``align``: of names and values."""
    step = 8 if align == 8 else 4
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        start = at + 12 + (name_size + step - 1) // step * step
        if kind == 3 and notes[at + 12 : at + 16] == b"GNU\0" and name_size == 4 and 0 < size <= 64:
            found = notes[start : start + size]
            if len(found) == size:
                return found.hex()
        at = start + (size + step - 1) // step * step
    return ""


class ElfFile(ElfImage):
    """An ELF file with all that is known of it. Nothing beyond the headers is read before it is asked for."""

    @cached_property
    def build_id(self) -> str:
        """The build id in hexadecimal digits; empty if there is none."""
        notes = [(s.offset, s.file_size, s.align) for s in self.segments if s.type == _PT_NOTE]
        notes += [(s.offset, s.size, s.align) for s in self.sections if s.type == _SHT_NOTE]
        for offset, size, align in notes[:_MAX_NOTE_TABLES]:
            if found := build_id_in(self.read_at(offset, min(size, _MAX_NOTES)), align):
                return found
        return ""

    @property
    def has_debug_info(self) -> bool:
        """Whether it says which lines its code is of."""
        return any(self.section_data(name, 1) for name in (b".debug_info", b".zdebug_info"))

    @cached_property
    def interp(self) -> str:
        """The program interpreter's path; empty if there is none."""
        for segment in self.segments:
            if segment.type == _PT_INTERP:
                raw = self.read_at(segment.offset, min(segment.file_size, 4096))
                return os.fsdecode(raw.partition(b"\0")[0])
        return ""

    @cached_property
    def _dynamic(self) -> dict[int, list[int]]:
        out: dict[int, list[int]] = {}
        for segment in self.segments:
            if segment.type != _PT_DYNAMIC:
                continue
            here = (s for s in self.sections if s.address == segment.vaddr and not s.flags & _SHF_TLS)
            if any(s.type == SHT_NOBITS for s in here):  # .tbss takes no room: it may begin at the same place
                break  # a file of debug information alone
            raw = self.read_at(segment.offset, min(segment.file_size, _MAX_DYNAMIC))
            for tag, value in _DYNAMIC.iter_unpack(raw[: len(raw) - len(raw) % _DYNAMIC.size]):
                if tag == 0:
                    break
                out.setdefault(tag, []).append(value)
            break
        return out

    def _dynamic_value(self, tag: int) -> int:
        return self._dynamic.get(tag, [0])[0]

    @cached_property
    def _dynamic_strings(self) -> Strings:
        offset = self.file_offset(self._dynamic_value(_DT_STRTAB))
        return Strings(self.read_at, offset or 0, 0 if offset is None else self._dynamic_value(_DT_STRSZ))

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """Names of the libraries that the file asks for, in its order."""
        indexes = self._dynamic.get(_DT_NEEDED, [])[:_MAX_NEEDED]
        return tuple(os.fsdecode(self._dynamic_strings.get(index)) for index in indexes)

    @cached_property
    def soname(self) -> str:
        """The library's own name; empty if it has none."""
        index = self._dynamic_value(_DT_SONAME)
        return os.fsdecode(self._dynamic_strings.get(index)) if index else ""

    @property
    def is_static(self) -> bool:
        """Whether it runs without a dynamic linker (also static-pie)."""
        return not self.interp and not self._dynamic.get(_DT_NEEDED)

    # symbols

    @cached_property
    def _dynamic_symbols(self) -> SymbolTable | None:
        address = self._dynamic_value(_DT_SYMTAB)
        offset = self.file_offset(address) if address else None
        if offset is None:
            return None
        versions = self.file_offset(self._dynamic_value(_DT_VERSYM)) if _DT_VERSYM in self._dynamic else None
        sizes = (s.size for s in self.sections if s.type == _SHT_DYNSYM and s.offset == offset)
        count = next(sizes, 0) // _SYMBOL_SIZE
        if not count and _DT_HASH in self._dynamic:
            count = count_from_hash(self.read, self._dynamic_value(_DT_HASH))
        if not count and _DT_GNU_HASH in self._dynamic:
            count = count_from_gnu_hash(self.read, self._dynamic_value(_DT_GNU_HASH))
        if not count:  # linkers put the strings behind the symbols
            count = max(0, self._dynamic_value(_DT_STRTAB) - address) // _SYMBOL_SIZE
        return SymbolTable(self.read_at, offset, count, self._dynamic_strings, versions or 0)

    @cached_property
    def symbol_tables(self) -> list[SymbolTable]:
        """The tables that the file has: ``.symtab``, then the dynamic symbols."""
        out = []
        for section in self.sections:
            if section.type == _SHT_SYMTAB and section.link < len(self.sections):
                text = self.sections[section.link]
                strings = Strings(self.read_at, text.offset, text.size)
                out.append(SymbolTable(self.read_at, section.offset, section.size // _SYMBOL_SIZE, strings))
                break
        if self._dynamic_symbols is not None:
            out.append(self._dynamic_symbols)
        return out

    def symbols(self) -> Iterator[Symbol]:
        """The defined functions of ``.symtab``, then the dynamic ones (which may be the same again)."""
        for table in self.symbol_tables:
            for entry in table.functions():
                yield table.symbol(entry)

    def undefined(self) -> set[str]:
        """Names of the dynamic symbols that other files have to define."""
        return self._dynamic_symbols.undefined() if self._dynamic_symbols else set()

    def lookup(self, names: Iterable[str]) -> dict[str, tuple[Symbol, ...]]:
        """The definitions of ``names``, one for each address, the default version first.

        Names without a definition are left out. The values of thread-local symbols are no addresses and
        those of indirect functions (IFUNC) are not the function's: neither counts. Local symbols count only
        where no other file could see a symbol of that name.
        """
        wanted = {name.encode("utf-8", "replace") for name in names}
        found: dict[str, list[tuple[tuple[bool, bool], Symbol]]] = {}
        for table in reversed(self.symbol_tables):
            for default, symbol in table.defined(wanted):
                known = found.setdefault(symbol.name, [])
                if len(known) < _MAX_ALIASES and all(symbol.value != other.value for _, other in known):
                    known.append(((symbol.is_local, not default), symbol))
        out = {}
        for name, known in found.items():
            known.sort(key=lambda item: item[0])
            shown = [s for _, s in known if not s.is_local] or [s for _, s in known]
            out[name] = tuple(shown)
        return out
