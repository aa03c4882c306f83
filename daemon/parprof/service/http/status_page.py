"""The page at ``/``: what the daemon watches, what it sees, what it costs, what it lost."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from urllib.parse import urlencode

from parprof import __version__
from parprof.attribution import Effort
from parprof.exporters.webpage import WebPage, asset, definitions, duration, percentage, text
from parprof.metrics import METRICS, UNUSED, Metric, Metrics, Shown
from parprof.service.blame import LEAST_SAMPLES, worst
from parprof.service.http import charts
from parprof.service.http.cards import STYLE, card, cards, cost, losses
from parprof.service.http.charts import chart
from parprof.service.http.sparkline import sparkline
from parprof.service.model import ProcessSnapshot, PushQueue, Snapshot
from parprof.service.past import spans
from parprof.units import NANOSECONDS

MAX_ROWS = 300
REFRESH_SECONDS = 10
_MAX_WANTED = 300
_MAX_WORDS = 1500

_Order = Callable[[ProcessSnapshot], tuple[float | str, ...]]
_ORDERS: Mapping[str, _Order] = {
    "unused": lambda p: (-p.totals[UNUSED],),
    "idleness": lambda p: (-p.totals.idleness_ns,),
    "process": lambda p: (p.labels.comm.lower(),),
    "efficiency": lambda p: (
        Effort.of(p.totals).efficiency if p.is_parallel and p.totals.effort_ns else 2.0,
    ),
    "effort": lambda p: (-p.totals.effort_ns,),
    "cost": lambda p: (-p.cost_ratio,),
}


def sorts() -> dict[str, _Order]:
    """Orders of the table: by the column of this name."""
    return {**{metric.name: _by(metric) for metric in METRICS.at(Shown.COLUMN)}, **_ORDERS}


def _by(metric: Metric) -> _Order:
    return lambda process: (-process.totals[metric],)


_FIRST_ORDER = "unused"
_Heading = tuple[str, str, str]
"""By what it sorts, name, and what it means."""
_HEADINGS = (
    ("process", "process", ""),
    ("", "n_w lately", "threads working; the dashed line is n, the cores it could use"),
    ("", "now / n", "threads working now, of n cores"),
    (
        "efficiency",
        "efficiency",
        "useful work / effort: the last interval, and since watched; serial: it never had a second thread",
    ),
    ("effort", "effort", "since watched: useful work, overhead and idleness"),
    ("unused", "really idle", "core time that was idle on the machine while it worked, its share of it"),
    (
        "idleness",
        "idleness",
        "core time of its n cores that it did not use while it worked; others may have had it",
    ),
)
_LAST_HEADINGS = (
    ("cost", "cost", "probes and samples, share of its CPU time"),
    ("", "n_w source", "how threads at work are told from those that wait"),
    ("", "flame graphs", ""),
)

_STYLE = (
    STYLE
    + charts.STYLE
    + """
  [hidden] { display: none; }
  #search { font: inherit; width: 18rem; max-width: 60vw; }
  th a { color: inherit; }
  tbody tr:hover { background: var(--panel); }
  td.name, th.name { text-align: left; min-width: 14rem; max-width: 21rem; }
  td.name div { overflow: hidden; text-overflow: ellipsis; }
  .blame { font-size: smaller; }
  .note { font-size: smaller; color: var(--faint); }
  td.left, th.left { text-align: left; }
  svg { display: block; }
  .spark polyline { fill: none; stroke: var(--text); stroke-width: 1.3; }
  .spark circle { fill: var(--text); }
  .spark line { stroke: var(--faint); stroke-dasharray: 3 3; }
  .useful { fill: var(--useful); } .overhead { fill: var(--overhead); } .idleness { fill: var(--idleness); }
  .none { fill: var(--panel); }
  .key { display: inline-block; vertical-align: -1px; margin: 0 .25rem 0 .8rem; }
"""
)


def status_page(snapshot: Snapshot, trouble: tuple[str, ...], query: Mapping[str, str]) -> WebPage:
    """The page. ``trouble``: what health and readiness complain of. ``query``: sort, refresh, all, in, find."""
    sort = query.get("sort", _FIRST_ORDER)
    orders = sorts()
    sort = sort if sort in orders else _FIRST_ORDER
    kept = {name: query[name] for name in ("refresh", "all") if query.get(name) == "1"}
    wanted = query.get("in", "")[:_MAX_WANTED]
    if wanted:
        kept["in"] = wanted
    sought = query.get("find", "")[:_MAX_WANTED].strip()
    if sought:
        kept["find"] = sought
    chosen = [
        one
        for one in snapshot.processes
        if (not wanted or _is_in(one, wanted)) and sought.lower() in _words(one)
    ]
    ordered = sorted(chosen, key=lambda p: (*orders[sort](p), p.pid))
    shown = ordered if "all" in kept else ordered[:MAX_ROWS]
    title = f"parprofd on {socket.gethostname()}"
    more = _columns(snapshot)
    width = len(_headings_of(more))
    rows = "\n".join(_row(process, snapshot.clock_s, more) for process in shown)
    body = (
        f"<h1>{text(title)}</h1>\n"
        f'<p class="faint">version {__version__}, {_when(snapshot.time_s)}, watching for'
        f" {duration(snapshot.watched_s)}. {_refresh_link(sort, kept)}</p>\n"
        f"{cards(_cards(snapshot))}{_facts(snapshot, trouble)}\n"
        f"<h2>Processes</h2>\n{_of_what(wanted, 'in', sort, kept)}{_of_what(sought, 'find', sort, kept)}"
        f"{_search(sought, is_all=len(shown) == len(ordered))}{_legend()}\n"
        f'<div class="scroll"><table><thead><tr>{_headings(sort, kept, more)}</tr></thead>\n'
        f"<tbody>{rows or _nothing(width)}</tbody></table></div>\n{_more(len(ordered), len(shown), sort, kept)}"
        '<p class="faint"><a href="/metrics">metrics</a> · <a href="/profiles">profiles</a> ·'
        ' <a href="/healthz">health</a> · <a href="/readyz">readiness</a></p>'
    )
    return WebPage(
        title,
        body,
        _STYLE,
        asset("status_page.js"),
        refresh_seconds=REFRESH_SECONDS if "refresh" in kept else 0,
        theme=True,
    )


def since(process: ProcessSnapshot) -> str:
    """What tells a process from others that have its PID later, in addresses."""
    return f"{process.started_s:.3f}"


def _is_in(process: ProcessSnapshot, wanted: str) -> bool:
    """Whether a process has that name, or belongs there."""
    own = process.labels
    places = (own.unit, own.container, own.namespace, own.pod, own.pod_name, own.cgroup)
    return wanted in (own.comm, str(process.pid)) or wanted in places


def _words(process: ProcessSnapshot) -> str:
    """What a process is found by, in small letters."""
    own = process.labels
    names = (own.comm, str(process.pid), process.command, process.runtime)
    places = (own.unit, own.container, own.namespace, own.pod, own.pod_name, own.cgroup)
    functions = (function.name for function in process.functions)
    return " | ".join(filter(None, (*names, *places, *functions))).lower()


def _of_what(wanted: str, key: str, sort: str, kept: Mapping[str, str]) -> str:
    if not wanted:
        return ""
    rest = {name: value for name, value in kept.items() if name != key}
    what = "Those of" if key == "in" else "Those with"
    return f'<p>{what} <b>{text(wanted, 120)}</b> (<a href="{_link(sort, rest)}">show all</a>).</p>\n'


def _search(sought: str, *, is_all: bool) -> str:
    """A field that the script shows: without one, ``?find=`` does the same."""
    asked = text(sought, _MAX_WANTED)
    focus = " autofocus" if sought else ""
    return (
        f'<p hidden><label>search <input id="search" type="search" maxlength="{_MAX_WANTED}" value="{asked}"'
        f' data-asked="{asked}" data-all="{int(is_all)}" placeholder="name, PID, unit, function  (/)"{focus}></label>'
        ' <span id="found" class="faint" role="status"></span></p>\n'
    )


def _blame(process: ProcessSnapshot) -> str:
    """The function to look at first, as a link to the flame graph; nothing where no core was lost by it."""
    if not process.is_parallel:
        return ""
    functions = dict(enumerate(process.functions))
    seen = (
        (number, one.metrics) for number, one in functions.items() if one.metrics.samples >= LEAST_SAMPLES
    )
    lost_ns = {number: metrics.idleness_ns for number, metrics in seen}
    found = worst(lost_ns, process.totals.idleness_ns)
    if found is None:
        return ""
    number, share = found
    return (
        f'<div class="blame">blame: <a href="/profiles/{process.pid}.html?since={since(process)}">'
        f"{text(functions[number].name, 60)}</a> {percentage(share)}</div>"
    )


def _place(value: str, shown: str = "") -> str:
    """Where processes belong, as a link to all of them."""
    if not value or len(value) > _MAX_WANTED:
        return text(shown or value, 80)
    return (
        f'<a href="{text("/?" + urlencode({"in": value}, errors="replace"))}">{text(shown or value, 80)}</a>'
    )


def _cards(snapshot: Snapshot) -> Iterator[str]:
    """How the machine does, since the daemon began; and in pictures, in the last quarter of an hour."""
    total, watched_s = snapshot.total(), snapshot.watched_s
    effort = Effort.of_machine(total)
    past, now_s = spans(snapshot.past), snapshot.clock_s
    yield card(
        "efficiency",
        percentage(effort.efficiency, 1) if effort.total_ns else "–",
        f"useful work / (work + cores really idle), of all programs, for {duration(watched_s)}",
        chart(
            "efficiency", [(one.begin_s, one.end_s, one.efficiency) for one in past], now_s, 1.0, percentage
        ),
    )
    yield card(
        "cores really idle",
        f"{total[UNUSED] / 1e9 / watched_s:.2f}",
        f"on average, that programs with several threads could have had; {snapshot.idle_s / watched_s:.2f} of the"
        f" machine's {snapshot.cores} had nothing to do",
        chart(
            "cores really idle",
            [(one.begin_s, one.end_s, one.unused_cores) for one in past],
            now_s,
            float(snapshot.cores),
            lambda cores: f"{cores:.2f}",
        ),
    )
    budget = snapshot.budget_ratio
    yield cost(
        snapshot.cost_ratio,
        budget,
        f"of the machine's CPU time; budget {percentage(budget, 1)} of each process's",
        chart(
            "cost",
            [(one.begin_s, one.end_s, one.cost_cores / max(snapshot.cores, 1)) for one in past],
            now_s,
            budget,
            lambda ratio: percentage(ratio, 2),
        ),
    )
    yield losses(
        snapshot.lost,
        "lost",
        picture=chart(
            "lost",
            [(one.begin_s, one.end_s, one.lost) for one in past],
            now_s,
            1.0,
            lambda number: f"{number:,.1f} a second",
        ),
    )


def _facts(snapshot: Snapshot, trouble: tuple[str, ...]) -> str:
    total = snapshot.total()
    failures = {pair: count for pair, count in snapshot.attach_failures.items() if count}
    facts = [
        *(("trouble", f'<span class="bad">{text(line, 200)}</span>') for line in trouble),
        (
            "all processes",
            f"{len(snapshot.processes):,} watched; of all cores {duration(total[UNUSED] / 1e9)} were idle that programs"
            f" with several threads could have had{_others(total)}, ended ones included",
        ),
        ("samples", f"{snapshot.samples:,} at {snapshot.frequency_hz} Hz"),
        (
            "governor",
            text(_counts({" → ".join(k): v for k, v in snapshot.governor_transitions.items()}), 600),
        ),
        ("not probed", text(_counts({": ".join(k): v for k, v in failures.items()}), 600)),
        ("pushed", text(_counts({" ".join(k): v for k, v in snapshot.pushed.items()}), 600)),
        *_push_queues(snapshot.push_queues),
        *(("note", text(note, 300)) for note in snapshot.notes[:10]),
    ]
    return definitions(facts)


def _push_queues(queues: Mapping[str, PushQueue]) -> Iterator[tuple[str, str]]:
    waiting = ", ".join(
        f"{name} {queue.profiles:,} ({queue.size_bytes / 1e6:.1f} MB)"
        for name, queue in sorted(queues.items())
        if queue.profiles
    )
    yield "to be pushed", text(waiting, 600)
    for name, queue in sorted(queues.items()):
        if queue.problem:
            yield "push fails", f'<span class="bad">{text(f"{name}: {queue.problem}", 300)}</span>'


def _others(total: Metrics) -> str:
    shown = [metric for metric in METRICS.at(Shown.COLUMN) if total[metric] or not metric.optional]
    return "".join(f", {metric.name} {_amount(metric, total)}" for metric in shown)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def _row(process: ProcessSnapshot, now_s: float, more: list[Metric]) -> str:
    own, totals = process.labels, process.totals
    effort = Effort.of(totals)
    last = process.history[-1] if process.history else None
    recent = percentage(last.efficiency) if last and last.n_working else "–"
    overall = percentage(effort.efficiency) if effort.total_ns else "–"
    judged = f"{recent}<br><small>{overall}</small>" if process.is_parallel else "serial"
    home = (
        (own.unit and _place(own.unit))
        or ", ".join(filter(None, (_place(own.namespace), _place(own.pod_name or own.pod))))
        or (own.container and _place(own.container, own.container[:12]))
        or text(own.cgroup, 80)
    )
    runtime = text(process.runtime, 80) if process.runtime != "none" else ""
    details = ", ".join(filter(None, (runtime, home)))
    notes = "".join(f'<div class="note">{text(note, 160)}</div>' for note in process.notes[:3])
    base, which = f"/profiles/{process.pid}", f"since={since(process)}"
    graphs = (
        f'<a href="{base}.html?{which}">idleness</a> <a href="{base}.html?{which}&amp;by=work">work</a><br>'
        f'<a href="{base}.pb.gz?{which}">pprof</a>'
    )
    page = f"/processes/{process.pid}?{which}#tab=threads"
    cells = (
        f'<td class="name"><div title="{text(process.command, 500)}"><a href="{page}"><b>{text(own.comm, 40)}</b></a>'
        f" <small>{process.pid}</small> <small>{text(process.command, 120)}</small></div>"
        f"<small>{details}</small>{_blame(process)}{notes}</td>",
        f'<td class="left">{sparkline(process.history, process.cores, now_s)}</td>',
        f"<td>{process.n_working} / {process.cores}</td>",
        f"<td>{judged}</td>",
        f"<td>{_bar(effort)}<small>{duration(effort.total_ns / 1e9)}</small></td>",
        f"<td>{duration(totals[UNUSED] / 1e9)}</td>",
        f"<td>{duration(totals.idleness_ns / 1e9)}</td>",
        *(f"<td>{_amount(metric, totals)}</td>" for metric in more),
        f"<td>{percentage(process.cost_ratio, 2)}</td>",
        f'<td class="left">{text(process.n_w_source, 20)}<br><small>{process.frequency_hz} Hz</small></td>',
        f'<td class="left">{graphs}</td>',
    )
    return f'<tr data-words="{text(_words(process), _MAX_WORDS)}">{"".join(cells)}</tr>'


def _bar(effort: Effort) -> str:
    shares = zip(("useful", "overhead", "idleness"), effort.percentages(), strict=True)
    left, parts = 0.0, []
    for kind, share in shares:
        parts.append(f'<rect class="{kind}" x="{left:.1f}%" width="{share:.1f}%" height="100%"/>')
        left += share
    useful, overhead, idleness = effort.percentages()
    title = f"useful work {useful:.1f} %, overhead {overhead:.1f} %, idleness {idleness:.1f} %"
    return (
        f'<svg width="110" height="12" role="img"><title>{title}</title>'
        f'<rect class="none" width="100%" height="100%"/>{"".join(parts)}</svg>'
    )


def _legend() -> str:
    keys = "".join(
        f'<svg class="key" width="11" height="11"><rect class="{kind}" width="11" height="11"/></svg>{name}'
        for kind, name in (("useful", "useful work"), ("overhead", "overhead"), ("idleness", "idleness"))
    )
    return f'<p class="faint">Effort:{keys}</p>'


def _columns(snapshot: Snapshot) -> list[Metric]:
    """The metrics with columns beside effort: those that the page always has, and those of which there is anything."""
    return [
        metric
        for metric in METRICS.at(Shown.COLUMN)
        if not metric.optional or any(process.totals[metric] for process in snapshot.processes)
    ]


def _amount(metric: Metric, metrics: Metrics) -> str:
    value = metrics[metric]
    return duration(value / 1e9) if metric.unit is NANOSECONDS else metric.unit.text(value)


def _headings_of(more: list[Metric]) -> list[_Heading]:
    return [*_HEADINGS, *((metric.name, metric.name, metric.meaning) for metric in more), *_LAST_HEADINGS]


def _headings(sort: str, kept: Mapping[str, str], more: list[Metric]) -> str:
    out = []
    for key, name, hint in _headings_of(more):
        kind = (
            "name"
            if name == "process"
            else "left"
            if name in ("n_w lately", "n_w source", "flame graphs")
            else ""
        )
        label = f'<a href="{_link(key, kept)}">{name}</a>' if key and key != sort else name
        order = "ascending" if sort in ("process", "efficiency") else "descending"
        mark = f' aria-sort="{order}"' if key == sort else ""
        arrow = (" ▴" if order == "ascending" else " ▾") if mark else ""
        out.append(f'<th scope="col" class="{kind}" title="{hint}"{mark}>{label}{arrow}</th>')
    return "".join(out)


def _link(sort: str, kept: Mapping[str, str]) -> str:
    return text("/?" + urlencode({"sort": sort, **kept}, errors="replace"))


def _refresh_link(sort: str, kept: Mapping[str, str]) -> str:
    if "refresh" in kept:
        rest = {name: value for name, value in kept.items() if name != "refresh"}
        return f'Refreshed every {REFRESH_SECONDS} s (<a href="{_link(sort, rest)}">stop</a>).'
    return f'<a href="{_link(sort, {**kept, "refresh": "1"})}">Refresh every {REFRESH_SECONDS} s</a>.'


def _more(known: int, shown: int, sort: str, kept: Mapping[str, str]) -> str:
    if shown == known:
        return ""
    return f'<p>{known - shown:,} more: <a href="{_link(sort, {**kept, "all": "1"})}">show all</a>.</p>'


def _nothing(columns: int) -> str:
    return f'<tr><td class="left" colspan="{columns}">No process is watched now.</td></tr>'


def _when(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
