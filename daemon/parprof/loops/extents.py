"""Where a function begins and ends, as far as its file tells: by call frame information, else by its symbols.

Children that read files load this one, and so nothing that opens them: see `parprof.loops.scopes` for that.
"""

from __future__ import annotations

from parprof.files.eh_frame_header import Extent, extents_around
from parprof.files.elf import ElfFile
from parprof.symbols.table import find_functions


def function_at(elf: ElfFile, address: int) -> Extent | None:
    """The function around an ELF virtual address, as far as the file itself tells.

    Raises:
        ElfError: the file cannot be read.
    """
    found = extents_around(elf, [address]).get(address)
    if found is None and (symbol := find_functions(elf, {address}).get(address)) is not None and symbol.size:
        found = symbol.value, symbol.size
    return found
