"""Names for loops, by the source lines of their instructions, and their place among inlined functions.

A loop belongs to the innermost function, inlined or not, that holds all of it: the source lines of what is
inlined into its body do not count, the lines where that is called do.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from parprof.flowgraph import NONE
from parprof.loops import Loop, LoopNest

Place = tuple[tuple[str, str, int], ...]
"""(function, file, line) of the function and of what is inlined into each other there, the outermost first."""
Lookup = Callable[[Sequence[int]], Mapping[int, Place]]
"""ELF virtual addresses -> their places; line 0 and the empty file are unknown."""
Context = tuple[tuple[str, int], ...]
"""A function and functions inlined into each other, the outermost first, each with the line that calls it."""

MAX_LOOKUPS = 2048
"""Instructions of one function that are looked up, besides those where its loops begin and end."""
_MOSTLY = 0.9
"""Share of its instructions that an inlined function must have for a loop to be in it: compilers move some
of the caller's into such a loop."""


@dataclass(frozen=True, slots=True)
class LoopName:
    """What a loop is called. ``file`` is empty and the lines are 0 where they are unknown."""

    name: str
    context: Context
    file: str = ""
    first: int = 0
    last: int = 0


def context_of(place: Place) -> Context:
    """The functions that a place is in.

    >>> context_of((("main", "a.c", 9), ("twice", "a.c", 2)))
    (('main', 0), ('twice', 9))
    """
    calls = (0, *(line for _, _, line in place))
    return tuple((function, line) for (function, _, _), line in zip(place, calls, strict=False))


def name_loops(nest: LoopNest, lookup: Lookup) -> list[LoopName]:
    """The names of the loops of a function, in their order."""
    if not nest.loops:
        return []
    wanted = set(nest.addresses[:: -(-len(nest.addresses) // MAX_LOOKUPS)])
    for loop in nest.loops:
        wanted.update((loop.header, *loop.branches))
    found = {address: place for address, place in lookup(sorted(wanted)).items() if place}
    innermost = dict(nest.instructions())
    own: list[Counter[Place]] = [Counter() for _ in range(len(nest.loops) + 1)]
    """How many instructions have which place, by innermost loop; the last is for those in none."""
    for address, place in found.items():
        if place[-1][2]:
            own[innermost.get(address, NONE)][place] += 1
    whole = [Counter(counts) for counts in own]
    for loop in reversed(nest.loops):
        if loop.parent != NONE:
            whole[loop.parent].update(whole[loop.index])
    out = []
    for loop in nest.loops:
        around = [own[NONE], *(own[outer.index] for outer in nest.around(loop.parent))]
        out.append(_name(loop, whole[loop.index], around, found))
    return out


def _name(
    loop: Loop, body: Counter[Place], around: Iterable[Counter[Place]], found: Mapping[int, Place]
) -> LoopName:
    branches = [found[address] for address in loop.branches if address in found]
    control = [*branches, found[loop.header]] if loop.header in found else branches
    context = _context(body, control)

    def lines(places: Iterable[Place]) -> Counter[tuple[str, int]]:
        """File and line, in the function that the loop belongs to, of places in it."""
        at = len(context) - 1
        inside = (place[at][1:] for place in places if context_of(place)[: at + 1] == context)
        return Counter(where for where in inside if where[1])

    files = Counter(file for file, _ in lines(body.elements()).elements())
    if not context or not files:
        return LoopName(f"loop at {loop.header:#x}", context)
    file = files.most_common(1)[0][0]
    numbers = _without_strays(
        {line for name, line in lines(body) if name == file},
        min((line for name, line in lines(branches) if name == file), default=0),
        {line for places in around for name, line in lines(places) if name == file},
    )
    first, last = min(numbers), max(numbers)
    where = f"{os.path.basename(file)}:{first}"
    name = f"loop at {where}" if first == last else f"loop at {where}-{last}"
    return LoopName(name, context, file, first, last)


def _context(body: Counter[Place], control: Sequence[Place]) -> Context:
    """The functions that a loop is in: where it begins and ends, and most of its instructions."""
    contexts = {context_of(place) for place in control} or {context_of(place) for place in body}
    if not contexts:
        return ()
    context = os.path.commonprefix([list(one) for one in contexts])
    total = sum(body.values())
    while len(context) > 1:
        inside = sum(n for place, n in body.items() if context_of(place)[: len(context)] == tuple(context))
        if inside >= _MOSTLY * total:
            break
        context = context[:-1]
    return tuple(context or min(contexts)[:1])


def _without_strays(body: set[int], branch: int, around: set[int]) -> set[int]:
    """The lines of a loop without those above it that compilers moved into it.

    ``branch`` is the first line that goes back to its beginning, ``around`` are the lines of the code around
    it. Where that line is at the end, as in ``do while``, nothing tells strays apart.
    """
    if sum(line > branch for line in body) <= sum(line < branch for line in body):
        return body
    return {line for line in body if line >= branch or line not in around}
