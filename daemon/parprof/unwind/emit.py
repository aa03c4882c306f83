"""From the FDEs of a file to the rows of its table.

Where two FDEs overlap, the one that begins later counts from there on, as in the C++ runtime; of two that
begin together, the later in the list. What no FDE covers is a gap: a row of rule 0 (`parprof.unwind.gaps` knows
some of them).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from operator import itemgetter

from parprof.unwind.cfa import AT_CALL, MAX_REMEMBERED, REG_RBP, REG_RSP, SAME, run
from parprof.unwind.eh_frame import MAX_PROGRAM, Cie, Fde
from parprof.unwind.frames import UnwindError
from parprof.unwind.rows import CFA_MASK, RBP_SHIFT, TYPE_SHIFT, RuleType, pack
from parprof.unwind.rules import rule_of

MAX_ROWS = 1 << 23
"""Rows of one table; a file that needs more is refused."""
_FLUSH = 1 << 16
_SLOT, _MAX_UNROLLED = 16, 1 << 20
_RSP, _RBP = RuleType.RSP << TYPE_SHIFT, RuleType.RBP << TYPE_SHIFT
_PLT = pack(RuleType.PLT)
_BASES = {REG_RSP: _RSP, REG_RBP: _RBP}
RowState = tuple[int, int, int]
"""``(base, cfa, rbp)``: the type of a rule in its place, type and CFA in theirs, rbp in its place."""


class _Unusual(Exception):
    """These instructions are for the exact interpreter."""


def usual_state(cie: Cie) -> RowState | None:
    """Where functions of a CIE begin, if the fast interpreter can run them."""
    first = cie.initial
    usual = first.rbp == SAME and first.ra == AT_CALL and not first.problem and not cie.is_signal
    if not usual or cie.factors[:2] != (1, -8) or first.register not in _BASES or first.offset & ~0x7F8:
        return None
    base = _BASES[first.register]
    return base, base | first.offset >> 3, 0


def run_usual(program: bytes, state: RowState, location: int, stop: int, rows: list[int], last: int) -> int:
    """Append the rows of a function up to ``stop``; ``last`` is the rule before it. The last rule comes back.

    It knows rbp saved at CFA-8n, CFAs by rsp and by rbp, numbers of one byte, and CFA offsets of two.

    Raises:
        _Unusual: there is more to it, or it is damaged. StopIteration: the program ends in an instruction.
        Rows may have been appended.
    """
    base, cfa, initial_rbp = state
    rbp = initial_rbp
    remembered: list[RowState] = []
    append = rows.append
    source = iter(program)
    for op in source:
        if op > 0x40:
            if op < 0x80:  # advance_loc
                if (rule := cfa | rbp) != last:
                    append(location)
                    append(rule)
                    last = rule
                location += op - 0x40
                if location >= stop:
                    return last
            elif op < 0xC0:  # offset
                slot = next(source)
                if slot >= 0x80:
                    raise _Unusual
                if op == 0x86:
                    if not slot:
                        raise _Unusual
                    rbp = slot << RBP_SHIFT
                elif op == 0x90 and slot != 1:
                    raise _Unusual
            elif op == 0xC6:  # restore
                rbp = initial_rbp
        elif op == 0x0E or op == 0x0C:  # def_cfa_offset, def_cfa
            if op == 0x0C:
                register = next(source)
                if register == 7:
                    base = _RSP
                elif register == 6:
                    base = _RBP
                else:
                    raise _Unusual
            offset = next(source)
            if offset >= 0x80:
                high = next(source)
                if high >= 0x80:
                    raise _Unusual
                offset += (high - 1) << 7
            if offset & 7:
                raise _Unusual
            cfa = base | offset >> 3
        elif op == 0x0A:  # remember_state
            if len(remembered) == MAX_REMEMBERED:
                raise _Unusual
            remembered.append((base, cfa, rbp))
        elif op == 0x0B:  # restore_state
            if not remembered:
                raise _Unusual
            base, cfa, rbp = remembered.pop()
        elif 0x02 <= op <= 0x04:  # advance_loc1, 2, 4
            step = next(source)
            if op != 0x02:
                step += next(source) << 8
                if op == 0x04:
                    step += (next(source) << 16) + (next(source) << 24)
            if step:
                if (rule := cfa | rbp) != last:
                    append(location)
                    append(rule)
                    last = rule
                location += step
                if location >= stop:
                    return last
        elif op == 0x0D:  # def_cfa_register
            register = next(source)
            if register == 6:
                base = _RBP
            elif register == 7:
                base = _RSP
            else:
                raise _Unusual
            cfa = base | cfa & CFA_MASK
        elif op == 0x2E:  # GNU_args_size
            if next(source) >= 0x80:
                raise _Unusual
        elif op != 0 and op != 0x40:
            raise _Unusual
    if (rule := cfa | rbp) != last:
        append(location)
        append(rule)
    return rule


def run_exact(fde: Fde, stop: int, rows: list[int], last: int, notes: Counter[str]) -> int:
    """What `run_usual` does, for every function. Rules that no row can express are counted by kind."""
    start, _, at, end, cie = fde
    states: list[tuple[int, int]] = []
    if end - at > MAX_PROGRAM:
        notes["too long"] += 1
        at = end
    unrolled = stop - start <= _MAX_UNROLLED
    for location, frame in run(cie.data[at:end], cie.factors, cie.initial, start, cie.address + at):
        if location >= stop:
            break
        rule, problem = rule_of(frame, cie.is_signal)
        if not unrolled and rule >> TYPE_SHIFT == RuleType.PLT and rule != _PLT:
            rule, problem = 0, "CFA expression"
        if problem:
            notes[problem] += 1
        if states and states[-1][0] == location:
            states.pop()
        states.append((location, rule))
    states.append((stop, 0))
    for (location, rule), (following, _) in zip(states, states[1:], strict=False):
        for row in _expanded(location, following, rule) if unrolled else ((location, rule),):
            if row[1] != last:
                rows += row
                last = row[1]
    return last


def _expanded(location: int, stop: int, rule: int) -> list[tuple[int, int]]:
    """The rows for one rule: many for a linkage table whose slots are not as type 3 has them."""
    if rule >> TYPE_SHIFT != RuleType.PLT or rule == _PLT:
        return [(location, rule)]
    pushed_at = rule & CFA_MASK
    out = []
    for slot in range(location - location % _SLOT, stop, _SLOT):
        if location < slot + pushed_at:
            out.append((max(slot, location), pack(RuleType.RSP, 8)))
        if slot + pushed_at < stop:
            out.append((max(slot + pushed_at, location), pack(RuleType.RSP, 16)))
    return out


def emit_rows(fdes: list[Fde], ranges: list[tuple[int, int]], notes: Counter[str]) -> array[int]:
    """The rows, as pairs of numbers, for the FDEs that begin in one of the ``ranges`` of code.

    The ranges are in order, do not overlap and end below 4 GiB; ``fdes`` is sorted in place.

    Raises:
        UnwindError: there are too many rows.
    """
    fdes.sort(key=itemgetter(0))
    starts = [fde[0] for fde in fdes]
    table = array("I")
    inside = 0
    for low, high in ranges:
        first, behind = bisect_left(starts, low), bisect_left(starts, high)
        following = starts[first + 1 : behind] + [high] if behind > first else []
        inside += len(following)
        _emit_range(fdes[first:behind], following, table, notes)
    if inside < len(fdes):
        notes["outside code"] += len(fdes) - inside
    return table


def _emit_range(fdes: list[Fde], following: list[int], table: array[int], notes: Counter[str]) -> None:
    states: dict[Cie, RowState | None] = {}
    rows: list[int] = []
    last = done = 0
    for fde, limit in zip(fdes, following, strict=True):
        start, stop, at, end, cie = fde
        if stop > limit:
            stop = limit
            notes["overlap"] += 1
            if start >= stop:
                continue
        if start > done and last:
            rows += (done, 0)
            last = 0
        done = stop
        if cie not in states:
            states[cie] = usual_state(cie)
        state, mark, before = states[cie], len(rows), last
        try:
            if state is None or end - at > MAX_PROGRAM:
                raise _Unusual
            last = run_usual(cie.data[at:end], state, start, stop, rows, last)
        except (_Unusual, StopIteration):
            del rows[mark:]
            last = run_exact(fde, stop, rows, before, notes)
        if len(rows) > _FLUSH:
            _flush(rows, table)
    if last:
        rows += (done, 0)
    _flush(rows, table)


def _flush(rows: list[int], table: array[int]) -> None:
    if len(rows) + len(table) > 2 * MAX_ROWS:
        raise UnwindError(f"more than {MAX_ROWS} rows are needed")
    table.fromlist(rows)
    rows.clear()
