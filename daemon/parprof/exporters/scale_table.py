"""What `parprof scale` prints: the answer, a table by number of cores, the sites in the way."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from parprof.scale.answer import sentence
from parprof.scale.calls import CallSite
from parprof.scale.model import Prediction, Scale, ScaleSite, context_of
from parprof.scale.record import Measure
from parprof.untrusted import printable
from parprof.wording import many

NOT_MODELLED = "at best: memory bandwidth, caches, NUMA and input/output are not modelled"
_MIN_SHARE = 0.001
NO_LIMIT = 1e6
"""A speed-up from here on has none."""


def text(scale: Scale, limit: int = 15) -> str:
    """The report, with at most so many sites."""
    return "\n".join(_lines(scale, limit)) + "\n"


def _lines(scale: Scale, limit: int) -> Iterator[str]:
    main = scale.main
    yield printable(f"scale: {sentence(scale)}")
    yield ""
    yield f"work {short_time(main.work_s)}  span {short_time(main.span_s)} {how(scale)}  " + printable(
        scale.command
    )
    yield ""
    if not scale.is_serial:
        yield from _core_lines(scale)
    shown = [site for site in main.sites if site.share >= _MIN_SHARE][:limit]
    if shown:
        share = "span%" if scale.is_serial else "time%"
        yield f" {share}      span      work     count  x if fixed  site ({_threads(main)})"
        for site in shown:
            yield printable(_row(site))
    hidden = len(main.sites) - len(shown)
    if hidden:
        yield f"        ... {hidden} more with less"
    yield ""
    if main.calls:
        yield from _call_lines(main, limit)
        yield ""
    for note in (NOT_MODELLED, *scale.notes):
        yield printable(f"note: {note}")


def how(scale: Scale) -> str:
    """How the run was made that the tables of sites are of."""
    return "executed serially" if scale.is_serial else f"with {_threads(scale.main)}"


def _threads(one: Prediction) -> str:
    return many(one.threads, "thread")


def _core_lines(scale: Scale) -> Iterator[str]:
    yield " cores  at best  burdened  work/span  lost to: serial  uneven  critical   runtime"
    for one in scale.predictions:
        lost = one.lost
        yield (
            f"{one.threads:6}  {one.speedup:7.2f}  {burdened(one):>8}  {one.parallelism:9.2f}  {lost.serial:14.0%}"
            f"  {lost.uneven:6.0%}"
            f"  {lost.critical:8.0%}  {lost.runtime:8.0%}"
        )
    yield ""


def burdened(one: Prediction) -> str:
    """The speed-up with the runtime's own code; a dash where there are more threads than cores."""
    return f"{one.burdened:.2f}" if one.burdened else "-"


def short_time(seconds: float) -> str:
    """Three digits and a unit: ``1.23 ms``."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= size:
            value = seconds / size
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def if_fixed(site: ScaleSite) -> str:
    """The speed-up if a site were fixed; a serial run's may be without limit."""
    return f"{site.speedup_if_fixed:.2f}" if site.speedup_if_fixed < NO_LIMIT else "no limit"


def _row(site: ScaleSite) -> str:
    context = context_of(site)
    inside = f" in {context}" if context and not site.label.endswith(context) else ""
    return (
        f"{100 * site.share:6.1f}  {short_time(site.span_s):>8}  {short_time(site.work_s):>8}  {site.count:8}  "
        f"{if_fixed(site):>10}  {site.label}{inside}"
    )


def _call_lines(main: Prediction, limit: int) -> Iterator[str]:
    """The paper's figure 2, what adds most to the span first."""
    shown = [
        call for call in main.calls if call.on_span.count or call.on_span.local_span_s or call.on_work.count
    ]
    yield "             on the critical path                 in all"
    yield f" span%  local span     calls  work/span     calls  local work  work/span  call ({_threads(main)})"
    for call in shown[:limit]:
        yield printable(_call_row(call, main.span_s))
    if shown[limit:]:
        yield f"        ... {len(shown) - limit} more with less"


def _call_row(call: CallSite, span_s: float) -> str:
    on_span, on_work = call.on_span, call.on_work
    share = 100 * on_span.local_span_s / span_s if span_s else 0.0
    return (
        f"{share:6.1f}  {short_time(on_span.local_span_s):>10}  {on_span.count:8}  "
        f"{_ratio(on_span.top_call_site.parallelism)}  {on_work.count:8}  {short_time(on_work.local_work_s):>10}  "
        f"{_ratio(on_work.top_call_site.parallelism)}  {call.label}"
    )


def _ratio(parallelism: float) -> str:
    return f"{parallelism:9.2f}" if parallelism else "        -"


COLUMNS = (
    "threads", "speedup", "site", "kind", "function", "count", "work_s", "span_s", "span_count", "bound_s",
    "share", "speedup_if_fixed", "callee", "calls_work_s", "calls_span_s", "calls_parallelism",
    "span_calls_work_s", "span_calls_span_s", "span_calls_parallelism",
)  # fmt: skip
"""From ``callee`` on they are of call sites alone: first of all calls, then of those on the critical path."""


def to_csv(scale: Scale) -> str:
    """One line for each site, and each call site, of each run."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in scale.predictions:
        writer.writerows(_cells(one, site) for site in one.sites)
        writer.writerows(_call_cells(one, call) for call in one.calls)
    return out.getvalue()


def _cells(one: Prediction, site: ScaleSite) -> list[object]:
    return [
        one.threads,
        f"{one.speedup:.4f}",
        site.label,
        site.kind.name.lower(),
        context_of(site),
        site.count,
        f"{site.work_s:.9f}",
        f"{site.span_s:.9f}",
        site.span_count,
        f"{site.bound_s:.9f}",
        f"{site.share:.6f}",
        f"{site.speedup_if_fixed:.4f}" if site.speedup_if_fixed < NO_LIMIT else "",
        *_OF_NO_CALL,
    ]


_OF_NO_CALL = ("",) * 7


def _call_cells(one: Prediction, call: CallSite) -> list[object]:
    on_work, on_span = call.on_work, call.on_span
    share = on_span.local_span_s / one.span_s if one.span_s else 0.0
    return [
        one.threads,
        f"{one.speedup:.4f}",
        call.label,
        "call",
        call.caller,
        on_work.count,
        f"{on_work.local_work_s:.9f}",
        f"{on_span.local_span_s:.9f}",
        on_span.count,
        "",
        f"{share:.6f}",
        "",
        call.callee,
        *_measure_cells(on_work.top_call_site),
        *_measure_cells(on_span.top_call_site),
    ]


def _measure_cells(measure: Measure) -> tuple[str, str, str]:
    return f"{measure.work_s:.9f}", f"{measure.span_s:.9f}", f"{measure.parallelism:.4f}"
