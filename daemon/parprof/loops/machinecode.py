"""The instructions of one function (x86-64), and where each goes on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import field
from enum import IntEnum
from functools import cache

from parprof.errors import ParprofError
from parprof.files.disassembler import disassembler
from parprof.files.elf import EM_X86_64, ElfFile
from parprof.values import dataclass

MAX_BYTES = 1 << 18
MAX_INSTRUCTIONS = 1 << 16
MAX_UNKNOWN_SHARE = 0.05
"""Where more of the instructions than this cannot be decoded, it is no code, or none that we know."""

Instruction = tuple[int, int, str, str]
"""(ELF virtual address, size in bytes, mnemonic, operands)"""


class CodeError(ParprofError):
    """The code of a function cannot be used; the text says why."""


class Flow(IntEnum):
    """Where execution goes on after an instruction."""

    ON = 0
    """At the next one; calls too: most return."""
    BRANCH = 1
    """At the next one or at a target."""
    JUMP = 2
    """At a target."""
    RETURN = 3
    TRAP = 4


@dataclass(frozen=True, slots=True)
class Code:
    """Instructions in the order of their addresses, which are ELF virtual addresses."""

    start: int
    end: int
    addresses: list[int]
    mnemonics: list[str]
    operands: list[str]
    last_calls: set[int] = field(default_factory=set)
    """Indexes of calls that do not return."""

    def index(self, address: int) -> int:
        """Index of the instruction that ``address`` is in; -1 outside of the function."""
        if not self.start <= address < self.end:
            return -1
        return bisect_right(self.addresses, address) - 1

    def flow(self, index: int) -> Flow:
        """Where execution goes on after an instruction."""
        return Flow.TRAP if index in self.last_calls else flow_of(self.mnemonics[index])

    def target(self, index: int) -> int:
        """Address that a direct branch or call goes to; -1 if that is not written in the instruction."""
        return target_of(self.operands[index])

    def following(self, index: int) -> int:
        """Address behind an instruction."""
        return self.addresses[index + 1] if index + 1 < len(self.addresses) else self.end


def read_code(elf: ElfFile, vaddr: int, size: int) -> Code:
    """Decode the function of ``size`` bytes at ``vaddr``.

    A byte that begins no instruction counts as one that does nothing.

    Raises:
        CodeError: there is no such code, or too much of it, or nothing to decode it with.
        ElfError: the file cannot be read.
    """
    if elf.machine != EM_X86_64:
        raise CodeError("it is not x86-64 code")
    if not 0 < size <= MAX_BYTES:
        raise CodeError(f"it has {size:,} bytes; at most {MAX_BYTES:,} are looked at")
    code = elf.read(vaddr, size)
    if len(code) < size:
        raise CodeError("its code is not in the file")
    addresses, mnemonics, operands = [], [], []
    unknown = 0
    for address, _, mnemonic, text in decode(code, vaddr, MAX_INSTRUCTIONS + 1):
        addresses.append(address)
        mnemonics.append(mnemonic)
        operands.append(text)
        unknown += mnemonic == ".byte"
    if len(addresses) > MAX_INSTRUCTIONS:
        raise CodeError(f"it has more than {MAX_INSTRUCTIONS:,} instructions")
    if not addresses or unknown > MAX_UNKNOWN_SHARE * len(addresses):
        raise CodeError("its bytes are no code that we know")
    return Code(vaddr, vaddr + size, addresses, mnemonics, operands)


def decode(code: bytes, vaddr: int, limit: int) -> Iterable[Instruction]:
    """The first ``limit`` instructions, one after the other.

    Raises:
        CodeError: there is nothing to decode them with.
    """
    reader = disassembler(skip_data=True)
    if reader is None:
        raise CodeError("the Python package capstone is missing")
    found: Iterable[Instruction] = reader.disasm_lite(code, vaddr, limit)
    return found


@cache
def flow_of(mnemonic: str) -> Flow:
    """Where execution goes on after an instruction.

    >>> flow_of("notrack jmp").name, flow_of("jne").name, flow_of("repz ret").name
    ('JUMP', 'BRANCH', 'RETURN')
    """
    name = mnemonic.rpartition(" ")[2]
    if name == "jmp":
        return Flow.JUMP
    if name.startswith(("j", "loop", "xbegin")):
        return Flow.BRANCH
    if name.startswith(("ret", "iret", "uiret", "sysret", "sysexit", "ljmp")):
        return Flow.RETURN
    return Flow.TRAP if name in ("hlt", "int3", "ud0", "ud1", "ud2") else Flow.ON


def target_of(operands: str) -> int:
    """Address that a direct branch or call goes to; -1 if that is not written in the instruction."""
    return int(operands, 0) if operands[:1].isdigit() and operands.isalnum() else -1
