"""The calling context tree: call paths merged from the root. `parprof.cct.views` looks at it in other ways.

A node stands for one procedure, or one loop of it, in one calling context (tallent-2009 sec. 3.2.1 and 4);
lines are kept beside it, so that a report can name the line that costs most. Everything is iterative: paths
may be thousands deep.

A node is only taken apart into what it calls when somebody looks there. A profile may have millions of contexts, of
which a report shows forty: the others are never made.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from parprof.by_frame import ByFrame
from parprof.metrics import Metric, Metrics, add_to, total
from parprof.model import Frame, Path, PathSample

LineMetrics = dict[int, Metrics]
END = -1
"""In place of a node: a call path goes on to none."""


class Procedure(NamedTuple):
    """What makes two frames the same procedure, or the same loop of one."""

    name: str = ""
    module: str = ""
    file: str = ""
    is_loop: bool = False


def weight(metrics: Metrics, metric: Metric) -> tuple[float, float, int]:
    """Sort key: the metric, then effort, then samples. A caller never weighs less than what it calls."""
    return metrics[metric], metrics.effort_ns, metrics.samples


def _sum(lines: LineMetrics) -> Metrics:
    out = Metrics()
    for metrics in lines.values():
        out.add(metrics)
    return out


def hottest(lines: LineMetrics, metric: Metric) -> int:
    """The known line that weighs most, the first one of equals; 0 when none is known."""
    known = (line for line in lines if line > 0)
    return max(known, key=lambda line: (weight(lines[line], metric), -line), default=0)


class Procedures(ByFrame[Procedure]):
    """The procedures, or loops, that frames are instances of."""

    def __init__(self) -> None:
        """Know none yet."""
        super().__init__()
        self._numbers = _ProcedureNumbers()

    def numbers_along(self, path: Path) -> list[int]:
        """The same as numbers, which are quicker to compare; those of loops are negative."""
        return self._numbers.along(path)

    def _find(self, frame: Frame) -> Procedure:
        return _procedure_of(frame)


class _ProcedureNumbers(ByFrame[int]):
    def __init__(self) -> None:
        super().__init__()
        self._by_procedure: dict[Procedure, int] = {}

    def _find(self, frame: Frame) -> int:
        number = self._by_procedure.setdefault(_procedure_of(frame), len(self._by_procedure))
        return ~number if frame.is_loop else number


def _procedure_of(frame: Frame) -> Procedure:
    return Procedure(frame.name, frame.module, frame.file, frame.is_loop)


class Way:
    """How a call path goes through a tree: from each of its nodes, known by a place in the path, to the next."""

    __slots__ = ("metrics", "path", "source")

    def __init__(self, path: Path, metrics: Metrics) -> None:
        """``path`` with its root first."""
        self.path = path
        self.metrics = metrics
        self.source = next((at for at in range(len(path) - 1, -1, -1) if path[at].file), -1)
        """Where on it the innermost frame with known source is; -1: there is none."""

    @property
    def straight(self) -> int:
        """Up to which place on it each node goes on to the next place alone."""
        return len(self.path) - 1

    def after(self, at: int) -> Sequence[int]:
        """The nodes that it goes on to from one, -1 being the root of the tree; `END` if it ends there."""
        return (at + 1,) if at + 1 < len(self.path) else (END,)


def _last_in_common(ways: Sequence[tuple[Way, int]]) -> int:
    """The place on each of these ways up to which they go together from a node on; their places of that may differ, and
    then it is the first one's."""
    first, place = ways[0]
    last = first.straight
    for way, at in ways:
        if at != place:
            return place
        last = _same_until(first.path, way.path, place, last)
        if last > place:
            last = min(last, way.straight)
        if last <= place:
            return place
    return last


def _same_until(one: Path, other: Path, begin: int, end: int) -> int:
    """The last place, from ``begin`` to ``end``, up to which two paths are the same."""
    end = min(end, len(other) - 1)
    if one[begin : end + 1] == other[begin : end + 1]:
        return end
    span = range(begin, end + 1)
    return begin - 1 + bisect_left(span, True, key=lambda at: one[begin : at + 1] != other[begin : at + 1])


class Node:
    """A procedure, or a loop, in its calling context."""

    __slots__ = (
        "_children",
        "_coming",
        "_lines",
        "_procedures",
        "leads_to_source",
        "procedure",
        "sites",
        "start_line",
    )

    def __init__(self, procedure: Procedure, procedures: Procedures) -> None:
        """``procedures``: those of the tree that it is in."""
        self.procedure = procedure
        self.start_line = 0
        self.sites: LineMetrics = {}
        """By line of the caller: the samples that came through the call on that line."""
        self.leads_to_source = False
        """Whether the source of it, or of something that it calls, directly or not, is known."""
        self._procedures = procedures
        self._lines: LineMetrics = {}
        self._children: dict[Procedure, Node] = {}
        self._coming: list[tuple[Way, int]] = []
        """Ways that lead here, and where on them this node is, as far as nobody asked where they go on to."""

    def add(self, ways: list[tuple[Way, int]]) -> None:
        """These ways begin here, at the root of the tree."""
        add_to(self.sites, 0, total(way.metrics for way, _ in ways))
        self.leads_to_source = self.leads_to_source or any(way.source >= 0 for way, _ in ways)
        self._coming += ways

    @property
    def lines(self) -> LineMetrics:
        """By line of this procedure: the samples that hit it there."""
        if self._coming:
            self._go_on()
        return self._lines

    @property
    def children(self) -> dict[Procedure, Node]:
        """What it calls."""
        if self._coming:
            self._go_on()
        return self._children

    def _go_on(self) -> None:
        coming, self._coming = self._coming, []
        whole = None if self._children or self._lines else self.inclusive
        onward: dict[tuple[int, int], list[tuple[Way, int]]] = {}
        for way, at in coming:
            path = way.path
            caller = path[at] if at >= 0 else None
            for place in way.after(at):
                if place == END:
                    add_to(self._lines, path[-1].line if path else 0, way.metrics)
                    continue
                if place > at + 1:
                    caller = path[place - 1]
                onward.setdefault((id(path[place]), id(caller)), []).append((way, place))
        for ways in onward.values():
            self._lead(ways, whole if len(ways) == len(coming) else None)

    def _lead(self, ways: list[tuple[Way, int]], whole: Metrics | None) -> None:
        """To the next frame, which is the same on all of these ways, as is the frame before it, and on as far as they
        have all frames in common, as those of a program have `main`. ``whole``: their sum, if it is known."""
        way, place = ways[0]
        path = way.path
        metrics = whole or total(way.metrics for way, _ in ways)
        source = max(way.source for way, _ in ways)
        last = _last_in_common(ways)
        node = self
        for at in range(place, last + 1):
            node = node._child(path[at])
            add_to(node.sites, path[at - 1].line if at else 0, metrics)
            node.leads_to_source = node.leads_to_source or source >= at
        node._coming += ways if last == place else [(way, last) for way, _ in ways]

    def _child(self, frame: Frame) -> Node:
        """That of a frame, made if need be."""
        procedure = self._procedures.of(frame)
        child = self._children.get(procedure)
        if child is None:
            child = self._children[procedure] = Node(procedure, self._procedures)
        start = frame.start_line
        if start and (not child.start_line or start < child.start_line):
            child.start_line = start
        return child

    def along(self, path: Path) -> list[Procedure]:
        """The procedures of a call path, as the nodes of this tree know them."""
        return self._procedures.along(path)

    @property
    def exclusive(self) -> Metrics:
        """What was sampled in this procedure itself."""
        return _sum(self.lines)

    @property
    def inclusive(self) -> Metrics:
        """What was sampled in this procedure and all that it called."""
        return _sum(self.sites)

    def calls(self) -> LineMetrics:
        """By line of this procedure: the samples that were in something called there."""
        out: LineMetrics = {}
        for child in self.children.values():
            for line, metrics in child.sites.items():
                add_to(out, line, metrics)
        return out

    def hottest_line(self, metric: Metric) -> int:
        """The line, running or calling, that weighs most; else where the procedure starts; else 0."""
        both = self.calls()
        for line, metrics in self.lines.items():
            add_to(both, line, metrics)
        return hottest(both, metric) or self.start_line


class CallingContextTree:
    """Call paths with a common root part share nodes. ``root`` is nameless and stands for the process."""

    def __init__(self, samples: Iterable[PathSample] = ()) -> None:
        """Make a tree of these samples."""
        self.procedures = Procedures()
        self.ways: list[Way] = []
        """The call paths that it is made of."""
        self.root = Node(Procedure(), self.procedures)
        self.add(Way(sample.path, sample.metrics) for sample in samples)

    def add(self, ways: Iterable[Way]) -> None:
        """Charge what call paths have to the nodes on their way. Before anybody has looked at them."""
        fresh = list(ways)
        self.ways += fresh
        if fresh:
            self.root.add([(way, -1) for way in fresh])

    def walk(self) -> Iterator[tuple[Node, bool]]:
        """Every node below the root twice: with True when it is entered, with False when it is left."""
        pending = [(node, True) for node in reversed(self.root.children.values())]
        while pending:
            node, entering = pending.pop()
            yield node, entering
            if entering:
                pending.append((node, False))
                pending += [(child, True) for child in reversed(node.children.values())]
