"""Where the calls of a function are counted: at its entry where that is cheap, else at the instructions that call it.

The kernel emulates some instructions under a probe (0.5 to 1 us a hit) and executes all others out of line (5 us): see
`parprof.probes.cheap_sites`. A ``call rel32`` is one that it emulates. So a function whose entry is dear is counted at
its calls, if all that refer to it are direct calls and tail calls; who calls is known then, too. In doubt it is the
entry, which is always right: a probe on what is no instruction would break the program.

Foreign bytes are read and disassembled here: in a child process without privileges (`parprof.calls.worker`).
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import field
from typing import NamedTuple

from parprof.files.disassembler import disassembler
from parprof.files.elf import EM_X86_64, ET_EXEC, ElfFile, Symbol
from parprof.files.elf_image import PF_X, PT_LOAD
from parprof.patterns import regex
from parprof.probes.cheap_sites import ENDBR64, ProbeSite, cheap_probe_site, turns_at_entry
from parprof.values import dataclass

NOP5 = b"\x0f\x1f\x44\x00\x00"
"""What compilers leave for tracers to be patched; recent kernels put a jump there."""
MAX_CALLS = 64
"""Instructions that call one function; of one with more the entry is probed."""
_MAX_CODE = 1 << 26
_MAX_FUNCTION = 1 << 20
_CALL, _JUMP, _SHORT_JUMP = 0xE8, 0xE9, 0xEB
_DIRECT = regex(rb"[\xe8\xe9]", re.DOTALL)
_CONDITIONAL = regex(rb"\x0f[\x80-\x8f]", re.DOTALL)
_ADDRESS_OF = regex(rb"\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d]", re.DOTALL)
_SHORT = frozenset((_SHORT_JUMP, *range(0x70, 0x80), *range(0xE0, 0xE4)))
_WORD = 8
_REL32 = struct.Struct("<i")


class CallPlace(NamedTuple):
    """An instruction to probe, an ELF virtual address."""

    vaddr: int
    cheap: bool
    knows_caller: bool
    """It is one that calls the function, not one of the function itself."""


class Placement(NamedTuple):
    """Where a function is probed, and why there, or why nowhere. Each call passes exactly one of the places."""

    places: tuple[CallPlace, ...]
    why: str


@dataclass(slots=True)
class References:
    """What refers to a function's first instruction, in its own file."""

    calls: list[int] = field(default_factory=list)
    """The ELF addresses of direct calls, and of direct jumps in other functions: tail calls."""
    other: str = ""
    """Why that is not all; empty: it is."""

    def spoil(self, why: str) -> None:
        """There is something else."""
        self.other = self.other or why


def place(
    entry: ProbeSite,
    references: References | None,
    *,
    has_nop5: bool = False,
    nop5_is_cheap: bool = False,
    turns: bool = False,
) -> Placement:
    """Where to probe a function.

    ``entry``: the cheapest place that every call passes; ``references``: what refers to it, if that was looked for;
    ``turns``: a loop goes back to its first instruction, where calls cannot be told from turns.
    """
    if entry.cheap:
        return Placement((CallPlace(entry.vaddr, True, False),), entry.why)
    if has_nop5 and nop5_is_cheap and not turns:
        return Placement((CallPlace(entry.vaddr, True, False),), "a 5-byte nop")
    dear = Placement((CallPlace(entry.vaddr, False, False),), entry.why)
    if turns:
        dear = Placement(
            (), "a loop in it goes back to its first instruction, so that its turns look like calls"
        )
    if references is None:
        return dear
    if references.other:
        return dear._replace(why=f"{dear.why}; {references.other}")
    if not references.calls:
        return dear._replace(why=f"{dear.why}; nothing calls it directly")
    if len(references.calls) > MAX_CALLS:
        return dear._replace(why=f"{dear.why}; {len(references.calls)} places call it")
    return Placement(
        tuple(CallPlace(at, True, True) for at in references.calls),
        f"all that refer to it are {len(references.calls)} direct calls",
    )


class FileCode:
    """The code of one file, and where its functions are."""

    def __init__(self, elf: ElfFile, functions: Iterable[Symbol]) -> None:
        self._elf = elf
        self._functions = sorted({(one.value, one.size) for one in functions if one.size})
        self._starts = [start for start, _ in self._functions]
        self._exported = self._find_exported()

    def _find_exported(self) -> set[int]:
        """Functions that other files may call."""
        tables = self._elf.symbol_tables
        if len(tables) == 1 and self._elf.is_static:
            return set()
        dynamic = tables[1:] or tables
        return {entry[4] for table in dynamic for entry in table.functions()}

    def place_all(
        self, wanted: Collection[Symbol], *, nop5_is_cheap: bool, entries_only: bool = False
    ) -> list[Placement]:
        """Where these functions are to be probed. ``entries_only``: where the return address is on top of the stack."""
        entries = [cheap_probe_site(self._elf, one.value, one.size) for one in wanted]
        nops = [self._has_nop5(one.value) for one in wanted]
        turns = [
            not entry.cheap and turns_at_entry(self._elf, one.value, one.size)
            for one, entry in zip(wanted, entries, strict=True)
        ]
        looked_for = [
            one
            for one, entry, nop, turn in zip(wanted, entries, nops, turns, strict=True)
            if not (entry.cheap or (nop and nop5_is_cheap and not turn))
        ]
        references = self.references(looked_for) if looked_for and not entries_only else {}
        return [
            place(entry, references.get(one.value), has_nop5=nop, nop5_is_cheap=nop5_is_cheap, turns=turn)
            for one, entry, nop, turn in zip(wanted, entries, nops, turns, strict=True)
        ]

    def _has_nop5(self, vaddr: int) -> bool:
        return self._elf.read(vaddr, len(ENDBR64) + len(NOP5)).removeprefix(ENDBR64).startswith(NOP5)

    def references(self, wanted: Collection[Symbol]) -> dict[int, References]:
        """What refers to these functions, by their ELF addresses."""
        out = {one.value: References() for one in wanted}
        for one in wanted:
            if one.value in self._exported:
                out[one.value].spoil("other files may call it")
            elif one.value == self._elf.entry:
                out[one.value].spoil("the program starts there")
        left = {value for value, found in out.items() if not found.other}
        if not left or self._elf.machine != EM_X86_64 or disassembler() is None:
            for found in out.values():
                found.spoil("its callers cannot be disassembled")
            return out
        if sum(segment.file_size for segment in self._elf.code) > _MAX_CODE:
            for found in out.values():
                found.spoil("its file is too large to look for all calls")
            return out
        self._search_data(out, left)
        for base, code in self._code():
            self._search_code(out, left, base, code)
        for value in left:
            self._verify(value, out[value])
        return out

    def _code(self) -> Iterator[tuple[int, bytes]]:
        for segment in self._elf.code:
            yield segment.vaddr, _read(self._elf, segment.offset, segment.file_size)

    def _search_data(self, out: dict[int, References], left: set[int]) -> None:
        """Pointers: those that the linker wrote, and what the dynamic linker is told to write."""
        is_fixed = self._elf.type == ET_EXEC
        for segment in self._elf.segments:
            if segment.type != PT_LOAD:
                continue
            if segment.file_size > _MAX_CODE:
                for value in left:
                    out[value].spoil("its file is too large to look for pointers")
                continue
            begins = segment.vaddr % _WORD  # words are aligned in memory
            data = bytes(begins) + _read(self._elf, segment.offset, segment.file_size)
            for value in left:
                # what the dynamic linker is told to relocate is aligned; what it need not be anywhere
                step = 1 if is_fixed or segment.flags & PF_X else _WORD
                found = _has_word(data, struct.pack("<Q", value), step)
                if found or (is_fixed and data.find(struct.pack("<I", value & 0xFFFFFFFF)) >= 0):
                    out[value].spoil("its address is taken")

    def _search_code(self, out: dict[int, References], left: set[int], base: int, code: bytes) -> None:
        for match in _DIRECT.finditer(code):
            at = match.start()
            if (target := _target(base, code, at, 1)) in left:
                out[target].calls.append(base + at)
        for match in _CONDITIONAL.finditer(code):
            if (target := _target(base, code, match.start(), 2)) in left and not self._is_own(
                target, base + match.start()
            ):
                out[target].spoil("a conditional jump leads there")
        for match in _ADDRESS_OF.finditer(code):
            if (target := _target(base, code, match.start(), 2)) in left:
                out[target].spoil("its address is taken")
        for value in left:
            if base <= value < base + len(code):
                self._search_short(out[value], value, base, code)

    def _search_short(self, found: References, value: int, base: int, code: bytes) -> None:
        """Jumps of two bytes from neighbouring functions."""
        _, end = self._function_at(value) or (value, value)
        for at in range(max(value - base - 129, 0), min(value - base + 127, len(code) - 1)):
            if code[at] in _SHORT and not value <= base + at < end:
                distance = code[at + 1] - 256 * (code[at + 1] > 127)
                if base + at + 2 + distance == value:
                    found.calls.append(base + at)

    def _is_own(self, value: int, at: int) -> bool:
        """Whether an address is in the function that begins at ``value``: a loop back to its beginning is no call."""
        _, end = self._function_at(value) or (value, value)
        return value <= at < end

    def _function_at(self, vaddr: int) -> tuple[int, int] | None:
        """Where the function that has an address begins and ends."""
        index = bisect_right(self._starts, vaddr) - 1
        if index < 0:
            return None
        start, size = self._functions[index]
        return (start, start + size) if vaddr < start + size <= start + _MAX_FUNCTION else None

    def _verify(self, value: int, found: References) -> None:
        """Keep those calls that are instructions; what cannot be told spoils them all."""
        kept = []
        for at in sorted(found.calls):
            function = self._function_at(at)
            if function is None:
                found.spoil("it may be called from code without a name")
                break
            kind = _instruction_at(self._elf.read(function[0], function[1] - function[0]), function[0], at)
            if kind == "unknown":
                found.spoil("a function that may call it cannot be disassembled")
                break
            if kind == "inside":
                continue
            if kind != "direct":
                found.spoil(f"a call of it {kind}")
                break
            is_loop = function[0] <= value < function[1] and self._elf.read(at, 1)[0] != _CALL
            if not is_loop:  # a loop back to its beginning is no call
                kept.append(at)
        found.calls = kept


def _has_word(data: bytes, word: bytes, step: int) -> bool:
    """Whether a word is there, at a multiple of ``step`` bytes."""
    at = data.find(word)
    while at >= 0 and at % step:
        at = data.find(word, at + 1)
    return at >= 0


def _read(elf: ElfFile, offset: int, size: int) -> bytes:
    """All of a segment: one read gives 16 MiB at most."""
    parts = []
    while size > 0:
        part = elf.read_at(offset, size)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        size -= len(part)
    return b"".join(parts)


def _target(base: int, code: bytes, at: int, opcode_size: int) -> int:
    """Where the 32-bit distance behind an opcode leads; -1 at the end of the code."""
    end = at + opcode_size + 4
    if end > len(code):
        return -1
    return base + end + int(_REL32.unpack_from(code, at + opcode_size)[0])


def _instruction_at(code: bytes, start: int, at: int) -> str:
    """What is at an address of a function.

    A ``direct`` call or jump begins there; one that ``has a prefix`` began before it; it ``is conditional``; it is
    ``inside`` of something else; or that is ``unknown``.
    """
    reader = disassembler()
    if reader is None:
        return "unknown"
    for address, size, mnemonic, operands in reader.disasm_lite(code, start):
        if address == at:
            return "direct" if code[at - start] in (_CALL, _JUMP, _SHORT_JUMP) else "is conditional"
        if address + size > at:
            target = _target(start, code, at - start, 1)
            goes_there = mnemonic.rpartition(" ")[2] in ("call", "jmp") and operands == hex(target)
            return "has a prefix" if goes_there else "inside"
    return "unknown"
