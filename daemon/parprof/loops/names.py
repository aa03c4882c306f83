"""Names for loops, by the source lines of their instructions, and their place among inlined functions.

A loop belongs to the innermost function, inlined or not, that holds all of it: the source lines of what is
inlined into its body do not count, the lines where that is called do.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from parprof.loops.flowgraph import NONE
from parprof.loops.nest import Loop, LoopNest
from parprof.values import dataclass

LoopPlace = tuple[tuple[str, str, int], ...]
"""(function, file, line) of the function and of what is inlined into each other there, the outermost first."""
Lookup = Callable[[Sequence[int]], Mapping[int, LoopPlace]]
"""ELF virtual addresses -> their places; line 0 and the empty file are unknown."""
LoopContext = tuple[tuple[str, int], ...]
"""A function and functions inlined into each other, the outermost first, each with the line that calls it."""

MAX_INSIDE, MAX_OUTSIDE = 1024, 256
"""Instructions of one function, in its loops and outside of them, whose places are looked up, besides those
where loops begin and end."""
_MAX_BRANCHES, _MAX_WANTED = 64, 4096
"""Branches back to the beginning of one loop, and addresses of one function, that are looked up."""
_MOSTLY = 0.9
"""Share of its instructions that an inlined function must have for a loop to be in it: compilers move some
of the caller's into such a loop. Lines above the loop are told from its own the same way: by the branch back
to its beginning, which is on the line of its ``for`` or ``while``, and by being outside of it, too."""


@dataclass(frozen=True, slots=True)
class LoopName:
    """What a loop is called. ``file`` is empty and the lines are 0 where they are unknown."""

    name: str
    context: LoopContext
    file: str = ""
    first: int = 0
    last: int = 0


def context_of(place: LoopPlace) -> LoopContext:
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
    innermost = dict(nest.instructions())
    outside = [address for address in nest.addresses if address not in innermost]
    wanted = {*_some(list(innermost), MAX_INSIDE), *_some(outside, MAX_OUTSIDE)}
    for loop in nest.loops:
        if len(wanted) < _MAX_WANTED:
            wanted.update((loop.header, *loop.branches[:_MAX_BRANCHES]))
    found = {address: place for address, place in lookup(sorted(wanted)).items() if place}
    return _Namer(nest, found, innermost).names()


def _some(addresses: list[int], limit: int) -> list[int]:
    return addresses[:: -(-len(addresses) // limit) or 1]


class _Namer:
    """Names the loops of one function by the places of its instructions."""

    def __init__(self, nest: LoopNest, found: Mapping[int, LoopPlace], innermost: Mapping[int, int]) -> None:
        self._nest = nest
        self._found = found
        self._contexts = {place: context_of(place) for place in set(found.values())}
        self._own: list[Counter[LoopPlace]] = [Counter() for _ in range(len(nest.loops) + 1)]
        """How many instructions have which place, by innermost loop; the last is for those in none."""
        for address, place in found.items():
            if place[-1][2]:
                self._own[innermost.get(address, NONE)][place] += 1
        self._whole = [Counter(counts) for counts in self._own]
        for loop in reversed(nest.loops):
            if loop.parent != NONE:
                self._whole[loop.parent].update(self._whole[loop.index])

    def names(self) -> list[LoopName]:
        """The names of all loops."""
        return [self._name(loop) for loop in self._nest.loops]

    def _name(self, loop: Loop) -> LoopName:
        branches = [self._found[address] for address in loop.branches if address in self._found]
        context = self._context(loop, branches)
        lines = self._lines(self._whole[loop.index], context)
        if not lines:
            return LoopName(f"loop at {loop.header:#x}", context)
        files: Counter[str] = Counter()
        for (name, _), count in lines.items():
            files[name] += count
        file = files.most_common(1)[0][0]
        body = {line for name, line in lines if name == file}
        branch = min(
            (line for name, line in self._lines(Counter(branches), context) if name == file), default=0
        )
        above = {line for line in body if line < branch}
        if above and sum(line > branch for line in body) > len(above):
            body -= above & self._around(loop, context, file)
        first, last = min(body), max(body)
        where = f"{os.path.basename(file)}:{first}"
        name = f"loop at {where}" if first == last else f"loop at {where}-{last}"
        return LoopName(name, context, file, first, last)

    def _context(self, loop: Loop, branches: list[LoopPlace]) -> LoopContext:
        """The functions that a loop is in: where it begins and ends, and most of its instructions."""
        body = self._whole[loop.index]
        control = [*branches, self._found[loop.header]] if loop.header in self._found else branches
        contexts = [self._contexts[place] for place in control or body]
        if not contexts:
            return ()
        context = _common(contexts)
        enough = _MOSTLY * sum(body.values())
        while len(context) > 1:
            size = len(context)
            if sum(n for place, n in body.items() if self._contexts[place][:size] == context) >= enough:
                break
            context = context[:-1]
        return context or contexts[0][:1]

    def _lines(self, places: Counter[LoopPlace], context: LoopContext) -> Counter[tuple[str, int]]:
        """Of the places in a context, the files and lines in the function that is innermost in the context."""
        out: Counter[tuple[str, int]] = Counter()
        size = len(context)
        for place, count in places.items():
            if self._contexts[place][:size] == context and size and place[size - 1][2]:
                out[place[size - 1][1:]] += count
        return out

    def _around(self, loop: Loop, context: LoopContext, file: str) -> set[int]:
        """The lines of the code around a loop that is in no loop but those that it is in itself."""
        out: set[int] = set()
        for index in (NONE, *(outer.index for outer in self._nest.around(loop.parent))):
            out.update(line for name, line in self._lines(self._own[index], context) if name == file)
        return out


def _common(contexts: Sequence[LoopContext]) -> LoopContext:
    """What all of these begin with."""
    low, high = min(contexts), max(contexts)
    size = next(
        (i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high))
    )
    return low[:size]
