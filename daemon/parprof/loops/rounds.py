"""Loops in which a thread looks at several places, one after the other, until all of them are as it wants them: a main
thread that has handed out work, say, and looks at what each helper has left.

Each round of such a loop is the same as the one before unless other threads write, so that who comes to a second one
waits: nothing is stored or called in it, and no register carries anything from one round into the next, but for what
is read at a place that stays the same (how many places there are). A loop within it goes through the places. There it
counts, and may add up what it finds, but nobody is to be told the sum: it decides whether there is another round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parprof.loops.basicblocks import FlowGraph
from parprof.loops.instructions import (
    CHANGES,
    COMPARES,
    COPIES,
    COUNTS,
    FLAGS,
    STACK,
    addressed,
    operands_of,
    reads_twice,
    tries,
    written_by,
)
from parprof.loops.machinecode import Code, Flow
from parprof.loops.registers import WHOLE_REGISTER

MAX_BLOCKS = 12
MAX_INSTRUCTIONS = 48
_IF_EQUAL = ("je", "jz")
_UNLESS_EQUAL = ("jne", "jnz")


def rounds(code: Code, graph: FlowGraph, ways: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """The blocks of each such loop. ``ways``: the successors of each block, as far as code really goes there."""
    for first in range(graph.blocks):
        last = max((node for node in range(first, graph.blocks) if first in ways[node]), default=first)
        if first < last < first + MAX_BLOCKS:
            body = _between(ways, first, last)
            if len(body) > 1 and _Rounds(code, graph, ways, body).wait():
                yield body


def _between(ways: Sequence[Sequence[int]], first: int, last: int) -> list[int]:
    """The blocks on ways from one to another that leave neither aside."""
    inside = range(first, last + 1)
    after = _reached({first}, {node: [one for one in ways[node] if first < one <= last] for node in inside})
    sources: dict[int, list[int]] = {node: [] for node in inside}
    for node in after:
        for target in ways[node]:
            if target in after and target != first:
                sources[target].append(node)
    latches = {node for node in after if first in ways[node]}
    return sorted(_reached(latches, sources))


def _reached(begin: set[int], edges: dict[int, list[int]]) -> set[int]:
    found, pending = set(begin), list(begin)
    while pending:
        for target in edges[pending.pop()]:
            if target not in found:
                found.add(target)
                pending.append(target)
    return found


class _Rounds:
    """The blocks of a loop, the first of which begins each round."""

    def __init__(self, code: Code, graph: FlowGraph, ways: Sequence[Sequence[int]], body: list[int]) -> None:
        self._code = code
        self._graph = graph
        self._body = body
        self._ways = {node: [target for target in ways[node] if target in body] for node in body}
        self._indexes = {node: range(code.index(graph.starts[node]), graph.last(node) + 1) for node in body}
        self._all = [index for node in body for index in self._indexes[node]]

    def wait(self) -> bool:
        """Whether it only waits."""
        if len(self._all) > MAX_INSTRUCTIONS or not self._only_looks():
            return False
        inner = self._inner()
        if inner is None or reads_twice(self._code, self._all):
            return False
        written = self._written(self._body)
        if not all(self._is_anew(one, self._body, written) for one in self._carried(self._body) & written):
            return False
        counters, sums = set[str](), set[str]()
        for loop in inner:
            for register in self._carried(loop) & self._written(loop):
                if self._counts(register, loop):
                    counters.add(register)
                elif not self._is_anew(register, loop, written):
                    sums.add(register)
        return any(self._looks_along(counters, loop) for loop in inner) and self._ends_well(
            inner, counters, sums
        )

    def _only_looks(self) -> bool:
        """Whether no instruction of it stores, calls or tries to take a lock."""
        code = self._code
        return all(
            written_by(code.mnemonics[index], code.operands[index]) is not None
            and not tries(code.mnemonics[index], operands_of(code.operands[index]))
            for index in self._all
        )

    def _inner(self) -> list[list[int]] | None:
        """The loops in it; None if there are none, or one has others in it."""
        first, last = self._body[0], self._body[-1]
        ways = [self._ways.get(node, []) for node in range(last + 1)]
        found = [
            _between(ways, target, node)
            for node in self._body
            for target in self._ways[node]
            if first <= target <= node and (target, node) != (first, last)
        ]
        is_nested = any(set(one) & set(other) for one in found for other in found if one is not other)
        return None if not found or is_nested else found

    def _written(self, blocks: Sequence[int]) -> set[str]:
        code = self._code
        indexes = (index for node in blocks for index in self._indexes[node])
        return set().union(*(written_by(code.mnemonics[at], code.operands[at]) or set() for at in indexes))

    def _carried(self, blocks: Sequence[int]) -> set[str]:
        """What a turn of a loop reads before it writes it: values from before, or of the turn before."""
        first = blocks[0]
        needs: dict[int, set[str]] = {node: set() for node in blocks}
        is_changed = True
        while is_changed:
            is_changed = False
            for node in reversed(blocks):
                after = (needs[target] for target in self._ways[node] if target in needs and target != first)
                wanted = set().union(*after)
                for index in reversed(self._indexes[node]):
                    mnemonic, text = self._code.mnemonics[index], self._code.operands[index]
                    if not mnemonic.startswith("cmov"):
                        wanted -= written_by(mnemonic, text) or set()
                    wanted |= _read_by(mnemonic, text, is_branch=self._code.flow(index) is Flow.BRANCH)
                is_changed |= wanted != needs[node]
                needs[node] = wanted
        return needs[first]

    def _writers(self, register: str, blocks: Sequence[int]) -> list[tuple[str, list[str]]]:
        """The instructions that write to a register."""
        code = self._code
        indexes = (index for node in blocks for index in self._indexes[node])
        return [
            (code.mnemonics[at], operands_of(code.operands[at]))
            for at in indexes
            if register in (written_by(code.mnemonics[at], code.operands[at]) or set())
        ]

    def _is_anew(self, register: str, loop: Sequence[int], written: set[str]) -> bool:
        """Whether it has, as a turn of a loop ends, what it had when the turn began, or what was read at a place that
        stays the same. ``written``: registers, in the rounds."""
        pending, seen = [loop[-1]], set[int]()
        while pending:
            node = pending.pop()
            seen.add(node)
            last = next(reversed(self._writers(register, [node])), None)
            if last is None and node != loop[0]:
                pending += [one for one in loop if node in self._ways[one] and one not in seen]
            elif last is not None and not _is_steady(*last, written):
                return False
        return True

    def _counts(self, register: str, loop: Sequence[int]) -> bool:
        """Whether a loop goes on from its value by the same step each time."""
        written = self._written(loop)
        return register != FLAGS and all(
            (mnemonic in COUNTS and not _names(operands[1:]) & written)
            or (mnemonic == "lea" and addressed(operands[1]) == {register})
            for mnemonic, operands in self._writers(register, loop)
        )

    def _looks_along(self, counters: set[str], loop: Sequence[int]) -> bool:
        """Whether it reads memory where its counters lead."""
        code = self._code
        indexes = [index for node in loop for index in self._indexes[node]]
        lead = set(counters)
        for at in indexes:
            mnemonic, text = code.mnemonics[at], code.operands[at]
            if addressed(text) & lead and mnemonic != "lea":
                return True
            if (mnemonic == "lea" and addressed(text) & lead) or _read_by(
                mnemonic, text, is_branch=False
            ) & lead:
                lead |= (written_by(mnemonic, text) or set()) - {FLAGS}
        return False

    def _ends_well(self, inner: Sequence[Sequence[int]], counters: set[str], sums: set[str]) -> bool:
        """Whether inner loops end by their counters alone where that ends all: else they search. And whether what they
        have added up is nothing where they are done, or decides no more than that."""
        within = {node for loop in inner for node in loop}
        tested = set[str]()
        for node in self._body:
            out = [target for target in self._graph.successors[node] if target not in self._ways]
            if not out:
                continue
            compared, is_equal = self._compared(node, out)
            if node in within and not compared & counters:
                return False
            if is_equal or not self._adds(compared & sums):
                tested |= compared
        return sums <= tested

    def _adds(self, registers: set[str]) -> bool:
        """Whether something is added up in one of these, so that its value tells how much."""
        return any(
            mnemonic in CHANGES and mnemonic not in ("and", "or", "xor")
            for register in registers
            for mnemonic, _ in self._writers(register, self._body)
        )

    def _compared(self, node: int, out: Sequence[int]) -> tuple[set[str], bool]:
        """The registers by which a block decides whether to leave, and whether it does so where they are equal to
        something that is known."""
        code, last = self._code, self._indexes[node][-1]
        is_target = any(
            code.target(last) == self._graph.starts[one] for one in out if one < self._graph.blocks
        )
        is_equal = code.mnemonics[last] in (_IF_EQUAL if is_target else _UNLESS_EQUAL)
        for index in reversed(self._indexes[node][:-1]):
            if FLAGS in (written_by(code.mnemonics[index], code.operands[index]) or set()):
                operands = operands_of(code.operands[index])
                found = {WHOLE_REGISTER.get(one, "") for one in operands} - {""}
                return found, is_equal and (code.mnemonics[index] in COMPARES or not operands[1:])
        return set(), False


def _is_steady(mnemonic: str, operands: Sequence[str], written: set[str]) -> bool:
    """Whether an instruction gives its register the same at each turn, but for what others write to memory."""
    if mnemonic == "xor":
        return operands[0] == operands[1]
    return mnemonic in COPIES and not _names(operands[1:]) & (written | set(STACK))


def _read_by(mnemonic: str, text: str, *, is_branch: bool) -> set[str]:
    """The registers (and ``flags``) that an instruction reads."""
    operands = operands_of(text)
    found = set().union(*map(addressed, operands))
    if is_branch or mnemonic.startswith(("set", "cmov")):
        found.add(FLAGS)
    if mnemonic == "xor" and operands[0] == operands[1]:
        return found
    sources = operands if mnemonic in (*COMPARES, *CHANGES) or mnemonic.startswith("cmov") else operands[1:]
    if mnemonic == "lea":
        sources = []
    return found | _names(sources)


def _names(operands: Sequence[str]) -> set[str]:
    """The registers that operands are, or are found by."""
    return set().union(
        *map(addressed, operands), {WHOLE_REGISTER[one] for one in operands if one in WHOLE_REGISTER}
    )
