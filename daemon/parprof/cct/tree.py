"""The calling context tree: call paths merged from the root. `parprof.cct.views` looks at it in other ways.

A node stands for one procedure, or one loop of it, in one calling context (tallent-2009 sec. 3.2.1 and 4);
lines are kept beside it, so that a report can name the line that costs most. Everything is iterative: paths
may be thousands deep.

A node is only taken apart into what it calls when somebody looks there. A profile may have millions of contexts, of
which a report shows forty: the others are never made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from parprof.metrics import Metric, Metrics, add_to, total
from parprof.model import Frame, Path, PathSample

LineMetrics = dict[int, Metrics]


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


class Procedures:
    """The procedures of frames, each found once: far fewer frames are made than paths go through."""

    def __init__(self) -> None:
        """Know none yet."""
        self._known: dict[int, Procedure] = {}
        self._numbers: dict[int, int] = {}
        """By the ids of frames."""
        self._by_procedure: dict[Procedure, int] = {}
        self._frames: list[Frame] = []
        """They are kept: else the id of one may come to mean another."""

    def of(self, frame: Frame) -> Procedure:
        """The procedure, or loop, that a frame is an instance of."""
        known = self._known.get(id(frame))
        if known is None:
            known = self._known[id(frame)] = Procedure(frame.name, frame.module, frame.file, frame.is_loop)
            self._frames.append(frame)
        return known

    def along(self, path: Path) -> list[Procedure]:
        """Those of a path's frames."""
        known = self._known
        try:
            return [known[id(frame)] for frame in path]
        except KeyError:
            return [self.of(frame) for frame in path]

    def numbers_along(self, path: Path) -> list[int]:
        """The same as numbers, which are quicker to compare; those of loops are negative."""
        known = self._numbers
        try:
            return [known[id(frame)] for frame in path]
        except KeyError:
            return [self._number(frame) for frame in path]

    def _number(self, frame: Frame) -> int:
        known = self._numbers.get(id(frame))
        if known is None:
            number = self._by_procedure.setdefault(self.of(frame), len(self._by_procedure))
            known = self._numbers[id(frame)] = ~number if frame.is_loop else number
        return known


class Way:
    """How a call path goes through a tree: from each of its nodes, known by a place in the path, to the next."""

    __slots__ = ("metrics", "path", "source")

    def __init__(self, path: Path, metrics: Metrics) -> None:
        """``path`` with its root first."""
        self.path = path
        self.metrics = metrics
        self.source = next((at for at in range(len(path) - 1, -1, -1) if path[at].file), -1)
        """Where on it the innermost frame with known source is; -1: there is none."""

    def ends_at(self, at: int) -> bool:
        """Whether it ends in this node; -1: the root of the tree."""
        return at + 1 == len(self.path)

    def after(self, at: int) -> Sequence[int]:
        """The nodes that it goes on to from one."""
        return (at + 1,) if at + 1 < len(self.path) else ()


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

    def add(self, ways: list[tuple[Way, int]], line: int, whole: Metrics | None = None) -> None:
        """These ways come here from this line of the caller; this node is where they say on each. ``whole``: their
        sum, if it is known: what all paths of a program begin with need not be added up at each step."""
        add_to(self.sites, line, whole or total(way.metrics for way, _ in ways))
        self.leads_to_source = self.leads_to_source or any(0 <= way.source >= at for way, at in ways)
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
            if way.ends_at(at):
                add_to(self._lines, path[-1].line if path else 0, way.metrics)
            for place in way.after(at):
                if place > at + 1:
                    caller = path[place - 1]
                onward.setdefault((id(path[place]), id(caller)), []).append((way, place))
        for ways in onward.values():
            self._lead(ways, whole if len(ways) == len(coming) else None)

    def _lead(self, ways: list[tuple[Way, int]], whole: Metrics | None) -> None:
        """To the next frame, which is the same on all of these ways, as is the frame before it. ``whole``: their sum,
        if it is known."""
        way, place = ways[0]
        frame = way.path[place]
        procedure = self._procedures.of(frame)
        child = self._children.get(procedure)
        if child is None:
            child = self._children[procedure] = Node(procedure, self._procedures)
        start = frame.start_line
        if start and (not child.start_line or start < child.start_line):
            child.start_line = start
        child.add(ways, way.path[place - 1].line if place else 0, whole)

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
            self.root.add([(way, -1) for way in fresh], 0)

    def walk(self) -> Iterator[tuple[Node, bool]]:
        """Every node below the root twice: with True when it is entered, with False when it is left."""
        pending = [(node, True) for node in reversed(self.root.children.values())]
        while pending:
            node, entering = pending.pop()
            yield node, entering
            if entering:
                pending.append((node, False))
                pending += [(child, True) for child in reversed(node.children.values())]
