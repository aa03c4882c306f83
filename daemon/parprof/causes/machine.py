"""Losses that are the machine's: threads that could work had no core."""

from __future__ import annotations

from parprof.attribution.effort import lost_ns
from parprof.causes.diagnosis import Diagnosis, Kind, Setting, Told
from parprof.causes.shares import goes_through_threads, many_processes, shares_explain, shares_match
from parprof.causes.sites import ALONE, LossSite, is_single, workers
from parprof.metrics import STOLEN, Metrics

_CROWD = 20
"""Threads for each core: nobody keeps so many at work."""
_BRIEF = 5
"""Samples: a thread with so few did little."""
_MORE = 1.1
"""Times the cores: with so many threads there are too many. As many processes as there are cores, one after the other
run by ``make -j`` or ``xargs -P``, want just these."""
_EXPLAINS = 0.5
"""Of a loss: if others had the cores for so long in all of the run, or while cores were idle, they may be why."""
BUSY_MACHINE = Diagnosis(
    Kind.BUSY_MACHINE,
    "its threads waited for cores that others used",
    "not your code: measure on a quiet machine, or give the program cores of its own",
    is_likely=False,
)


def away_ns(metrics: Metrics) -> float:
    """For how long threads had no core, and cores no thread, because others had the cores."""
    return metrics.ready_ns + metrics[STOLEN]


def is_busy(metrics: Metrics) -> bool:
    """Whether threads lacked cores for longer than cores lacked threads."""
    return away_ns(metrics) >= max(lost_ns(metrics), 1.0)


def machine(site: LossSite, setting: Setting) -> Diagnosis | None:
    """Threads that could work had no core: the others waited for them, or so it looks."""
    metrics = site.tally.metrics
    if (crowd := _crowd(site, setting)) is not None:
        return crowd
    if is_single(site.tally, setting.cores) or not is_busy(metrics):
        return None
    # routines wait for each other without a thread that sleeps; on a busy machine threads sleep, or have no core
    if shares_explain(site.tally, setting.cores) or goes_through_threads(site, setting):
        return None
    is_crowded = len(workers(site.tally)) > setting.cores and _want_more_than_there_is(metrics, setting)
    if is_crowded:
        return too_many_threads(site, setting)
    # else they lacked cores because of each other, as where a third one does a little now and then
    others_had_them = setting.withheld_s * 1e9 >= _EXPLAINS * lost_ns(metrics)
    if not others_had_them or _is_alone_at_work(metrics, setting.cores):
        return None
    if shares_match(site.tally, setting.cores) and not _lacked_cores_meanwhile(site, setting):
        return None  # the longest piece is alone at the end, and others had cores before
    return BUSY_MACHINE


def _lacked_cores_meanwhile(site: LossSite, setting: Setting) -> bool:
    """Whether threads lacked cores while cores were idle, as far as it is known when that was."""
    company = setting.company
    return company is None or company.lacked_cores(site.function.procedure) >= _EXPLAINS


def _is_alone_at_work(metrics: Metrics, cores: int) -> bool:
    """Whether at work a thread has nobody beside it: nobody that has a core, or wants one. Those of a team wait for the
    last of them alone, so others that have the cores do not bring that about."""
    return metrics.idleness_ns >= ALONE * metrics.work_ns * (cores - 1) > 0


def _want_more_than_there_is(metrics: Metrics, setting: Setting) -> bool:
    """Whether more threads wanted cores at a time than there are; else others had these.

    A routine of Go, say, goes from thread to thread, and of these few want a core at a time. How long it took is known
    by the core time that was had, and by how much was had of all that there was in the run.
    """
    available_ns = setting.cores * setting.elapsed_s * 1e9
    had = min(setting.total.effort_ns / available_ns, 1.0) if available_ns else 1.0
    return (metrics.work_ns + metrics.ready_ns) * had >= _MORE * metrics.effort_ns


def too_many_threads(site: LossSite, setting: Setting) -> Diagnosis:
    """Threads share cores. Those that a barrier has let go and that have no core yet are waiting as far as anybody can
    see: they need not be found without one."""
    if (processes := many_processes(site.tally)) == len(workers(site.tally)):
        what = f"{processes} processes share {setting.cores} cores, and wait for each other"
        remedy = f"run {setting.cores} of them at a time"
        return Diagnosis(Kind.OVERSUBSCRIBED, what, remedy, told=Told.CROWDED)
    return Diagnosis(
        Kind.OVERSUBSCRIBED,
        f"{len(workers(site.tally))} threads share {setting.cores} cores, and wait for each other",
        f"use {setting.cores} threads" + (" (OMP_NUM_THREADS)" if setting.is_openmp else ""),
    )


def _crowd(site: LossSite, setting: Setting) -> Diagnosis | None:
    """Very many threads, each of which did next to nothing: as a rule they are started again and again."""
    samples = [metrics.samples for metrics in site.tally.threads.values() if metrics.samples]
    if len(samples) < _CROWD * setting.cores or sum(samples) > _BRIEF * len(samples):
        return None
    each = site.tally.metrics.work_ns / len(samples) / 1e6
    remedy = "start as many as there are cores, once, and hand them work (a pool)"
    if setting.is_openmp:
        remedy = "one level of regions (omp_set_max_active_levels(1), collapse): nested teams start their threads anew"
    what = f"at least {len(samples)} threads had a part in it, {each:.1f} ms of work each"
    return Diagnosis(Kind.OVERSUBSCRIBED, what, remedy)
