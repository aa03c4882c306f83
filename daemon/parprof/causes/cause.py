"""One thing to act on: what is told of a place where a program loses time, and how sure that is."""

from __future__ import annotations

from dataclasses import replace

from parprof.attribution.effort import lost_ns
from parprof.attribution.gain import gain_bound
from parprof.attribution.interval import share_interval
from parprof.causes.diagnosis import Diagnosis, Kind, Setting
from parprof.causes.lock_places import where_held, where_locked
from parprof.causes.ownership import Owner
from parprof.causes.sites import LossSite, effort_ns, is_counted, is_single, sample_ns
from parprof.causes.waiting import task_waits, thread_waits
from parprof.cct.tree import hottest
from parprof.metrics import IDLENESS, OVERHEAD, STALL, Metrics
from parprof.values import dataclass

_WEIGHTS = {Owner.PROGRAM: 1.0, Owner.LIBRARY: 0.3, Owner.SYSTEM: 0.0}
"""The program's own code comes first, as it can be changed."""

UNLIKELY = 0.2
"""What may as well not be the program's fault comes after what is."""

LEAST_SAMPLES = 50
"""Nothing is said on fewer samples."""

_LEAST_PERCENT = 1.0
"""What loses less than this of the cores' time is not worth a word, nor what may as well be nothing."""

_LEAST_OWN_SHARE = 0.1
"""Where less than this of a site's own effort is lost, it is effectively parallel (tallent-2009 sec. 5.4)."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing to act on."""

    kind: Kind
    path: tuple[str, ...]
    """Functions of the program from its entry to this one."""
    function: str
    file: str
    module: str
    line: int
    metrics: Metrics
    """Of the samples that it is about."""
    lost_ns: float
    lost_percent: float
    """Of all effort: of the time that all cores had."""
    interval_percent: tuple[float, float]
    """That share lies between these, with 95 % probability, as far as sampling goes."""
    gain_bound: float
    """The program runs at best so many times as fast without this loss."""
    what: str
    remedy: str


def is_certain(cause: Cause) -> bool:
    """Whether it is enough, and measured well enough, to be worth a word."""
    metrics = cause.metrics
    return (
        (metrics.samples >= LEAST_SAMPLES or is_counted(metrics))
        and cause.lost_percent >= _LEAST_PERCENT
        and cause.interval_percent[0] > _LEAST_PERCENT / 2
        and cause.lost_ns >= _LEAST_OWN_SHARE * effort_ns(metrics)
    )


def weighed_cause(site: LossSite, diagnosis: Diagnosis, setting: Setting) -> tuple[Cause, float]:
    """What to tell of a site, which may move to where it is to be named; and its weight."""
    if diagnosis.kind is Kind.LOCK and site.region is not None and not is_single(site.tally, setting.cores):
        site.move(where_locked(site))
    elif diagnosis.kind is Kind.LOCK:
        site.move(where_held(site))
    elif diagnosis.is_creators:
        site.move(task_waits(site.region and site.region.parent) or thread_waits(site) or site.place)
    function = site.function
    cause = replace(
        without_place(diagnosis.kind, site.tally.metrics, setting, diagnosis.what, diagnosis.remedy),
        path=tuple(place.procedure.name for place in function.chain() if not place.procedure.is_loop),
        function=function.procedure.name,
        file=function.procedure.file,
        module=function.procedure.module,
        line=_line(site),
    )
    return cause, _WEIGHTS[site.place.owner] * (1.0 if diagnosis.is_likely else UNLIKELY)


def _line(site: LossSite) -> int:
    """The line of the function that loses most: of a loop, in it, as what else the function does may lose more."""
    by_line = site.by_line or site.place.by_line
    lines = {line: tally.metrics for line, tally in by_line.items() if not site.lines or line in site.lines}
    whole = site.tally.metrics
    metric = max((IDLENESS, OVERHEAD, STALL), key=lambda one: whole[one])
    return hottest(lines, metric) or site.function.start_line


def without_place(kind: Kind, metrics: Metrics, setting: Setting, what: str, remedy: str) -> Cause:
    """A cause that is at no function."""
    lost = lost_ns(metrics)
    return Cause(
        kind,
        (),
        "",
        "",
        "",
        0,
        metrics,
        lost,
        100 * lost / effort_ns(setting.total),
        interval_percent(metrics, setting.total, setting.cores),
        gain_bound(lost, setting.total),
        what,
        remedy,
    )


def interval_percent(part: Metrics, total: Metrics, cores: int) -> tuple[float, float]:
    """The 95 % interval of the share of all effort that a part loses, in percent.

    A sample stands for a period of work and up to n - 1 periods of idleness: see `parprof.attribution.interval`.
    """
    whole = effort_ns(total)
    if not whole:
        return 0.0, 0.0
    if not total.samples:  # all of it is counted
        return (100 * lost_ns(part) / whole,) * 2
    step = cores * sample_ns(total)
    low, high = share_interval(lost_ns(part), whole, step, step)
    return 100 * low, 100 * high
