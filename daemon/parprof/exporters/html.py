"""The report as one web page that needs nothing else: facts, flame graph by metric, table of functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parprof.attribution import Effort, Verdict, percent, verdict
from parprof.cct.tree import CallingContextTree
from parprof.cct.views import FunctionTotals, flat_view
from parprof.exporters.answer import location
from parprof.exporters.output import open_output
from parprof.exporters.summary import facts, place
from parprof.exporters.webpage import WebPage, asset, data_block, definitions, text
from parprof.metrics import IDLENESS, METRICS, NANOSECONDS, SAMPLES, Metric, Metrics, Shown
from parprof.model import Profile
from parprof.untrusted import visible

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
_FLAME_GRAPH = """
<h2>Calling context</h2>
<div class="bar">
  <span id="metrics" role="radiogroup" aria-label="width of a frame"></span>
  <button id="reset" type="button">whole process</button>
  <span class="legend">no core idle <i></i> all others idle while it ran</span>
</div>
<div id="details" aria-live="polite">Point at a frame for its numbers, click to zoom in.</div>
<div class="tall"><div id="chart"></div></div>
"""


def write(profile: Profile, path: str) -> None:
    """Write the page to ``path`` (``-``: standard output).

    Raises:
        OutputError: it cannot be written.
    """
    document = page(profile).html()
    with open_output(path) as file:
        file.write(document.encode("utf-8", "backslashreplace"))


def page(profile: Profile, links: Sequence[tuple[str, str]] = ()) -> WebPage:
    """The page. ``links``: where else to go from it, as names and addresses.

    The address ``?by=spin`` opens it with the flame graph by that metric.
    """
    tree = CallingContextTree(profile.samples)
    total = tree.root.inclusive
    data, left_out = _graph(tree, profile.process.cores)
    first, *others = facts(profile, tree)
    functions = sorted(flat_view(tree).values(), key=lambda row: (-row.exclusive.idleness_ns, row.procedure))
    if len(functions) > MAX_FUNCTIONS:
        left_out += f" The table has the {MAX_FUNCTIONS} functions with most idleness."
    title = f"parprof: {profile.process.command or profile.process.comm}"
    split, split_style = _split(total)
    parts = (
        f"<h1>{text(title, 300)}</h1>",
        _links(links),
        f'<p class="advice">{text(first.text)}</p>' if total.samples else "",
        split,
        definitions(
            (text(fact.label), text(fact.text)) for fact in (others if total.samples else [first, *others])
        ),
        _FLAME_GRAPH,
        f'<p class="faint">{text(left_out)}</p>',
        _table(functions[:MAX_FUNCTIONS], total),
        data_block("data", data),
    )
    return WebPage(
        title, "\n".join(filter(None, parts)), asset("report.css") + split_style, asset("report.js")
    )


def _links(links: Sequence[tuple[str, str]]) -> str:
    shown = " · ".join(f'<a href="{text(address)}">{text(name)}</a>' for name, address in links)
    return f"<p>{shown}</p>" if shown else ""


def _table(functions: Sequence[FunctionTotals], total: Metrics) -> str:
    fixed, optional = _columns(total)
    headings = [
        *_EFFORT_HEADINGS,
        *map(_heading, fixed),
        "samples itself",
        "verdict with callees",
        *map(_heading, optional),
    ]
    heads = "".join(
        f'<th scope="col"{_SORTED if column == 1 else ""}><button type="button">{heading}</button></th>'
        for column, heading in enumerate(headings)
    )
    rows = "\n".join(_row(row, total) for row in functions)
    return (
        f'<h2>Functions</h2>\n<div class="scroll"><table id="flat">\n<thead><tr>{heads}</tr></thead>\n'
        f"<tbody>{rows}</tbody>\n</table></div>"
    )


def _split(total: Metrics) -> tuple[str, str]:
    """The bar of effort by its parts, and the style that gives each part its width."""
    if not total.effort_ns:
        return "", ""
    names = ("useful work", "overhead", "idleness")
    parts = [
        (name, kind, share)
        for name, kind, share in zip(
            names, ("useful", "overhead", "idleness"), Effort.of(total).percentages(), strict=True
        )
        if share >= 0.05
    ]
    spans = "".join(
        f'<span class="{kind}" title="{name} {share:.1f} %">'
        f"{f'{name} {share:.1f} %' if share >= 10 else ''}</span>"
        for name, kind, share in parts
    )
    style = "".join(
        f".split .{kind} {{ flex: {share:.3f} 0 0; background: var(--{kind}); }}\n"
        for _, kind, share in parts
    )
    return f'<div class="split">{spans}</div>', style


def _graph(tree: CallingContextTree, cores: int) -> tuple[dict[str, Any], str]:
    """The tree for the script, callers first, and what it lacks. Times in microseconds."""
    total = tree.root.inclusive
    names: dict[str, int] = {}
    nodes: list[tuple[int, int, int, list[float], list[float], int]] = []
    left_out = 0

    def index(name: str) -> int:
        return names.setdefault(name, len(names))

    pending = [(tree.root, -1)]
    while pending:
        node, parent = pending.pop()
        inclusive = node.inclusive
        if parent >= 0 and _negligible(inclusive, total):
            left_out += 1
            continue
        procedure = node.procedure
        name = visible(procedure.name) or "[unknown]" if parent >= 0 else "whole process"
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
    name = text(procedure.name) or "[unknown]"
    return (
        f"<tr><td>{name} <small>{text(where)}</small></td>"
        + "".join(f"<td>{cell}</td>" for cell in cells)
        + "</tr>"
    )


def _cell(metric: Metric, metrics: Metrics) -> str:
    return (
        f"{metric.unit.amount(metrics[metric]):.{3 if metric.unit is NANOSECONDS else metric.unit.digits}f}"
    )
