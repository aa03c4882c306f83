"""The page of one process: how it does and what that costs in cards, over its recent intervals' profile."""

from __future__ import annotations

from collections.abc import Iterator

from parprof.attribution import Effort
from parprof.exporters import html
from parprof.exporters.webpage import WebPage, duration, percentage, text
from parprof.metrics import UNUSED
from parprof.model import Profile
from parprof.service.http.sparkline import sparkline
from parprof.service.model import ProcessSnapshot, Snapshot

_STYLE = """
  .cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: .6rem; margin: .6rem 0; }
  .card { background: var(--panel); border-radius: 4px; padding: .5rem .8rem; overflow-wrap: anywhere; }
  .card:last-child { grid-column: 1 / -1; }
  .card h2 { margin: 0; font-size: .85rem; font-weight: 400; color: var(--faint); }
  .card b { font-size: 1.5rem; font-weight: 600; display: block; }
  .card svg { display: block; width: 100%; height: 4.2rem; }
  .card .meter { height: .6rem; margin: .3rem 0; }
  .meter .room { fill: var(--rule); } .meter .taken { fill: var(--useful); } .meter .beyond { fill: var(--bad); }
  .spark polyline { fill: none; stroke: var(--text); stroke-width: 1.3; vector-effect: non-scaling-stroke; }
  .spark circle { fill: var(--text); }
  .spark line { stroke: var(--faint); stroke-dasharray: 3 3; vector-effect: non-scaling-stroke; }
"""
_MAX_REASONS = 8


def process_page(
    profile: Profile, process: ProcessSnapshot | None, snapshot: Snapshot, links: list[tuple[str, str]]
) -> WebPage:
    """The page. ``process``: what is known of it beside its profile; None: it has just ended."""
    cards = "\n".join(_cards(process, snapshot)) if process else ""
    return html.page(profile, links, above=f'<div class="cards">{cards}</div>', style=_STYLE)


def _cards(process: ProcessSnapshot, snapshot: Snapshot) -> Iterator[str]:
    totals = process.totals
    watched_s = max(snapshot.time_s - process.started_s, 1e-9)
    effort = Effort.of(totals)
    last = process.history[-1] if process.history else None
    worked = last is not None and last.n_working > 0
    yield _card(
        "efficiency in the last interval",
        "serial" if not process.is_parallel else percentage(last.efficiency) if last and worked else "–",
        "it never had a second thread"
        if not process.is_parallel
        else f"useful work / effort; {percentage(effort.efficiency)} since it is watched, for {duration(watched_s)}"
        if effort.total_ns
        else "nothing was sampled of it",
    )
    idle, unused = (value / 1e9 / watched_s for value in (totals.idleness_ns, totals[UNUSED]))
    yield _card(
        "cores really idle",
        f"{unused:.2f}",
        f"on average, while it worked; it left {idle:.2f} of its {process.cores} idle, and other programs had the rest",
    )
    yield _card(
        "cost",
        percentage(process.cost_ratio, 2),
        f"of its CPU time; budget {percentage(snapshot.budget_ratio, 1)}",
        _meter(process.cost_ratio, snapshot.budget_ratio),
    )
    lost = sorted(((count, reason) for reason, count in snapshot.lost.items() if count), reverse=True)
    reasons = ", ".join(f"{reason} {count:,}" for count, reason in lost[:_MAX_REASONS])
    folded = f"; {process.folded:,} of its call paths are folded into their callers" if process.folded else ""
    yield _card(
        "lost by the daemon, of all processes",
        f"{sum(count for count, _ in lost):,}",
        (reasons or "nothing") + folded,
    )
    yield _card(
        "threads at work",
        f"{process.n_working} of {process.cores}",
        "now; the line is of the last minutes, dashed: its cores",
        sparkline(process.history, process.cores, snapshot.time_s, stretched=True),
    )


def _card(name: str, value: str, told: str, picture: str = "") -> str:
    return (
        f'<section class="card"><h2>{text(name)}</h2><b>{text(value, 60)}</b>{picture}'
        f"<small>{text(told, 600)}</small></section>"
    )


def _meter(ratio: float, most: float) -> str:
    """How much of what it may be something is."""
    share = ratio / most if most else 0.0
    kind = "beyond" if share > 1 else "taken"
    return (
        '<svg class="meter" width="100%" height="10" aria-hidden="true"><rect class="room" width="100%" height="100%"/>'
        f'<rect class="{kind}" width="{100 * min(share, 1.0):.1f}%" height="100%"/></svg>'
    )
