"""Branches that can go but one way, for what they test was set to a constant before.

Compilers leave such code where they do not optimize much: several ways out of a loop's body join in blocks that decide
anew where to go, by a number which each of them has set. And what looks like a loop has but two turns where the first
one sets what lets the second one leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from parprof.loops.basicblocks import FlowGraph
from parprof.loops.machinecode import Code, Flow, flow_of, target_of
from parprof.loops.registers import WHOLE_REGISTER

_WIDE = frozenset(
    name for name in WHOLE_REGISTER if name.startswith(("r", "e")) and not name.endswith(("w", "b"))
)
"""Names of registers of 32 and 64 bits: who writes to these writes all of the register."""
_NEUTRAL = ("nop", "pause", "endbr64", "lfence", "mfence", "sfence", "data16 nop")
_SEVERAL = (
    "syscall",
    "xchg",
    "xadd",
    "cmpxchg",
    "cpuid",
    "div",
    "idiv",
    "mul",
    "imul",
    "rdtsc",
    "rdtscp",
    "cdq",
    "cqo",
)
"""They write to registers that they do not name first."""
_TAKEN_IF_ZERO = {"je": True, "jz": True, "jne": False, "jnz": False}


def repeats(code: Code, graph: FlowGraph, way: Sequence[int]) -> bool:
    """Whether these blocks, one after the other and from the first again, may be the turns of a loop.

    They are not where what one turn sets to a constant takes the next one elsewhere.
    """
    constants: dict[str, int] = {}
    for turn in range(2):
        for node, following in zip(way, [*way[1:], way[0]], strict=True):
            last = graph.last(node)
            taken = _run(code, range(code.index(graph.starts[node]), last), constants, code.mnemonics[last])
            if turn and taken is not None and code.flow(last) is Flow.BRANCH:
                is_target = code.index(target_of(code.operands[last])) == code.index(graph.starts[following])
                if is_target != taken and len(set(graph.successors[node])) > 1:
                    return False
    return True


def _run(code: Code, indexes: Iterable[int], constants: dict[str, int], branch: str) -> bool | None:
    """Follow what is constant through instructions: is the branch behind them taken? None: that is not known.

    ``constants``: by whole register, those of 32 bits or more.
    """
    is_zero: bool | None = None
    for index in indexes:
        mnemonic, text = code.mnemonics[index], code.operands[index]
        operands = [part.strip() for part in text.split(",")] if text else []
        if mnemonic in ("test", "cmp") and len(operands) == 2:
            one, other = (_constant(operand, constants) for operand in operands)
            known = one is not None and other is not None
            is_zero = ((one & other if mnemonic == "test" else one - other) == 0) if known else None  # type: ignore[operator]
            continue
        if mnemonic in _NEUTRAL or flow_of(mnemonic) is not Flow.ON:
            continue
        if mnemonic.endswith("call") or mnemonic.startswith("rep") or mnemonic.rpartition(" ")[2] in _SEVERAL:
            constants.clear()
            is_zero = None
            continue
        target = WHOLE_REGISTER.get(operands[0], "") if operands else ""
        if mnemonic not in ("mov", "movabs", "lea"):
            is_zero = None
        value = _constant(operands[1], constants) if mnemonic == "mov" and len(operands) == 2 else None
        if mnemonic == "xor" and operands[0] == operands[-1]:
            value = 0
        if value is not None and operands[0] in _WIDE:
            constants[target] = value
        else:
            constants.pop(target, None)
    zero = _TAKEN_IF_ZERO.get(branch)
    return None if is_zero is None or zero is None else is_zero == zero


def _constant(operand: str, constants: dict[str, int]) -> int | None:
    if operand in _WIDE:
        return constants.get(WHOLE_REGISTER[operand])
    return int(operand, 0) if operand[:1].isdigit() and operand.isalnum() else None


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
