"""Losses of a job of several processes that are one process's: it works, and the others have nothing to do."""

from __future__ import annotations

from parprof.causes.diagnosis import Diagnosis, Kind, Setting, Told
from parprof.causes.evidence import Place
from parprof.causes.ownership import Owner
from parprof.causes.shares import MOSTLY, many_processes
from parprof.causes.sites import LossSite, alone, idle_ns, is_single, knows_threads
from parprof.causes.tallies import Tally
from parprof.causes.unasked import few_requests
from parprof.metrics import Metrics

_MOST = 0.6
"""Of the idleness at a place: who has so much of it is the one to name."""
_ALONE = 0.5
"""Of its time: so long at least it works by itself."""
_RANK_ALONE = 0.6
"""The same where the others are known to poll for messages meanwhile."""
_TAKES_PART = 0.02
"""Of the CPU time of a job: a process that had less is none of its ranks."""
_WAITED = 0.1
"""Of the work at a place: so long at least the others spin, if they wait for that."""


def in_turn(processes: int) -> Diagnosis:
    """Of so many that run something one after the other."""
    return Diagnosis(
        Kind.SERIAL,
        f"{processes:,} processes run it one after the other",
        "run several of them at a time (make -j, xargs -P)",
        told=Told.IN_TURN,
    )


def lone_process(site: LossSite, setting: Setting) -> Diagnosis | None:
    """One process works alone for long, and has most of the idleness: the parent of a pool that makes what the others
    work on, or the longest piece of a job, begun last."""
    tally = site.tally
    if not knows_threads(tally) or (several := many_processes(tally)) < 2:
        return None
    by_process = metrics_of_processes(tally)
    first = max(by_process, key=lambda pid: idle_ns(by_process[pid]))
    mine = by_process[first]
    if idle_ns(mine) < _MOST * sum(map(idle_ns, by_process.values())) or alone(mine, setting.cores) < _ALONE:
        return None
    if few_requests(site, setting) is not None:
        return None  # which of them has a request is chance
    useful_ns = sum(map(_useful_ns, by_process.values()))  # who waits for messages does work that is overhead
    share = 100 * _useful_ns(mine) / useful_ns if useful_ns else 0.0
    who = f"one of {several} processes, {name_of(tally, first)},"
    by_itself = alone(mine, setting.cores)
    if by_itself < MOSTLY:  # ranks of unequal sizes, or who hands out work does more of it than the others
        return Diagnosis(
            Kind.IMBALANCE,
            f"{who} does {share:.0f} % of the work here, and {100 * by_itself:.0f} % of that alone",
            "divide what it does more evenly among processes",
        )
    told = f"{who} works while the others have nothing to do"
    return Diagnosis(
        Kind.SERIAL,
        f"{told}; it does {share:.0f} % of the work here",
        "divide what it does among processes, or begin it first, beside the others' work",
    )


def lone_rank(site: LossSite, setting: Setting) -> Diagnosis | None:
    """Only one rank of an MPI program runs a place at all, and the others wait for its messages meanwhile."""
    tally = site.tally
    if not setting.is_mpi or not knows_threads(tally) or not is_single(tally, setting.cores):
        return None
    if alone(tally.metrics, setting.cores) < _RANK_ALONE:
        return None
    ranks = ranks_of(site.place.root)
    several = len(ranks)
    mine = max(tally.threads, key=lambda thread: tally.threads[thread].work_ns)[0]
    waited_ns = sum(metrics.spin_ns for pid, metrics in ranks.items() if pid != mine)
    if several < 2 or waited_ns < _WAITED * tally.metrics.work_ns:
        return None
    others = "the other waits" if several == 2 else "the others wait"
    return Diagnosis(
        Kind.SERIAL,
        f"one of {several} processes, {name_of(tally, mine)}, works here while {others} for messages",
        "divide it among the processes, or let the others do something else meanwhile",
    )


def ranks_of(root: Place) -> dict[int, Metrics]:
    """What each rank of an MPI program had, without what starts them, which runs none of the program's code."""
    found: dict[int, Metrics] = {}
    for place in root.children.values():
        if place.owner is not Owner.PROGRAM:
            continue
        for pid, metrics in metrics_of_processes(place.all).items():
            found.setdefault(pid, Metrics()).add(metrics)
    least = _TAKES_PART * sum(map(_cpu_ns, found.values()))
    return {pid: metrics for pid, metrics in found.items() if _cpu_ns(metrics) >= least}


def metrics_of_processes(tally: Tally) -> dict[int, Metrics]:
    """What each process had of it."""
    out: dict[int, Metrics] = {}
    for (pid, _, _), metrics in tally.threads.items():
        out.setdefault(pid, Metrics()).add(metrics)
    return out


def busiest_process(tally: Tally) -> str:
    """The process that did most of the work, by name and number."""
    by_process = metrics_of_processes(tally)
    return name_of(tally, max(by_process, key=lambda pid: by_process[pid].work_ns))


def name_of(tally: Tally, pid: int) -> str:
    """A process by the name of its first thread, or of its busiest, and its number."""
    threads = [(label, metrics) for label, metrics in tally.threads.items() if label[0] == pid]
    (_, _, name), _ = max(threads, key=lambda pair: (pair[0][1] == pid, pair[1].work_ns))
    return f"{name} (pid {pid})" if name and not name.startswith("tid ") else f"pid {pid}"


def _useful_ns(metrics: Metrics) -> float:
    return metrics.work_ns - min(metrics.overhead_ns, metrics.work_ns)


def _cpu_ns(metrics: Metrics) -> float:
    return metrics.work_ns + metrics.spin_ns
