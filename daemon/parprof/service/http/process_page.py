"""The page of one process: how it does and what that costs in cards, over its recent intervals' profile."""

from __future__ import annotations

from collections.abc import Iterator

from parprof.attribution import Effort
from parprof.exporters import html
from parprof.exporters.webpage import WebPage, duration, percentage
from parprof.metrics import UNUSED
from parprof.model import Profile
from parprof.service.http.cards import STYLE, card, cards, cost, losses
from parprof.service.http.sparkline import sparkline
from parprof.service.model import ProcessSnapshot, Snapshot

_STYLE = (
    STYLE
    + """
  .card:last-child { grid-column: 1 / -1; }
  .spark polyline { fill: none; stroke: var(--text); stroke-width: 1.3; vector-effect: non-scaling-stroke; }
  .spark circle { fill: var(--text); }
  .spark line { stroke: var(--faint); stroke-dasharray: 3 3; vector-effect: non-scaling-stroke; }
"""
)


def process_page(
    profile: Profile, process: ProcessSnapshot | None, snapshot: Snapshot, links: list[tuple[str, str]]
) -> WebPage:
    """The page. ``process``: what is known of it beside its profile; None: it has just ended."""
    return html.page(profile, links, above=cards(_cards(process, snapshot) if process else ()), style=_STYLE)


def _cards(process: ProcessSnapshot, snapshot: Snapshot) -> Iterator[str]:
    totals = process.totals
    watched_s = snapshot.watched_process_s(process)
    effort = Effort.of(totals)
    last = process.history[-1] if process.history else None
    worked = last is not None and last.n_working > 0
    yield card(
        "efficiency in the last interval",
        "serial" if not process.is_parallel else percentage(last.efficiency) if last and worked else "–",
        "it never had a second thread"
        if not process.is_parallel
        else f"useful work / effort; {percentage(effort.efficiency)} since it is watched, for {duration(watched_s)}"
        if effort.total_ns
        else "nothing was sampled of it",
    )
    idle, unused = (value / 1e9 / watched_s for value in (totals.idleness_ns, totals[UNUSED]))
    yield card(
        "cores really idle",
        f"{unused:.2f}",
        f"on average, while it worked; it left {idle:.2f} of its {process.cores} idle, and other programs had the rest",
    )
    yield cost(
        process.cost_ratio,
        snapshot.budget_ratio,
        f"of its CPU time; budget {percentage(snapshot.budget_ratio, 1)}",
    )
    folded = f"; {process.folded:,} of its call paths are folded into their callers" if process.folded else ""
    yield losses(snapshot.lost, "lost by the daemon, of all processes", folded)
    yield card(
        "threads at work",
        f"{process.n_working} of {process.cores}",
        "now; the line is of the last minutes, dashed: its cores",
        sparkline(process.history, process.cores, snapshot.clock_s, stretched=True),
    )
