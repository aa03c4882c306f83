"""A walk over the stack of a thread that sleeps in a system call, from outside of it, by the tables that the unwinder
in the kernel has (bpf/unwind_step.bpf.c).

Of its registers ``/proc`` tells two, and those that have the arguments of its system call; so a frame that is found by
another one is the last, unless a frame before it saved that. The frame pointer is looked for, where no frame has saved
it: it points to the one saved before and the return address, behind a call of the very function that has the frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from parprof.model import CallerStep
from parprof.unwind.rows import PT_REGS, REGISTER_OFFSETS, REGISTER_SHIFT, Rule, RuleType, unpack

MAX_DEPTH = 128
_MAX_FRAME = 1 << 23
"""Bytes: a frame that seems larger is no frame."""
_MOST_WORDS = 256
"""Of a frame that are looked at for where its frame pointer points to: each takes a microsecond."""
_LARGEST_FUNCTION = 1 << 14
"""Bytes from its begin to where it waits."""
_ALIGNED = 16
"""As functions are."""
_CALL, _CALL_BYTES, _INT32 = 0xE8, 5, 1 << 32
"""A direct call: the byte, and how far behind its end the function is, signed."""
_ENTRY = Rule(RuleType.RSP, 0, 8)
"""At a function's first instruction."""
_ARGUMENTS = tuple(PT_REGS[name] for name in ("rdi", "rsi", "rdx", "r10", "r8", "r9"))
"""The registers that have a system call's, by their index in the kernel's ``struct pt_regs``."""


LanguageStep = Callable[[int, int, int | None], CallerStep | None]
"""(pc, sp, rbp): from a frame in code that a language made; ``None``: it made none there. OSError as ``read_word``."""


class Walked(NamedTuple):
    """Addresses, the leaf first: there it goes on after its system call; the others are return addresses."""

    addresses: tuple[int, ...]
    end: str
    """How the walk ended: one of `parprof.kernel.stacks.STACK_ENDS`."""


def walk(
    pc: int,
    sp: int,
    rule_at: Callable[[int], int | None],
    read_word: Callable[[int], int],
    language: LanguageStep | None = None,
    arguments: Sequence[int] = (),
) -> Walked:
    """From the leaf on. ``arguments``: of the system call, as many as are known.

    ``rule_at``: the packed rule at an address, ``None`` where there is no code or no table. ``read_word``: 8 bytes of
    the stack; OSError where there are none.
    """
    addresses: list[int] = []
    rbp: int | None = None
    while pc:
        addresses.append(pc)
        if len(addresses) == MAX_DEPTH:
            return Walked(tuple(addresses), "too_deep")
        packed = rule_at(pc - (len(addresses) > 1))
        if packed is None:
            try:
                step = language(pc, sp, rbp) if language is not None else None
            except OSError:
                return Walked(tuple(addresses), "unreadable")
            if step is None:
                return Walked(tuple(addresses), "no_table")
            if not 0 < step.sp - sp <= _MAX_FRAME:
                return Walked(tuple(addresses), "bad_row")
            addresses[-1], pc, sp, rbp = step
            continue
        try:
            rule = unpack(packed)
        except ValueError:
            return Walked(tuple(addresses), "bad_row")
        if rule.type is RuleType.END:
            return Walked(tuple(addresses), "complete")
        if rule.type is RuleType.RETURN and len(addresses) == 1:
            place, offset = divmod(rule.cfa >> 3, 1 << REGISTER_SHIFT)
            if place not in _ARGUMENTS[: len(arguments)]:
                return Walked(tuple(addresses), "bad_row")
            pc, sp = arguments[_ARGUMENTS.index(place)], sp + 8 * (offset % REGISTER_OFFSETS)
            continue
        if rule.type is RuleType.RBP and rbp is None:
            rbp = _frame_pointer(rule, pc, sp, rule_at, read_word)
        cfa = _cfa(rule, pc, sp, rbp)
        if cfa is None or not 0 < cfa - sp <= _MAX_FRAME:
            return Walked(tuple(addresses), "bad_row")
        try:
            if rule.rbp:
                rbp = read_word(cfa - 8 * rule.rbp)
            pc, sp = read_word(cfa - 8), cfa
        except OSError:
            return Walked(tuple(addresses), "unreadable")
    return Walked(tuple(addresses), "zero")


def _frame_pointer(
    rule: Rule, pc: int, sp: int, rule_at: Callable[[int], int | None], read_word: Callable[[int], int]
) -> int | None:
    """Of the function that ``pc`` is in; ``None``: what has called it is no direct call, or too far away."""
    for rbp in range(sp & ~7, sp + 8 * _MOST_WORDS, 8):
        try:
            back = read_word(rbp + rule.cfa - 8)
            if rule_at(back - 1) is None:
                continue
            before = read_word(back - 8).to_bytes(8, "little")
        except OSError:
            continue
        if before[-_CALL_BYTES] != _CALL:
            continue
        called = (back + int.from_bytes(before[-4:], "little", signed=True)) % (_INT32 * _INT32)
        if _is_function(called, pc, rule_at):
            return rbp
    return None


def _is_function(begin: int, pc: int, rule_at: Callable[[int], int | None]) -> bool:
    """Whether one begins there that ``pc`` is in."""
    if not begin < pc <= begin + _LARGEST_FUNCTION or not _is_entry(rule_at(begin)):
        return False
    is_inside = False
    for address in range((begin + _ALIGNED) & -_ALIGNED, pc, _ALIGNED):
        is_entry = _is_entry(rule_at(address))
        if is_inside and is_entry:
            return False
        is_inside = not is_entry
    return True


def _is_entry(packed: int | None) -> bool:
    try:
        return packed is not None and unpack(packed) == _ENTRY
    except ValueError:
        return False


def _cfa(rule: Rule, pc: int, sp: int, rbp: int | None) -> int | None:
    """The caller's stack pointer; ``None`` where it takes a register that is not known."""
    match rule.type:
        case RuleType.RSP | RuleType.LARGE:
            return sp + rule.cfa
        case RuleType.RBP if rbp is not None:
            return rbp + rule.cfa
        case RuleType.PLT:
            return sp + 8 + (8 if pc & 15 >= 11 else 0)
        case _:
            return None
