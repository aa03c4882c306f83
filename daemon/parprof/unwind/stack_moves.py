"""What code does to the stack pointer, and where it goes on: all that matters of it for finding callers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from parprof.loops.machinecode import Flow, Instruction, decode, flow_of, target_of
from parprof.patterns import regex
from parprof.unwind.rows import PT_REGS

MAX_POINTS = 500_000
"""Instructions of a file that go elsewhere or move the stack pointer: an encoder with 12 MiB of assembly has 40,000. To
follow the worst takes 8 us each."""
ALIGNMENT = 16
"""Of functions."""
RSP, RBP = "rsp", "rbp"
KEPT, KEPT_BY_RBP = "*rsp", "*rbp"
"""Bases: what is in memory there."""
_SLICE, _LONGEST = 1 << 16, 16
"""Bytes of code that are decoded at once, and of the longest instruction."""
_LONGEST_CALL = 7
_PART = 1 << 20
"""Bytes of code that are followed at once, at least."""
_NUMBER = r"(0x[0-9a-f]+|\d+)"
_ADDRESS = regex(rf"(?:qword ptr )?\[(r\w+)(?: ([+-]) {_NUMBER})?\]")
_CALL, _LANDING, _PADDING = "call", "endbr64", "nop"
_COPIES = ("mov", "lea")
_OF_INTEREST = frozenset(("push", "pop", "leave", "enter", "xchg", "pushfq", "popfq", _CALL, _LANDING))


class Event(NamedTuple):
    """An instruction that moves or copies the stack pointer, or saves rbp.

    With base ``rsp`` the CFA is ``amount`` further from it afterwards. With another one the stack pointer is afterwards
    ``base + amount``, with ``*rsp`` what is in memory at ``rsp + amount``, with an empty one nobody knows what.
    With a ``copy`` it does not change: that register is ``rsp + amount`` afterwards.
    """

    address: int
    base: str
    amount: int
    rbp: int = 0
    """1: rbp is put on the stack, -1: it is taken back."""
    slot: int = 0
    """And there, from where the stack pointer is before."""
    copy: str = ""


class Leaving(NamedTuple):
    """A jump, branch, or return. ``following``: the address behind it, and behind the padding there."""

    address: int
    following: int
    flow: Flow
    target: int


class CodePart(NamedTuple):
    """Some code of whole functions, as far as that can be seen: what matters of its instructions."""

    begin: int
    end: int
    events: list[Event]
    flows: list[Leaving]
    functions: set[int]
    """Addresses that are called, here or from elsewhere."""


class StepsLeft:
    """What may still be done for a file."""

    def __init__(self, points: int = MAX_POINTS) -> None:
        self.points = points


def parts(code: bytes, vaddr: int, budget: StepsLeft) -> Iterator[CodePart]:
    """The code in parts of no more memory than need be: each ends with a return."""
    part = CodePart(vaddr, 0, [], [], set())
    called = padded = 0
    """Where the last call is, and where the padding behind the last call or jump ends."""
    for address, size, mnemonic, text in _instructions(code, vaddr):
        if address == padded:
            if _PADDING in mnemonic:
                padded += size
                continue
            _behind_padding(part, called, padded)
            called = 0
        if not (_is_of_interest(mnemonic) or (RSP in text and _uses_stack_pointer(mnemonic, text))):
            continue
        budget.points -= 1
        if budget.points < 0:
            yield part._replace(end=address)
            return
        if mnemonic == _LANDING:
            part.functions.add(address)
        elif mnemonic == _CALL:
            part.functions.add(target_of(text))
            called, padded = address, address + size
        elif flow := flow_of(mnemonic):
            padded = address + size
            part.flows.append(Leaving(address, padded, flow, target_of(text)))
            if flow is Flow.RETURN and address - part.begin >= _PART:
                yield part._replace(end=padded)
                part = CodePart(padded, 0, [], [], set())
        elif (event := _event(address, mnemonic, text)) is not None:
            part.events.append(event)
    if part.begin < vaddr + len(code):
        yield part._replace(end=vaddr + len(code))


def _behind_padding(part: CodePart, called: int, address: int) -> None:
    """Code begins behind a call, jump or return, and the padding there."""
    if not called:
        if part.flows:
            part.flows[-1] = part.flows[-1]._replace(following=address)
    elif address % ALIGNMENT == 0 and address - called > _LONGEST_CALL:
        # nobody aligns where a call returns to: it does not
        part.flows.append(Leaving(called, address, Flow.TRAP, -1))


def _instructions(code: bytes, vaddr: int) -> Iterator[Instruction]:
    """All of them. The decoder would keep those of all code in memory at once, 250 bytes each."""
    at = 0
    while at < len(code):
        limit = min(at + _SLICE, len(code))
        for instruction in decode(code[at : limit + _LONGEST], vaddr + at, 0):
            if instruction[0] - vaddr >= limit:
                break
            at = instruction[0] - vaddr + instruction[1]
            yield instruction


@cache
def _is_of_interest(mnemonic: str) -> bool:
    return mnemonic in _OF_INTEREST or bool(flow_of(mnemonic))


def _uses_stack_pointer(mnemonic: str, text: str) -> bool:
    return mnemonic in _COPIES or text.startswith(RSP)


def _event(address: int, mnemonic: str, text: str) -> Event | None:
    """What an instruction does to the stack pointer; None: nothing."""
    if mnemonic in ("push", "pushfq"):
        return Event(address, RSP, 8, text == RBP, -8)
    if mnemonic in ("pop", "popfq"):
        if text == RSP:
            return Event(address, KEPT, 0)
        return Event(address, RSP, -8, -(text == RBP))
    if mnemonic == "leave":
        return Event(address, RBP, 8, -1)
    operands = [part.strip() for part in text.split(",")]
    if mnemonic == "enter" or (mnemonic == "xchg" and RSP in operands):
        return Event(address, "", 0)
    if operands[0] != RSP:
        return _copy(address, mnemonic, operands) or _slot(address, operands)
    if mnemonic in ("cmp", "test", "bt"):
        return None
    source = operands[1] if len(operands) > 1 else ""
    if mnemonic in ("sub", "add") and (number := _number(source)) is not None:
        return Event(address, RSP, number if mnemonic == "sub" else -number)
    if mnemonic == "mov" and source in PT_REGS:
        return Event(address, source, 0)
    found = _memory(source)
    if found is not None and mnemonic in _COPIES:
        register, distance = found
        if mnemonic == "mov":
            return Event(address, "*" + register if register in (RSP, RBP) else "", distance)
        return Event(address, RSP, -distance) if register == RSP else Event(address, register, distance)
    return Event(address, "", 0)


def _copy(address: int, mnemonic: str, operands: list[str]) -> Event | None:
    """Of a register that becomes a copy of the stack pointer, or an address on the stack."""
    if mnemonic not in _COPIES or len(operands) != 2 or operands[0] not in PT_REGS:
        return None
    if mnemonic == "mov":
        return Event(address, RSP, 0, copy=operands[0]) if operands[1] == RSP else None
    found = _memory(operands[1])
    return Event(address, RSP, found[1], copy=operands[0]) if found is not None and found[0] == RSP else None


def _slot(address: int, operands: list[str]) -> Event | None:
    """Of a move between rbp and the stack."""
    if len(operands) != 2 or RBP not in operands:
        return None
    found = _memory(operands[operands[0] == RBP])
    if found is None or found[0] != RSP or found[1] < 0:
        return None
    return Event(address, RSP, 0, 1 if operands[1] == RBP else -1, found[1])


def _memory(text: str) -> tuple[str, int] | None:
    """Register and distance of an address without an index."""
    found = _ADDRESS.fullmatch(text)
    if found is None:
        return None
    return found[1], int(found[3] or "0", 0) * (-1 if found[2] == "-" else 1)


def _number(text: str) -> int | None:
    try:
        return int(text, 0)
    except ValueError:
        return None
