"""The loops of a function, recovered from its machine code as hpcstruct does (tallent-2009 sec. 4).

Calls are taken to return where it is not sure that they do not. The part of a function that the compiler moved
away (``.cold``) is another function here. Code that is entered in ways not to be seen, such as exception
handlers, is looked at by itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import field

from parprof.files.elf import ElfFile
from parprof.loops.basicblocks import FlowGraph
from parprof.loops.flowgraph import NONE, LoopForest
from parprof.loops.machinecode import Code, CodeError, Flow, read_code
from parprof.loops.noreturn import ReturningCalls
from parprof.loops.reducible import loops_of
from parprof.values import dataclass

MAX_LOOPS = 1024
"""A function with more loops has none for us."""
MAX_DEPTH = 64
"""Loops that are nested deeper are left out."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A natural loop. Addresses are ELF virtual addresses.

    ``header`` is where it begins, ``branches`` are the instructions that go back there; ``depth`` is 0 for
    a loop that is in no other one.
    """

    index: int
    header: int
    branches: tuple[int, ...]
    parent: int
    """Index of the loop around it, -1 if there is none."""
    depth: int


@dataclass(slots=True)
class LoopNest:
    """The loops of one function, those around others first. ``notes`` say what could not be found out."""

    loops: list[Loop] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)
    """Of all instructions."""
    starts: list[int] = field(default_factory=list)
    """Of the basic blocks."""
    innermost: list[int] = field(default_factory=list)
    """By block: the index of its innermost loop, -1 = none."""
    end: int = 0

    def chain(self, vaddr: int) -> tuple[Loop, ...]:
        """The loops around an instruction, the outermost first; none for addresses elsewhere."""
        block = bisect_right(self.starts, vaddr) - 1
        return self.around(self.innermost[block] if block >= 0 and vaddr < self.end else NONE)

    def around(self, loop: int) -> tuple[Loop, ...]:
        """A loop and those around it, the outermost first; none for -1."""
        out = []
        while loop != NONE:
            out.append(self.loops[loop])
            loop = self.loops[loop].parent
        return tuple(reversed(out))

    def instructions(self) -> Iterator[tuple[int, int]]:
        """(address, index of the innermost loop) of every instruction that is in a loop."""
        ends = [*self.starts[1:], self.end]
        block = 0
        for address in self.addresses:
            while ends[block] <= address:
                block += 1
            if self.innermost[block] != NONE:
                yield address, self.innermost[block]


def find_loops(elf: ElfFile, vaddr: int, size: int, calls: ReturningCalls | None = None) -> LoopNest:
    """The loops of the function of ``size`` bytes at ``vaddr``. Where they cannot be found, a note says why.

    ``calls`` is what is already known of the file's calls.

    Raises:
        ElfError: the file cannot be read.
    """
    try:
        code = read_code(elf, vaddr, size)
        if not _goes_back(code):
            return LoopNest()
        code.last_calls.update((calls or ReturningCalls(elf)).without_return(code))
    except CodeError as error:
        return LoopNest(notes=[str(error)])
    graph = FlowGraph(elf, code)
    nest = LoopNest([], [], code.addresses, graph.starts, [NONE] * graph.blocks, code.end)
    parts = [loops_of(graph.successors, 0, graph.may_not_return)]
    reached = parts[0][0].reached
    if not all(reached):
        hidden = [[node for node in targets if not reached[node]] for targets in graph.successors]
        parts.append(loops_of([*hidden, graph.entries(reached)], len(hidden), graph.may_not_return))
    if (count := sum(len(found.headers) for found, _ in parts)) > MAX_LOOPS:
        return LoopNest(notes=[f"it has {count:,} loops; at most {MAX_LOOPS:,} are looked at"])
    for found, _ in parts:
        _add(nest, graph, found)
    if bent := sum(bent for _, bent in parts):
        nest.notes.append(f"{bent} ways into the middle of loops are taken to lead to their beginning")
    if graph.unresolved:
        nest.notes.append(f"{graph.unresolved} jump tables could not be read")
    return nest


def _goes_back(code: Code) -> bool:
    """Whether any jump may go to an instruction at or before itself."""
    for index, address in enumerate(code.addresses):
        if code.flow(index) in (Flow.BRANCH, Flow.JUMP) and code.target(index) <= address:
            return True
    return False


def _add(nest: LoopNest, graph: FlowGraph, found: LoopForest) -> None:
    """Add the loops of a part of a function."""
    if found.irreducible:
        nest.notes.append(f"{len(found.irreducible)} cycles with several entries are no loops here")
    numbers: list[int] = []
    """Index of each loop here; of one that is left out: that of the loop around it."""
    for header, parent, latches in zip(found.headers, found.parents, found.latches, strict=True):
        around = numbers[parent] if parent != NONE else NONE
        depth = nest.loops[around].depth + 1 if around != NONE else 0
        if depth >= MAX_DEPTH:
            numbers.append(around)
            continue
        branches = tuple(sorted({address for node in latches for address in graph.branches(node)}))
        start = graph.starts[header] if header < graph.blocks else branches[0]
        numbers.append(len(nest.loops))
        nest.loops.append(Loop(len(nest.loops), start, branches, around, depth))
    for block, loop in enumerate(found.innermost[: graph.blocks]):
        if loop != NONE:
            nest.innermost[block] = numbers[loop]
