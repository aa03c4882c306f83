"""Code without call frame information, followed from where it returns.

Encoders, decoders and cryptography spend their time in functions that were written in assembly, and most libraries that
have them are stripped: nothing says where a function begins. But wherever code returns the return address is on top of
the stack. From there the stack is followed along all ways that execution can go, backwards and forwards, by what each
instruction does to the stack pointer: a push before a return means that the caller is a word further.

Where the stack was aligned, which no arithmetic undoes, the instruction that takes the old stack pointer back says
where it was kept. That descriptors of procedures can be had by analysing the binary is said in froyd-2005 sec. 2.3.1;
HPCToolkit (Tallent et al., PLDI 2009) begins at the function's entry, which we do only where nothing else is known.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

from parprof.loops.machinecode import CodeError, Flow
from parprof.unwind.rows import RuleType, pack_kept, pack_offset
from parprof.unwind.stack_moves import (
    ALIGNMENT,
    KEPT,
    KEPT_BY_RBP,
    RBP,
    RSP,
    CodePart,
    Event,
    StepsLeft,
    parts,
)

LEAST_GAP = 32
"""Bytes; shorter ones are padding, or in `parprof.unwind.gaps`."""
AT_ONCE_BYTES = 14 << 20
"""Of all gaps of a file, the smallest first: an encoder for three depths of color has 12 MiB, and takes 1.8 s."""
MAX_BYTES = 64 << 20
"""The same where nobody waits for it: OpenCV has 22 MiB of Intel's image processing, which take 5 s,"""
LATER_SECONDS = 600
"""or as many minutes on a machine that has other things to do: it may take so long."""
_DEREF_TYPES = {KEPT: RuleType.RSP_DEREF, KEPT_BY_RBP: RuleType.RBP_DEREF}
_LEAST_OFFSETS = {RSP: 8, RBP: 16}
"""Of a CFA from these: the return address, and with rbp the caller's rbp, lie between."""


class CodeSource(Protocol):
    """Where code is read: a file, or a piece of memory."""

    def read(self, address: int, size: int, /) -> bytes:
        """Bytes from an address on; fewer than asked for where there are no more."""


class CfaState(NamedTuple):
    """Where the CFA is: ``base + offset``; or, with base ``*rsp`` or ``*rbp``, ``*(rsp + offset) + beyond``."""

    base: str
    offset: int
    beyond: int = 0
    saved: int = 0
    """How far below the CFA the caller's rbp is; 0: where it was."""


AT_RETURN = CfaState(RSP, 8)


class CodeBlock:
    """Instructions that are executed one after the other. ``entry`` and ``exit`` are the states before and after."""

    __slots__ = ("begin", "behind", "component", "entry", "events", "exit", "from_", "leaves", "to")

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.events: Sequence[Event] = ()
        self.to: list[CodeBlock] = []
        self.from_: list[CodeBlock] = []
        self.entry: CfaState | None = None
        self.exit: CfaState | None = None
        self.component = -1
        self.leaves = False
        """By a jump to other code: a call at a function's end, most likely."""
        self.behind = Flow.ON
        """Where the code in front of it goes on; ON where that may be here."""


def add_returns(
    table: array[int],
    source: CodeSource,
    ranges: Iterable[tuple[int, int]],
    described: Iterable[tuple[int, int]],
    most_bytes: int = AT_ONCE_BYTES,
) -> tuple[array[int], int]:
    """A table of ``pc, rule, ...`` with rows for code of the ``ranges`` that has none and is not ``described``.

    And how many bytes of such code were not followed, as it is more than ``most_bytes`` in all. The ranges are in order
    and apart from each other; what is described, by FDEs, begins in order.

    Raises:
        ElfError: the file cannot be read.
    """
    left, budget = most_bytes, StepsLeft()
    found: list[tuple[int, int, list[int]]] = []
    gaps = sorted(_gaps(_taken(table, described), ranges), key=lambda gap: gap[1] - gap[0])
    beyond = 0
    for at, (begin, end) in enumerate(gaps):
        left -= end - begin
        if left < 0:
            beyond = sum(high - low for low, high in gaps[at:])
            break
        if budget.points < 0:
            break
        try:
            rows = rows_of(source.read(begin, end - begin), begin, budget)
        except CodeError:
            break
        if rows:
            found.append((begin, end, rows))
    return _with(table, sorted(found)), beyond


def _taken(table: array[int], described: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """What has rows, or is described in a way that no row can say; in order."""
    ends = table[2::2]
    rows = ((begin, end) for begin, rule, end in zip(table[::2], table[1::2], ends, strict=False) if rule)
    return sorted(chain(rows, described))


def _gaps(taken: Iterable[tuple[int, int]], ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is left of the ranges; both are in order."""
    out: list[tuple[int, int]] = []
    pending = iter(taken)
    following = next(pending, None)
    for low, high in ranges:
        at = low
        while following is not None and following[0] < high:
            if following[0] - at >= LEAST_GAP:
                out.append((at, following[0]))
            at = max(at, following[1])
            following = next(pending, None)
        if high - at >= LEAST_GAP:
            out.append((at, high))
    return out


def _with(table: array[int], found: Iterable[tuple[int, int, list[int]]]) -> array[int]:
    """The rows of a table and those of gaps, in whose place it has at most rows of rule 0."""
    out = array("I")
    done = 0
    starts = table[::2]
    for begin, end, rows in found:
        at = bisect_left(starts, begin)
        out += table[2 * done : 2 * at]
        out.fromlist(rows)
        done = bisect_left(starts, end)
        if rows[-1] and (done == len(starts) or starts[done] != end):
            out.extend((end, 0))
    return out + table[2 * done :]


def rows_of(code: bytes, vaddr: int, budget: StepsLeft | None = None) -> list[int]:
    """``pc, rule, ...`` for code of any number of functions; no rows where nothing is known at all.

    Where the budget ends, a row of rule 0 is the last.

    Raises:
        CodeError: there is nothing to decode it with.
    """
    rows: list[int] = []
    if not any(code):
        return rows
    budget = budget or StepsLeft()
    for part in parts(code, vaddr, budget):
        nodes = _nodes(part)
        _follow(nodes)
        _add_rows(nodes, rows)
        if rows[-2] >= part.end:  # behind an instruction of one byte, which nothing follows
            del rows[-2:]
        if budget.points < 0 and rows[-1]:
            rows += (part.end, 0)
    return rows if any(rows[1::2]) else []


# the graph


def _nodes(part: CodePart) -> list[CodeBlock]:
    begin, end, events, flows, functions = part
    leaders = {begin}
    leaders.update(following for _, following, _, _ in flows if following < end)
    leaders.update(target for _, _, _, target in flows if begin <= target < end)
    leaders.update(address for address in functions if begin <= address < end)
    nodes = [CodeBlock(leader) for leader in sorted(leaders)]
    nodes[0].behind = Flow.RETURN
    by_address = {node.begin: node for node in nodes}
    at = flow_at = 0
    for index, node in enumerate(nodes):
        following = nodes[index + 1] if index + 1 < len(nodes) else None
        limit = following.begin if following else end
        first = at
        while at < len(events) and events[at].address < limit:
            at += 1
        node.events = events[first:at]
        flow, target = Flow.ON, -1
        while flow_at < len(flows) and flows[flow_at][0] < limit:
            _, _, flow, target = flows[flow_at]
            flow_at += 1
        if node.begin in functions:
            node.entry = AT_RETURN
        if following is not None:
            following.behind = Flow.ON if flow is Flow.BRANCH else flow
            if following.begin in functions:
                following = None  # the call in front of it does not return
        _connect(node, flow, by_address.get(target), following)
        if flow is Flow.RETURN:
            node.exit = AT_RETURN
        node.leaves = flow is Flow.JUMP and target >= 0 and not begin <= target < end
    return nodes


def _connect(node: CodeBlock, flow: Flow, target: CodeBlock | None, following: CodeBlock | None) -> None:
    if flow in (Flow.BRANCH, Flow.JUMP) and target is not None:
        node.to.append(target)
        target.from_.append(node)
    if flow in (Flow.ON, Flow.BRANCH) and following is not None:
        node.to.append(following)
        following.from_.append(node)


# what is known


def _before(event: Event, state: CfaState | None) -> CfaState | None:
    """The state before an instruction, from the one after it."""
    if state is None:
        return None
    base, offset, beyond, saved = state
    if event.copy:  # to go by it has become possible with this instruction
        if base.removeprefix("*") != event.copy:
            return state
        return CfaState(base.replace(event.copy, RSP), offset + event.amount, beyond, saved)
    if event.base == RSP:
        if base in (RSP, KEPT):
            offset -= event.amount
        if event.rbp and base == RSP:
            saved = _saved(saved, offset - event.slot, event.rbp < 0)
        return CfaState(base, offset, beyond, saved)
    if base not in (RSP, KEPT):  # the stack pointer does not matter
        return state
    if event.base in _DEREF_TYPES:
        return CfaState(event.base, event.amount, offset, saved) if base == RSP else None
    offset += event.amount
    if not event.base:
        return None
    if base == KEPT:
        return CfaState("*" + event.base, offset, beyond, saved)
    return CfaState(event.base, offset, 0, offset if event.rbp else saved)


def _after(event: Event, state: CfaState | None) -> CfaState | None:
    """The state after an instruction, from the one before it."""
    if state is None or event.copy:
        return state
    base, offset, beyond, saved = state
    if event.base == RSP:
        if event.rbp and base == RSP:
            saved = _saved(saved, offset - event.slot, event.rbp > 0)
        if base in (RSP, KEPT):
            offset += event.amount
        return CfaState(base, offset, beyond, saved)
    if base == event.base and base in _DEREF_TYPES:
        return CfaState(RSP, beyond, 0, saved) if offset == event.amount else None
    if base.removeprefix("*") == event.base:
        if base in _DEREF_TYPES:
            return CfaState(KEPT, offset - event.amount, beyond, saved)
        return CfaState(RSP, offset - event.amount, 0, 0 if event.rbp else saved)
    return None if base in (RSP, KEPT) else state


def _saved(saved: int, slot: int, is_in_use: bool) -> int:
    """Where the caller's rbp is, next to an instruction that moves rbp to or from a slot. ``is_in_use``: it is on that
    side of the instruction on which the slot may be the caller's. Other slots have values of the function's own."""
    if is_in_use:
        return saved or slot
    return 0 if saved == slot else saved


def _follow(nodes: list[CodeBlock]) -> None:
    """Find out what is known where. What is nearest to a return, or to where something is called, counts."""
    _spread([node for node in nodes if node.entry is not None or node.exit is not None])
    _number_components(nodes)
    known = {node.component for node in nodes if node.entry is not None or node.exit is not None}
    begins = [node for node in nodes if node.entry is None and node.component in known and _begins(node)]
    for node in begins:
        node.entry = AT_RETURN
    _spread(begins)
    ends = [node for node in nodes if node.leaves and node.exit is None]
    for node in ends:
        node.exit = AT_RETURN
    _spread(ends)


def _begins(node: CodeBlock) -> bool:
    """Whether a function seems to begin here: nothing goes on here, and what is in front ends a function."""
    return not node.from_ and node.behind is not Flow.ON and node.begin % ALIGNMENT == 0


def _spread(first: Iterable[CodeBlock]) -> None:
    pending = deque(first)
    while pending:
        node = pending.popleft()
        if node.entry is None:
            state = node.exit
            for event in reversed(node.events):
                state = _before(event, state)
            node.entry = state
        if node.exit is None:
            state = node.entry
            for event in node.events:
                state = _after(event, state)
            node.exit = state
        if node.entry is not None:
            for other in node.from_:
                if other.exit is None:
                    other.exit = node.entry
                    pending.append(other)
        if node.exit is not None:
            for other in node.to:
                if other.entry is None:
                    other.entry = node.exit
                    pending.append(other)


def _number_components(nodes: list[CodeBlock]) -> None:
    """Nodes between which execution can go are of one function, or of some that share code."""
    for number, first in enumerate(nodes):
        if first.component >= 0:
            continue
        first.component = number
        pending = [first]
        while pending:
            node = pending.pop()
            for other in (*node.to, *node.from_):
                if other.component < 0:
                    other.component = number
                    pending.append(other)


# rows


def _add_rows(nodes: list[CodeBlock], out: list[int]) -> None:
    last = out[-1] if out else -1
    for node in nodes:
        at = node.begin
        for state, event in zip(_states(node), [*node.events, None], strict=True):
            rule = _rule(state)
            if rule != last:
                if out and out[-2] == at:
                    del out[-2:]
                out += (at, rule)
                last = rule
            if event is not None:  # from any byte behind its first: only whole instructions are executed
                at = event.address + 1


def _states(node: CodeBlock) -> list[CfaState | None]:
    """Before each of a node's events, and behind the last one."""
    forward: list[CfaState | None] = [node.entry]
    for event in node.events:
        forward.append(_after(event, forward[-1]))
    if forward[-1] is not None:
        return forward
    backward: list[CfaState | None] = [node.exit]
    for event in reversed(node.events):
        backward.append(_before(event, backward[-1]))
    backward.reverse()
    return [there or here for there, here in zip(forward, backward, strict=True)]


def _rule(state: CfaState | None) -> int:
    """A row's rule; 0 where no row can say it."""
    if state is None or state.saved % 8:
        return 0
    base, offset, beyond, saved = state
    if base in _DEREF_TYPES:
        return pack_kept(_DEREF_TYPES[base], offset, beyond, saved // 8)
    return pack_offset(base, offset, saved // 8) if offset >= _LEAST_OFFSETS.get(base, 0) else 0
