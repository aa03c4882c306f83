"""Function names from ELF symbol tables alone: one pass over the table for all addresses at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from parprof.files.elf import ElfFile, Symbol
from parprof.files.elf_symbols import BIND_GLOBAL, BIND_WEAK, SymbolEntry, SymbolTable

_RANK = {BIND_GLOBAL: 2, BIND_WEAK: 1}
_START_CODE = frozenset(
    "_init _fini _start _dl_relocate_static_pie frame_dummy deregister_tm_clones register_tm_clones "
    "__do_global_dtors_aux __do_global_ctors_aux".split()
)
"""Functions of unknown size that every program has in front of its own."""
_START_CODE_BYTES = 128
"""That is more than any of them has."""


class _Candidate(NamedTuple):
    start: int
    entry: SymbolEntry
    table: SymbolTable


def find_functions(elf: ElfFile, addresses: Iterable[int]) -> dict[int, Symbol]:
    """The function around each of the ELF virtual ``addresses``; those in none are left out.

    Memory grows with the addresses, not with the table. A function of unknown size extends to the next one or to the
    end of its section; but start code, which is in front of the program's own, not over code that has no name. Among
    the names of one function an exported one wins, then one with few leading underscores.

    Raises:
        ElfError: the file cannot be read.
    """
    wanted = sorted(set(addresses))
    covering: list[_Candidate | None] = [None] * len(wanted)
    nearest: list[_Candidate | None] = [None] * len(wanted)
    """The last symbol that starts at or below an address and above the address before it."""
    for table in elf.symbol_tables if wanted else ():
        for entry in table.functions_around(wanted):
            start, size = entry[4], entry[5]
            first = bisect_left(wanted, start)
            old = nearest[first]
            if old is None or start >= old.start:
                nearest[first] = _better(old, start, entry, table)
            end = start + size
            while first < len(wanted) and wanted[first] < end:
                covering[first] = _better(covering[first], start, entry, table)
                first += 1
    out = {}
    last: _Candidate | None = None
    for address, here, sized in zip(wanted, nearest, covering, strict=True):
        last = here or last
        found = sized
        if found is None and last is not None and last.entry[5] == 0 and address < _end(elf, last):
            found = last
        if found is not None:
            out[address] = found.table.symbol(found.entry)
    return out


def _end(elf: ElfFile, last: _Candidate) -> int:
    """Where a function of unknown size ends at the latest."""
    end = elf.code_end(last.start)
    is_start_code = last.table.name(last.entry) in _START_CODE
    return min(end, last.start + _START_CODE_BYTES) if is_start_code else end


def _better(old: _Candidate | None, start: int, entry: SymbolEntry, table: SymbolTable) -> _Candidate:
    """Of two symbols the one that begins later; of two names of one place the better known one."""
    if old is None or start > old.start:
        return _Candidate(start, entry, table)
    if start < old.start or (start, entry[0], entry[5]) == (old.start, old.entry[0], old.entry[5]):
        return old
    return _Candidate(start, entry, table) if _quality(entry, table) > _quality(old.entry, old.table) else old


def _quality(entry: SymbolEntry, table: SymbolTable) -> tuple[bool, int, int, int, str]:
    name = table.name(entry)
    underscores = len(name) - len(name.lstrip("_"))
    return entry[5] > 0, _RANK.get(entry[1] >> 4, 0), -underscores, -len(name), name
