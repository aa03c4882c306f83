"""The report as one web page that needs nothing else: what to act on, and the picture that shows it.

`graph` makes the data of the picture, `sources` those of the source pane, `histogram` the small charts that need no
script; the rest is the script's (``page_*.js``, put together here).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from parprof.attribution import Effort
from parprof.causes.cause import Cause
from parprof.causes.ranking import find_causes
from parprof.cct.tree import CallingContextTree
from parprof.exporters.answer import nothing_to_act_on, rounded, sentence
from parprof.exporters.breakdown import ThreadKey, by_thread
from parprof.exporters.graph import MAX_NODES, Graph, cause_links, graph, shown_metrics
from parprof.exporters.histogram import concurrency, loss_bar
from parprof.exporters.output import open_output
from parprof.exporters.readable import readable
from parprof.exporters.shares import shares
from parprof.exporters.sources import sources
from parprof.exporters.summary import Fact, facts, process_facts, working_processes
from parprof.exporters.webpage import WebPage, asset, data_block, definitions, text
from parprof.metrics import Metrics
from parprof.model import Profile
from parprof.untrusted import visible

MAX_THREADS = 1000
MAX_PROCESSES = 200
_FEW_PROCESSES = 8
"""The table of so many is open to begin with."""
_SCRIPTS = (
    "page_elements.js",
    "page_data.js",
    "page_part.js",
    "page_rows.js",
    "page_flame.js",
    "page_table.js",
    "page_source.js",
    "page_threads.js",
)
_ABOVE = ("accounted",)
"""Facts above the picture; all others are below it."""

_PICTURE = """
<div class="bar" id="bar">
  <span id="tabs" role="tablist" aria-label="what to look at">
    <button type="button" role="tab" data-tab="flame">flame graph</button>
    <button type="button" role="tab" data-tab="table">table</button>
    <button type="button" role="tab" data-tab="source">source</button>
    <button type="button" role="tab" data-tab="threads">threads</button>
  </span>
  <label data-for="flame table threads" id="of">thread <select id="thread"></select></label>
  <label data-for="flame">by <select id="by"></select></label>
  <label data-for="flame">shape <select id="shape">
    <option value="icicle">icicle: callers first</option>
    <option value="inverted">inverted: callees first</option>
    <option value="sandwich">sandwich: one function</option>
  </select></label>
  <label data-for="flame">colour <select id="colour">
    <option value="owner">whose code</option>
    <option value="cores">cores used</option>
  </select></label>
  <label data-for="table">view <select id="view">
    <option value="paths">call paths</option>
    <option value="callers">callers</option>
    <option value="flat">functions</option>
  </select></label>
  <label data-for="source">file <select id="file"></select></label>
  <label class="grow">search <input id="search" type="search" placeholder="function or file ( / )"
    spellcheck="false" autocomplete="off"></label>
  <button id="reset" type="button" title="Esc">whole process</button>
</div>
<div id="part" aria-live="polite" hidden></div>
<p id="found" class="faint" aria-live="polite"></p>
<div id="threads" role="tabpanel" aria-label="threads"><p class="legend" id="kinds"></p><div id="strips"></div>
  <p id="untimed" class="faint" hidden>What was when is not in this profile: it was merged, made by an older
  version, or is of one interval alone.</p></div>
<div id="details" data-for="flame table" aria-live="polite"></div>
<div id="flame" role="tabpanel" aria-label="flame graph">
  <p class="legend" id="legend"></p>
  <div class="tall" id="scroller"><canvas id="chart" tabindex="0" role="img"
    aria-label="flame graph; arrow keys move, Enter zooms, Escape goes back"></canvas><div id="space"></div></div>
</div>
<div id="table" role="tabpanel" aria-label="table"><div class="tall" id="rows" tabindex="0"></div></div>
<div id="source" role="tabpanel" aria-label="source"><p id="said" class="faint"></p>
  <div class="tall" id="lines" tabindex="0"></div></div>
<details class="keys"><summary>keys</summary><p><kbd>/</kbd> search, <kbd>Enter</kbd> next match,
<kbd>Esc</kbd> whole process, arrows move, <kbd>Enter</kbd> zooms or unfolds, <kbd>s</kbd> sandwich of what is
selected, <kbd>1</kbd> to <kbd>4</kbd> the four views. Drag over the strips of the threads to choose a span of time; in
the topmost one arrows move it, <kbd>Shift</kbd> and arrows its end. The address of this page always says what you
see: copy it to share that.</p></details>
"""


def write(profile: Profile, path: str, *, source: bool = True, unfold: bool = False) -> None:
    """Write the page to ``path`` (``-``: standard output).

    ``source``: with the text of the program's source. ``unfold``: with every frame of system code.

    Raises:
        OutputError: it cannot be written.
    """
    document = page(profile, source=source, unfold=unfold).html()
    with open_output(path) as file:
        file.write(document.encode("utf-8", "backslashreplace"))


def page(
    profile: Profile,
    links: Sequence[tuple[str, str]] = (),
    *,
    source: bool = False,
    unfold: bool = False,
    above: str = "",
    style: str = "",
) -> WebPage:
    """The page. ``links``: where else to go from it, as names and addresses. ``above``: HTML to begin with, which has
    ``style``.

    The address ``?by=spin`` opens it with the picture by that metric.
    """
    shown = profile if unfold else readable(profile)
    causes = find_causes(profile)
    tree = CallingContextTree(shown.samples)
    total = tree.root.inclusive
    found = graph(tree, profile.process.cores)
    elsewhere = set(process_facts(profile)) if working_processes(profile) else set()
    told = [
        fact
        for fact in facts(profile, tree, causes)
        if fact.label not in ("advice", "also") and fact not in elsewhere
    ]
    threads, numbers = _threads(shown, total)
    title = f"parprof: {profile.process.command or profile.process.comm}"
    split, split_style = _split(total)
    data = {
        **found.data,
        "causes": cause_links(found, causes),
        "threads": threads,
        "sources": sources(shown, read=source),
    }
    parts = (
        f"<h1>{text(title, 300)}</h1>",
        _links(links),
        above,
        _answer(profile, causes, total),
        split,
        concurrency(profile.accounting, profile.process.cores),
        definitions((text(fact.label), text(fact.text)) for fact in told if fact.label in _ABOVE),
        _processes(profile),
        _PICTURE,
        f'<p class="faint">{text(_left_out(found))}</p>',
        _about(told),
        data_block("data", data),
        data_block("shares", shares(shown, found, shown_metrics(total), numbers)),
    )
    body = "\n".join(filter(None, parts))
    return WebPage(title, body, asset("report.css") + split_style + style, script(), theme=True)


@cache
def script() -> str:
    """The script of the page: one closure."""
    parts = "\n".join(map(asset, (*_SCRIPTS, "report.js")))
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


def _links(links: Sequence[tuple[str, str]]) -> str:
    shown = " · ".join(f'<a href="{text(address)}">{text(name)}</a>' for name, address in links)
    return f"<p>{shown}</p>" if shown else ""


def _answer(profile: Profile, causes: Sequence[Cause], total: Metrics) -> str:
    """What to act on, the worst first: each a link into the picture."""
    if not total.samples:
        return ""
    if not causes:
        return f'<p class="advice">{text(nothing_to_act_on(profile, total))}</p>'
    rows = "\n".join(
        f'<li class="advice"><p>{text(sentence(cause))}</p>'
        f'<a href="#cause={number}">{loss_bar(cause)}show</a></li>'
        for number, cause in enumerate(causes, 1)
    )
    return f'<ol class="causes">{rows}</ol>'


def _processes(profile: Profile) -> str:
    """Who worked, where several processes were one job."""
    workers = working_processes(profile)
    if not workers:
        return ""
    rows = "\n".join(
        f"<tr><td>{text(process.comm, 100)} ({process.number})</td><td>{rounded(100 * share)} %</td>"
        + "".join(f"<td>{value / 1e9:.2f}</td>" for value in (mine.work_ns, mine.idleness_ns, mine.spin_ns))
        + f"<td>{text(process.runtime, 100)}</td><td>{text(process.n_w_source, 100)}</td></tr>"
        for process, mine, share in workers[:MAX_PROCESSES]
    )
    more = sum(1 + process.others for process, _, _ in workers[MAX_PROCESSES:])
    rest = f'<p class="faint">and {more:,} more</p>' if more else ""
    number = sum(1 + process.others for process, _, _ in workers)
    return (
        f'<details class="processes"{" open" if len(workers) <= _FEW_PROCESSES else ""}>'
        f"<summary>{number:,} processes worked</summary>"
        '<div class="scroll"><table><thead><tr><th>process</th><th>share of work</th><th>work s</th>'
        "<th>idleness s</th><th>spin s</th><th>runtime</th><th>n_w source</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>{rest}</details>"
    )


def _about(told: Sequence[Fact]) -> str:
    rows = definitions((text(fact.label), text(fact.text)) for fact in told if fact.label not in _ABOVE)
    return f"<h2>About this measurement</h2>\n{rows}"


def _left_out(found: Graph) -> str:
    if not found.left_out:
        return ""
    return (
        f"{found.left_out:,} call paths too small to see are left out, each a part of [small call paths]; "
        f"the {MAX_NODES:,} largest are shown."
    )


def _split(total: Metrics) -> tuple[str, str]:
    """The bar of effort by its parts, and the style that gives each part its width."""
    effort = Effort.of(total)
    if not effort.total_ns:
        return "", ""
    stall = 100 * effort.stall_ns / effort.total_ns
    parts = [
        (name, kind, share)
        for name, kind, share in zip(
            ("useful work", "overhead", "idleness", "nobody working"),
            ("useful", "overhead", "idleness", "stall"),
            (*effort.percentages(), stall),
            strict=True,
        )
        if share >= 0.05
    ]
    spans = "".join(
        f'<span class="{kind}" title="{name} {share:.1f} %">'
        f"{f'{name} {share:.1f} %' if share >= 10 else ''}</span>"
        for name, kind, share in parts
    )
    style = "".join(
        f".split .{kind} {{ flex: {share:.3f} 0 0; background: var(--{kind}); }}\n"
        for _, kind, share in parts
    )
    return f'<div class="split">{spans}</div>', style


def _threads(profile: Profile, total: Metrics) -> tuple[dict[str, Any], dict[ThreadKey, int]]:
    """What each thread did, the busiest first; and at which place each is."""
    rows = sorted(
        by_thread(profile.samples).items(), key=lambda row: (-row[1].exclusive.cpu_ns, row[1].procedure.name)
    )
    metrics = shown_metrics(total)
    data = {
        "more": max(len(rows) - MAX_THREADS, 0),
        "rows": [
            [visible(row.procedure.name, 500), [one.value(row.exclusive) for one in metrics]]
            for _, row in rows[:MAX_THREADS]
        ],
    }
    return data, {key: at for at, (key, _) in enumerate(rows[:MAX_THREADS])}
