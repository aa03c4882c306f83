"""Pausing: a thread tells the processor that it waits for another one, by an instruction that is of no other use.

Where compilers do not inline it, a function pauses once and returns (``SpinPause`` of thread pools), and the loop that
calls it has calls for looking whether there is something to do, too: at each turn it pauses all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from parprof.files.elf import ElfFile
from parprof.loops.machinecode import Code, Flow, decode, flow_of

PAUSES = ("pause", "tpause", "umwait")
_MAX_BYTES = 512
_MAX_INSTRUCTIONS = 40
"""Until it returns."""


def is_pause(code: Code) -> bool:
    """Whether a function pauses and returns, without a loop and without calling anything on that way."""
    return code.end - code.start <= _MAX_BYTES and _pauses_and_returns(
        zip(code.addresses, code.mnemonics, code.operands, strict=True)
    )


def _pauses_and_returns(instructions: Iterable[tuple[int, str, str]]) -> bool:
    """``instructions``: address, mnemonic, operands, from the function's start on."""
    has_paused = False
    for address, mnemonic, text in islice(instructions, _MAX_INSTRUCTIONS):
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
        CodeError: there is nothing to decode that one with.
        ElfError: the file cannot be read.
    """
    return any(
        code.mnemonics[index] in PAUSES
        or (code.mnemonics[index].endswith("call") and _calls_pause(elf, code.target(index)))
        for index in indexes
    )


def _calls_pause(elf: ElfFile, target: int) -> bool:
    """Whether what a call leads to is such a function; how long that is, nobody knows."""
    if target < 0:
        return False
    found = decode(elf.read(target, _MAX_BYTES), target, _MAX_INSTRUCTIONS)
    return _pauses_and_returns((address, mnemonic, text) for address, _, mnemonic, text in found)


def _leads_on(operands: str, address: int) -> bool:
    """Whether a jump goes forward, as far as it is written in the instruction."""
    return operands[:1].isdigit() and operands.isalnum() and int(operands, 0) > address
