"""Dominators and natural loops of a directed graph. Nodes are numbers from 0, edges lists of successors.

Nothing here recurses, and everything takes O(edges * log nodes) time, whatever the graph: graphs come from
code that we do not trust. So dominators are found as by Lengauer and Tarjan (TOPLAS 1979), not by iteration,
which is quadratic for a function with thousands of jumps to one exit.
"""

from __future__ import annotations

from collections.abc import Sequence

from parprof.values import dataclass

Successors = Sequence[Sequence[int]]
"""Successors of each node."""

NONE = -1


@dataclass(frozen=True, slots=True)
class LoopForest:
    """The natural loops of a graph, one for each header; an enclosing loop comes before those in it.

    ``innermost`` is by node, the others are by loop. `NONE` stands for no loop.
    """

    headers: list[int]
    parents: list[int]
    latches: list[list[int]]
    """Sources of the edges back to the header."""
    innermost: list[int]
    irreducible: list[tuple[int, int]]
    """Edges that close a cycle which is no natural loop, because it has several entries."""
    reached: list[bool]
    """By node: whether the root leads there."""


class DepthFirst:
    """Depth-first numbering of what a root reaches."""

    def __init__(self, graph: Successors, root: int) -> None:
        self.order: list[int] = []
        self.number = [NONE] * len(graph)
        self.parent = [NONE] * len(graph)
        self.last = [NONE] * len(graph)
        """Highest number of the nodes below a node in the tree, itself included."""
        pending = [(root, NONE)]
        while pending:
            node, parent = pending.pop()
            if node < 0:
                self.last[~node] = len(self.order) - 1
                continue
            if self.number[node] != NONE:
                continue
            self.number[node] = len(self.order)
            self.parent[node] = parent
            self.order.append(node)
            pending.append((~node, NONE))
            pending.extend((target, node) for target in reversed(graph[node]) if self.number[target] == NONE)

    def is_ancestor(self, above: int, below: int) -> bool:
        """Whether the tree's way from the root to ``below`` passes ``above``."""
        return self.number[above] <= self.number[below] <= self.last[above]


def predecessors_in(graph: Successors, walk: DepthFirst) -> list[list[int]]:
    """Predecessors that are reached, of each node."""
    out: list[list[int]] = [[] for _ in graph]
    for node in walk.order:
        for target in graph[node]:
            out[target].append(node)
    return out


def dominators(walk: DepthFirst, predecessors: list[list[int]]) -> list[int]:
    """The immediate dominator of each node; `NONE` for the root and for what it does not reach.

    >>> walk = DepthFirst([[1, 2], [3], [3], []], 0)
    >>> dominators(walk, predecessors_in([[1, 2], [3], [3], []], walk))
    [-1, 0, 0, 0]
    """
    size = len(predecessors)
    number, parent, order = walk.number, walk.parent, walk.order
    semi = list(number)
    best = list(range(size))
    ancestor = [NONE] * size
    buckets: list[list[int]] = [[] for _ in predecessors]
    idom = [NONE] * size

    def least(node: int) -> int:
        """The node of least semidominator on the way up to the root of the linked part; shortens that way."""
        way = []
        at = node
        while ancestor[at] != NONE and ancestor[ancestor[at]] != NONE:
            way.append(at)
            at = ancestor[at]
        for at in reversed(way):
            above = ancestor[at]
            if semi[best[above]] < semi[best[at]]:
                best[at] = best[above]
            ancestor[at] = ancestor[above]
        return best[node]

    for node in reversed(order[1:]):
        semi[node] = min(semi[least(source)] for source in predecessors[node])
        buckets[order[semi[node]]].append(node)
        ancestor[node] = parent[node]
        for below in buckets[parent[node]]:
            found = least(below)
            idom[below] = found if semi[found] < semi[below] else parent[node]
        buckets[parent[node]].clear()
    for node in order[1:]:
        if idom[node] != order[semi[node]]:
            idom[node] = idom[idom[node]]
    return idom


def natural_loops(graph: Successors, root: int) -> LoopForest:
    """The natural loops of what ``root`` reaches; loops with the same header are one.

    An edge to a node that dominates its source closes a loop: that node, and all from where the source is
    reached without passing it. Loops of different headers are apart or one within the other.
    """
    walk = DepthFirst(graph, root)
    predecessors = predecessors_in(graph, walk)
    tree: list[list[int]] = [[] for _ in graph]
    for node, above in enumerate(dominators(walk, predecessors)):
        if above != NONE:
            tree[above].append(node)
    dominance = DepthFirst(tree, root)
    latches: dict[int, list[int]] = {}
    irreducible = []
    for node in walk.order:
        for target in graph[node]:
            if dominance.is_ancestor(target, node):
                latches.setdefault(target, []).append(node)
            elif walk.is_ancestor(target, node):
                irreducible.append((node, target))
    headers = sorted(latches, key=walk.number.__getitem__)
    parents, innermost = _nest(headers, latches, predecessors)
    return LoopForest(
        headers,
        parents,
        [sorted(set(latches[header])) for header in headers],
        innermost,
        irreducible,
        [number != NONE for number in walk.number],
    )


def _nest(
    headers: list[int], latches: dict[int, list[int]], predecessors: list[list[int]]
) -> tuple[list[int], list[int]]:
    """The parent of each loop, and the innermost loop of each node.

    From the inside out: a loop that is done shrinks to its header, so that each node is visited once.
    """
    parents = [NONE] * len(headers)
    innermost = [NONE] * len(predecessors)
    own = {header: loop for loop, header in enumerate(headers)}
    shrunk = list(range(len(predecessors)))

    def find(node: int) -> int:
        while shrunk[node] != node:
            shrunk[node] = shrunk[shrunk[node]]
            node = shrunk[node]
        return node

    for loop in reversed(range(len(headers))):
        header = headers[loop]
        pending = list(latches[header])
        while pending:
            node = find(pending.pop())
            if node == header:
                continue
            shrunk[node] = header
            inner = own.get(node, NONE)
            if inner == NONE:
                innermost[node] = loop
            else:
                parents[inner] = loop
            pending.extend(predecessors[node])
        innermost[header] = loop
    return parents, innermost
