"""Bounds the number of call paths: the coldest calls become `[folded]` in their callers, totals stay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace

from parprof.attribution.concurrency import plus
from parprof.metrics import Metrics
from parprof.model import Frame, Origin, Path, PathSample
from parprof.values import dataclass

FOLDED = Frame("[folded]")
"""Stands, as a callee, for all the calls that were folded into their caller."""

_Key = tuple[int, ...]
_Identity = tuple[_Key, _Key, Origin]


def fold_cold(samples: Iterable[PathSample], limit: int) -> tuple[list[PathSample], int]:
    """Fold until at most ``limit`` distinct call paths are left; also how many were folded.

    What goes first is what costs least (effort + spin) with all that it calls. So what the callers that are
    left are charged with, their callees included, does not change, nor does any total. A call path is folded
    only where that saves one: not into a `[folded]` for itself alone. Of what is folded, labels stay and
    physical call paths do not. Samples without any call path stay as they are: with those and a limit of 1,
    two call paths are left.

    Raises:
        ValueError: the limit is below 1.
    """
    if limit < 1:
        raise ValueError("the limit must be at least 1")
    rows = list(samples)
    if len(rows) <= limit:
        return rows, 0
    numbers = _Numbers()
    keys = [numbers.of(row.path) for row in rows]
    paths = dict.fromkeys(keys)
    if len(paths) <= limit:
        return rows, 0
    tree = _Tree(numbers.folded)
    for key, row in zip(keys, rows, strict=True):
        tree.insert(key, row.metrics)
    tree.fold(len(paths) - limit)
    depths = {key: tree.depth_left(key) for key in paths}
    merged: dict[_Identity, PathSample] = {}
    for key, row in zip(keys, rows, strict=True):
        depth = depths[key]
        if depth == len(key):
            path, physical, new = row.path, row.physical, key
        else:
            path, physical, new = (*row.path[:depth], FOLDED), (), (*key[:depth], numbers.folded)
        identity = new, numbers.of(physical), row.origin
        known = merged.get(identity)
        if known is None:
            known = merged[identity] = replace(
                row, path=path, metrics=Metrics(), physical=physical, levels=()
            )
        known.metrics.add(row.metrics)
        known.levels = plus(known.levels, row.levels)
    folded = sum(depth < len(key) and key[depth:] != (numbers.folded,) for key, depth in depths.items())
    return list(merged.values()), folded


class _Numbers:
    """Frames by number: equal ones have the same, and each object is hashed once."""

    def __init__(self) -> None:
        self._by_id: dict[int, int] = {}
        self._by_value: dict[Frame, int] = {}
        (self.folded,) = self.of((FOLDED,))

    def of(self, path: Path) -> _Key:
        """The numbers of a path, whose frames must outlive this object."""
        out = []
        for frame in path:
            number = self._by_id.get(id(frame))
            if number is None:
                number = self._by_value.setdefault(frame, len(self._by_value))
                self._by_id[id(frame)] = number
            out.append(number)
        return tuple(out)


@dataclass(slots=True, eq=False)
class _Node:
    parent: _Node | None
    depth: int
    children: dict[int, _Node] = field(default_factory=dict)
    weight: float = 0.0
    samples: int = 0
    is_end: bool = False
    """Whether a call path ends here."""
    paths: int = 0
    """Call paths that will be left of those that end in the children which were looked at."""
    lone: _Node | None = None
    """A child whose one path would be folded if that saved anything."""
    has_folded: bool = False
    gone: bool = False
    """Folded into the caller."""


class _Tree:
    """Call paths by their frames, lines included, with what they and their callees cost."""

    def __init__(self, folded: int) -> None:
        self._root = _Node(None, 0)
        self._folded = folded

    def insert(self, key: _Key, metrics: Metrics) -> None:
        """Charge a call path."""
        node = self._root
        for number in key:
            child = node.children.get(number)
            if child is None:
                child = node.children[number] = _Node(node, node.depth + 1)
            node = child
        node.is_end = True
        node.weight += metrics.effort_ns + metrics.spin_ns
        node.samples += metrics.samples

    def depth_left(self, key: _Key) -> int:
        """How many frames of a path are left; all of them, or the rest is folded."""
        node = self._root
        for depth, number in enumerate(key):
            node = node.children[number]
            if node.gone:
                return depth
        return len(key)

    def fold(self, excess: int) -> None:
        """Mark what is to go, until ``excess`` call paths less are left."""
        nodes = self._inwards()
        for node in nodes:
            if node.parent is not None:
                node.parent.weight += node.weight
                node.parent.samples += node.samples
        # Callees before their callers, which never weigh less: what is left below a node is known when its
        # turn comes.
        nodes.sort(key=lambda node: (node.weight, node.samples, -node.depth))
        for node in nodes:
            caller = node.parent
            if caller is None:
                continue
            left = node.paths + node.is_end
            saved = self._fold_into(caller, node, left)
            caller.paths += left - saved
            excess -= saved
            if excess <= 0:
                break

    def _fold_into(self, caller: _Node, node: _Node, left: int) -> int:
        """Fold a callee of which ``left`` paths are left, if that saves any: how many."""
        existing = caller.children.get(self._folded)
        if existing is not None and existing.is_end:
            if existing is node:
                return 0
            caller.has_folded = True
        if caller.has_folded:
            node.gone = True
            return left
        if caller.lone is not None:
            caller.lone.gone = node.gone = caller.has_folded = True
            caller.lone = None
            return left
        if left > 1:
            node.gone = caller.has_folded = True
            return left - 1
        caller.lone = node
        return 0

    def _inwards(self) -> list[_Node]:
        """All nodes, callees before callers."""
        out = [self._root]
        for node in out:
            out += node.children.values()
        out.reverse()
        return out
