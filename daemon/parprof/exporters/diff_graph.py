"""Two profiles as one tree, whose nodes say what changed: the differential flame graph of the page of differences.

Procedures are the same by their names, wherever they were built. Loops are left out: they are named by lines, which
change with the source, and what is in them is their function's.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from parprof.cct.tree import CallingContextTree, Node, Procedure
from parprof.metrics import IDLENESS, Metrics, total
from parprof.model import PathSample
from parprof.untrusted import visible

MAX_NODES = 10_000
LEAST_SHARE = 1e-4
"""Call paths that hold less than this of the effort of both profiles are left out."""

_Name = tuple[str, str, str]
_Pair = tuple[list[Node], list[Node]]


def diff_graph(
    samples: Sequence[Sequence[PathSample]],
    numbers: Callable[[Metrics, Metrics], Sequence[Sequence[float]]],
    where: Callable[[Procedure, int], str],
) -> dict[str, Any]:
    """Columns of plain data, callers before callees.

    ``numbers``: what the page says of a change, for each kind. ``where``: a procedure's place, given a line of it.
    """
    roots = [CallingContextTree(side).root for side in samples]
    whole = sum(root.inclusive.effort_ns for root in roots) or 1.0
    order = count()
    columns: dict[str, list[Any]] = {"parent": [], "name": [], "where": [], "changes": []}
    pending: list[tuple[float, int, _Pair, int]] = [(-whole, next(order), ([roots[0]], [roots[1]]), -1)]
    left_out = 0
    while pending:
        weight, _, pair, parent = heapq.heappop(pending)
        if parent >= 0 and (-weight < LEAST_SHARE * whole or len(columns["parent"]) >= MAX_NODES):
            left_out += 1
            continue
        node = (pair[0] or pair[1])[0]
        columns["parent"].append(parent)
        columns["name"].append(
            visible(node.procedure.name, 4096) or "[unknown]" if parent >= 0 else "whole process"
        )
        columns["where"].append(
            visible(where(node.procedure, node.hottest_line(IDLENESS))) if parent >= 0 else ""
        )
        before, after = (total(one.inclusive for one in side) for side in pair)
        columns["changes"].append(numbers(before, after))
        number = len(columns["parent"]) - 1
        for callee in _callees(pair).values():
            effort = sum(one.inclusive.effort_ns for side in callee for one in side)
            heapq.heappush(pending, (-effort, next(order), callee, number))
    return {**columns, "left_out": left_out}


def _callees(pair: _Pair) -> dict[_Name, _Pair]:
    """What functions call in either profile, by name."""
    out: dict[_Name, _Pair] = {}
    for side, nodes in enumerate(pair):
        for child in _without_loops(nodes):
            procedure = child.procedure
            name = (
                procedure.name,
                os.path.basename(procedure.module),
                os.path.basename(procedure.file),
            )
            out.setdefault(name, ([], []))[side].append(child)
    return out


def _without_loops(nodes: Iterable[Node]) -> Iterator[Node]:
    """What these call, in loops or not."""
    pending = [child for node in nodes for child in node.children.values()]
    while pending:
        child = pending.pop()
        if child.procedure.is_loop:
            pending += child.children.values()
        else:
            yield child
