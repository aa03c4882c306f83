"""A profile of inputs as a web page: for each routine small plots of cost over trms and over rms, and its law."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from parprof.exporters.output import open_output
from parprof.exporters.webpage import WebPage, definitions, text
from parprof.input.answer import (
    Line,
    advice,
    called_by,
    costly_unknown,
    coverage,
    forecast,
    full_name,
    grows_exponentially,
    growth,
    hurts_first,
    is_sure,
    place,
    times,
    why_unknown,
)
from parprof.input.fit import EXPONENTIAL, Fit
from parprof.input.laws import CONSTANT
from parprof.input.model import BLOCKS, NANOSECONDS, InputProfile, Point
from parprof.input.terminal import again, describe

MAX_ROUTINES = 120
_METRICS = {"trms": "all input (trms)", "rms": "each cell once (rms)"}
MAX_POINTS = 400
_FORECASTS = 6
_LEAST_SHARE = 0.05
"""Percent of all cost: less is shown as 0."""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 260, 170, 46, 26, 8, 10
_STYLE = """
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 830px), 1fr)); gap: 1rem; }
.card { background: var(--panel); border-radius: 6px; padding: .7rem .9rem; }
.card h2 { margin: 0; overflow-wrap: anywhere; }
.card.first { outline: 2px solid var(--idleness); }
.plots { display: flex; flex-wrap: wrap; gap: .4rem; }
svg { flex: 1 1 260px; max-width: 380px; aspect-ratio: 260 / 170; }
svg text { font-size: 10px; fill: var(--faint); }
.axis { stroke: var(--rule); fill: none; }
.mean { fill: var(--useful); }
.worst { fill: none; stroke: var(--idleness); }
.law { stroke: var(--link); fill: none; stroke-dasharray: 4 3; }
.calls { stroke: var(--useful); stroke-width: 2; }
.ahead td, .ahead th { white-space: normal; }
.ahead td:first-child, .ahead th:first-child { text-align: left; overflow-wrap: anywhere; min-width: 6rem; }
.advice { font-size: 1.1rem; margin: .6rem 0; }
"""
_LEGEND = """<p class="faint"><b>Input</b> of a call is the memory that it, or what it calls, reads and did not write
itself, in cells of 8 bytes; what other threads or the kernel put there meanwhile is new input. <b>Cost</b> counts what
was executed: {unit}. Each dot is one size of input: filled the mean cost of the calls that had it, ringed the worst.
The dashed line leads to ten times the largest input, if the growth goes on. All axes are logarithmic: a straight line
that rises one decade for each decade of input is linear (ten times the input costs ten times as much), one that rises
two is quadratic (a hundred times).</p>
<p class="faint">The first plot of each routine has all its input (<b>trms</b>); the second counts each cell once, even
if it was filled again and again, as a buffer is (<b>rms</b>): where the two differ, believe the first. The third shows
how many calls had which size. <b>r2</b> says how well the growth fits, 1 at best.</p>"""
_UNITS = {
    BLOCKS: "basic blocks, stretches of code without a branch. Unlike time they do not depend on the machine",
    NANOSECONDS: "time, in nanoseconds",
}


def write(profile: InputProfile, found: Sequence[Line], path: str) -> None:
    """Write the page to a file.

    Raises:
        OutputError: it cannot be written.
    """
    with open_output(path) as file:
        file.write(make(profile, found).html().encode())


def make(profile: InputProfile, found: Sequence[Line]) -> WebPage:
    """The page."""
    first = grows_exponentially(found) or hurts_first(list(found))
    shown = _in_order(found, first)[:MAX_ROUTINES]
    cards = "\n".join(_card(line, profile.cost_unit, is_first=line is first) for line in shown)
    left_out = len(found) - len(shown)
    more = f'<p class="faint">{left_out} routines that cost less are not shown.</p>' if left_out else ""
    notes = "".join(f"<p>{text(note)}</p>" for note in profile.notes)
    body = (  # the answer, what it rests on, then everything
        f'<h1>Input and cost: {text(profile.command, 300)}</h1>\n<p class="advice">{text(advice(list(found)))}</p>\n'
        f"{_forecasts(found)}{notes}{_facts(profile)}\n"
        f'{_LEGEND.format(unit=_UNITS[profile.cost_unit])}\n<div class="cards">\n{cards}\n</div>\n{more}'
    )
    return WebPage(title=f"parprof input: {profile.command}", body=body, style=_STYLE)


def _in_order(found: Sequence[Line], first: Line | None) -> list[Line]:
    return sorted(found, key=lambda line: (line is not first, not line.law.is_found, -line.cost_percent))


def _forecasts(found: Sequence[Line]) -> str:
    """What costs most when the input is ten times as large, as a table; what is dear and not known is in it."""
    rows = [
        _row(one.line, text(_law_of(one.line.law)), times(one.line.law.tenfold), f"{one.share_percent:.1f} %")
        for one in forecast(list(found), _FORECASTS)
        if one.line.law.model != CONSTANT and one.share_percent >= _LEAST_SHARE
    ]
    explosive = grows_exponentially(found)
    if explosive:
        factor = f"{times(explosive.law.factor)} for each further cell"
        rows.insert(0, _row(explosive, "exponentially", factor, "?"))
    if not rows:
        return ""
    unknown = costly_unknown([line for line in found if line is not explosive])
    if unknown:
        rows.append(_row(unknown, "not known", "?", "?"))
    return (
        '<h2>When the input is ten times as large</h2>\n<table class="ahead"><tr><th>routine</th>'
        "<th>its cost grows as</th><th>of all cost now</th><th>takes then</th><th>of all cost then</th></tr>\n"
        + "\n".join(rows)
        + '</table>\n<p class="faint">n is the input of a call: what it reads and did not write itself. By growth that'
        " fits well; routines without are taken to cost what they do now. Shares are of routines' own cost, without"
        " what they call; routines whose cost does not grow with n are left out.</p>\n"
    )


def _law_of(law: Fit) -> str:
    return f"{law.model}, at worst" if law.at_worst else law.model


def _row(line: Line, model: str, factor: str, share: str) -> str:
    return (
        f"<tr><td>{text(full_name(line.routine.identity), 200)}</td><td>{model}</td>"
        f"<td>{line.cost_percent:.1f} %</td><td>{factor}</td><td>{share}</td></tr>"
    )


def _facts(profile: InputProfile) -> str:
    whole = profile.first + profile.induced + profile.external

    def share(part: int) -> str:
        return f"{100 * part / whole:.1f} %" if whole else "0 %"

    return definitions(
        [
            ("input", f"{whole:,} cells of 8 bytes"),
            ("from other threads", share(profile.induced)),
            ("from system calls", share(profile.external)),
            ("volume", again(profile)),
            ("cost", "basic blocks" if profile.cost_unit == BLOCKS else "nanoseconds"),
            ("runs, processes, threads", f"{profile.runs}, {profile.processes}, {profile.threads}"),
            ("coverage", text(coverage(profile))),
        ]
    )


def _card(line: Line, unit: str, *, is_first: bool) -> str:
    identity, law = line.routine.identity, line.law
    own = " first" if is_first else ""
    facts = (
        f"{line.cost_percent:.1f} % of the cost ({line.inclusive_percent:.1f} % with what it calls), "
        f"{line.total.calls:,} calls; of its input "
        f"{line.thread_percent:.0f} % from other threads, {line.external_percent:.0f} % from system calls; "
        f"{100 * line.routine.input_volume:.0f} % anew through cells read before; "
        f"profile richness {line.routine.profile_richness:.2f}"
    )
    name = "blocks" if unit == BLOCKS else "ns"
    return (
        f'<div class="card{own}"><h2>{text(identity.name, 200)}</h2>'
        f'<p class="faint">{text(place(identity) + called_by(identity), 300)}</p><p>{_law(line)}</p>'
        f'<p class="faint">{text(facts)}</p><div class="plots">'
        f"{_plot(line.routine.by_trms(), lambda point: point.trms, 'trms', name, law)}"
        f"{_plot(line.routine.by_rms(), lambda point: point.rms, 'rms', name, line.rms_law)}"
        f"{_workload(line.routine.by_trms())}</div></div>"
    )


def _law(line: Line) -> str:
    law = line.law
    if law.reason == EXPONENTIAL:
        return f"<b>grows exponentially: each further cell of input takes {times(law.factor)} as long</b>"
    if not law.is_found:
        return f"<b>no growth is known: {text(why_unknown(line), 300)}</b>"
    if not is_sure(law):
        return (
            f"<b>what ten times the input would cost is not known: {text(why_unknown(line), 300)}</b> "
            f"({text(describe(law))})"
        )
    return f"<b>{text(growth(law))}: ten times the input, {times(law.tenfold)} the cost</b> ({text(describe(law))})"


def _plot(points: Sequence[Point], size: Callable[[Point], int], metric: str, unit: str, law: Fit) -> str:
    known = [point for point in points if size(point) > 0 and point.cost_max > 0]
    if not known:
        return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}"><text x="60" y="80">no {metric} above 0</text></svg>'
    known = _thinned(known)
    sizes = [float(size(point)) for point in known]
    costs = [max(point.cost_mean, 1.0) for point in known] + [float(point.cost_max) for point in known]
    ahead = [_end_of(known, size, law)] if is_sure(law) else []
    ahead += [(law.fixed + 10 * (n - law.fixed), cost * law.tenfold) for n, cost in ahead]
    xs = _Axis(sizes + [n for n, _ in ahead], _LEFT, _WIDTH - _RIGHT)
    costs += [cost for _, cost in ahead]
    ys = _Axis(costs, _HEIGHT - _BOTTOM, _TOP)
    label = f"{_METRICS[metric]}: {law.model or law.reason}"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{text(f"cost over {metric}", 60)}">'
        f'<path class="axis" d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}"/>'
        f"{_labels(xs, ys, unit, label)}{_line_ahead(ahead, xs, ys)}{''.join(_dots(known, size, xs, ys))}</svg>"
    )


def _end_of(known: Sequence[Point], size: Callable[[Point], int], law: Fit) -> tuple[float, float]:
    """Where what the law says begins: the largest of the sizes that it is of."""
    last = max((point for point in known if size(point) <= law.largest), key=size, default=known[-1])
    return float(size(last)), float(last.cost_max) if law.at_worst else max(last.cost_mean, 1.0)


def _line_ahead(ahead: Sequence[tuple[float, float]], xs: _Axis, ys: _Axis) -> str:
    if not ahead:
        return ""
    (n, cost), (later, dearer) = ahead
    return (
        f'<path class="law" d="M{xs.at(n):.1f} {ys.at(cost):.1f}L{xs.at(later):.1f} {ys.at(dearer):.1f}"/>'
        f'<circle class="law" cx="{xs.at(later):.1f}" cy="{ys.at(dearer):.1f}" r="3"/>'
    )


def _workload(points: Sequence[Point]) -> str:
    """How many activations had which size of input."""
    known = _thinned([point for point in points if point.trms > 0])
    if not known:
        return ""
    xs = _Axis([point.trms for point in known], _LEFT, _WIDTH - _RIGHT)
    ys = _Axis([1, *(point.calls for point in known)], _HEIGHT - _BOTTOM, _TOP)
    base = _HEIGHT - _BOTTOM
    bars = "".join(
        f'<path class="calls" d="M{xs.at(point.trms):.1f} {base}V{ys.at(point.calls) - 1:.1f}"/>'
        for point in known
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="calls over trms">'
        f'<path class="axis" d="M{_LEFT} {_TOP}V{base}H{_WIDTH - _RIGHT}"/>'
        f"{_labels(xs, ys, 'calls', 'input of a call (trms)')}{bars}</svg>"
    )


def _thinned(points: list[Point]) -> list[Point]:
    step = -(-len(points) // MAX_POINTS)
    return points[::step] if step > 1 else points


class _Axis:
    """A logarithmic axis from one place of the picture to another."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low, self.high = min(values), max(values)
        self._low, high = math.log(self.low), math.log(self.high)
        self._span = high - self._low
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        """Where a value is."""
        share = (math.log(max(value, self.low)) - self._low) / self._span if self._span > 0 else 0.5
        return self._start + share * (self._end - self._start)


def _labels(xs: _Axis, ys: _Axis, unit: str, label: str) -> str:
    base = _HEIGHT - _BOTTOM
    return (
        f'<text x="{_LEFT}" y="{base + 12}">{_short(xs.low)}</text>'
        f'<text x="{_WIDTH - _RIGHT}" y="{base + 12}" text-anchor="end">{_short(xs.high)}</text>'
        f'<text x="{(_LEFT + _WIDTH) // 2}" y="{base + 22}" text-anchor="middle">{text(label, 60)}</text>'
        f'<text x="{_LEFT - 4}" y="{base}" text-anchor="end">{_short(ys.low)}</text>'
        f'<text x="{_LEFT - 4}" y="{_TOP + 8}" text-anchor="end">{_short(ys.high)}</text>'
        f'<text x="{_LEFT - 4}" y="{base // 2}" text-anchor="end">{unit}</text>'
    )


def _dots(points: Sequence[Point], size: Callable[[Point], int], xs: _Axis, ys: _Axis) -> Iterator[str]:
    for point in points:
        x = xs.at(size(point))
        title = (
            f"n {size(point):,}: {point.calls:,} calls, mean {point.cost_mean:,.0f}, worst {point.cost_max:,}"
        )
        yield f'<circle class="worst" cx="{x:.1f}" cy="{ys.at(point.cost_max):.1f}" r="3"/>'
        yield (
            f'<circle class="mean" cx="{x:.1f}" cy="{ys.at(point.cost_mean):.1f}" r="2.2">'
            f"<title>{text(title)}</title></circle>"
        )


def _short(value: float) -> str:
    return f"{value:.0f}" if value < 10_000 else f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
