"""Loops in which a thread waits for another one, told by what they do: they look at memory again until it changes.

A loop is taken to wait if

- some way out of it is decided by nothing but constants, registers that keep their value from turn to turn, and memory
  at an address that stays the same: as the loop itself stores nothing, or, by an atomic instruction, the same at each
  turn (it tries to take a lock), only another thread can make that decision come out otherwise;
- that decision leads away from it, not through a few more instructions into it again, nor to what is to be done at this
  turn of a loop that counts, which then goes on; nor is it whether two readings of the same place agree, as with a
  sequence lock, whose reader has as a rule but one turn; and
- it does nothing else worth a turn: all of its instructions move, compare, count or pause, nothing is read at an
  address that changes, nothing is called, and it is short.

Who goes through several places, again and again, waits likewise (`parprof.loops.rounds`).

A short one that pauses at each turn waits, whatever else it does (`parprof.loops.pauses`), unless it stores a lot, or
waits for the processor's random numbers; and so does a function that only pauses.

Loops that a compiler made of ordinary code keep such decisions in registers, for without a store they cannot change:
only code that is told that others write (``volatile``, atomic) reads again. Values that were put aside on the stack
for want of registers are read again too, so what is found by ``rsp`` decides nothing, nor by ``rbp``, unless the
function saves that and never makes it its frame pointer: then it is a register like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import chain

from parprof.files.elf import ElfFile
from parprof.loops.basicblocks import FlowGraph
from parprof.loops.branches import possible_ways, repeats
from parprof.loops.instructions import (
    CLOCKS,
    COMPARES,
    COPIES,
    COUNTS,
    FLAGS,
    IDLE,
    MEMORY,
    STACK,
    addressed,
    is_fence,
    operands_of,
    reads_twice,
    stores,
    told_in,
    tries,
    words_of,
    written_by,
)
from parprof.loops.machinecode import Code, CodeError, Flow, flow_of, read_code
from parprof.loops.noreturn import ReturningCalls
from parprof.loops.pauses import Pauses, is_pause
from parprof.loops.registers import WHOLE_REGISTER
from parprof.loops.rounds import rounds

LoopRange = tuple[int, int]
"""ELF virtual addresses [start, end)."""

MAX_INSTRUCTIONS = 48
MAX_PAUSING = 96
"""Instructions of a loop that pauses at each turn: it may look for something to do in several places."""
MAX_BLOCKS = 4
MAX_UNROLLED = 10
"""Blocks of a loop that is unrolled: each but one has a barrier or a pause, and who leaves does so for what it sees."""
MAX_RANGES = 64
"""Of one function."""
_MAX_WAY_BACK = 3
"""Blocks."""
_MAX_TURN = 256
"""Blocks of what a loop that counts may do at some of its turns."""
_MOST_STORES = 4
"""Beside the stack: a loop that pauses and stores more at each turn has more to do than to wait."""
_KEPT = "on the stack"
_RANDOM = ("rdrand", "rdseed")


class Value(IntEnum):
    """What is known of a value at some place in a loop."""

    STEADY = 0
    """The same at each turn."""
    FOREIGN = 1
    """As `STEADY`, but for what other threads write: it comes from memory at a steady address."""
    OTHER = 2


_NO_FRAME = "no frame pointer"
"""In a state where ``rbp`` is a register like any other."""
_ORDERS = ("pause", "lfence", "mfence")

_State = dict[str, Value]


def spin_loops(
    elf: ElfFile,
    vaddr: int,
    size: int,
    calls: ReturningCalls | None = None,
    pauses: Pauses | None = None,
) -> list[LoopRange]:
    """The loops of a function in which threads wait for each other; none where the code cannot be followed.

    ``calls`` and ``pauses`` are what is already known of the file's calls.

    Raises:
        ElfError: the file cannot be read.
    """
    pauses = pauses or Pauses(elf)
    try:
        code = read_code(elf, vaddr, size)
        graph = FlowGraph(elf, code)
        if is_pause(code) and not any(_loops(code, graph)):
            return [(vaddr, vaddr + size)]
        found = merged(_found(pauses, code, graph))
        if found:  # as a rule none is, and to look into what is called takes longer
            code.last_calls.update((calls or ReturningCalls(elf)).without_return(code))
        if code.last_calls:
            found = merged(_found(pauses, code, FlowGraph(elf, code)))
    except CodeError:
        return []
    return found[:MAX_RANGES]


def merged(ranges: Iterator[LoopRange] | Sequence[LoopRange]) -> list[LoopRange]:
    """In order, those that touch as one.

    >>> merged([(4, 6), (0, 2), (2, 3)])
    [(0, 3), (4, 6)]
    """
    out: list[LoopRange] = []
    for start, end in sorted(ranges):
        if out and start <= out[-1][1]:
            out[-1] = out[-1][0], max(end, out[-1][1])
        else:
            out.append((start, end))
    return out


def _found(pauses: Pauses, code: Code, graph: FlowGraph) -> Iterator[LoopRange]:
    """Each edge that leads back closes a loop with the shortest way there: one may wait that is a part of one which
    works, and compilers let loops begin in the middle, so that they have several entries."""
    for body in rounds(code, graph, possible_ways(code, graph)):
        yield from _Loop(code, graph, body).ranges()
    for way in _loops(code, graph):
        if not _has_inner(graph, way) and repeats(code, graph, way):
            loop = _Loop(code, graph, way)
            if loop.waits() or loop.pauses(pauses):
                yield from loop.ranges()


def _loops(code: Code, graph: FlowGraph) -> Iterator[list[int]]:
    """The blocks of each loop."""
    ways = possible_ways(code, graph)
    for last in range(graph.blocks):
        for first in ways[last]:
            if first <= last and (way := _way(ways, graph.blocks, first, last)):
                yield way


def _way(ways: Sequence[Sequence[int]], blocks: int, first: int, last: int) -> list[int]:
    """The shortest way from a block to another one; empty if there is none, or if it is long."""
    came_from = {first: -1}
    reached = [first]
    for _ in range(MAX_UNROLLED):
        if last in came_from:
            way = [last]
            while way[-1] != first:
                way.append(came_from[way[-1]])
            return way[::-1]
        following = []
        for node in reached:
            for target in ways[node]:
                if target < blocks and target not in came_from:
                    came_from[target] = node
                    following.append(target)
        reached = following
    return []


def _has_inner(graph: FlowGraph, way: list[int]) -> bool:
    """Whether some of these blocks are a loop of their own: then what is known of values on the way does not hold."""
    position = {node: at for at, node in enumerate(way)}
    back = {
        (node, target)
        for node in way
        for target in graph.successors[node]
        if target in position and position[target] <= position[node]
    }
    return back != {(way[-1], way[0])}


class _Loop:
    """A few basic blocks, one after the other and then from the start again."""

    def __init__(self, code: Code, graph: FlowGraph, way: list[int]) -> None:
        self._code = code
        self._graph = graph
        self._way = way
        self._blocks = [range(code.index(graph.starts[node]), graph.last(node) + 1) for node in way]

    def ranges(self) -> Iterator[LoopRange]:
        """Its code."""
        for indexes in self._blocks:
            yield self._code.addresses[indexes[0]], self._code.following(indexes[-1])

    def pauses(self, pauses: Pauses) -> bool:
        """Whether it pauses at each turn, and does not do more than look whether there is something to do."""
        indexes = list(chain.from_iterable(self._blocks))
        if len(indexes) > MAX_PAUSING or not pauses.among(self._code, indexes):
            return False
        code = self._code
        stored = sum(stores(code.mnemonics[index], operands_of(code.operands[index])) for index in indexes)
        return stored <= _MOST_STORES and not any(code.mnemonics[index] in _RANDOM for index in indexes)

    def waits(self) -> bool:
        """Whether it does nothing but wait until another thread writes."""
        code = self._code
        if sum(map(len, self._blocks)) > MAX_INSTRUCTIONS:
            return False
        written: set[str] = set()
        for index in chain.from_iterable(self._blocks):
            targets = written_by(code.mnemonics[index], code.operands[index])
            if targets is None:
                return False
            written |= targets
        if self._tries() and self._places() > 1:
            return False  # it tries again where it was in the way of another one, and looks what that did
        state: _State = dict.fromkeys(written, Value.OTHER)
        if not _has_frame_pointer(code):
            state[_NO_FRAME] = Value.STEADY
        is_decided_elsewhere = False
        is_long = len(self._way) > MAX_BLOCKS
        if is_long and sum(map(self._synchronizes, self._blocks)) < len(self._way) - 1:
            return False
        for node, indexes in zip(self._way, self._blocks, strict=True):
            for index in indexes:
                if not _step(state, code.mnemonics[index], code.operands[index]):
                    return False
            if is_long and code.flow(indexes[-1]) is Flow.BRANCH and state.get(FLAGS) is not Value.FOREIGN:
                return False
            out = [target for target in self._graph.successors[node] if target not in self._way]
            if out and code.flow(indexes[-1]) is Flow.BRANCH and state.get(FLAGS) is Value.FOREIGN:
                is_decided_elsewhere |= not any(
                    self._works_and_comes_back(target, written) or self._is_a_turn(target) for target in out
                )
        return is_decided_elsewhere and not reads_twice(code, list(chain.from_iterable(self._blocks)))

    def _tries(self) -> bool:
        code = self._code
        indexes = chain.from_iterable(self._blocks)
        return any(tries(code.mnemonics[index], operands_of(code.operands[index])) for index in indexes)

    def _places(self) -> int:
        """How many instructions are about memory."""
        indexes = chain.from_iterable(self._blocks)
        return sum(
            self._code.mnemonics[index] != "lea" and "[" in self._code.operands[index] for index in indexes
        )

    def _counters(self) -> set[str]:
        """The registers by which it counts its turns: it goes on from their values of the turn before."""
        code = self._code
        written: set[str] = set()
        carried: set[str] = set()
        for index in chain.from_iterable(self._blocks):
            mnemonic, operands = code.mnemonics[index], operands_of(code.operands[index])
            target = WHOLE_REGISTER.get(operands[0], "") if operands else ""
            if mnemonic in COUNTS and target and target not in written:
                carried.add(target)
            written |= written_by(mnemonic, code.operands[index]) or set()
        return carried

    def _is_a_turn(self, node: int) -> bool:
        """Whether what begins with a block comes into the loop again, which goes on to count from where it was: then it
        is what there is to do at some of the turns. Not where it tries to take a lock before it looks again."""
        pending = [(node, frozenset(self._counters()))]
        seen = set[tuple[int, frozenset[str]]]()
        while pending:
            at, counters = pending.pop()
            if not counters or (at, counters) in seen or at >= self._graph.blocks:
                continue
            if at in self._way:
                return True
            seen.add((at, counters))
            if len(seen) > _MAX_TURN:
                return False
            counters = self._counters_behind(at, counters)
            pending += [(target, counters) for target in self._graph.successors[at]]
        return False

    def _counters_behind(self, node: int, counters: frozenset[str]) -> frozenset[str]:
        """Those that still have their value behind a block, or that of the next turn.

        One that is put aside on the stack keeps it (`_KEPT`). Behind an atomic instruction none counts.
        """
        code = self._code
        out = set(counters)
        for index in range(code.index(self._graph.starts[node]), self._graph.last(node) + 1):
            mnemonic, operands = code.mnemonics[index], operands_of(code.operands[index])
            if mnemonic.startswith("lock ") or (mnemonic == "xchg" and MEMORY.search(code.operands[index])):
                return frozenset()
            if not operands or mnemonic in (*COMPARES, *COUNTS):
                continue
            if addressed(operands[0]) & set(STACK) and WHOLE_REGISTER.get(operands[-1]) in out:
                out.add(_KEPT)
            out.discard(WHOLE_REGISTER.get(operands[0], ""))
        return frozenset(out)

    def _synchronizes(self, indexes: range) -> bool:
        """Whether a block has what only code needs that shares memory with other threads."""
        code = self._code
        return any(
            code.mnemonics[index] in _ORDERS
            or is_fence(code.mnemonics[index], operands_of(code.operands[index]))
            for index in indexes
        )

    def _works_and_comes_back(self, node: int, changing: set[str]) -> bool:
        """Whether a way from a block, on which something is done, leads straight into the loop again, to look at the
        same memory: then what was decided is not whether to wait any longer, but what to do at this turn. ``changing``:
        registers that the loop writes."""
        steady = set().union(*(addressed(self._code.operands[index]) for index in chain(*self._blocks)))
        pending = [(node, 0, False)]
        while pending:
            at, blocks, works = pending.pop()
            if at in self._way:
                if works:
                    return True
            elif blocks < _MAX_WAY_BACK and at < self._graph.blocks:
                done = self._done_in(at, steady, changing)
                if done is not None:
                    pending += [(target, blocks + 1, works or done) for target in self._graph.successors[at]]
        return False

    def _done_in(self, node: int, steady: set[str], changing: set[str]) -> bool | None:
        """Whether a block does more than the loop itself may; None if it calls, stores or writes ``steady``."""
        works = False
        for index in range(self._code.index(self._graph.starts[node]), self._graph.last(node) + 1):
            mnemonic, text = self._code.mnemonics[index], self._code.operands[index]
            if mnemonic.endswith(("call", "syscall")):
                return None
            operands = operands_of(text)
            if not operands or mnemonic in IDLE or flow_of(mnemonic) is not Flow.ON:
                continue
            if mnemonic not in COMPARES and (
                MEMORY.search(operands[0]) or WHOLE_REGISTER.get(operands[0]) in steady
            ):
                return None
            works |= written_by(mnemonic, text) is None or bool(addressed(text) & changing)
        return works


def _has_frame_pointer(code: Code) -> bool:
    """Whether ``rbp`` may lead to the stack: it is made to, or a caller's is kept, as in parts that are split off."""
    saves = False
    for mnemonic, text in zip(code.mnemonics, code.operands, strict=True):
        operands = operands_of(text)
        if mnemonic == "push" and operands == ["rbp"]:
            saves = True
        elif mnemonic == "enter" or (
            mnemonic in ("mov", "lea") and operands[:1] == ["rbp"] and "rsp" in "".join(operands[1:])
        ):
            return True
    return not saves


def _step(state: _State, mnemonic: str, text: str) -> bool:
    """Bring up to date what is known; False where the loop gets on in memory, as loops do that work."""
    operands = operands_of(text)
    if is_fence(mnemonic, operands):
        state[FLAGS] = Value.OTHER
        return True
    if mnemonic in IDLE or flow_of(mnemonic) is not Flow.ON:
        return True
    if mnemonic in CLOCKS:
        state.update(dict.fromkeys(CLOCKS[mnemonic], Value.OTHER))
        return True
    target = WHOLE_REGISTER.get(operands[0], "")
    if mnemonic == "lea":
        state[target] = _address(state, operands[1])
        return True
    if any(MEMORY.search(operand) and _address(state, operand) is Value.OTHER for operand in operands):
        return False
    if tries(mnemonic, operands):
        told = told_in(mnemonic, operands)
        stored = [
            state.get(WHOLE_REGISTER.get(one, ""), Value.STEADY) for one in operands if not MEMORY.search(one)
        ]
        expected = state.get(told, Value.STEADY) if told == "rax" else Value.STEADY
        if max(*stored, expected) is not Value.STEADY:  # it hands something on, or gets on with what it read
            return False
        state[told] = Value.FOREIGN
        if mnemonic != "xchg":
            state[FLAGS] = Value.FOREIGN
        return True
    values = [_value(state, operand) for operand in operands]
    if mnemonic in COMPARES:
        state[FLAGS] = max(values)
    elif mnemonic in COPIES:
        state[target] = values[1]
    elif mnemonic.startswith(("set", "cmov")):
        state[target] = max(*values, state.get(FLAGS, Value.STEADY), Value.STEADY)
    elif mnemonic == "xor" and operands[0] == operands[1]:
        state[target] = state[FLAGS] = Value.STEADY
    else:
        state[target] = state[FLAGS] = max(values)
    return True


def _value(state: _State, operand: str) -> Value:
    """What is known of an operand."""
    if found := MEMORY.search(operand):
        # what the stack holds may have been put aside there: it decides nothing
        stack = STACK[:1] if _NO_FRAME in state else STACK
        return (
            Value.STEADY
            if any(WHOLE_REGISTER.get(word) in stack for word in words_of(found))
            else Value.FOREIGN
        )
    register = WHOLE_REGISTER.get(operand)
    return state.get(register, Value.STEADY) if register else Value.STEADY


def _address(state: _State, operand: str) -> Value:
    """What is known of the address that a memory operand names."""
    return max((state.get(name, Value.STEADY) for name in addressed(operand)), default=Value.STEADY)
