"""Pausing: a thread tells the processor that it waits for another one, by an instruction that is of no other use.

Where compilers do not inline it, a function pauses once and returns (``SpinPause`` of thread pools), and the loop that
calls it has calls for looking whether there is something to do, too: at each turn it pauses all the same. Or it gives
up its CPU at each turn, in `sched_yield`: a call of the kernel, beside which the loop's own code is little.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import islice

from parprof.files.elf import ElfFile
from parprof.loops.imports import slot, slots_of
from parprof.loops.machinecode import Code, Flow, Instruction, decode, flow_of, target_of

PAUSES = ("pause", "tpause", "umwait")
_MAX_BYTES = 512
_MAX_INSTRUCTIONS = 40
"""Until it returns."""
_YIELD = b"sched_yield"
_MAX_AROUND = 8
"""Instructions before the call, of a function around it."""
_MAX_BYTES_AROUND = 96


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


class Pauses:
    """Knows which calls of one file pause: the thread has nothing to do with its CPU but to wait. For one thread."""

    def __init__(self, elf: ElfFile) -> None:
        """Nothing is read yet."""
        self._elf = elf

    def among(self, code: Code, indexes: Iterable[int]) -> bool:
        """Whether one of a function's instructions pauses, or calls a function that does nothing else.

        Raises:
            CodeError: there is nothing to decode that one with.
            ElfError: the file cannot be read.
        """
        return any(
            code.mnemonics[index] in PAUSES
            or (
                code.mnemonics[index].endswith("call")
                and self._call_pauses(code.operands[index], code.following(index))
            )
            for index in indexes
        )

    def _call_pauses(self, operands: str, following: int) -> bool:
        target = target_of(operands)
        if target < 0:
            return self._is_yield(operands, following)
        found = list(decode(self._elf.read(target, _MAX_BYTES), target, _MAX_INSTRUCTIONS))
        pauses = _pauses_and_returns((address, mnemonic, text) for address, _, mnemonic, text in found)
        return pauses or self._gives_up(found)

    def _gives_up(self, function: list[Instruction], depth: int = 2) -> bool:
        """Whether a function does nothing but to call `sched_yield`, or to jump there, as entries of the PLT do."""
        for address, size, mnemonic, operands in function[:_MAX_AROUND]:
            flow, target = flow_of(mnemonic), target_of(operands)
            is_call = mnemonic.endswith("call")
            if is_call or flow is Flow.JUMP:
                if self._is_yield(operands, address + size):
                    return True
                if depth <= 0 or target < 0:
                    return False
                code = self._elf.read(target, _MAX_BYTES_AROUND)
                return self._gives_up(list(decode(code, target, _MAX_AROUND)), depth - 1)
            if flow is not Flow.ON or mnemonic == ".byte":
                return False
        return False

    def _is_yield(self, operands: str, following: int) -> bool:
        at = slot(operands, following)
        return at >= 0 and at in self._yields

    @cached_property
    def _yields(self) -> frozenset[int]:
        return slots_of(self._elf, lambda name: name == _YIELD)


def _leads_on(operands: str, address: int) -> bool:
    """Whether a jump goes forward, as far as it is written in the instruction."""
    return operands[:1].isdigit() and operands.isalnum() and int(operands, 0) > address
