"""From what is known at an instruction to the packed rule of a row, or the reason why no row can express it."""

from __future__ import annotations

import re
from operator import length_hint

from parprof.loops.registers import DWARF_REGISTERS
from parprof.patterns import regex
from parprof.unwind.cfa import AT_CALL, REG_R10, REG_RBP, REG_RSP, CfiRow, How
from parprof.unwind.pointers import Refused, sleb, uleb
from parprof.unwind.rows import (
    CFA_LIMIT,
    PLT_PUSHED_AT,
    PT_REGS,
    RBP_LIMIT,
    REGISTER_OFFSETS,
    RuleType,
    pack,
    pack_kept,
    pack_large,
    pack_register,
    pack_return,
)

_SIGNAL_CFA = bytes((0x77, 0xA0, 0x01, 0x06))  # breg7 (rsp) + 160, deref
_PLT_CFA = regex(rb"\x77\x08\x80\x00\x3f\x1a([\x31-\x3f])\x2a\x33\x24\x22", re.DOTALL)
"""rsp + 8 + ((rip & 15) >= N) * 8, where lit0 is 0x30."""
_BREG_RBP, _BREG_RSP, _DEREF, _PLUS = 0x76, 0x77, 0x06, 0x23
_REGISTER_TYPES = {REG_RSP: RuleType.RSP, REG_RBP: RuleType.RBP, REG_R10: RuleType.R10}
_PT_REGS = {DWARF_REGISTERS.index(name): place for name, place in PT_REGS.items()}
"""DWARF number of a register -> its index in the kernel's ``struct pt_regs``."""


def rule_of(frame: CfiRow, is_signal: bool) -> tuple[int, str]:
    """The packed rule for a state and an empty text; or 0 and the kind of rule that a row cannot express.

    The rule for a linkage table has the ``N`` of its expression in the field for the CFA, unless that is 11.
    """
    if frame.problem:
        return 0, frame.problem
    if frame.ra.how is How.UNDEFINED:
        return pack(RuleType.END), ""
    if is_signal and frame.expression == _SIGNAL_CFA:
        return pack(RuleType.SIGNAL), ""
    if frame.ra.how is How.REGISTER:
        return _return_in_register(frame)
    if frame.ra != AT_CALL:
        return 0, "return address"
    if frame.register < 0:
        if match := _PLT_CFA.fullmatch(frame.expression):
            pushed_at = match[1][0] - 0x30
            return pack(RuleType.PLT, 0 if pushed_at == PLT_PUSHED_AT else pushed_at * 8), ""
        found = _cfa_expression(frame.expression)
        if found is None:
            return 0, "CFA expression"
        return _kept(frame, *found)
    elif frame.register in _REGISTER_TYPES:
        kind, cfa = _REGISTER_TYPES[frame.register], frame.offset
    elif frame.register in _PT_REGS:
        return _by_register(frame)
    else:
        return 0, "CFA register"
    is_large = kind is RuleType.RSP and cfa >> 3 >= CFA_LIMIT
    if cfa & 7 or not (is_large or 0 <= cfa >> 3 < CFA_LIMIT):
        return 0, "CFA offset"
    rbp = _rbp_field(frame, kind)
    if rbp is None:
        return 0, "rbp rule"
    rule = pack_large(cfa, rbp) if is_large else pack(kind, cfa, rbp)
    return (rule, "") if rule else (0, "CFA offset")


def _return_in_register(frame: CfiRow) -> tuple[int, str]:
    """The rule for a return address that is in a register, of which the innermost frame alone is known."""
    is_known = frame.ra.offset in _PT_REGS and frame.register == REG_RSP and frame.rbp.how is How.SAME
    if not is_known:
        return 0, "return address"
    if frame.offset & 7 or not 0 <= frame.offset >> 3 < REGISTER_OFFSETS:
        return 0, "CFA offset"
    return pack_return(_PT_REGS[frame.ra.offset], frame.offset), ""


def _by_register(frame: CfiRow) -> tuple[int, str]:
    """The rule for a CFA by a register that is known in the innermost frame alone."""
    if frame.offset & 7 or not 0 <= frame.offset >> 3 < REGISTER_OFFSETS:
        return 0, "CFA offset"
    by_rbp = frame.rbp.how is How.EXPRESSION
    rbp = _rbp_field(frame, RuleType.R10 if by_rbp else RuleType.RSP)
    if rbp is None:
        return 0, "rbp rule"
    return pack_register(_PT_REGS[frame.register], frame.offset, by_rbp, rbp), ""


def _kept(frame: CfiRow, kind: RuleType, offset: int) -> tuple[int, str]:
    """The rule for a CFA in memory."""
    rbp = _rbp_field(frame, kind)
    if rbp is None:
        return 0, "rbp rule"
    rule = pack_kept(kind, offset, 8 if kind is RuleType.RSP_DEREF else 0, rbp)
    return (rule, "") if rule else (0, "CFA offset")


def _cfa_expression(expression: bytes) -> tuple[RuleType, int] | None:
    """Type and offset of an expression *(rbp + offset) or *(rsp + offset) + 8."""
    source = iter(expression[:24])
    try:
        base, offset = next(source), sleb(source)
        if next(source) != _DEREF:
            return None
        if base == _BREG_RSP and (next(source) != _PLUS or uleb(source) != 8):
            return None
    except (Refused, StopIteration):
        return None
    if length_hint(source) or len(expression) > 24:
        return None
    if base == _BREG_RSP:
        return RuleType.RSP_DEREF, offset
    return (RuleType.RBP_DEREF, offset) if base == _BREG_RBP and offset <= 0 else None


def _rbp_expression(expression: bytes) -> int | None:
    """``offset`` where the expression is rbp + offset and nothing else."""
    source = iter(expression[:12])
    try:
        if next(source) != _BREG_RBP:
            return None
        offset = sleb(source)
    except (Refused, StopIteration):
        return None
    return offset if len(expression) <= 12 and not length_hint(source) else None


def _rbp_field(frame: CfiRow, kind: RuleType) -> int | None:
    """The field ``rbp`` of a rule; None if it cannot be expressed."""
    saved = frame.rbp
    if saved.how in (How.SAME, How.UNDEFINED):
        return 0
    by_rbp = kind in (RuleType.RBP_DEREF, RuleType.R10)
    if saved.how is How.EXPRESSION:
        offset = _rbp_expression(saved.expression)
        if kind is RuleType.RSP and frame.offset in (8, 16) and offset == 0:
            return 0  # gcc's epilogue has popped rbp (not r13, maybe), but does not say so
        if offset is None or kind is RuleType.RSP:
            return None
        below = 8 - offset if by_rbp else frame.offset - offset
    elif saved.how is How.OFFSET and not by_rbp:
        below = -saved.offset
    else:
        return None
    return below >> 3 if not below & 7 and 0 < below >> 3 < RBP_LIMIT else None
