"""The report as one web page that needs nothing else: facts, flame graph by metric, table of functions."""

from __future__ import annotations

import json
import re
from html import escape
from importlib.resources import files
from typing import Any

from parprof.attribution import Effort, Verdict, percent, verdict
from parprof.cct.tree import CallingContextTree
from parprof.cct.views import FunctionTotals, flat_view
from parprof.exporters.output import open_output
from parprof.exporters.summary import facts, location, place, printable
from parprof.metrics import IDLENESS, METRICS, NANOSECONDS, SAMPLES, Metric, Metrics, Shown
from parprof.model import Profile

PRUNE_SHARE = 0.0005
"""Frames are left out that hold less than this of all effort, and of every other metric: half a pixel in a thousand."""

MAX_FUNCTIONS = 1000
_MICRO = 1e6

_EFFORT_HEADINGS = (
    "function",
    "idleness % itself",
    "idleness % with callees",
    "useful work % itself",
    "useful work % with callees",
    "overhead % itself",
)
_VERDICTS = list(Verdict)
_SORTED = ' aria-sort="descending"'
_MARK = re.compile(r"\{\{(\w+)\}\}")


def write(profile: Profile, path: str) -> None:
    """Write the page to ``path`` (``-``: standard output).

    Raises:
        OutputError: it cannot be written.
    """
    text = page(profile)
    with open_output(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def page(profile: Profile) -> str:
    """The page. Whatever comes from the target is escaped, or read as data by the script."""
    tree = CallingContextTree(profile.samples)
    total = tree.root.inclusive
    data, left_out = _graph(tree, profile.process.cores)
    first, *others = facts(profile, tree)
    fixed, optional = _columns(total)
    headings = [
        *_EFFORT_HEADINGS,
        *map(_heading, fixed),
        "samples itself",
        "verdict with callees",
        *map(_heading, optional),
    ]
    functions = sorted(flat_view(tree).values(), key=lambda row: (-row.exclusive.idleness_ns, row.procedure))
    if len(functions) > MAX_FUNCTIONS:
        left_out += f" The table has the {MAX_FUNCTIONS} functions with most idleness."
    parts = {
        "title": escape(printable(f"parprof: {profile.process.command or profile.process.comm}"[:300])),
        "split": _split(total),
        "advice": f'<p class="advice">{escape(first.text)}</p>' if total.samples else "",
        "facts": "\n".join(
            f"<dt>{escape(fact.label)}</dt><dd>{escape(fact.text)}</dd>"
            for fact in (others if total.samples else [first, *others])
        ),
        "left_out": escape(left_out),
        "headings": "".join(
            f'<th scope="col"{_SORTED if column == 1 else ""}><button type="button">{heading}</button></th>'
            for column, heading in enumerate(headings)
        ),
        "rows": "\n".join(_row(row, total) for row in functions[:MAX_FUNCTIONS]),
        "data": _script_safe(data),
    }
    template = files("parprof.exporters").joinpath("html_template.html").read_text("utf-8")
    return _MARK.sub(lambda mark: parts[mark[1]], template)


def _script_safe(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _split(total: Metrics) -> str:
    """The bar of effort by its parts."""
    if not total.effort_ns:
        return ""
    names = ("useful work", "overhead", "idleness")
    parts = zip(names, Effort.of(total).percentages(), ("useful", "overhead", "idleness"), strict=True)
    spans = (
        f'<span style="flex:{share:.3f} 0 0;background:var(--{colour})" title="{name} {share:.1f} %">'
        f"{f'{name} {share:.1f} %' if share >= 10 else ''}</span>"
        for name, share, colour in parts
        if share >= 0.05
    )
    return f'<div class="split">{"".join(spans)}</div>'


def _graph(tree: CallingContextTree, cores: int) -> tuple[dict[str, Any], str]:
    """The tree for the script, callers first, and what it lacks. Times in microseconds."""
    total = tree.root.inclusive
    names: dict[str, int] = {}
    nodes: list[tuple[int, int, int, list[float], list[float], int]] = []
    left_out = 0

    def index(text: str) -> int:
        return names.setdefault(text, len(names))

    pending = [(tree.root, -1)]
    while pending:
        node, parent = pending.pop()
        inclusive = node.inclusive
        if parent >= 0 and _negligible(inclusive, total):
            left_out += 1
            continue
        procedure = node.procedure
        name = printable(procedure.name) or "[unknown]" if parent >= 0 else "whole process"
        where = place(procedure, node.hottest_line(IDLENESS))
        judged = _VERDICTS.index(verdict(inclusive))
        numbers = _numbers(inclusive), _numbers(node.exclusive)
        nodes.append((parent, index(name), index(where), *numbers, judged))
        pending.extend((child, len(nodes) - 1) for child in node.children.values())
    data = {
        "cores": cores,
        "metrics": [_described(metric) for metric in METRICS],
        "total": _numbers(total),
        "verdicts": [judged.value for judged in _VERDICTS],
        "names": list(names),
        "nodes": nodes,
    }
    return data, f"{left_out:,} call paths too small to see are left out of the graph." if left_out else ""


def _described(metric: Metric) -> dict[str, Any]:
    """What the script must know of a metric: ``scale`` of its numbers make one of what readers see."""
    times = metric.unit is NANOSECONDS
    return {
        "name": metric.name,
        "label": metric.title,
        "unit": metric.unit.shown,
        "scale": _MICRO if times else 1,
        "digits": 3 if times else 0,
        "effort": metric.has(Shown.EFFORT),
        "graph": metric.additive and metric.has(Shown.GRAPH),
    }


def _columns(total: Metrics) -> tuple[list[Metric], list[Metric]]:
    """The metrics with columns: those that every report has, and those of which there is anything."""
    shown = [metric for metric in METRICS if metric.has(Shown.COLUMN | Shown.GRAPH)]
    return (
        [metric for metric in shown if not metric.optional],
        [metric for metric in shown if metric.optional and total[metric]],
    )


def _heading(metric: Metric) -> str:
    return " ".join(filter(None, (metric.name, metric.unit.shown, "itself")))


def _negligible(metrics: Metrics, total: Metrics) -> bool:
    if metrics.effort_ns >= PRUNE_SHARE * total.effort_ns > 0:
        return False
    shares = ((metrics[metric], total[metric]) for metric in METRICS if metric is not SAMPLES)
    return not any(whole and part >= PRUNE_SHARE * whole for part, whole in shares)


def _numbers(metrics: Metrics) -> list[float]:
    """In the order of the table; times in microseconds."""
    return [
        round(metrics[metric] / 1000) if metric.unit is NANOSECONDS else metrics[metric] for metric in METRICS
    ]


def _row(row: FunctionTotals, total: Metrics) -> str:
    procedure, mine, everything = row.procedure, row.exclusive, row.inclusive
    where = location(procedure.file, row.hottest_line(IDLENESS), procedure.module)
    shares = (
        mine.idleness_ns,
        everything.idleness_ns,
        Effort.of(mine).useful_ns,
        Effort.of(everything).useful_ns,
        mine.overhead_ns,
    )
    cells = [f"{percent(share, total.effort_ns):.2f}" for share in shares]
    fixed, optional = _columns(total)
    cells += [_cell(metric, mine) for metric in fixed]
    cells += [str(mine.samples), verdict(everything).value]
    cells += [_cell(metric, mine) for metric in optional]
    name = escape(printable(procedure.name) or "[unknown]")
    return (
        f"<tr><td>{name} <small>{escape(where)}</small></td>"
        + "".join(f"<td>{cell}</td>" for cell in cells)
        + "</tr>"
    )


def _cell(metric: Metric, metrics: Metrics) -> str:
    return (
        f"{metric.unit.amount(metrics[metric]):.{3 if metric.unit is NANOSECONDS else metric.unit.digits}f}"
    )
