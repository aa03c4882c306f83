"""A profile of inputs in a terminal: a sentence, a table of routines, and log-log plots."""

from __future__ import annotations

import math
from collections.abc import Sequence

from parprof.input.answer import Line, advice, beyond, coverage, full_name
from parprof.input.fit import Fit
from parprof.input.model import BLOCKS, InputProfile, Point
from parprof.untrusted import printable

MAX_ROUTINES = 20
_LEGEND = (
    "n: the input of a call, in cells of 8 bytes: memory that it, or what it calls, reads and did not write",
    "itself (trms); thread%, extern%: of that, what other threads wrote and what system calls brought;",
    "cost%: of all cost, its own; model: how its cost grows with n; r2: how well that fits, 1 at best",
)
_PLOT_COLUMNS, _PLOT_ROWS = 60, 16
_MEAN, _WORST, _BOTH = "o", "^", "@"


def report(
    profile: InputProfile, found: Sequence[Line], *, limit: int = MAX_ROUTINES, plots: bool = False
) -> str:
    """The whole report, which ends with a newline."""
    out = [f"advice: {advice(list(found))}", ""]
    if plots:
        for line in found[:limit]:
            out += [*plot(line, profile.cost_unit), ""]
    out += table(found[:limit])
    if len(found) > limit:
        out.append(f" ... and {len(found) - limit} more routines (--limit)")
    out += ["", *_LEGEND, *_summary(profile)]
    out += [f"note: {note}" for note in profile.notes]
    return "".join(f"{printable(line)}\n" for line in out)


def table(found: Sequence[Line]) -> list[str]:
    """A line for each routine, under a heading."""
    out = [" cost%  model         r2        n range     calls thread% extern%  routine"]
    for line in found:
        law = line.law
        model = f"{law.model}{' at worst' if law.at_worst else ''}" if law.is_found else f"({law.reason})"
        r2 = f"{law.r2:.2f}" if law.is_found else ""
        span = f"{law.smallest:.0f}-{law.largest:.0f}" if law.largest else ""
        out.append(
            f"{line.cost_percent:6.1f}  {model:<11.17} {r2:>4} {span:>14} {_count(line.total.calls):>9}"
            f" {line.thread_percent:7.0f} {line.external_percent:7.0f}  {full_name(line.routine.identity)}"
        )
    return out


def _count(n: int) -> str:
    return f"{n:,}" if n < 10_000_000 else f"{n:.2e}"


def _summary(profile: InputProfile) -> list[str]:
    whole = profile.first + profile.induced + profile.external
    out = []
    if whole:
        out.append(
            f"input: {whole:,} cells of 8 bytes; {100 * profile.induced / whole:.0f} % from other threads, "
            f"{100 * profile.external / whole:.0f} % from system calls; {again(profile)}"
        )
    unit = "basic blocks" if profile.cost_unit == BLOCKS else "time"
    of = f"{_several(profile.processes, 'process', 'es')}, {_several(profile.threads, 'thread', 's')}"
    runs = f", {profile.runs} runs" if profile.runs > 1 else ""
    out.append(f"cost: {unit}; {of}{runs}; by {profile.tool}")
    out.append(f"coverage: {coverage(profile)}")
    return out


def _several(n: int, what: str, ending: str) -> str:
    return f"{n} {what}{ending * (n != 1)}"


def plot(line: Line, unit: str) -> list[str]:
    """Mean and worst cost over trms, both axes logarithmic."""
    identity = line.routine.identity
    points = [point for point in line.routine.by_trms() if point.trms and point.cost_max]
    head = f"{full_name(identity)}: {describe(line.law)}"
    if not points:
        return [head, "  no activation had any input"]
    return [head, *_canvas(points, "blocks" if unit == BLOCKS else "ns")]


def again(profile: InputProfile) -> str:
    """The input volume in words: rms counts a cell once, however often others write it anew."""
    return f"{100 * profile.input_volume:.0f} % of all calls' input came anew through cells read before"


def describe(law: Fit) -> str:
    """A law in words: ``n^2, r2 1.00; slope 1.98 +- 0.03 at the larger sizes``."""
    if not law.is_found:
        return f"no model ({law.reason})"
    out = f"{'at worst ' if law.at_worst else ''}{law.model}{beyond(law)}, r2 {law.r2:.2f}"
    if math.isfinite(law.exponent_error):
        out += f"; slope {law.exponent:.2f} +- {law.exponent_error:.2f} at the larger sizes"
    return out


def _canvas(points: Sequence[Point], unit: str) -> list[str]:
    left, right = _span([point.trms for point in points])
    low, high = _span([max(point.cost_mean, 1) for point in points] + [point.cost_max for point in points])
    cells = [[" "] * _PLOT_COLUMNS for _ in range(_PLOT_ROWS)]

    def put(n: float, cost: float, mark: str) -> None:
        column = round((math.log(n) - left) / (right - left) * (_PLOT_COLUMNS - 1))
        row = _PLOT_ROWS - 1 - round((math.log(max(cost, 1)) - low) / (high - low) * (_PLOT_ROWS - 1))
        there = cells[row][column]
        cells[row][column] = mark if there in (" ", mark) else _BOTH

    for point in points:
        put(point.trms, point.cost_max, _WORST)
        put(point.trms, point.cost_mean, _MEAN)
    labels = {0: _short(math.exp(high)), _PLOT_ROWS - 1: _short(math.exp(low)), _PLOT_ROWS // 2: unit}
    out = [f"{labels.get(row, ''):>9} |{''.join(cells[row])}" for row in range(_PLOT_ROWS)]
    out.append(f"{'':>9} +{'-' * _PLOT_COLUMNS}")
    first, last = _short(math.exp(left)), _short(math.exp(right))
    middle = f"n (input, cells)   {_MEAN} mean  {_WORST} worst  {_BOTH} both"
    out.append(f"{'':>11}{first}{middle:^{_PLOT_COLUMNS - len(first) - len(last)}}{last}")
    return out


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = math.log(min(values)), math.log(max(values))
    return (low, high) if high - low > 1e-9 else (low - 0.5, high + 0.5)


def _short(value: float) -> str:
    for unit in ("", "k", "M", "G", "T"):
        if value < 1000 or unit == "T":
            return f"{value:.0f}{unit}" if value >= 10 or not unit else f"{value:.1f}{unit}"
        value /= 1000
    raise AssertionError
