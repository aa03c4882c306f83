"""Where functions begin and end: from the call frame information of their file, else from its symbols."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from parprof.files.dso import Dso
from parprof.files.eh_frame_header import Extent, extents_around
from parprof.files.elf import ElfFile
from parprof.symbols.debugfiles import find_debug_file
from parprof.symbols.table import find_functions


def functions_around(dso: Dso, addresses: Iterable[int]) -> dict[int, Extent]:
    """The function around each of these ELF virtual addresses of a file; those in none are left out.

    Raises:
        ElfError: the file cannot be read.
    """
    elf = dso.elf
    if elf is None:
        return {}
    missing = set(addresses)
    out = extents_around(elf, missing)
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
    found = extents_around(elf, [address]).get(address)
    if found is None and (symbol := find_functions(elf, {address}).get(address)) is not None and symbol.size:
        found = symbol.value, symbol.size
    return found
