"""The web page of `parprof scale`: the speed-up by cores, what each fix would give, and the critical path."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from parprof.exporters.scale_flame import STYLE as FLAME_STYLE
from parprof.exporters.scale_flame import flame
from parprof.exporters.scale_table import NOT_MODELLED, burdened, how, if_fixed, short_time
from parprof.exporters.webpage import WebPage, definitions, percentage, text
from parprof.scale.answer import factor, is_worth_fixing, sentence
from parprof.scale.calls import CallSite
from parprof.scale.model import Prediction, Scale, ScaleSite, context_of, reached

_WIDTH, _HEIGHT, _MARGIN = 640, 400, 48
_MAX_LINES = 4
_MAX_SITES = 200
_MIN_PART = 0.002
_STYLE = """
svg { width: 100%; max-width: 860px; height: auto; display: block; }
svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
.axis { stroke: currentColor; stroke-opacity: .25; fill: none; }
.ideal { stroke: currentColor; stroke-dasharray: 4 4; fill: none; }
.curve { stroke: #2a7de1; stroke-width: 2.5; fill: none; }
.point { fill: #2a7de1; }
.measured { fill: Canvas; stroke: currentColor; stroke-width: 2; }
.fixed { stroke-width: 1.5; fill: none; stroke-dasharray: 7 3; }
.c0 { stroke: #d1495b; } .c1 { stroke: #2e8b57; } .c2 { stroke: #b8860b; } .c3 { stroke: #8a4fbf; }
.part { stroke: Canvas; stroke-width: 1; }
.serial { fill: #d1495b; } .uneven { fill: #e8a33d; } .critical { fill: #8a4fbf; } .even { fill: #5aa469; }
td:not(.number), th:not(.number) { text-align: left; }
.scroll svg { min-width: 480px; }
.scroll svg.wide { min-width: 760px; }
svg.wide text { fill: var(--on-colour); }
"""
_NOT_SHARED = 1.08
"""How much longer than an even share of its work a site is that not all cores share."""


def page(scale: Scale) -> WebPage:
    """The whole page; it needs no script."""
    main = scale.main
    notes = "".join(f"<li>{text(note)}</li>" for note in (NOT_MODELLED, *scale.notes))
    body = "\n".join(
        (
            f"<h1>{text(sentence(scale), 2000)}</h1>",
            definitions(
                (
                    ("command", text(scale.command, 1000)),
                    ("work", text(short_time(main.work_s))),
                    ("span", f"{text(short_time(main.span_s))} {how(scale)}"),
                    ("work / span", f"{main.parallelism:.2f}"),
                )
            ),
            *_by_cores(scale),
            _path(main),
            "<p>Each block is a site's part of the least time: red is serial code, orange ends unevenly or has not all "
            "cores, violet holds a lock, green is work that all cores share.</p>",
            "<h2>The critical path</h2><p>The longest chain of code that must run one after the other: functions and "
            "loops from the top, the sites in them in red.</p>",
            _scrolled(flame(main)),
            _sites_table(main),
            _calls_table(main),
            f"<h2>Notes</h2><ul>{notes}</ul>",
        )
    )
    return WebPage("parprof scale", body, _STYLE + FLAME_STYLE)


def _by_cores(scale: Scale) -> Iterator[str]:
    if scale.is_serial:
        yield "<h2>The span: the time that is left on any number of cores</h2>"
        return
    yield "<h2>Speed-up by cores, at best</h2>"
    yield _curve(scale.predictions)
    if reached(scale.predictions):
        yield (
            "<p>The line is what so many cores can give at best; squares are what the runs here reached, measured, "
            "where there was a core for each thread.</p>"
        )
    yield _cores_table(scale.predictions)
    yield f"<h2>The time that is left on {scale.main.threads} cores</h2>"


def _curve(predictions: Sequence[Prediction]) -> str:
    most = max((one.threads for one in predictions), default=1)
    top = math.log2(max(most, 2))

    def point(threads: float, speedup: float) -> str:
        x = _MARGIN + (_WIDTH - 2 * _MARGIN) * math.log2(max(threads, 1)) / top
        y = _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * min(math.log2(max(speedup, 1)) / top, 1)
        return f"{x:.1f},{y:.1f}"

    def line(values: Sequence[tuple[float, float]], style: str) -> str:
        return f'<polyline class="{style}" points="{" ".join(point(*value) for value in values)}"/>'

    predicted = [(float(one.threads), one.speedup) for one in predictions]
    parts = [*_axes(most, point), line([(1, 1), (most, most)], "ideal")]
    for number, (label, values) in enumerate(fixed_lines(predictions)):
        parts.append(line([(1, 1), *values], f"fixed c{number}"))
        at = _MARGIN + 18 * (number + 1)
        parts.append(f'<path class="fixed c{number}" d="M{_MARGIN + 8},{at} h24"/>')
        legend = f"{_clip(label)} fixed: {factor(values[-1][1])}"
        parts.append(f'<text x="{_MARGIN + 38}" y="{at + 4}">{text(legend)}</text>')
    parts.append(line([(1, 1), *predicted], "curve"))
    for value in predicted:
        x, y = point(*value).split(",")
        title = f"{value[0]:.0f} cores: {factor(value[1])} at best"
        parts.append(f'<circle class="point" cx="{x}" cy="{y}" r="4"><title>{title}</title></circle>')
    for threads, speedup in reached(predictions):
        x, y = point(threads, speedup).split(",")
        title = f"{threads} threads on {threads} cores: {factor(speedup)}, measured"
        box = f'x="{float(x) - 4:.1f}" y="{float(y) - 4:.1f}" width="8" height="8"'
        parts.append(f'<rect class="measured" {box}><title>{title}</title></rect>')
    image = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="speed-up by cores">{"".join(parts)}</svg>'
    return _scrolled(image)


def _scrolled(element: str) -> str:
    """In windows that are too narrow for it, it alone is moved sideways."""
    return f'<div class="scroll">{element}</div>'


def _axes(most: int, point: object) -> Iterator[str]:
    assert callable(point)
    value = 1
    while value <= most:
        x, y = str(point(value, 1)).split(",")
        yield f'<path class="axis" d="M{x},{_MARGIN} V{_HEIGHT - _MARGIN}"/>'
        yield f'<text x="{x}" y="{_HEIGHT - _MARGIN + 16}" text-anchor="middle">{value}</text>'
        _, y = str(point(1, value)).split(",")
        yield f'<path class="axis" d="M{_MARGIN},{y} H{_WIDTH - _MARGIN}"/>'
        yield f'<text x="{_MARGIN - 6}" y="{y}" dy="4" text-anchor="end">{value}</text>'
        value *= 2
    yield f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 6}" text-anchor="middle">cores</text>'


def fixed_lines(predictions: Sequence[Prediction]) -> list[tuple[str, list[tuple[float, float]]]]:
    """What fixing each of the worst sites would give, by number of threads."""
    if not predictions:
        return []
    main = predictions[-1]
    worst = sorted(main.sites, key=lambda site: -site.speedup_if_fixed)[:_MAX_LINES]
    lines = []
    for site in worst:
        if not is_worth_fixing(site, main):
            continue
        values = []
        for one in predictions:
            same = next((other for other in one.sites if other.label == site.label), None)
            values.append((float(one.threads), same.speedup_if_fixed if same else one.speedup))
        lines.append((site.label, values))
    return lines


def _path(main: Prediction) -> str:
    """The least time from left to right, a block for each site."""
    x, parts = 0.0, []
    for site in main.sites:
        width = site.share * 1000
        if site.share < _MIN_PART:
            continue
        title = f"{site.label}: {percentage(site.share, 1)}, {short_time(site.bound_s)}"
        parts.append(
            f'<rect class="part {_reason(site, main.threads)}" x="{x:.1f}" y="0" width="{width:.1f}" height="34">'
            f"<title>{text(title)}</title></rect>"
        )
        if width > 130:
            parts.append(f'<text x="{x + 5:.1f}" y="21">{text(_clip(site.label, int(width / 7)))}</text>')
        x += width
    return _scrolled(
        f'<svg class="wide" viewBox="0 0 1000 34" role="img" aria-label="critical path">{"".join(parts)}</svg>'
    )


def _reason(site: ScaleSite, threads: int) -> str:
    if site.kind.name in ("SERIAL", "PENDING", "SINGLE"):
        return "serial"
    if site.critical_s > site.uneven_s:
        return "critical"
    return "uneven" if site.bound_s * threads > _NOT_SHARED * site.work_s else "even"


def _cores_table(predictions: Sequence[Prediction]) -> str:
    rows = "".join(
        f"<tr>{_numbers(str(one.threads), factor(one.speedup), burdened(one), f'{one.parallelism:.2f}')}"
        f"{_numbers(*(percentage(value) for value in _lost(one)))}</tr>"
        for one in predictions
    )
    heads = _heads(
        "cores", "at best", "burdened", "work/span", "lost: serial", "uneven", "critical", "runtime"
    )
    return _scrolled(f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>")


def _lost(one: Prediction) -> tuple[float, ...]:
    return one.lost.serial, one.lost.uneven, one.lost.critical, one.lost.runtime


def _sites_table(main: Prediction) -> str:
    rows = "".join(
        f"<tr>{_numbers(percentage(site.share, 1), short_time(site.span_s), short_time(site.work_s))}"
        f"{_numbers(str(site.count), if_fixed(site))}"
        f"<td>{text(site.label)}</td><td>{text(context_of(site))}</td></tr>"
        for site in main.sites[:_MAX_SITES]
    )
    heads = _heads("time", "span", "work", "count", "if fixed") + "<th>site</th><th>in</th>"
    return _scrolled(f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>")


def _calls_table(main: Prediction) -> str:
    """The paper's figure 2; nothing for programs without hooks."""
    if not main.calls:
        return ""
    rows = "".join(_call_row(call, main.span_s) for call in main.calls[:_MAX_SITES])
    heads = _heads("span", "local span", "calls", "work/span", "all calls", "local work", "work/span")
    return "<h2>Call sites</h2><p>First of the calls on the critical path, then of all.</p>" + _scrolled(
        f"<table><thead><tr>{heads}<th>call</th></tr></thead><tbody>{rows}</tbody></table>"
    )


def _call_row(call: CallSite, span_s: float) -> str:
    on_span, on_work = call.on_span, call.on_work
    share = on_span.local_span_s / span_s if span_s else 0.0
    numbers = _numbers(
        percentage(share, 1),
        short_time(on_span.local_span_s),
        str(on_span.count),
        f"{on_span.top_call_site.parallelism:.2f}",
        str(on_work.count),
        short_time(on_work.local_work_s),
        f"{on_work.top_call_site.parallelism:.2f}",
    )
    return f"<tr>{numbers}<td>{text(call.label)}</td></tr>"


def _numbers(*values: str) -> str:
    return "".join(f'<td class="number">{text(value)}</td>' for value in values)


def _heads(*values: str) -> str:
    return "".join(f'<th class="number">{text(value)}</th>' for value in values)


def _clip(label: str, limit: int = 48) -> str:
    return label if len(label) <= limit else label[: max(limit - 3, 1)] + "..."
