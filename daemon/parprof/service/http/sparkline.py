"""A process's n_w over the last minutes as a small inline SVG."""

from __future__ import annotations

from collections.abc import Sequence

from parprof.exporters.webpage import percentage
from parprof.service.model import Recent

WIDTH, HEIGHT = 120, 30
MAX_POINTS = 120
MAX_SECONDS = 600.0


def sparkline(history: Sequence[Recent], cores: int, now_s: float, *, stretched: bool = False) -> str:
    """Working threads against time, up to now (CLOCK_MONOTONIC); the dashed line is n. Empty without history.

    ``stretched``: it fills whatever room it is given, in both directions.

    The oldest points go when there are too many. A pause, in which the process had no samples, stays a gap.
    """
    points = [point for point in history if 0 <= now_s - point.clock_s <= MAX_SECONDS]
    points = sorted(points, key=lambda point: point.clock_s)[-MAX_POINTS:]
    if not points:
        return ""
    span_s = max(now_s - points[0].clock_s, 30.0)
    top = max(float(cores), *(point.n_working for point in points), 1.0)

    def at(point: Recent) -> str:
        left = WIDTH * (1 - (now_s - point.clock_s) / span_s)
        return f"{left:.1f},{_height(point.n_working, top):.1f}"

    lines = "".join(
        f'<polyline points="{" ".join(at(point) for point in run)}"/>'
        if len(run) > 1
        else f'<circle cx="{at(run[0]).split(",")[0]}" cy="{at(run[0]).split(",")[1]}" r="1.5"/>'
        for run in _runs(points)
    )
    mean = sum(point.n_working for point in points) / len(points)
    worst = min((point.efficiency for point in points if point.n_working), default=0.0)
    lowest = f"; lowest efficiency {percentage(worst)}" if mean else ""
    summary = f"mean n_w {mean:.1f} of {cores} in {span_s:.0f} s{lowest}"
    limit = _height(float(cores), top)
    fit = 'preserveAspectRatio="none" ' if stretched else ""
    return (
        f'<svg {fit}class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">'
        f'<title>{summary}</title><line x1="0" x2="{WIDTH}" y1="{limit:.1f}" y2="{limit:.1f}"/>{lines}</svg>'
    )


def _height(n_working: float, top: float) -> float:
    return 2 + (HEIGHT - 4) * (1 - max(0.0, n_working) / top)


def _runs(points: list[Recent]) -> list[list[Recent]]:
    """Split where the time between two points is far more than usual."""
    steps = sorted(after.clock_s - before.clock_s for before, after in zip(points, points[1:], strict=False))
    usual_s = steps[len(steps) // 2] if steps else 0.0
    runs = [[points[0]]]
    for before, after in zip(points, points[1:], strict=False):
        if after.clock_s - before.clock_s > 2.5 * usual_s:
            runs.append([])
        runs[-1].append(after)
    return runs
