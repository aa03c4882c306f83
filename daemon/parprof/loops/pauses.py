"""Pausing: a thread tells the processor that it waits for another one, by an instruction that is of no other use.

Where compilers do not inline it, a function pauses once and returns (``SpinPause`` of thread pools), and the loop that
calls it has calls for looking whether there is something to do, too: at each turn it pauses all the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from parprof.files.elf import ElfFile
from parprof.loops.machinecode import Code, Flow, decode, flow_of

PAUSES = ("pause", "tpause", "umwait")
_MAX_BYTES = 512
_MAX_INSTRUCTIONS = 40
"""Until it returns."""


def is_pause(elf: ElfFile, vaddr: int, size: int = _MAX_BYTES) -> bool:
    """Whether a function there, of at most so many bytes, pauses and returns, without a loop and without calling
    anything on that way.

    Raises:
        CodeError: there is nothing to decode it with.
        ElfError: the file cannot be read.
    """
    if size > _MAX_BYTES:
        return False
    has_paused = False
    for address, _, mnemonic, text in decode(elf.read(vaddr, size), vaddr, _MAX_INSTRUCTIONS):
        flow = flow_of(mnemonic)
        if flow is Flow.RETURN:
            return has_paused
        is_back = flow in (Flow.BRANCH, Flow.JUMP) and not _leads_on(text, address)
        if is_back or flow is Flow.TRAP or mnemonic == ".byte" or mnemonic.endswith(("call", "syscall")):
            return False
        has_paused |= mnemonic in PAUSES
    return False


def has_pause(elf: ElfFile, code: Code, indexes: Iterable[int]) -> bool:
    """Whether one of a function's instructions pauses, or calls a function that does nothing else.

    Raises:
        ElfError: the file cannot be read.
    """
    return any(
        code.mnemonics[index] in PAUSES
        or (code.mnemonics[index].endswith("call") and _calls_pause(elf, code.target(index)))
        for index in indexes
    )


def _calls_pause(elf: ElfFile, target: int) -> bool:
    return target >= 0 and is_pause(elf, target)


def _leads_on(operands: str, address: int) -> bool:
    """Whether a jump goes forward, as far as it is written in the instruction."""
    return operands[:1].isdigit() and operands.isalnum() and int(operands, 0) > address
