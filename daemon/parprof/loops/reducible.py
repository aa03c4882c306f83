"""Cycles with several entries, made into natural loops.

Compilers make such cycles of ordinary loops: they let the first iteration begin in the middle when they know
how its test ends. Others are only apparent, because a call that never returns seems to lead into the loop that
happens to lie behind it. Both times one entry is the loop's own, and the others are taken to lead there too.
"""

from __future__ import annotations

from collections.abc import Callable

from parprof.loops.flowgraph import NONE, LoopForest, Successors, natural_loops

Doubtful = Callable[[int, int], bool]
"""(source, target) -> whether that edge may not exist."""

MAX_ROUNDS = 8
"""Cycles within cycles that are looked at, as each round takes the outermost ones."""
_MAX_WORK = 60_000
"""Nodes that are looked at in all rounds together."""


def loops_of(graph: Successors, root: int, doubtful: Doubtful) -> tuple[LoopForest, int]:
    """The loops of what ``root`` reaches, and how many edges had to be bent for that.

    A cycle begins at the first of its nodes that a certain edge enters. ``LoopForest.irreducible`` has what
    remains after `MAX_ROUNDS`, or fewer in huge graphs.
    """
    edges = [list(targets) for targets in graph]
    bent = 0
    for _ in range(max(1, min(MAX_ROUNDS, _MAX_WORK // len(graph)))):
        forest = natural_loops(edges, root)
        found = _side_entries(edges, forest, doubtful) if forest.irreducible else []
        if not found:
            break
        bent += len(found)
        for source, target, begin in found:
            edges[source] = [begin if node == target else node for node in edges[source]]
    else:
        forest = natural_loops(edges, root)
    return forest, bent


def _side_entries(edges: Successors, forest: LoopForest, doubtful: Doubtful) -> list[tuple[int, int, int]]:
    """The edges by which cycles are entered elsewhere than at their beginning, and that beginning."""
    back = {
        (latch, header)
        for header, latches in zip(forest.headers, forest.latches, strict=True)
        for latch in latches
    }
    forward = [
        [target for target in targets if (node, target) not in back] for node, targets in enumerate(edges)
    ]
    component = components(forward)
    entries: dict[int, list[tuple[int, int]]] = {}
    for source, targets in enumerate(forward):
        if forest.reached[source]:
            for target in targets:
                if component[source] != component[target]:
                    entries.setdefault(component[target], []).append((source, target))
    out = []
    for number in {component[target] for _, target in forest.irreducible}:
        ways = entries.get(number, [])
        begin = min(((doubtful(*way), way[1]) for way in ways), default=(False, NONE))[1]
        out += [(*way, begin) for way in ways if way[1] != begin]
    return out


def components(graph: Successors) -> list[int]:
    """A number for each node, the same for nodes that lead to each other (Tarjan, SIAM J. Comput. 1972).

    >>> components([[1], [0, 2], []])
    [1, 1, 0]
    """
    size = len(graph)
    number, low, out = [NONE] * size, [0] * size, [NONE] * size
    path: list[int] = []
    visited = found = 0
    for root in range(size):
        pending = [(root, 0)] if number[root] == NONE else []
        while pending:
            node, position = pending.pop()
            if position == 0:
                number[node] = low[node] = visited
                visited += 1
                path.append(node)
            elif out[graph[node][position - 1]] == NONE:
                low[node] = min(low[node], low[graph[node][position - 1]])
            targets = graph[node]
            while position < len(targets) and number[targets[position]] != NONE:
                if out[targets[position]] == NONE:
                    low[node] = min(low[node], number[targets[position]])
                position += 1
            if position < len(targets):
                pending += [(node, position + 1), (targets[position], 0)]
            elif low[node] == number[node]:
                while out[node] == NONE:
                    out[path.pop()] = found
                found += 1
    return out
