"""What changed between two profiles, as a web page: by function, with what may as well be chance told apart."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import field
from functools import cache
from typing import Any

from parprof.attribution import Effort, percent
from parprof.attribution.effort import lost_ns
from parprof.attribution.interval import Change, MeasuredTime, Z, measured_spread
from parprof.causes.cause import interval_percent
from parprof.cct.tree import CallingContextTree
from parprof.cct.views import flat_view
from parprof.exporters.answer import location, rounded
from parprof.exporters.diff_graph import diff_graph
from parprof.exporters.output import open_output
from parprof.exporters.readable import readable
from parprof.exporters.webpage import WebPage, asset, data_block, definitions, text
from parprof.metrics import IDLENESS, STALL, Metrics
from parprof.model import Profile
from parprof.untrusted import visible
from parprof.values import dataclass

MAX_FUNCTIONS = 20_000
_SCRIPTS = ("page_elements.js", "page_rows.js", "diff_data.js", "page_flame.js", "diff_page.js")
_KINDS = ("lost itself", "lost with callees", "useful work itself", "useful work with callees")
_BODY = """
<div class="bar">
  <label>by <select id="kind"></select></label>
  <label><input type="checkbox" id="real" checked> only real changes</label>
  <label class="grow">search <input id="search" type="search" placeholder="function or file ( / )"
    spellcheck="false" autocomplete="off"></label>
</div>
<h2>Call paths</h2>
<p class="legend"><label>widths of <select id="by"><option value="after">B, after</option>
  <option value="before">A, before</option></select></label>
  <span><i class="idleness"></i> more</span> <span><i class="useful"></i> less</span>
  <span><i class="unsure"></i> may be chance</span> <span id="left"></span></p>
<div id="details" aria-live="polite"></div>
<div class="tall" id="scroller"><canvas id="chart" tabindex="0" role="img"
  aria-label="flame graph; arrow keys move, Enter zooms, Escape goes back"></canvas><div id="space"></div></div>
<h2>Functions</h2>
<p id="found" class="faint" aria-live="polite"></p>
<div class="tall" id="rows" tabindex="0"></div>
<p class="faint">Seconds of core time. Lost: idleness, overhead, and time in which nobody worked. The last column is
the 95 % interval of a change as far as sampling goes, and 1 % of all core time where nobody worked; a change is marked
as real where it is larger than that. How much two runs of the same program differ otherwise is not in it: measure each
twice to know that.</p>
"""


@dataclass(slots=True)
class _Row:
    """A function in both profiles."""

    where: str
    own: tuple[Metrics, Metrics] = field(default_factory=lambda: (Metrics(), Metrics()))
    everything: tuple[Metrics, Metrics] = field(default_factory=lambda: (Metrics(), Metrics()))


def lost(part: Metrics, total: Metrics, profile: Profile) -> MeasuredTime:
    """What a part loses. Its stall is no sample, but not the same in any two runs either."""
    value = lost_ns(part)
    share = percent(value, total.effort_ns)
    low, high = interval_percent(part, total, profile.process.cores)
    sampled = max(high - share, share - low, 0.0) / 100 * total.effort_ns
    return MeasuredTime(value, math.hypot(sampled, measured_spread(STALL, part, total, profile.available_ns)))


def useful(part: Metrics, total: Metrics) -> MeasuredTime:
    """A part's useful work: each sample of it stands for one period, and they come as a Poisson process."""
    value = Effort.of(part).useful_ns
    period = (total.work_ns + total.spin_ns) / total.samples if total.samples else 0.0
    return MeasuredTime(value, Z * math.sqrt(value * period))


def write(a: Profile, b: Profile, path: str, notes: Sequence[str] = ()) -> None:
    """Write the page of what changed from ``a`` to ``b`` to ``path`` (``-``: standard output).

    ``notes``: why the two may not be comparable.

    Raises:
        OutputError: it cannot be written.
    """
    document = page(a, b, notes).html()
    with open_output(path) as file:
        file.write(document.encode("utf-8", "backslashreplace"))


def page(a: Profile, b: Profile, notes: Sequence[str] = ()) -> WebPage:
    """The page."""
    profiles = readable(a), readable(b)
    totals = a.total(), b.total()
    rows: list[list[Any]] = []
    for (name, _, _), row in _functions(profiles).items():
        changed = _changes(row, totals, profiles)
        if any(one.delta for one in changed):
            rows.append([visible(name) or "[unknown]", visible(row.where), *map(_numbers, changed)])
    rows.sort(key=lambda row: (-abs(row[3][1] - row[3][0]), row[0]))
    drawn = diff_graph(
        [profile.samples for profile in profiles],
        lambda *sides: [_numbers(one) for one in _kinds(sides, totals, profiles)],
        lambda procedure, line: location(procedure.file, line, procedure.module),
    )
    whole = _changes(_Row("", totals, totals), totals, profiles)
    title = f"parprof diff: {a.process.command or a.process.comm}"
    body = "\n".join(
        (
            f"<h1>{text(title, 300)}</h1>",
            f'<p class="advice">{text(_answer(profiles, totals, whole[1]))}</p>',
            definitions((side, text(_said(profile))) for side, profile in zip("AB", profiles, strict=True)),
            definitions(("note", text(note)) for note in notes),
            _BODY,
            data_block("data", {"kinds": _KINDS, "rows": rows[:MAX_FUNCTIONS], "graph": drawn}),
        )
    )
    return WebPage(title, body, asset("report.css"), _script(), theme=True)


@cache
def _script() -> str:
    parts = "\n".join(map(asset, _SCRIPTS))
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


def _functions(profiles: Sequence[Profile]) -> dict[tuple[str, str, str], _Row]:
    """By name and base names: wherever they were built, they are the same."""
    out: dict[tuple[str, str, str], _Row] = {}
    for side, profile in enumerate(profiles):
        for procedure, found in flat_view(CallingContextTree(profile.samples)).items():
            key = procedure.name, os.path.basename(procedure.module), os.path.basename(procedure.file)
            where = location(procedure.file, found.hottest_line(IDLENESS), procedure.module)
            row = out.setdefault(key, _Row(where))
            row.own[side].add(found.exclusive)
            row.everything[side].add(found.inclusive)
    return out


def _changes(row: _Row, totals: Sequence[Metrics], profiles: Sequence[Profile]) -> list[Change]:
    """In the order of the kinds."""
    pairs = row.own, row.everything
    (lost_own, useful_own), (lost_all, useful_all) = (_kinds(pair, totals, profiles) for pair in pairs)
    return [lost_own, lost_all, useful_own, useful_all]


def _kinds(
    pair: tuple[Metrics, Metrics], totals: Sequence[Metrics], profiles: Sequence[Profile]
) -> tuple[Change, Change]:
    """What is lost, and useful work."""
    (before, after), (a, b) = pair, totals
    one, other = profiles
    return (
        Change(lost(before, a, one), lost(after, b, other)),
        Change(useful(before, a), useful(after, b)),
    )


def _numbers(change: Change) -> list[float]:
    """Before, after, how far off the change may be (microseconds), and whether it is real."""
    values = change.before.value, change.after.value, change.spread
    return [*(round(value / 1000) for value in values), int(change.is_real)]


def _said(profile: Profile) -> str:
    total = profile.total()
    effort = Effort.of(total)
    name = profile.process.command or profile.process.comm
    return (
        f"{name}; {profile.elapsed_s:.2f} s, n = {profile.process.cores}, {total.samples:,} samples: "
        f"{rounded(100 * effort.efficiency)} % of the cores' time useful, "
        f"{rounded(percent(lost_ns(total), effort.total_ns))} % lost"
    )


def _answer(profiles: Sequence[Profile], totals: Sequence[Metrics], whole: Change) -> str:
    """What came of it, in a sentence."""
    if not all(total.samples for total in totals):
        return "one of the profiles has no samples: there is nothing to compare"
    before, after = (profile.elapsed_s for profile in profiles)
    speed = f"{before:.2f} s became {after:.2f} s"
    if before and after:
        speed += (
            f" ({before / after:.2f} times as fast)"
            if before >= after
            else f" ({after / before:.2f} times as long)"
        )
    change = f"{abs(whole.delta) / 1e9:.2f} s ± {whole.spread / 1e9:.2f} s of core time"
    if not whole.is_real:
        return f"{speed}; as much core time is lost as before, as far as sampling can tell (change {change})"
    return f"{speed}; {change} {'less' if whole.delta < 0 else 'more'} is lost"
