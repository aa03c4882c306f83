"""How the work at a site is shared among threads and processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

from parprof.causes.diagnosis import Setting
from parprof.causes.sites import (
    ALONE,
    LossSite,
    all_alone,
    alone,
    idle_ns,
    is_single,
    knows_threads,
    sample_ns,
    share_of_first,
    workers,
)
from parprof.causes.tallies import Tally
from parprof.causes.waiting import is_queue, queue_beside, waits_around
from parprof.metrics import SAMPLES, WAIT, Metric, Metrics

_ALL_ALONE = 0.995
_CLEARLY_UNEQUAL = 1.8
"""Shares of the work with this ratio are unequal though the machine is busy, which wears on threads unequally."""
_UNEQUAL = 1.2
"""Those of threads that all have a core differ by less, if they have the same to do."""
_MATCH = 0.75
_IN_THE_WAY = 0.3
"""Of the time: so much of it is alone what keeps others waiting."""
_BY_OTHERS = 0.3
"""Of the work."""
_PART_OF_TURNS = 0.1
"""Of the work: threads with less do something beside it, as the collector of garbage does."""
MOSTLY = 0.8
"""Of the work, or of its time."""


def many_processes(tally: Tally) -> int:
    """How many processes did some of the work worth the name."""
    return len({thread[0] for thread in workers(tally)})


def one_at_a_time(site: LossSite, setting: Setting) -> bool:
    """Whether several threads work here, but one at a time."""
    return alone(site.tally.metrics, setting.cores) >= 0.6 and all_alone(site.tally, setting.cores)


def hides_threads(tally: Tally, setting: Setting) -> bool:
    """Whether a language's own scheduler runs routines on the threads that did this, so that these tell nothing."""
    return setting.company is not None and setting.company.hides_threads(tally.threads)


def goes_through_threads(site: LossSite, setting: Setting) -> bool:
    """Whether it is one piece of work at a time that goes from thread to thread, as routines do in languages with a
    scheduler of their own (Go): several threads work here, one at a time, and none sleeps here or in its callers."""
    if site.region is not None or not setting.total[WAIT] or many_processes(site.tally) > 1:
        return False
    tally = site.tally
    if hides_threads(tally, setting):
        return comes_one_at_a_time(site, setting)
    if is_single(tally, setting.cores) or alone(tally.metrics, setting.cores) < 0.6:
        return False
    least = _PART_OF_TURNS * tally.metrics.work_ns
    some = [metrics for metrics in tally.threads.values() if metrics.work_ns >= least]
    taking_turns = [metrics for metrics in some if alone(metrics, setting.cores) >= 0.5]
    return len(taking_turns) == len(some) > 1 and waits_around(site) is None


def comes_one_at_a_time(site: LossSite, setting: Setting) -> bool:
    """Whether several threads work here, or routines, one at a time by what runs beside them, though others work
    elsewhere for a part of that time: as in a serial stage of a pipeline, whichever thread has it."""
    by_itself = alone(site.tally.metrics, setting.cores)
    if (
        setting.company is None
        or setting.is_openmp
        or by_itself < _IN_THE_WAY
        or many_processes(site.tally) > 1
    ):
        return False
    if is_single(site.tally, setting.cores) and (
        by_itself >= ALONE or not hides_threads(site.tally, setting)
    ):
        return False
    return setting.company.is_one_at_a_time(site.place.procedure)


def queue_of_takers(site: LossSite, setting: Setting) -> str:
    """`queue_beside`, where those that wait in queues may have worked beside the site; empty where they did so at other
    times alone, as a pool that other parts of a program have work for: then they wait for nothing that is made here."""
    queue = queue_beside(site)
    if not queue or setting.company is None or not knows_threads(site.tally):
        return queue
    first = max(site.tally.threads, key=lambda thread: site.tally.threads[thread].work_ns)
    takers = setting.company.takers(is_queue) - {first}
    here = site.place.procedure
    return queue if setting.company.may_work_beside(here, first, takers, itself=not site.whole) else ""


def is_mostly_one(site: LossSite, setting: Setting) -> bool:
    """Whether the work is one thread's but for a little of others at times, as those that a library starts."""
    tally = site.tally
    if site.region is not None or not knows_threads(tally) or is_single(tally, setting.cores):
        return False
    if hides_threads(tally, setting):  # who has a routine is chance
        return False
    if many_processes(tally) > 1:  # as the workers of a pool
        return False
    first = max(tally.threads.values(), key=lambda metrics: metrics.work_ns)
    return share_of_first(tally) >= MOSTLY and alone(first, setting.cores) >= MOSTLY


def are_equal(tally: Tally, cores: int) -> bool:
    """Whether the threads did about as much as one another, as far as samples tell."""
    return imbalance_ratio(tally, cores) < _UNEQUAL


def imbalance_ratio(tally: Tally, cores: int) -> float:
    """The most that one thread had to do, over what the others had on average."""
    first, others = _shares(tally, cores)
    if not first:
        return 1.0
    mean = sum(others) / len(others) if others else 0.0
    return first / max(mean, 0.01 * first)


def may_be_chance(tally: Tally, cores: int, total: Metrics) -> bool:
    """Whether as many samples of threads with equal shares may differ as much as those of a site's do (95 %).

    ``total``: of the whole program, for what a sample stands. The more threads there are, the more does the busiest of
    them stand out by chance (Bonferroni).
    """
    first, others = _shares(tally, cores)
    if not total.samples or not first or not others:
        return False
    step_ns = sample_ns(total)
    mean = max(sum(others) / len(others), step_ns / len(others))
    spread = math.sqrt(step_ns / first + step_ns / (mean * len(others)))
    least = NormalDist().inv_cdf(1 - 0.025 / (1 + len(others)))
    return math.log(max(first / mean, 1.0)) < least * spread


def pieces_may_be_equal(works_ns: Sequence[float], total: Metrics) -> bool:
    """Whether as many samples of equal pieces may be spread as far (95 %; the test of dispersion of a Poisson process).

    ``total``: of the whole program, for what a sample stands.
    """
    if not total.samples:
        return False
    step_ns = sample_ns(total)
    mean = sum(works_ns) / len(works_ns)
    dispersion = sum((each - mean) ** 2 for each in works_ns) / (mean * step_ns)
    freedom = len(works_ns) - 1
    return dispersion < freedom + NormalDist().inv_cdf(0.95) * math.sqrt(2 * freedom)


def _shares(tally: Tally, cores: int) -> tuple[float, list[float]]:
    """The useful work of the thread that had most, and of each other one, as many as cores. What a team takes to begin
    and to end is in whichever thread that goes on in: no share of the program's work."""
    works = sorted(
        (max(metrics.work_ns - metrics.overhead_ns, 0.0) for metrics in tally.threads.values()), reverse=True
    )[: max(cores, 2)]
    if not works:
        return 0.0, []
    return works[0], [*works[1:], *([0.0] * (cores - len(works)))]


def is_by_many(tally: Tally, cores: int) -> bool:
    """Whether other threads than the busiest, as many as cores, did much of the work: where a team has new threads each
    time, as those in a team and on the host of `target` have, what one of them did says nothing of its share."""
    works = sorted((metrics.work_ns for metrics in tally.threads.values()), reverse=True)
    return sum(works[max(cores, 2) :]) > _BY_OTHERS * sum(works)


def shares_explain(tally: Tally, cores: int) -> bool:
    """Whether cores were idle here for about as long as the busiest thread had more to do than the others.

    Without a core a thread does nothing, so how much each did is the same on a busy machine, but where threads fetch
    their work: there, who has a core does more, and hardly any core is idle.
    """
    if not knows_threads(tally) or imbalance_ratio(tally, cores) < _CLEARLY_UNEQUAL:
        return False
    return 0.5 * tally.metrics.idleness_ns <= _more_ns(tally, cores) <= 2.0 * idle_ns(tally.metrics)


def shares_match(tally: Tally, cores: int) -> bool:
    """The same of shares that are less unequal, but explain nearly all of it, and no more."""
    if not knows_threads(tally) or are_equal(tally, cores):
        return False
    return _MATCH * tally.metrics.idleness_ns <= _more_ns(tally, cores) <= idle_ns(tally.metrics) / _MATCH


def _more_ns(tally: Tally, cores: int) -> float:
    """How much more the busiest thread had to do than each of the others, all in all."""
    works = sorted((metrics.work_ns for metrics in tally.threads.values()), reverse=True)[:cores]
    return sum(works[0] - each for each in works) + works[0] * (cores - len(works)) if works else 0.0


def program_is_serial(whole: Tally, cores: int) -> bool:
    """Whether one thread did all the work of a program."""
    if not knows_threads(whole):
        return alone(whole.metrics, cores) >= _ALL_ALONE
    return len(whole.threads) == 1 or share_of_first(whole) >= _ALL_ALONE


def leading(tally: Tally, holds: Callable[[str], bool] | None = None, by: Metric = SAMPLES) -> str:
    """The foreign function that most of it was in, by a metric."""
    amounts: dict[str, float] = {}
    for name, metrics in tally.runtime.items():
        function = name.partition(":")[2]
        if holds is None or holds(function):
            amounts[function] = amounts.get(function, 0.0) + metrics[by]
    return max(amounts, key=lambda name: amounts[name], default="")
