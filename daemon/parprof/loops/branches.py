"""Branches that can go but one way, for what they test was set to a constant just before.

Compilers leave such code where they do not optimize much: several ways out of a loop's body join in blocks that decide
anew where to go, by a number which each of them has set.
"""

from __future__ import annotations

from parprof.loops.basicblocks import FlowGraph
from parprof.loops.machinecode import Code, Flow, target_of
from parprof.loops.registers import WHOLE_REGISTER

_TAKEN_IF_ZERO = {"je": True, "jz": True, "jne": False, "jnz": False}


def possible_ways(code: Code, graph: FlowGraph) -> list[list[int]]:
    """The successors of each node, less those that a branch at its end never leads to."""
    return [
        _possible(code, graph, node) if node < graph.blocks else list(graph.successors[node])
        for node in range(len(graph.successors))
    ]


def _possible(code: Code, graph: FlowGraph, node: int) -> list[int]:
    targets = list(graph.successors[node])
    last = graph.last(node)
    taken_if_zero = _TAKEN_IF_ZERO.get(code.mnemonics[last])
    first = code.index(graph.starts[node])
    if code.flow(last) is not Flow.BRANCH or taken_if_zero is None or len(targets) != 2 or last == first:
        return targets
    value = _tested(code, first, last - 1)
    if value is None:
        return targets
    is_taken = (value == 0) == taken_if_zero
    target = code.index(target_of(code.operands[last]))
    return [one for one in targets if (code.index(graph.starts[one]) == target) == is_taken]


def _tested(code: Code, first: int, at: int) -> int | None:
    """The constant that the instruction ``at`` compares with zero; None if it does something else."""
    operands = [part.strip() for part in code.operands[at].split(",")]
    if code.mnemonics[at] != "test" or len(operands) != 2 or operands[0] != operands[1]:
        return None
    register = operands[0]
    for index in range(at - 1, first - 1, -1):
        mnemonic = code.mnemonics[index]
        target, _, rest = code.operands[index].partition(", ")
        if mnemonic not in ("mov", "xor", "lea", "nop"):
            return None
        if WHOLE_REGISTER.get(target) != WHOLE_REGISTER.get(register):
            continue
        if mnemonic == "xor" and rest == target:
            return 0
        is_same = target == register and mnemonic == "mov" and rest.isalnum() and rest[:1].isdigit()
        return int(rest, 0) if is_same else None
    return None
