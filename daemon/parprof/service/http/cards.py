"""Cards at the head of the daemon's pages: a number, what it is, and what it is to be held against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from parprof.exporters.webpage import percentage, text
from parprof.service.losses import EXPECTED, unexpected

STYLE = """
  .cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: .6rem; margin: .6rem 0; }
  .card { background: var(--panel); border-radius: 4px; padding: .5rem .8rem; overflow-wrap: anywhere; }
  .card h2 { margin: 0; font-size: .85rem; font-weight: 400; color: var(--faint); }
  .card b { font-size: 1.5rem; font-weight: 600; display: block; }
  .card svg { display: block; width: 100%; height: 4.2rem; }
  .card .meter { height: .6rem; margin: .3rem 0; }
  .meter .room { fill: var(--rule); } .meter .taken { fill: var(--useful); } .meter .beyond { fill: var(--bad); }
"""
_MAX_REASONS = 8


def cards(some: Iterable[str]) -> str:
    """Beside each other, as many as there is room for."""
    return f'<div class="cards">{"".join(some)}</div>\n'


def card(name: str, value: str, told: str, picture: str = "") -> str:
    """One of them. ``picture``: HTML."""
    return (
        f'<section class="card"><h2>{text(name)}</h2><b>{text(value, 60)}</b>{picture}'
        f"<small>{text(told, 600)}</small></section>"
    )


def cost(ratio: float, budget: float, of: str, picture: str = "") -> str:
    """What measuring costs, against the budget. ``of``: what it is a share of, and the budget is."""
    return card("cost", percentage(ratio, 2), of, _meter(ratio, budget) + picture)


def losses(lost: Mapping[str, int], name: str, more: str = "", picture: str = "") -> str:
    """What the daemon has lost, by reason, and beside that what was to be expected; ``more`` is told after these."""
    told = (
        _by_reason({reason: count for reason, count in lost.items() if reason not in EXPECTED}) or "nothing"
    )
    if expected := _by_reason({reason: count for reason, count in lost.items() if reason in EXPECTED}):
        told += f"; to be expected: {expected}"
    return card(name, f"{unexpected(lost):,}", told + more, picture)


def _by_reason(lost: Mapping[str, int]) -> str:
    counts = sorted(((count, reason) for reason, count in lost.items() if count), reverse=True)
    return ", ".join(f"{reason} {count:,}" for count, reason in counts[:_MAX_REASONS])


def _meter(ratio: float, most: float) -> str:
    """How much of what it may be something is."""
    share = ratio / most if most else 0.0
    kind = "beyond" if share > 1 else "taken"
    return (
        '<svg class="meter" width="100%" height="10" aria-hidden="true"><rect class="room" width="100%" height="100%"/>'
        f'<rect class="{kind}" width="{100 * min(share, 1.0):.1f}%" height="100%"/></svg>'
    )
