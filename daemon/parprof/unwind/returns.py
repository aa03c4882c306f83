"""Code without call frame information, followed from where it returns.

Encoders, decoders and cryptography spend their time in functions that were written in assembly, and most libraries that
have them are stripped: nothing says where a function begins. But wherever code returns the return address is on top of
the stack. From there the stack is followed along all ways that execution can go, backwards and forwards, by what each
instruction does to the stack pointer: a push before a return means that the caller is a word further.

Where the stack was aligned, which no arithmetic undoes, the instruction that takes the old stack pointer back says
where it was kept. Froyd et al. (2005, sec. 3.2) follow code in this way for lack of tables; HPCToolkit (Tallent et al.,
PLDI 2009) begins at the function's entry, which we do only where nothing else is known.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import NamedTuple

from parprof.files.elf import ElfFile
from parprof.loops.machinecode import CodeError, Flow, Instruction, decode, flow_of, target_of
from parprof.unwind.rows import (
    CFA_LIMIT,
    PT_REGS,
    RBP_LIMIT,
    REGISTER_OFFSETS,
    RuleType,
    pack,
    pack_kept,
    pack_register,
)

LEAST_GAP = 32
"""Bytes; shorter ones are padding, or in `parprof.unwind.gaps`."""
MAX_BYTES = 14 << 20
"""Of all gaps of a file, the smallest first: an encoder for three depths of color has 12 MiB, and takes 1.8 s."""
MAX_POINTS = 500_000
"""Instructions of all gaps of a file that go elsewhere or move the stack pointer: that encoder has 40,000. The worst
take 8 us each."""
_SLICE, _LONGEST = 1 << 16, 16
"""Bytes of code that are decoded at once, and of the longest instruction."""
_LONGEST_CALL = 7
_PART = 1 << 20
"""Bytes of code that are followed at once, at least."""
_ALIGNMENT = 16
"""Of functions."""
_NUMBER = r"(0x[0-9a-f]+|\d+)"
_ADDRESS = re.compile(rf"(?:qword ptr )?\[(r\w+)(?: ([+-]) {_NUMBER})?\]")
_RSP, _RBP = "rsp", "rbp"
_KEPT, _KEPT_BY_RBP = "*rsp", "*rbp"
_ROW_TYPES = {_RSP: RuleType.RSP, _RBP: RuleType.RBP}
_DEREF_TYPES = {_KEPT: RuleType.RSP_DEREF, _KEPT_BY_RBP: RuleType.RBP_DEREF}


class State(NamedTuple):
    """Where the CFA is: ``base + offset``; or, with base ``*rsp`` or ``*rbp``, ``*(rsp + offset) + beyond``."""

    base: str
    offset: int
    beyond: int = 0
    saved: int = 0
    """How far below the CFA the caller's rbp is; 0: where it was."""


AT_RETURN = State(_RSP, 8)


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
    slot: int = -1
    """And there, from the stack pointer on; -1: on top of the stack."""
    copy: str = ""


class Node:
    """Instructions that are executed one after the other. ``entry`` and ``exit`` are the states before and after."""

    __slots__ = ("begin", "behind", "component", "entry", "events", "exit", "from_", "leaves", "to")

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.events: Sequence[Event] = ()
        self.to: list[Node] = []
        self.from_: list[Node] = []
        self.entry: State | None = None
        self.exit: State | None = None
        self.component = -1
        self.leaves = False
        """By a jump to other code: a call at a function's end, most likely."""
        self.behind = Flow.ON
        """Where the code in front of it goes on; ON where that may be here."""


def add_returns(
    table: array[int],
    elf: ElfFile,
    ranges: Iterable[tuple[int, int]],
    described: Iterable[tuple[int, int]],
) -> array[int]:
    """A table of ``pc, rule, ...`` with rows for code of the ``ranges`` that has none and is not ``described``.

    The ranges are in order and apart from each other; what is described, by FDEs, begins in order.

    Raises:
        ElfError: the file cannot be read.
    """
    left, budget = MAX_BYTES, Budget()
    found: list[tuple[int, int, list[int]]] = []
    gaps = _gaps(_taken(table, described), ranges)
    for begin, end in sorted(gaps, key=lambda gap: gap[1] - gap[0]):
        left -= end - begin
        if left < 0 or budget.points < 0:
            break
        try:
            rows = rows_of(elf.read(begin, end - begin), begin, budget)
        except CodeError:
            break
        if rows:
            found.append((begin, end, rows))
    return _with(table, sorted(found))


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


class Budget:
    """What may still be done for a file."""

    def __init__(self, points: int = MAX_POINTS) -> None:
        self.points = points


def rows_of(code: bytes, vaddr: int, budget: Budget | None = None) -> list[int]:
    """``pc, rule, ...`` for code of any number of functions; no rows where nothing is known at all.

    Where the budget ends, a row of rule 0 is the last.

    Raises:
        CodeError: there is nothing to decode it with.
    """
    rows: list[int] = []
    if not any(code):
        return rows
    budget = budget or Budget()
    for part in _parts(code, vaddr, budget):
        nodes = _nodes(part)
        _follow(nodes)
        _add_rows(nodes, rows)
        if budget.points < 0 and rows[-1]:
            rows += (part.end, 0)
    return rows if any(rows[1::2]) else []


# the graph


_CALL, _LANDING, _PADDING = "call", "endbr64", "nop"
_COPIES = ("mov", "lea")
_OF_INTEREST = frozenset(("push", "pop", "leave", "enter", "xchg", "pushfq", "popfq", _CALL, _LANDING))


@cache
def _is_of_interest(mnemonic: str) -> bool:
    return mnemonic in _OF_INTEREST or bool(flow_of(mnemonic))


def _uses_stack_pointer(mnemonic: str, text: str) -> bool:
    return mnemonic in _COPIES or text.startswith(_RSP)


class Leaving(NamedTuple):
    """A jump, branch, or return. ``following``: the address behind it, and behind the padding there."""

    address: int
    following: int
    flow: Flow
    target: int


class Part(NamedTuple):
    """Some code of whole functions, as far as that can be seen: what matters of its instructions."""

    begin: int
    end: int
    events: list[Event]
    flows: list[Leaving]
    functions: set[int]
    """Addresses that are called, here or from elsewhere."""


def _parts(code: bytes, vaddr: int, budget: Budget) -> Iterator[Part]:
    """The code in parts of no more memory than need be: each ends with a return."""
    part = Part(vaddr, 0, [], [], set())
    called = padded = 0
    """Where the last call is, and where the padding behind the last call or jump ends."""
    for address, size, mnemonic, text in _instructions(code, vaddr):
        if address == padded:
            if _PADDING in mnemonic:
                padded += size
                continue
            _behind_padding(part, called, padded)
            called = 0
        if not (_is_of_interest(mnemonic) or (_RSP in text and _uses_stack_pointer(mnemonic, text))):
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
                part = Part(padded, 0, [], [], set())
        elif (event := _event(address, mnemonic, text)) is not None:
            part.events.append(event)
    if part.begin < vaddr + len(code):
        yield part._replace(end=vaddr + len(code))


def _behind_padding(part: Part, called: int, address: int) -> None:
    """Code begins behind a call, jump or return, and the padding there."""
    if not called:
        if part.flows:
            part.flows[-1] = part.flows[-1]._replace(following=address)
    elif address % _ALIGNMENT == 0 and address - called > _LONGEST_CALL:
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


def _nodes(part: Part) -> list[Node]:
    begin, end, events, flows, functions = part
    leaders = {begin}
    leaders.update(following for _, following, _, _ in flows if following < end)
    leaders.update(target for _, _, _, target in flows if begin <= target < end)
    leaders.update(address for address in functions if begin <= address < end)
    nodes = [Node(leader) for leader in sorted(leaders)]
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


def _connect(node: Node, flow: Flow, target: Node | None, following: Node | None) -> None:
    if flow in (Flow.BRANCH, Flow.JUMP) and target is not None:
        node.to.append(target)
        target.from_.append(node)
    if flow in (Flow.ON, Flow.BRANCH) and following is not None:
        node.to.append(following)
        following.from_.append(node)


def _event(address: int, mnemonic: str, text: str) -> Event | None:
    """What an instruction does to the stack pointer; None: nothing."""
    if mnemonic in ("push", "pushfq"):
        return Event(address, _RSP, 8, text == _RBP)
    if mnemonic in ("pop", "popfq"):
        if text == _RSP:
            return Event(address, _KEPT, 0)
        return Event(address, _RSP, -8, -(text == _RBP))
    if mnemonic == "leave":
        return Event(address, _RBP, 8, -1)
    operands = [part.strip() for part in text.split(",")]
    if mnemonic == "enter" or (mnemonic == "xchg" and _RSP in operands):
        return Event(address, "", 0)
    if operands[0] != _RSP:
        return _copy(address, mnemonic, operands) or _slot(address, operands)
    if mnemonic in ("cmp", "test", "bt"):
        return None
    source = operands[1] if len(operands) > 1 else ""
    if mnemonic in ("sub", "add") and (number := _number(source)) is not None:
        return Event(address, _RSP, number if mnemonic == "sub" else -number)
    if mnemonic == "mov" and source in PT_REGS:
        return Event(address, source, 0)
    found = _ADDRESS.fullmatch(source)
    if found is not None and mnemonic in ("lea", "mov"):
        distance = int(found[3] or "0", 0) * (-1 if found[2] == "-" else 1)
        if mnemonic == "mov":
            return Event(address, "*" + found[1] if found[1] in (_RSP, _RBP) else "", distance)
        return Event(address, _RSP, -distance) if found[1] == _RSP else Event(address, found[1], distance)
    return Event(address, "", 0)


def _copy(address: int, mnemonic: str, operands: list[str]) -> Event | None:
    """Of a register that becomes a copy of the stack pointer, or an address on the stack."""
    if mnemonic not in _COPIES or len(operands) != 2 or operands[0] not in PT_REGS:
        return None
    if mnemonic == "mov":
        return Event(address, _RSP, 0, copy=operands[0]) if operands[1] == _RSP else None
    found = _ADDRESS.fullmatch(operands[1])
    if found is None or found[1] != _RSP:
        return None
    return Event(address, _RSP, int(found[3] or "0", 0) * (-1 if found[2] == "-" else 1), copy=operands[0])


def _slot(address: int, operands: list[str]) -> Event | None:
    """Of a move between rbp and the stack."""
    if len(operands) != 2 or _RBP not in operands:
        return None
    memory = _ADDRESS.fullmatch(operands[operands[0] == _RBP])
    if memory is None or memory[1] != _RSP or memory[2] == "-":
        return None
    return Event(address, _RSP, 0, 1 if operands[1] == _RBP else -1, int(memory[3] or "0", 0))


def _number(text: str) -> int | None:
    try:
        return int(text, 0)
    except ValueError:
        return None


# what is known


def _before(event: Event, state: State | None) -> State | None:
    """The state before an instruction, from the one after it."""
    if state is None:
        return None
    base, offset, beyond, saved = state
    if event.copy:  # to go by it has become possible with this instruction
        if base.removeprefix("*") != event.copy:
            return state
        return State(base.replace(event.copy, _RSP), offset + event.amount, beyond, saved)
    if event.base == _RSP:
        if base in (_RSP, _KEPT):
            offset -= event.amount
        if event.rbp and base == _RSP:
            saved = _saved(
                saved, offset - max(event.slot, 0) + 8 * (event.rbp > 0 > event.slot), event.rbp < 0
            )
        return State(base, offset, beyond, saved)
    if base not in (_RSP, _KEPT):  # the stack pointer does not matter
        return state
    if event.base in _DEREF_TYPES:
        return State(event.base, event.amount, offset, saved) if base == _RSP else None
    offset += event.amount
    if not event.base:
        return None
    if base == _KEPT:
        return State("*" + event.base, offset, beyond, saved)
    return State(event.base, offset, 0, offset if event.rbp else saved)


def _after(event: Event, state: State | None) -> State | None:
    """The state after an instruction, from the one before it."""
    if state is None or event.copy:
        return state
    base, offset, beyond, saved = state
    if event.base == _RSP:
        if base in (_RSP, _KEPT):
            offset += event.amount
        if event.rbp and base == _RSP:
            saved = _saved(
                saved, offset - max(event.slot, 0) + 8 * (event.rbp < 0 > event.slot), event.rbp > 0
            )
        return State(base, offset, beyond, saved)
    if base == event.base and base in _DEREF_TYPES:
        return State(_RSP, beyond, 0, saved) if offset == event.amount else None
    if base.removeprefix("*") == event.base:
        if base in _DEREF_TYPES:
            return State(_KEPT, offset - event.amount, beyond, saved)
        return State(_RSP, offset - event.amount, 0, 0 if event.rbp else saved)
    return None if base in (_RSP, _KEPT) else state


def _saved(saved: int, slot: int, is_in_use: bool) -> int:
    """Where the caller's rbp is, next to an instruction that moves rbp to or from a slot. ``is_in_use``: it is on that
    side of the instruction on which the slot may be the caller's. Other slots have values of the function's own."""
    if is_in_use:
        return saved or slot
    return 0 if saved == slot else saved


def _follow(nodes: list[Node]) -> None:
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


def _begins(node: Node) -> bool:
    """Whether a function seems to begin here: nothing goes on here, and what is in front ends a function."""
    return not node.from_ and node.behind is not Flow.ON and node.begin % _ALIGNMENT == 0


def _spread(first: Iterable[Node]) -> None:
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


def _number_components(nodes: list[Node]) -> None:
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


def _add_rows(nodes: list[Node], out: list[int]) -> None:
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
            if event is not None:
                at = (
                    event.address + 1
                )  # any byte behind the instruction's first: only whole ones are executed


def _states(node: Node) -> list[State | None]:
    """Before each of a node's events, and behind the last one."""
    forward: list[State | None] = [node.entry]
    for event in node.events:
        forward.append(_after(event, forward[-1]))
    if forward[-1] is not None:
        return forward
    backward: list[State | None] = [node.exit]
    for event in reversed(node.events):
        backward.append(_before(event, backward[-1]))
    backward.reverse()
    return [there or here for there, here in zip(forward, backward, strict=True)]


def _rule(state: State | None) -> int:
    """A row's rule; 0 where no row can say it."""
    if state is None or state.offset % 8 or state.saved % 8:
        return 0
    base, offset, beyond, saved = state
    rbp = saved // 8
    if not 0 <= rbp < RBP_LIMIT:
        return 0
    if base in _DEREF_TYPES:
        return pack_kept(_DEREF_TYPES[base], offset, beyond, rbp)
    if base in _ROW_TYPES:
        least = 16 if base == _RBP else 8
        return pack(_ROW_TYPES[base], offset, rbp) if least <= offset < CFA_LIMIT << 3 else 0
    return pack_register(PT_REGS[base], offset, False, rbp) if 0 <= offset < REGISTER_OFFSETS << 3 else 0
