"""What single instructions do, as the disassembler writes them: for who looks at loops that may only wait."""

from __future__ import annotations

import re
from collections.abc import Sequence

from parprof.loops.machinecode import Code, Flow, flow_of
from parprof.loops.registers import WHOLE_REGISTER
from parprof.patterns import regex

STACK = ("rsp", "rbp")
MEMORY = regex(r"\[(.*)\]")
FLAGS = "flags"
COPIES = ("mov", "movzx", "movsx", "movsxd", "movabs")
COMPARES = ("cmp", "test")
CHANGES = ("and", "or", "xor", "add", "sub", "shl", "shr", "sar", "sal", "inc", "dec", "neg", "not", "lea")
COUNTS = ("add", "sub", "inc", "dec")
IDLE = ("nop", "pause", "endbr64", "lfence", "mfence", "sfence", "data16 nop")
CLOCKS = {"rdtsc": ("rax", "rdx"), "rdtscp": ("rax", "rcx", "rdx")}
_NEAR = regex(r"rip ([+-]) (0x[0-9a-f]+|\d+)")
_FENCES = ("lock or", "lock add")
"""Of nothing, to the word on top of the stack: what compilers make of a memory barrier."""
_TRIES = ("xchg", "lock cmpxchg", "lock bts")
"""What a lock is taken by: they store, and tell what was there before."""


def operands_of(text: str) -> list[str]:
    """The operands of an instruction."""
    return [part.strip() for part in text.split(",")] if text else []


def stores(mnemonic: str, operands: Sequence[str]) -> bool:
    """Whether an instruction only stores, beside the stack."""
    return (
        mnemonic.startswith("mov")
        and bool(operands)
        and bool(MEMORY.search(operands[0]))
        and not addressed(operands[0]) & set(STACK)
    )


def place_of(operand: str, following: int) -> str:
    """A place in memory that an operand names, by its address; empty if it names none.

    ``following``: address of the next instruction.
    """
    found = MEMORY.search(operand)
    if found is None:
        return ""
    near = _NEAR.fullmatch(found[1])
    return hex(following + int(near[1] + near[2], 0)) if near else found[1]


def is_fence(mnemonic: str, operands: Sequence[str]) -> bool:
    """Whether an instruction only orders those before and after it, though it looks like a store."""
    return mnemonic in _FENCES and operands[1:] == ["0"] and addressed(operands[0]) == {"rsp"}


def tries(mnemonic: str, operands: Sequence[str]) -> bool:
    """Whether an instruction is one that a lock may be taken by, in memory that other threads see."""
    places = [operand for operand in operands if MEMORY.search(operand)]
    return mnemonic in _TRIES and len(places) == 1 and not addressed(places[0]) & {"rsp"}


def told_in(mnemonic: str, operands: Sequence[str]) -> str:
    """Where that tells what was there before."""
    if mnemonic == "xchg":
        return next(WHOLE_REGISTER.get(one, "") for one in operands if not MEMORY.search(one))
    return "rax" if mnemonic == "lock cmpxchg" else FLAGS


def written_by(mnemonic: str, text: str) -> set[str] | None:
    """The registers (and ``flags``) that an instruction changes; None if it does what no loop does that only waits."""
    operands = operands_of(text)
    if is_fence(mnemonic, operands):
        return {FLAGS}
    if mnemonic in IDLE or Flow.ON is not flow_of(mnemonic):
        return set() if flow_of(mnemonic) in (Flow.ON, Flow.BRANCH, Flow.JUMP) else None
    if mnemonic in CLOCKS:
        return set(CLOCKS[mnemonic])
    if not operands or "xmm" in text or "ymm" in text:
        return None
    if tries(mnemonic, operands):
        return {told_in(mnemonic, operands), FLAGS}
    target = WHOLE_REGISTER.get(operands[0])
    if mnemonic in COMPARES:
        return {FLAGS}
    if target is None or target in STACK:
        return None  # a store, or a register that is used for computing
    if mnemonic in COPIES or mnemonic == "lea" or mnemonic.startswith("cmov"):
        return {target}
    if mnemonic in CHANGES or mnemonic.startswith("set"):
        return {target, FLAGS}
    return None


def addressed(text: str) -> set[str]:
    """The registers that the address of a memory operand is made of."""
    found = MEMORY.search(text)
    return {WHOLE_REGISTER[word] for word in words_of(found) if word in WHOLE_REGISTER} if found else set()


def words_of(memory: re.Match[str]) -> list[str]:
    """The names in the address of a memory operand that `MEMORY` has found."""
    return re.findall(r"[a-z][a-z0-9]*", memory.group(1))


def reads_twice(code: Code, indexes: Sequence[int]) -> bool:
    """Whether a loop compares two readings of the same place."""
    places: dict[str, str] = {}
    for index in (*indexes, *indexes):  # what the turn before has read, too
        mnemonic, operands = code.mnemonics[index], operands_of(code.operands[index])
        found = [
            place_of(operand, code.following(index)) or places.get(WHOLE_REGISTER.get(operand, ""), "")
            for operand in operands
        ]
        if mnemonic in COMPARES and mnemonic != "test" and found[0] and found[0] == found[1]:
            return True
        target = WHOLE_REGISTER.get(operands[0], "") if operands else ""
        if mnemonic in COPIES:
            places[target] = found[1]
        elif mnemonic not in COMPARES and mnemonic not in CHANGES:
            places.pop(target, None)
    return False
