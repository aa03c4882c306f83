"""The instructions of one function (x86-64), and where each goes on."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING

from parprof.elf import EM_X86_64, ElfFile
from parprof.errors import ParprofError

if TYPE_CHECKING:
    from capstone import Cs

MAX_BYTES = 1 << 18
MAX_INSTRUCTIONS = 1 << 16
MAX_UNKNOWN_SHARE = 0.05
"""Where more of the instructions than this cannot be decoded, it is no code, or none that we know."""


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
    END = 3
    """Nowhere in this function."""


@dataclass(frozen=True, slots=True)
class Code:
    """Instructions in the order of their ELF virtual addresses. ``flow`` and ``operands`` are as capstone's text."""

    start: int
    end: int
    addresses: list[int]
    mnemonics: list[str]
    operands: list[str]

    def index(self, address: int) -> int:
        """Index of the instruction that ``address`` is in; -1 outside of the function."""
        if not self.start <= address < self.end:
            return -1
        return bisect_right(self.addresses, address) - 1

    def flow(self, index: int) -> Flow:
        """Where execution goes on after an instruction."""
        return _flow(self.mnemonics[index])

    def target(self, index: int) -> int:
        """Address that a direct branch goes to; -1 if that is not written in the instruction."""
        text = self.operands[index]
        return int(text, 0) if text[:1].isdigit() and text.isalnum() else -1


def read_code(elf: ElfFile, vaddr: int, size: int) -> Code:
    """Decode the function of ``size`` bytes at ``vaddr``.

    Bytes that are no instruction count as one of a byte that does nothing.

    Raises:
        CodeError: there is no such code, or too much of it, or nothing to decode it with.
        ElfError: the file cannot be read.
    """
    if elf.machine != EM_X86_64:
        raise CodeError("it is not x86-64 code")
    if not 0 < size <= MAX_BYTES:
        raise CodeError(
            f"it has {size:,} bytes of code, more than {MAX_BYTES:,}" if size > 0 else "it has no size"
        )
    code = elf.read(vaddr, size)
    if len(code) < size:
        raise CodeError("its code is not in the file")
    disassembler = _disassembler()
    if disassembler is None:
        raise CodeError("the Python package capstone is missing")
    addresses, mnemonics, operands = [], [], []
    unknown = 0
    for address, _, mnemonic, text in disassembler.disasm_lite(code, vaddr, MAX_INSTRUCTIONS + 1):
        addresses.append(address)
        mnemonics.append(mnemonic)
        operands.append(text)
        unknown += mnemonic == ".byte"
    if len(addresses) > MAX_INSTRUCTIONS:
        raise CodeError(f"it has more than {MAX_INSTRUCTIONS:,} instructions")
    if not addresses or unknown > MAX_UNKNOWN_SHARE * len(addresses):
        raise CodeError("its bytes are no code that we know")
    return Code(vaddr, vaddr + size, addresses, mnemonics, operands)


@cache
def _disassembler() -> Cs | None:
    try:
        import capstone
    except ImportError:
        return None
    out = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    out.skipdata = True
    return out


@cache
def _flow(mnemonic: str) -> Flow:
    name = mnemonic.rpartition(" ")[2]  # behind notrack, bnd, repz
    if name == "jmp":
        return Flow.JUMP
    if name.startswith(("j", "loop", "xbegin")):
        return Flow.BRANCH
    if name.startswith(("ret", "iret", "uiret", "sysret", "sysexit", "ljmp", "ud")) or name in (
        "hlt",
        "int3",
    ):
        return Flow.END
    return Flow.ON
