"""The calling context tree: call paths merged from the root. `parprof.cct.views` looks at it in other ways.

A node stands for one procedure, or one loop of it, in one calling context (tallent-2009 sec. 3.2.1 and 4);
lines are kept beside it, so that a report can name the line that costs most. Everything is iterative: paths
may be thousands deep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from parprof.metrics import Metric, Metrics, add_to
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


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """A procedure, or a loop, in its calling context.

    ``lines``: by line of this procedure, the samples that hit it there. ``sites``: by line of the caller,
    the samples that came through the call on that line.
    """

    procedure: Procedure
    start_line: int = 0
    lines: LineMetrics = field(default_factory=dict)
    sites: LineMetrics = field(default_factory=dict)
    children: dict[Procedure, Node] = field(default_factory=dict)

    @property
    def exclusive(self) -> Metrics:
        """What was sampled in this procedure itself."""
        return _sum(self.lines)

    @property
    def inclusive(self) -> Metrics:
        """What was sampled in this procedure and all that it called."""
        return _sum(self.sites)

    def child(self, procedure: Procedure, start_line: int) -> Node:
        """The node of a callee, made if need be."""
        node = self.children.get(procedure)
        if node is None:
            node = self.children[procedure] = Node(procedure)
        if start_line and (not node.start_line or start_line < node.start_line):
            node.start_line = start_line
        return node

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
        self.root = Node(Procedure())
        for sample in samples:
            self.insert_path(sample.path, sample.metrics)

    def insert_path(self, path: Path, metrics: Metrics) -> None:
        """Charge ``metrics`` to a call path, root first."""
        node, line = self.root, 0
        add_to(node.sites, 0, metrics)
        for frame in path:
            node = node.child(procedure_of(frame), frame.start_line)
            add_to(node.sites, line, metrics)
            line = frame.line
        add_to(node.lines, line, metrics)

    def walk(self) -> Iterator[tuple[Node, bool]]:
        """Every node below the root twice: with True when it is entered, with False when it is left."""
        pending = [(node, True) for node in reversed(self.root.children.values())]
        while pending:
            node, entering = pending.pop()
            yield node, entering
            if entering:
                pending.append((node, False))
                pending += [(child, True) for child in reversed(node.children.values())]


def procedure_of(frame: Frame) -> Procedure:
    """The procedure, or loop, that a frame is an instance of."""
    return Procedure(frame.name, frame.module, frame.file, frame.is_loop)
