"""Other ways to look at a calling context tree: functions alone, their callers, without loops or recursion."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from parprof.cct.tree import CallingContextTree, LineMetrics, Node, Procedure, hottest
from parprof.metrics import Metric, Metrics, add_to


@dataclass(slots=True)
class FunctionTotals:
    """A row of the flat view: one procedure over all its contexts.

    ``inclusive`` counts a sample once, however often the procedure recurs on its call path.
    """

    procedure: Procedure
    start_line: int = 0
    exclusive: Metrics = field(default_factory=Metrics)
    inclusive: Metrics = field(default_factory=Metrics)
    lines: LineMetrics = field(default_factory=dict)
    calls: LineMetrics = field(default_factory=dict)

    def hottest_line(self, metric: Metric) -> int:
        """The line that weighs most: of the procedure's own samples, else of the calls it makes."""
        own = self.exclusive[metric] > 0 or not self.inclusive[metric]
        first, second = (self.lines, self.calls) if own else (self.calls, self.lines)
        return hottest(first, metric) or hottest(second, metric) or self.start_line


def without_loops(tree: CallingContextTree) -> CallingContextTree:
    """The tree of procedures alone: what a loop has goes to the procedure that it is in."""
    if not any(node.procedure.is_loop for node, _ in tree.walk()):
        return tree
    out = CallingContextTree()
    _copy(tree.root.lines, out.root.lines)
    _copy(tree.root.sites, out.root.sites)
    stack = [out.root]
    for node, entering in tree.walk():
        if not entering:
            stack.pop()
            continue
        target = stack[-1]
        if not node.procedure.is_loop:
            target = target.child(node.procedure, node.start_line)
            _copy(node.sites, target.sites)
        _copy(node.lines, target.lines)
        stack.append(target)
    return out


def _copy(source: LineMetrics, target: LineMetrics) -> None:
    for line, metrics in source.items():
        add_to(target, line, metrics)


def flat_view(tree: CallingContextTree) -> dict[Procedure, FunctionTotals]:
    """Totals by procedure; loops are parts of theirs."""
    rows: dict[Procedure, FunctionTotals] = {}
    active: dict[Procedure, int] = {}
    for node, entering in without_loops(tree).walk():
        key = node.procedure
        if not entering:
            active[key] -= 1
            continue
        row = rows.setdefault(key, FunctionTotals(key))
        row.start_line = min(filter(None, (row.start_line, node.start_line)), default=0)
        for line, metrics in node.lines.items():
            row.exclusive.add(metrics)
            add_to(row.lines, line, metrics)
        if not active.get(key):
            row.inclusive.add(node.inclusive)
            for line, metrics in node.calls().items():
                add_to(row.calls, line, metrics)
        active[key] = active.get(key, 0) + 1
    return rows


@dataclass(slots=True)
class Caller:
    """A node of the callers view: the top one is the procedure itself, its children are its callers.

    Both metrics are the *top* procedure's, as far as it was reached through this chain of callers.
    """

    procedure: Procedure
    start_line: int = 0
    exclusive: Metrics = field(default_factory=Metrics)
    inclusive: Metrics = field(default_factory=Metrics)
    lines: LineMetrics = field(default_factory=dict)
    children: dict[Procedure, Caller] = field(default_factory=dict)

    def hottest_line(self, metric: Metric) -> int:
        """The calling line (of the top procedure: any line) that weighs most, else the first line, else 0."""
        return hottest(self.lines, metric) or self.start_line


def callers_view(tree: CallingContextTree, functions: Iterable[FunctionTotals]) -> list[Caller]:
    """For each of these procedures the chains of callers through which it was entered. Loops are left out.

    A recursive procedure is entered where it is not yet on the path: what it calls of itself counts once.
    """
    tops = {
        row.procedure: Caller(row.procedure, row.start_line, lines=row.lines or row.calls)
        for row in functions
    }
    depth = dict.fromkeys(tops, 0)
    inside = {procedure: Metrics() for procedure in tops}
    chain: list[Node] = []
    for node, entering in without_loops(tree).walk():
        key = node.procedure
        if entering:
            chain.append(node)
            if key in tops:
                depth[key] += 1
                inside[key].add(node.exclusive)
            continue
        if key in tops:
            depth[key] -= 1
            if not depth[key]:
                _insert_callers(tops[key], chain, inside[key])
                inside[key] = Metrics()
        chain.pop()
    return list(tops.values())


def _insert_callers(top: Caller, chain: list[Node], exclusive: Metrics) -> None:
    """Charge one entry of the last node of ``chain`` (root first) to all its callers."""
    inclusive = chain[-1].inclusive
    here = top
    here.exclusive.add(exclusive)
    here.inclusive.add(inclusive)
    for callee, caller in zip(reversed(chain), reversed(chain[:-1]), strict=False):
        here = here.children.setdefault(caller.procedure, Caller(caller.procedure, caller.start_line))
        here.exclusive.add(exclusive)
        here.inclusive.add(inclusive)
        for line, metrics in callee.sites.items():
            add_to(here.lines, line, metrics)


def fold_recursion(tree: CallingContextTree) -> tuple[CallingContextTree, int]:
    """A tree in which no procedure calls itself, directly or not, and the number of nodes that this saves.

    Where a procedure recurs on a path, the path goes on from its first instance. Inclusive metrics still
    count a sample once; but in indirect recursion a callee's may contain some that its caller counts as
    its own. Loops do not recur by themselves.
    """
    out = CallingContextTree()
    _copy(tree.root.lines, out.root.lines)
    _copy(tree.root.sites, out.root.sites)
    callers: dict[int, Node] = {}
    active: dict[int, int] = {}
    stack = [out.root]
    saved = 0
    for node, entering in tree.walk():
        if not entering:
            active[id(stack.pop())] -= 1
            continue
        target = out.root if node.procedure.is_loop else stack[-1]
        while target is not out.root and target.procedure != node.procedure:
            target = callers[id(target)]
        if target is out.root:
            target = stack[-1].child(node.procedure, node.start_line)
            callers[id(target)] = stack[-1]
        if active.get(id(target)):
            saved += 1
        else:
            _copy(node.sites, target.sites)
        _copy(node.lines, target.lines)
        active[id(target)] = active.get(id(target), 0) + 1
        stack.append(target)
    return out, saved
