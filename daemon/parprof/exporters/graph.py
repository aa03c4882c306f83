"""A profile's calling context tree as columns of plain data, for the script of the page.

Each node has only what was sampled in it itself: the script adds up what it has with its callees. So a tree of 50,000
nodes is some megabytes, and is read in a moment.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import field
from itertools import count
from typing import Any

from parprof.attribution import Verdict, verdict
from parprof.attribution.effort import lost_ns
from parprof.causes.cause import Cause
from parprof.causes.ownership import Ownership
from parprof.cct.tree import CallingContextTree, Node, Procedure
from parprof.cct.views import flat_view
from parprof.exporters.readable import plain_name
from parprof.metrics import IDLENESS, METRICS, SAMPLES, Metric, Metrics, Shown
from parprof.model import Frame, Path
from parprof.units import NANOSECONDS
from parprof.untrusted import visible
from parprof.values import dataclass

MAX_NODES = 50_000
"""The largest ones are kept."""

LEAST_SHARE = 1e-5
"""Call paths are left out that hold less than this of all effort, and of every other metric."""

OWNERS = ("program", "library", "system", "kernel")
"""Whose code a frame is, as `parprof.causes.ownership` tells it, with the kernel apart."""

MAX_NAME = 4096
_KERNEL = OWNERS.index("kernel")
_MICRO = 1e6
_VERDICTS = list(Verdict)


@dataclass(slots=True)
class Graph:
    """The tree, as far as the page shows it."""

    data: dict[str, Any]
    left_out: int
    """So many call paths were too small, or too many."""
    nodes: list[Node] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    small: dict[int, int] = field(default_factory=dict)
    """By node: that of the callees that are left out."""
    _numbers: dict[int, int] = field(default_factory=dict)
    """By identity of the nodes."""
    _placed: dict[int, int] = field(default_factory=dict)
    """By identity of call paths, which the profile keeps."""

    def place(self, path: Path) -> int:
        """The node that a call path of the profile ends in."""
        known = self._placed.get(id(path))
        if known is not None:
            return known
        if not self._numbers:
            self._numbers = {id(node): at for at, node in enumerate(self.nodes)}
        node, at = self.nodes[0], 0
        for procedure in node.along(path):
            node = node.children[procedure]
            number = self._numbers.get(id(node))
            if number is None:
                at = self.small[at]
                break
            at = number
        self._placed[id(path)] = at
        return at

    def find(self, cause: Cause) -> int:
        """The node that a cause is about: where most of it is lost; the root where it is the whole program's."""
        if not cause.path:
            return 0
        wanted = [plain_name(name) for name in cause.path]
        told = [0]
        """So many functions of the cause's path are met on the way to each node."""
        best, most = 0, -1.0
        for at, node in enumerate(self.nodes[1:], 1):
            met = told[self.parents[at]]
            if met < len(wanted) and _is_called(node.procedure, wanted[met]):
                met += 1
                if met == len(wanted) and (lost := lost_ns(node.inclusive)) > most:
                    best, most = at, lost
            told.append(met)
        return best


def _is_called(procedure: Procedure, wanted: str) -> bool:
    """Whether a procedure, or the part that a compiler made of one, has this name."""
    if procedure.is_loop:
        return False
    name = plain_name(procedure.name)
    return name == wanted or name.startswith(f"{wanted}.")


def graph(tree: CallingContextTree, cores: int) -> Graph:
    """The tree for the script, callers before callees. Times in microseconds."""
    out = Graph({}, 0)
    procedures = _Procedures()
    shown = shown_metrics(tree.root.inclusive)
    own: dict[str, list[float]] = {one.name: [] for one in shown}
    columns: dict[str, list[int]] = {"parent": [], "procedure": [], "line": [], "verdict": []}

    def add(parent: int, procedure: Procedure, line: int, judged: int, metrics: Metrics) -> None:
        columns["parent"].append(parent)
        columns["procedure"].append(
            procedures.index(procedure, columns["procedure"][parent] if parent > 0 else 0)
        )
        columns["line"].append(line)
        columns["verdict"].append(judged)
        for one in shown:
            own[one.name].append(one.value(metrics))

    small: dict[int, tuple[int, Metrics]] = {}
    for node, parent in _largest(tree, small):
        judged = _VERDICTS.index(verdict(node.inclusive))
        line = node.hottest_line(IDLENESS) if parent >= 0 else 0
        add(parent, node.procedure, line, judged, node.exclusive)
        out.nodes.append(node)
        out.parents.append(parent)
    for parent, (number, metrics) in small.items():
        out.left_out += number
        out.small[parent] = len(columns["parent"])
        add(parent, Procedure("[small call paths]"), 0, _VERDICTS.index(verdict(metrics)), metrics)
    flat = {row.procedure: verdict(row.inclusive) for row in flat_view(tree).values()}
    out.data = {
        "cores": cores,
        "metrics": [one.described() for one in shown],
        "total": [one.value(tree.root.inclusive) for one in shown],
        "verdicts": [one.value for one in _VERDICTS],
        "owners": OWNERS,
        "names": procedures.names,
        "procedures": procedures.columns(flat),
        "nodes": {**columns, "own": own},
    }
    return out


@dataclass(frozen=True, slots=True)
class ShownMetric:
    """A metric, or an event that was counted, as a column of the page."""

    name: str
    metric: Metric | None = None

    def value(self, metrics: Metrics) -> float:
        """Times in microseconds."""
        if self.metric is None:
            return metrics.events.get(self.name, 0)
        value = metrics[self.metric]
        return round(value / 1000) if self.metric.unit is NANOSECONDS else value

    def described(self) -> dict[str, Any]:
        """What the script must know of it: ``scale`` of its numbers make one of what readers see."""
        metric = self.metric
        if metric is None:
            base = {"label": visible(self.name, 100), "unit": "", "scale": 1, "digits": 0, "combine": "add"}
            return {"name": self.name, **base, "effort": False, "graph": True, "column": True}
        times = metric.unit is NANOSECONDS
        return {
            "name": metric.name,
            "label": metric.title,
            "unit": metric.unit.shown,
            "scale": _MICRO if times else 1,
            "digits": 3 if times else 0,
            "combine": "add" if metric.additive else metric.combine.__name__,
            "effort": metric.has(Shown.EFFORT),
            "graph": metric.additive and metric.has(Shown.GRAPH),
            "column": metric.has(Shown.COLUMN | Shown.GRAPH),
        }


def shown_metrics(total: Metrics) -> list[ShownMetric]:
    """All metrics in the order of the table, then the events there are."""
    known = METRICS.by_name()
    events = sorted(name for name in total.events if name not in known)
    return [*(ShownMetric(metric.name, metric) for metric in METRICS), *map(ShownMetric, events)]


def _largest(tree: CallingContextTree, small: dict[int, tuple[int, Metrics]]) -> list[tuple[Node, int]]:
    """The largest nodes, each with the place of its caller in this list, which is before it.

    A caller is never smaller than its callee, so going on with the largest one known finds them in order. What is
    left out is put into ``small`` by its caller.
    """
    total = tree.root.inclusive
    order = count()
    out: list[tuple[Node, int]] = []
    pending: list[tuple[float, int, Node, int]] = [(-1.0, next(order), tree.root, -1)]
    while pending:
        weight, _, node, parent = heapq.heappop(pending)
        if parent >= 0 and (-weight < LEAST_SHARE or len(out) >= MAX_NODES):
            number, metrics = small.get(parent) or (0, Metrics())
            metrics.add(node.inclusive)
            small[parent] = number + 1, metrics
            continue
        out.append((node, parent))
        for child in node.children.values():
            share = _share(child.inclusive, total)
            heapq.heappush(pending, (-share, next(order), child, len(out) - 1))
    return out


def _share(metrics: Metrics, total: Metrics) -> float:
    """The largest share that this has of anything."""
    shares = [metrics.effort_ns / total.effort_ns] if total.effort_ns else [0.0]
    shares += (metrics[one] / total[one] for one in METRICS if one is not SAMPLES and total[one])
    shares += (value / total.events[name] for name, value in metrics.events.items() if total.events.get(name))
    return max(shares)


class _Procedures:
    """Procedures by number; number 0 is the whole process."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._known_names: dict[str, int] = {}
        self._known: dict[Procedure, int] = {}
        self._owners: list[int] = []
        self._ownership = Ownership()
        self._name("whole process")
        self._known[Procedure()] = 0
        self._owners.append(0)

    def index(self, procedure: Procedure, caller: int) -> int:
        """Its number. ``caller``: of the procedure that calls it, whose a loop is."""
        known = self._known.get(procedure)
        if known is None:
            known = len(self._known)
            self._known[procedure] = known
            self._owners.append(self._owners[caller] if procedure.is_loop else self._owner(procedure))
        return known

    def columns(self, verdicts: dict[Procedure, Verdict]) -> dict[str, list[int]]:
        """What the script must know of each; texts are numbers of `names`."""
        rows = list(self._known)
        unknown = Verdict.UNKNOWN
        return {
            "name": [0, *(self._name(row.name or "[unknown]") for row in rows[1:])],
            "file": [self._name(row.file) for row in rows],
            "module": [self._name(row.module) for row in rows],
            "loop": [int(row.is_loop) for row in rows],
            "owner": self._owners,
            "verdict": [_VERDICTS.index(verdicts.get(row, unknown)) for row in rows],
        }

    def _owner(self, procedure: Procedure) -> int:
        if procedure.module == "[kernel]" or procedure.name.startswith("[kernel"):
            return _KERNEL
        return int(self._ownership.of(Frame(procedure.name, procedure.file, module=procedure.module)))

    def _name(self, text: str) -> int:
        text = visible(text, MAX_NAME)
        known = self._known_names.get(text)
        if known is None:
            known = self._known_names[text] = len(self.names)
            self.names.append(text)
        return known


def cause_links(found: Graph, causes: Sequence[Cause]) -> list[int]:
    """The node that each cause is about."""
    return [found.find(cause) for cause in causes]
