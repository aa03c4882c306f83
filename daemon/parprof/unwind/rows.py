"""The rows of an unwind table: 8 bytes each, sorted by address, as the unwinder in the kernel reads them.

A row is ``u32 pc`` (an ELF virtual address) and ``u32 rule``, little-endian; it holds from its ``pc`` up to
the next row's. From the top bit down a rule is

* the type, 4 bits,
* rbp, 10 bits: n = the caller's rbp was saved at CFA-8n (type 7, and type 6 with nothing beyond: at rbp-8(n-1)),
  0 = unchanged,
* cfa, 18 bits: the CFA's offset divided by 8 (types 6 and 9: see `pack_kept`; 10 and 13: see `pack_register`;
  14: see `pack_large`).

The CFA is the value of rsp before the call instruction; the return address is at CFA-8, but for type 13.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

ROW_SIZE = 8
TYPE_SHIFT, RBP_SHIFT = 28, 18
RBP_LIMIT, CFA_LIMIT = 1 << 10, 1 << 18
CFA_MASK = CFA_LIMIT - 1
PLT_PUSHED_AT = 11
"""Offset in a 16-byte slot of the procedure linkage table from which on `RuleType.PLT` has one more word."""


class RuleType(IntEnum):
    """How the caller's frame is found."""

    NONE = 0
    """No code, or not expressible: the walk ends here, incomplete."""
    RSP = 1
    """CFA = rsp + offset."""
    RBP = 2
    """CFA = rbp + offset."""
    PLT = 3
    """CFA = rsp + 8, and 8 more if (ip & 15) >= 11."""
    SIGNAL = 4
    """rbp, rsp and rip are at rsp + 120, rsp + 160 and rsp + 168."""
    END = 5
    """The outermost frame: the stack is complete."""
    RBP_DEREF = 6
    """CFA = *(rbp + offset) + beyond, offset <= 0."""
    R10 = 7
    """CFA = r10 + offset; in the innermost frame only, where r10 is known."""

    RSP_DEREF = 9
    """CFA = *(rsp + offset) + beyond. (8 is the unwinder's own: no table.)"""
    REGISTER = 10
    """CFA = register + offset; in the innermost frame only, where all registers are known."""
    CLONE = 11
    """In the innermost frame only: CFA = rsp + 8, or, where rax is 0, END; see `parprof.unwind.gaps`."""
    RETURN = 13
    """CFA = rsp + offset, and the return address is in a register; in the innermost frame only, as of vfork. (12 is the
    unwinder's own.)"""
    LARGE = 14
    """CFA = rsp + offset, of a frame of megabytes."""


BEYOND_SHIFT, BEYOND_LIMIT, KEPT_OFFSETS = 13, 32, 1 << 13
"""Of types 6 and 9: beyond, 5 bits, and the offset, 13 bits, both divided by 8."""
RSP_DEREF_BIAS = KEPT_OFFSETS << 2
"""What is added to the offset of type 9, in bytes."""
PT_REGS = {
    name: index
    for index, name in enumerate("r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi".split())
}
"""General registers and their index in the kernel's ``struct pt_regs``; rsp, far from them, is not here."""
_OFFSET_TYPES = {"rsp": RuleType.RSP, "rbp": RuleType.RBP}
LARGE_SHIFT, LARGE_LIMIT = 24, 1 << 24
"""Of type 14: rbp is the 4 bits below the type; the others are cfa."""
REGISTER_SHIFT, BY_RBP, REGISTER_OFFSETS = 14, 1 << 13, 1 << 13


class Rule(NamedTuple):
    """A rule in pieces. ``cfa`` in bytes, never negative; ``rbp`` as in the packed rule."""

    type: RuleType
    rbp: int
    cfa: int


def pack(kind: RuleType, cfa: int = 0, rbp: int = 0) -> int:
    """A rule as 32 bits. ``cfa`` in bytes.

    Raises:
        ValueError: it does not fit, or ``cfa`` is no multiple of 8.

    >>> hex(pack(RuleType.RSP, 16, 2))
    '0x10080002'
    """
    if cfa & 7 or not 0 <= cfa >> 3 < CFA_LIMIT or not 0 <= rbp < RBP_LIMIT:
        raise ValueError(f"no rule has cfa {cfa} and rbp {rbp}")
    return kind << TYPE_SHIFT | rbp << RBP_SHIFT | cfa >> 3


def pack_kept(kind: RuleType, offset: int, beyond: int, rbp: int = 0) -> int:
    """A rule of type 6 or 9: the CFA is ``beyond`` bytes behind what is in memory, ``offset`` bytes from a register.

    0 where no rule can say it. With something beyond, type 6 has rbp saved at CFA-8n as others do.
    """
    low = -offset if kind is RuleType.RBP_DEREF else offset + RSP_DEREF_BIAS
    fits = 0 <= low < KEPT_OFFSETS << 3 and 0 <= beyond < BEYOND_LIMIT << 3
    if low & 7 or beyond & 7 or not fits or not 0 <= rbp < RBP_LIMIT:
        return 0
    return pack(kind, (beyond >> 3 << BEYOND_SHIFT | low >> 3) << 3, rbp)


def pack_register(
    place: int, offset: int, by_rbp: bool, rbp: int = 0, kind: RuleType = RuleType.REGISTER
) -> int:
    """A rule of type 10: cfa holds ``place`` (4 bits), ``by_rbp`` (1) and the offset divided by 8 (13).

    ``place`` is the register's index in the kernel's ``struct pt_regs``. ``by_rbp`` says that rbp was saved at
    rbp-8(n-1) and not at CFA-8n.

    Raises:
        ValueError: it does not fit, or ``offset`` is no multiple of 8.
    """
    if offset & 7 or not 0 <= offset >> 3 < REGISTER_OFFSETS or not 0 <= place < 15:
        raise ValueError(f"no rule has register {place} and offset {offset}")
    return pack(kind, (place << REGISTER_SHIFT | by_rbp * BY_RBP | offset >> 3) << 3, rbp)


def pack_return(place: int, offset: int) -> int:
    """A rule of type 13, as `pack_register`; rbp is unchanged.

    Raises:
        ValueError: it does not fit, or ``offset`` is no multiple of 8.
    """
    return pack_register(place, offset, False, kind=RuleType.RETURN)


def pack_large(cfa: int, rbp: int) -> int:
    """A rule of type 14; 0 where no rule can say it. ``cfa`` in bytes.

    >>> unpack(pack_large(3_200_576, 3))
    Rule(type=<RuleType.LARGE: 14>, rbp=3, cfa=3200576)
    >>> pack_large(1 << 27, 3), pack_large(1 << 22, 16)
    (0, 0)
    """
    if cfa & 7 or not 0 <= cfa >> 3 < LARGE_LIMIT or not 0 <= rbp < 1 << TYPE_SHIFT - LARGE_SHIFT:
        return 0
    return RuleType.LARGE << TYPE_SHIFT | rbp << LARGE_SHIFT | cfa >> 3


def pack_offset(register: str, offset: int, rbp: int = 0) -> int:
    """The rule for a CFA ``offset`` bytes from a register, with rbp saved at CFA-8n; 0 where no rule can say it."""
    if offset & 7 or not 0 <= rbp < RBP_LIMIT:
        return 0
    kind = _OFFSET_TYPES.get(register)
    if kind is not None:
        return pack(kind, offset, rbp) if 0 <= offset < CFA_LIMIT << 3 else 0
    return pack_register(PT_REGS[register], offset, False, rbp) if 0 <= offset < REGISTER_OFFSETS << 3 else 0


def unpack(rule: int) -> Rule:
    """The pieces of a rule.

    Raises:
        ValueError: its type is unknown.

    >>> unpack(0x10080002)
    Rule(type=<RuleType.RSP: 1>, rbp=2, cfa=16)
    """
    kind = RuleType(rule >> TYPE_SHIFT & 15)
    if kind is RuleType.LARGE:
        return Rule(kind, rule >> LARGE_SHIFT & 15, (rule & LARGE_LIMIT - 1) << 3)
    return Rule(
        kind,
        rule >> RBP_SHIFT & RBP_LIMIT - 1,
        (rule & CFA_MASK) << 3,
    )
