"""A number of the machine's over the last quarter of an hour, as a small inline SVG with its scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parprof.exporters.webpage import text
from parprof.service.past import SECONDS

STYLE = """
  .card svg.past { height: 3rem; margin-top: .3rem; border-bottom: 1px solid var(--rule); }
  .past polyline { fill: none; stroke: var(--text); stroke-width: 1.3; vector-effect: non-scaling-stroke; }
  .past .top { stroke: var(--rule); stroke-dasharray: 3 3; vector-effect: non-scaling-stroke; }
  .scale { display: flex; justify-content: space-between; font-size: .75rem; color: var(--faint); }
"""
WIDTH, HEIGHT = 300, 40
_EDGE = 2

Step = tuple[float, float, float | None]
"""From when until when, CLOCK_MONOTONIC, and what was then; None: that cannot be said."""


def chart(name: str, steps: Sequence[Step], now_s: float, top: float, told: Callable[[float], str]) -> str:
    """The steps as a line, up to now. Empty where nothing is known.

    ``top``: how high the picture is at least, which is the dashed line. ``told``: a value in words.
    """
    known = [value for _, _, value in steps if value is not None]
    if not known:
        return ""
    highest = max(*known, top)

    def at(time_s: float, value: float) -> str:
        left = WIDTH * (1 - (now_s - time_s) / SECONDS)
        return f"{max(left, 0.0):.1f},{_height(value, highest):.1f}"

    lines = "".join(f'<polyline points="{" ".join(at(*point) for point in run)}"/>' for run in _runs(steps))
    limit = _height(top, highest)
    summary = f"{name} in the last 15 min: {told(min(known))} to {told(max(known))}, now {told(known[-1])}"
    return (
        f'<svg class="past" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img">'
        f"<title>{text(summary)}</title>"
        f'<line class="top" x1="0" x2="{WIDTH}" y1="{limit:.1f}" y2="{limit:.1f}"/>{lines}</svg>'
        f'<div class="scale"><span>15 min ago</span><span>up to {text(told(highest))}</span><span>now</span></div>'
    )


def _height(value: float, highest: float) -> float:
    return _EDGE + (HEIGHT - 2 * _EDGE) * (1 - max(value, 0.0) / highest)


def _runs(steps: Sequence[Step]) -> list[list[tuple[float, float]]]:
    """The corners of the line: it is broken where nothing can be said."""
    runs: list[list[tuple[float, float]]] = []
    is_open = False
    for begin_s, end_s, value in steps:
        if value is None:
            is_open = False
            continue
        if not is_open:
            runs.append([])
        is_open = True
        runs[-1] += [(begin_s, value), (end_s, value)]
    return runs
