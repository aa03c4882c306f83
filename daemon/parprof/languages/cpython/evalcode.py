"""Where the interpreter loop's machine code is in an ELF file."""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections import Counter

from parprof.files.elf import ElfFile
from parprof.patterns import regex

LOOP = "_PyEval_EvalFrameDefault"
_PT_GNU_EH_FRAME = 0x6474E550
_SEARCH_TABLE = (1, 0x03, 0x3B)
"""Version, udata4 count, and pairs of sdata4 relative to the header: the only form that linkers write."""
_JUMP_IF = regex(rb"\x0f[\x80-\x8f](....)", re.DOTALL)
_FEW = 8
"""So many conditional jumps into one other function do not come about by chance."""
_MAX_LOOP, _MAX_FUNCTIONS = 1 << 22, 1 << 20


def loop_ranges(elf: ElfFile) -> list[tuple[int, int]]:
    """[start, end) of the loop's parts, in ELF virtual addresses; empty if it is not found.

    Compilers put its rare paths elsewhere, and a stripped file has no name for them. But no other function
    is the target of its conditional jumps.
    """
    found = elf.lookup([LOOP, f"{LOOP}.cold"])
    if LOOP not in found:
        return []
    symbol = found[LOOP][0]
    out = [(symbol.value, symbol.value + symbol.size)]
    out += [(cold.value, cold.value + cold.size) for cold in found.get(f"{LOOP}.cold", ()) if cold.size]
    if len(out) > 1:
        return out
    starts = _function_starts(elf)
    hits: Counter[int] = Counter()
    for match in _JUMP_IF.finditer(elf.read(symbol.value, min(symbol.size, _MAX_LOOP))):
        target = symbol.value + match.end() + struct.unpack("<i", match[1])[0]
        index = bisect_right(starts, target) - 1
        if not out[0][0] <= target < out[0][1] and 0 <= index < len(starts) - 1:
            hits[index] += 1
    return out + [(starts[index], starts[index + 1]) for index, count in hits.items() if count >= _FEW]


def _function_starts(elf: ElfFile) -> list[int]:
    """Where functions and their parts begin, as the search table of ``.eh_frame_hdr`` has them."""
    for segment in elf.segments:
        if segment.type == _PT_GNU_EH_FRAME:
            head = elf.read(segment.vaddr, 12)
            if len(head) < 12 or (head[0], head[2], head[3]) != _SEARCH_TABLE:
                return []
            count = min(struct.unpack_from("<I", head, 8)[0], _MAX_FUNCTIONS)
            raw = elf.read(segment.vaddr + 12, 8 * count)
            raw = raw[: len(raw) - len(raw) % 8]
            return sorted(segment.vaddr + start for start, _ in struct.iter_unpack("<ii", raw))
    return []
