"""What an ELF object says that a JIT compiler has registered: which functions are where in the process, and where its
call frame information is.

Such an object is one that the compiler would have written to a file, with its sections' addresses filled in: where it
has put these. Of one that is relocatable, as LLVM's are, symbols count from the begin of their section. Its bytes are
foreign: this runs in a child without privileges.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from parprof.files.elf import EM_X86_64, ElfError, ElfFile
from parprof.files.elf_image import SHT_NOBITS, Section
from parprof.files.elf_symbols import TYPE_FUNCTION
from parprof.patterns import regex
from parprof.symbols.names import readable

MAX_FUNCTIONS = 1 << 14
"""Of one object; more are left out."""
MAX_CODE = 1 << 10
"""Sections of one object that are looked at."""
_ET_REL = 1
_SHF_ALLOC, _SHF_EXECINSTR = 0x2, 0x4
_MAX_NAME = 1 << 10
_END = 1 << 47
"""Of the addresses of user space."""
_NUMBA = regex(r"(.*?)\[abi:v\d+\](?:\[abi:\w+\])*(?:\(.*)?")
"""numba mangles names of Python as C++ has it, with what it was compiled for as tags."""
_ESCAPED = regex(r"_3c(\w+?)_3e")
"""``<locals>`` and its like."""


class MadeFunction(NamedTuple):
    """A function by its address in the process, its bytes, and its name as the compiler has it."""

    start: int
    size: int
    name: str


class ObjectFacts(NamedTuple):
    """What there is to know of an object. All addresses are of the process."""

    functions: tuple[MadeFunction, ...] = ()
    code: tuple[tuple[int, int], ...] = ()
    """Where its code is, [start, end)."""
    frames: tuple[tuple[int, int], ...] = ()
    """Where its call frame information is, relocated: address and bytes."""


def look_into(data: bytes) -> ObjectFacts:
    """The facts about an object; none where it is no ELF object for x86-64 that we can read."""
    try:
        elf = ElfFile(lambda offset, size: data[offset : offset + size], len(data), "a JIT compiler's object")
        if elf.machine != EM_X86_64:
            return ObjectFacts()
        there = {number: one for number, one in enumerate(elf.sections[:MAX_CODE]) if _is_there(one)}
        code = {number: one for number, one in there.items() if one.flags & _SHF_EXECINSTR}
        frames = elf.named_section(b".eh_frame")
        return ObjectFacts(
            tuple(_functions(elf, code)),
            tuple((one.address, one.address + one.size) for one in code.values()),
            ((frames.address, frames.size),) if frames is not None and frames in there.values() else (),
        )
    except ElfError:
        return ObjectFacts()


def made_name(symbol: str) -> str:
    """What a symbol stands for, as its reader knows it.

    >>> made_name("_ZN8__main__5innerB2v7B12c8tJTIeFIjxBEdx")
    '__main__.inner'
    >>> made_name("evalexpr_0_1")
    'evalexpr_0_1'
    """
    before, mangled, rest = symbol.partition("_Z")
    name = readable(mangled + rest)
    if (python := _NUMBA.fullmatch(name)) is not None:
        name = _ESCAPED.sub(r"<\1>", python[1].replace("::", "."))
    return before + name


def _is_there(section: Section) -> bool:
    """Whether it has a place in the process."""
    end = section.address + section.size
    is_loaded = section.flags & _SHF_ALLOC and section.type != SHT_NOBITS
    return bool(is_loaded and section.address and section.size and end <= _END)


def _functions(elf: ElfFile, code: dict[int, Section]) -> Iterator[MadeFunction]:
    left = MAX_FUNCTIONS
    for table in elf.symbol_tables[:1]:
        for entry in table.entries():
            section = code.get(entry[3])
            if section is None or entry[1] & 15 != TYPE_FUNCTION or not entry[5] or not left:
                continue
            start = entry[4] + (section.address if elf.type == _ET_REL else 0)
            if section.address <= start and start + entry[5] <= section.address + section.size:
                left -= 1
                yield MadeFunction(start, entry[5], made_name(table.name(entry)[:_MAX_NAME]))
