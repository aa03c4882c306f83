"""Causes that are at no function: what whole processes do, what nobody saw, and what is in no code of the program's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from parprof.attribution.effort import lost_ns
from parprof.causes.cause import UNLIKELY, Cause, without_place
from parprof.causes.diagnosis import Judged, Kind, Setting
from parprof.causes.evidence import Evidence
from parprof.causes.interpreters import of_interpreter, stall_of_interpreter
from parprof.causes.ranks import TOGETHER, is_one_rank
from parprof.causes.sites import LossSite
from parprof.causes.stalls import elapsed_of, loading_waits, while_read_in
from parprof.causes.tallies import Tally
from parprof.causes.waiting import asleep_for_requests_ns
from parprof.metrics import OUTSIDE, STALL, WAIT, Metrics
from parprof.model import NOBODY, PathSample

_MOSTLY_ONE = 0.6
"""Of the work of processes: that of a program which has so much of it is named."""

_BUDGET_REMEDY = "a higher budget lets more be seen (--budget 20)"
_BEFORE_REMEDY = (
    "nothing was left out: who began to sleep before we came, and woke up meanwhile, was not seen there; measure for "
    "longer"
)
_REQUESTS = 0.9
"""Of the time that threads waited: so much for requests, and a server has nothing else to wait for."""

_MOSTLY_OUTSIDE = 0.75
"""Of the time in which nobody works and it is known where threads wait: so much outside, and the rest may be, too."""


def while_working(metrics: Metrics) -> Metrics:
    """The same without the time in which nobody worked."""
    rest = metrics.copy()
    rest[STALL] = 0
    return rest


def serial_program(evidence: Evidence, metrics: Metrics, setting: Setting) -> Cause:
    """One thread does all the work, which is what these metrics are of."""
    idle = setting.cores - 1
    return without_place(
        Kind.SERIAL_PROGRAM,
        metrics,
        setting,
        f"one thread does all the work; {idle} of {setting.cores} cores {'is' if idle == 1 else 'are'} idle",
        f"if this is one rank of several, {TOGETHER}"
        if is_one_rank(evidence, setting)
        else "nothing here runs in parallel, by design or by mistake: see where its time goes with --sort work",
    )


def in_turn(judged: Sequence[Judged], setting: Setting) -> Cause:
    """Processes that run one after the other, whatever they do: of a compiler that ``make`` runs its reader can change
    no function."""
    whole = _whole_of(judged)
    works: dict[str, float] = {}
    for (_, _, name), metrics in whole.threads.items():
        works[name] = works.get(name, 0.0) + metrics.work_ns
    name = max(works, key=lambda name: works[name], default="")
    told = "processes run one after the other"
    if works and works[name] >= _MOSTLY_ONE * whole.metrics.work_ns:
        told += f", {name} most of that time"
    return without_place(
        Kind.SERIAL, whole.metrics, setting, told, "run several of them at a time (make -j, xargs -P)"
    )


def too_many_processes(judged: Sequence[Judged], setting: Setting) -> Cause:
    """Processes that lack cores in several functions: none of these is why."""
    whole = _whole_of(judged)
    _, about = max(judged, key=lambda one: one[0].lost_ns)
    return without_place(about.kind, whole.metrics, setting, about.what, about.remedy)


def _whole_of(judged: Sequence[Judged]) -> Tally:
    whole = Tally()
    for site, _ in judged:
        whole.merge(site.tally)
    return whole


def unseen(samples: Sequence[PathSample], setting: Setting, *, left_out: bool) -> list[tuple[Cause, float]]:
    """That nobody works and it is not known where threads sleep, as where context switches were too dear to follow;
    with its weight: where there was nothing to do as far as anybody saw, that is likely for the rest, too."""
    metrics = Metrics()
    for sample in samples:
        if sample.path == NOBODY:
            metrics.add(sample.metrics)
    lost = lost_ns(metrics)
    if not lost:
        return []
    what = f"nobody works for {elapsed_of(lost, setting)}, and it was not seen where threads wait"
    remedy = _BUDGET_REMEDY if left_out else _BEFORE_REMEDY
    outside = _outside_share(samples)
    seen = ""
    if outside >= _MOSTLY_OUTSIDE:
        seen = f"for {100 * outside:.0f} % of that time there was nothing to do: it waited for requests, events or keys"
    elif _works_for_requests(samples):
        seen = "those that work waited for requests"
    if left_out and seen:
        what += f"; as far as it was, {seen}"
        remedy = f"if that is all, there was nothing to do; {_BUDGET_REMEDY}"
    weight = UNLIKELY if left_out and seen else 1.0
    return [(without_place(Kind.STALL, metrics, setting, what, remedy), weight)]


def _outside_share(samples: Iterable[PathSample]) -> float:
    """Of the time in which nobody works, as far as it is known where threads waited then: so much was outside."""
    known = [one.metrics for one in samples if one.path != NOBODY]
    outside_ns = sum(metrics[OUTSIDE] for metrics in known)
    whole_ns = outside_ns + sum(metrics[STALL] for metrics in known)
    return outside_ns / whole_ns if whole_ns else 0.0


def _works_for_requests(samples: Sequence[PathSample]) -> bool:
    """Whether the threads that work were seen to wait for hardly anything but something to do from outside."""
    worked = {(one.origin.pid, one.origin.tid) for one in samples if one.metrics.work_ns}
    theirs = [one for one in samples if one.metrics[WAIT] and (one.origin.pid, one.origin.tid) in worked]
    return asleep_for_requests_ns(theirs) > _REQUESTS * sum(one.metrics[WAIT] for one in theirs)


def nowhere(
    evidence: Evidence, setting: Setting, samples: Sequence[PathSample], loading: Iterable[LossSite]
) -> list[Cause]:
    """What an interpreter loses in functions that are not known; else what is lost while a program is loaded.
    ``loading``: of places where that is so."""
    blocked = stall_of_interpreter(evidence, setting, samples)
    found = [(site.tally.metrics, diagnosis) for site, diagnosis in filter(None, [blocked])]
    if (working := of_interpreter(evidence, setting, samples)) is not None:
        site, diagnosis = working
        metrics = site.tally.metrics
        found.append((while_working(metrics), diagnosis))
    else:
        metrics = loading_waits(evidence.unnamed)
        for site in loading:
            metrics.add(Metrics.of({STALL: site.tally.metrics[STALL]}))
        if metrics.stall_ns:
            found.append((metrics, while_read_in(metrics.stall_ns, setting)))
    return [without_place(one.kind, metrics, setting, one.what, one.remedy) for metrics, one in found]
