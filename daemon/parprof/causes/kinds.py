"""Which kind of loss a site is, and what helps against it.

`KINDS` is the table: a kind of loss is one entry. The first entry whose test holds gives a site its kind, so those that
rest on a measurement of their own (who waited for whom, what no thread worked through) stand before those that are
inferred from who ran when.
"""

from __future__ import annotations

import re

from parprof.attribution.effort import lost_ns
from parprof.causes.diagnosis import Diagnosis, Kind, Setting, Test
from parprof.causes.locks import lock, lock_diagnosis
from parprof.causes.machine import away_ns, machine, too_many_threads
from parprof.causes.processes import busiest_process, in_turn, lone_process, lone_rank
from parprof.causes.shares import (
    MOSTLY,
    are_equal,
    comes_one_at_a_time,
    goes_through_threads,
    hides_threads,
    imbalance_ratio,
    is_by_many,
    is_mostly_one,
    many_processes,
    may_be_chance,
    one_at_a_time,
    pieces_may_be_equal,
    queue_of_takers,
)
from parprof.causes.sites import (
    ALONE,
    LossSite,
    alone,
    is_single,
    knows_threads,
    share_of_first,
    unused_ns,
    workers,
)
from parprof.causes.stalls import spun_ns, stall
from parprof.causes.tallies import Tally
from parprof.causes.tools import brief_processes
from parprof.causes.unasked import few_requests
from parprof.causes.waiting import (
    is_at_barrier,
    is_lock,
    queue_beside,
    queue_of,
    task_waits,
    thread_waits,
    waits_around,
    waits_for_work_ns,
)
from parprof.metrics import WAIT
from parprof.patterns import regex

_SPINS = 0.1
"""Of the work: beside so much spinning, who works alone does not look quite alone."""
_BETWEEN_REGIONS = 0.6
"""Of its time: so much of it alone is who works between regions, while its team still spins."""
_PREPARES = 0.6
"""So much of the idleness at a place is imports, or functions that are compiled, if that is what is said of it."""
_PREPARED = {
    "import": (
        "imports {}",
        "import less of it, or where it is needed (python -X importtime tells what takes long)",
    ),
    "compile": (
        "has functions compiled by {}",
        "keep what was compiled for the next time (cache=True), compile fewer versions, or let other work go on "
        "meanwhile",
    ),
    "load": ("loads {}", "load fewer of them, or when they are needed"),
}
"""What is said of it, and what helps."""
_UNEQUAL, _OFTEN_ALONE = 1.4, 0.3
"""The largest of several pieces over their mean, from which on they are unequal; and how far threads are alone then."""
_FOR_WORK = 0.6
"""Of the idleness at a place: who sleeps so long for work is why."""
_BUSY = 0.25
"""Of what is lost: threads that had no core for so long may be those that the others waited for."""
_FINE = 0.05
"""Of the work: where the runtime takes so much, pieces are small."""
_OFTEN_STARTED = 4
"""Threads, for each core: of so many, each is there for one piece of work."""
_GIVES = regex(r".*(?:send|push|\bput)", re.IGNORECASE)
_TAKES_MOST = 0.6
"""Of the work at a place: who does so much of it is the one that others wait for, where they give it something."""
_ALL = 0.75
"""Of a loss."""
_NAMED = 0.25
"""Of the overhead."""
_CREATE = regex(r"_*(?:GI_+|libc_)*(?:pthread_create|thrd_create|v?fork\b|posix_spawn|clone)")


def _creation(site: LossSite, setting: Setting) -> Diagnosis | None:
    """Starting threads and processes takes most of their creator's time; the kernel does it, so that is no overhead."""
    tally = site.tally
    creating = sum(
        found.work_ns for name, found in tally.runtime.items() if _CREATE.match(name.partition(":")[2])
    )
    if not creating or creating < 0.5 * tally.metrics.work_ns:
        return None
    share = 100 * creating / tally.metrics.work_ns
    return Diagnosis(
        Kind.OVERHEAD,
        f"{share:.0f} % of its CPU time is spent on starting and ending threads or processes",
        "start them once and hand them work (a pool), or give each one more to do",
    )


def _overhead(site: LossSite, setting: Setting) -> Diagnosis | None:
    metrics = site.tally.metrics
    # where next to all of a loss is overhead there is nothing else to say, however little of the work it is
    least_ns = 0.0 if metrics.overhead_ns >= _ALL * lost_ns(metrics) else 0.1 * metrics.work_ns
    if not metrics.work_ns or metrics.overhead_ns < least_ns:
        return None
    all_in_runtime_ns = spun_ns(site, setting) if setting.is_openmp else 0.0
    if metrics.overhead_ns + all_in_runtime_ns < 0.5 * lost_ns(metrics) and not _is_half_overhead(
        site, setting
    ):
        return None
    kinds: dict[str, float] = {}
    locks = messages = 0.0
    for name, found in site.tally.runtime.items():
        kind, _, function = name.partition(":")
        kinds[kind] = kinds.get(kind, 0.0) + found.overhead_ns
        locks += found.overhead_ns * is_lock(function)
        messages += found.overhead_ns * bool(_MESSAGES.match(function))
    if locks > 0.5 * metrics.overhead_ns:
        waits = all_in_runtime_ns > metrics.overhead_ns
        return lock_diagnosis(
            site, setting, "threads wait for a lock here:" if waits else "the lock itself takes"
        )
    # of what such a region does, not of a runtime's function in it
    whole = site.region.all.metrics if site.region is not None and setting.is_openmp else metrics
    spin_ns = whole.spin_ns if all_in_runtime_ns else 0.0
    # what else the function does counts, though it is told apart where it loses for another reason
    work_ns = max(whole.work_ns, site.function.all.metrics.work_ns)
    share = 100 * (min(metrics.overhead_ns, work_ns) + spin_ns) / (work_ns + spin_ns)
    # functions without names say nothing of their own: what those with names are for is what all of it is for
    named = {kind: amount for kind, amount in kinds.items() if kind != "other"}
    most = max(named, key=lambda kind: named[kind], default="other")
    if named.get(most, 0.0) < _NAMED * metrics.overhead_ns:
        most = max(kinds, key=lambda kind: kinds[kind], default="other")
    what, remedy = _TOO_FINE.get(most, _TOO_FINE["other"])
    if messages > 0.5 * metrics.overhead_ns:
        what, remedy = _TOO_MUCH_SENT
    elif most in ("schedule", "other") and setting.is_openmp:
        remedy = "larger chunks: schedule(dynamic, 64), say, or schedule(static)"
    elif most == "create" and setting.is_openmp:
        remedy = "larger pieces: a cut-off for tasks (if or final), or one parallel region around the loop"
    if spin_ns:
        what += ", or spinning until others are there"
    return Diagnosis(Kind.OVERHEAD, f"{share:.0f} % of its CPU time is spent {what}", remedy)


def _is_half_overhead(site: LossSite, setting: Setting) -> bool:
    """Whether a team's runtime takes at least as much time here as the program: then it is for the runtime that cores
    are idle, too, as its threads are told to begin, go to sleep and wake up. MPI waits in what counts as overhead."""
    metrics = site.tally.metrics
    return setting.is_openmp and not setting.is_mpi and metrics.overhead_ns >= 0.5 * metrics.work_ns > 0


_MESSAGES = regex(r"P?MPI_|p?mpi_[a-z]\w*_\Z")
_TOO_MUCH_SENT = (
    "on sending and receiving messages",
    "fewer and smaller messages (what many processes need once a step, in one), or such that are under way beside the "
    "computation (MPI_Isend, MPI_Iallreduce)",
)
_TOO_FINE = {
    "create": (
        "on creating tasks, regions or threads",
        "larger pieces of work; keep threads instead of making them anew",
    ),
    "schedule": ("on handing out pieces of work", "larger pieces of work"),
    "sync": ("on synchronization", "fewer barriers and locks: more work between them"),
    "tagged": ("on what the program itself calls parallel overhead", "larger pieces of work"),
    "other": ("in the parallel runtime", "larger pieces of work"),
}


def _serial(site: LossSite, setting: Setting) -> Diagnosis | None:
    idle = setting.cores - 1
    others = "the other core is idle" if idle == 1 else f"{idle} of {setting.cores} cores are idle"
    if site.region is None and (prepared := _prepares(site.tally)):
        told, remedy = _PREPARED[prepared.partition(" ")[0]]
        does = told.format(prepared.partition(" ")[2])
        return Diagnosis(Kind.SERIAL, f"one thread {does} most of that time, {others}", remedy)
    metrics = site.tally.metrics
    is_one = is_mostly_one(site, setting)
    if not is_one and goes_through_threads(site, setting):
        by_itself = alone(metrics, setting.cores)
        if by_itself < ALONE and hides_threads(site.tally, setting):
            return _one_in_the_way("routine", by_itself)
        turns = f"one thread at a time works, {len(workers(site.tally))} of them in turn: {others}"
        remedy = (
            "run it in parallel, or beside other work; if routines wait for a lock here, hold it for shorter"
        )
        return Diagnosis(Kind.SERIAL, turns, remedy)
    least = _least_alone(site, setting)
    if alone(metrics, setting.cores) < least and not is_one:
        return None
    if not setting.is_openmp and is_single(site.tally, setting.cores):
        works_beside = alone(metrics, setting.cores) < ALONE
        # which thread has a routine is chance, and threads that have none wait, whoever makes something
        is_routine = hides_threads(site.tally, setting)
        if not is_routine and (queue_of_takers(site, setting) if works_beside else queue_of(site)):
            return None
        if is_routine and works_beside and queue_beside(site):
            return _one_in_the_way("routine", alone(metrics, setting.cores))
    processes = many_processes(site.tally)
    if processes > 1 and not is_single(site.tally, setting.cores):
        return in_turn(processes)
    if is_one:
        share = f"{100 * share_of_first(site.tally):.0f} % of the work"
        return Diagnosis(
            Kind.SERIAL,
            f"one thread does {share}, most of it alone: {others}",
            "run it in parallel, or beside other work",
        )
    is_of_team = site.region is not None and setting.is_openmp
    if not is_single(site.tally, setting.cores):
        task = _one_task_at_a_time(site, setting, others) or _threads_in_turn(site, setting, others)
        # whichever thread of the team has it, as a single construct, each time that it is run
        if task is not None or not (is_of_team and one_at_a_time(site, setting)):
            return task
    if is_of_team:
        if (task := _one_task_at_a_time(site, setting, others)) is not None:
            return task
        return Diagnosis(
            Kind.SERIAL,
            f"one thread works, its team waits: {others}",
            "share it out (for, sections, taskloop), or let the team go on (nowait)",
        )
    loop = _loop_of(site)
    what = f"the loop at {loop}" if loop else "it"
    remedy = f"run {what} in parallel" + (" (parallel for)" if setting.is_openmp and loop else "")
    return Diagnosis(Kind.SERIAL, f"one thread works, {others}", f"{remedy}, or beside other work")


def _least_alone(site: LossSite, setting: Setting) -> float:
    """How far threads have to be alone in what is serial, 0 to 1."""
    if not is_single(site.tally, setting.cores):
        return ALONE
    # a thread that spins counts as working until a sample finds it there
    spins = setting.total.spin_ns > _SPINS * setting.total.work_ns
    if setting.is_openmp and spins and site.region is None and not _is_in_regions_too(site):
        return _BETWEEN_REGIONS  # where a team has nothing to do
    # where it is known how threads wait, others that worked for a moment are no reason to doubt it
    knows_waits = site.region is None and setting.total[WAIT] > 0
    return MOSTLY if knows_waits or (spins and not setting.is_openmp) else ALONE


def _is_in_regions_too(site: LossSite) -> bool:
    """Whether a team runs the same function: then it may be a region here, too, as where stacks are looked at as they
    were and nothing tells what the main thread's are."""
    here = site.place.procedure
    return any(place.procedure == here and place.all.within_region_ns for place in site.place.root.walk())


def _one_in_the_way(who: str, by_itself: float) -> Diagnosis:
    """``by_itself``: how much of its time nothing else works."""
    return Diagnosis(
        Kind.SERIAL,
        f"one {who} at a time works here, {100 * by_itself:.0f} % of that time alone: others wait for it, or have "
        "nothing else to do",
        f"have several {who}s do it, or make it cheaper; if others wait for a lock here, hold it for shorter",
    )


def _one_task_at_a_time(site: LossSite, setting: Setting, others: str) -> Diagnosis | None:
    """Tasks of which each is waited for before there is another one."""
    if site.region is None or not setting.is_openmp or not one_at_a_time(site, setting):
        return None
    if task_waits(site.region.parent) is None:
        return None
    threads = len(workers(site.tally))
    turns = f", on {threads} threads in turn" if threads > 1 else ""
    return Diagnosis(
        Kind.SERIAL,
        f"one task at a time runs{turns}: {others}",
        "wait once for all tasks (taskwait behind the loop that creates them), and let fewer depend on others",
        is_creators=True,
    )


def _threads_in_turn(site: LossSite, setting: Setting, others: str) -> Diagnosis | None:
    """Threads of which one works at a time, and no lock is why: each is waited for before there is another one, or they
    hand on one piece of work."""
    if setting.is_openmp or not one_at_a_time(site, setting):
        return None
    threads = len(site.tally.threads)
    if threads > _OFTEN_STARTED * setting.cores and thread_waits(site) is not None:
        return Diagnosis(
            Kind.SERIAL,
            f"{threads} threads work one after the other, each is waited for before the next one is started: {others}",
            "start as many as there are cores before the first is waited for (keep their handles, or futures)",
            is_creators=True,
        )
    return Diagnosis(
        Kind.SERIAL,
        f"one thread at a time works, {len(workers(site.tally)) or threads} of them in turn: {others}",
        "let others have work meanwhile: several pieces that do not wait for each other, not one that is handed on",
    )


def _prepares(tally: Tally) -> str:
    """What is imported or compiled while cores are idle here; empty if mostly something else goes on then."""
    if sum(tally.prepares.values()) < _PREPARES * unused_ns(tally.metrics):
        return ""
    return max(tally.prepares, key=lambda what: tally.prepares[what], default="")


def _imbalance(site: LossSite, setting: Setting) -> Diagnosis | None:
    if site.region is None and is_single(site.tally, setting.cores):
        return None
    tally = site.tally
    if hides_threads(tally, setting):
        return _unequal_by_turns("routines", alone(tally.metrics, setting.cores))
    if site.region is not None and is_single(tally, setting.cores):
        if queue_of(site):
            return None
        tally = site.region.all
        if knows_threads(tally) and is_single(tally, setting.cores):
            return None
    shown = ""
    if setting.has_tasks and comes_one_at_a_time(site, setting):
        return _one_in_the_way("thread", alone(tally.metrics, setting.cores))
    if _takes_too_slowly(site):
        return None
    if knows_threads(tally):
        ratio = imbalance_ratio(tally, setting.cores)
        if are_equal(tally, setting.cores) or may_be_chance(tally, setting.cores, setting.total):
            return _unequal_pieces(site, setting)
        if (few := len(workers(tally))) < setting.cores and are_equal(tally, few):
            return _too_few_threads(few, setting)
        if not is_by_many(tally, setting.cores):
            shown = f", {ratio:.1f}:1" if ratio < 10 else f", {ratio:.0f}:1"
    remedy = "pieces of equal size, or smaller ones that are fetched by whoever is free"
    who = "threads"
    if many_processes(tally) > 1:
        who, shown = "processes", f"{shown} (most: {busiest_process(tally)})"
    elif setting.is_openmp:
        remedy = "try schedule(dynamic) or schedule(guided)"
    return Diagnosis(Kind.IMBALANCE, f"{who} have unequal shares of the work{shown}", remedy)


def _takes_too_slowly(site: LossSite) -> bool:
    """Whether one of the threads that run this function keeps others waiting, which have something to give to it: they
    have less of its work, as where a compiler left nothing of their own functions, but no share of the same."""
    if site.region is None or share_of_first(site.tally) < _TAKES_MOST:
        return False
    return _GIVES.match(queue_of(site)) is not None


def _unequal_by_turns(who: str, by_itself: float) -> Diagnosis:
    """Which thread has a routine, or a piece of work, is chance: how much each did tells nothing."""
    return Diagnosis(
        Kind.IMBALANCE,
        f"several {who} work here, but {100 * by_itself:.0f} % of the time one alone: unequal pieces, or too few",
        "pieces of equal size, or smaller ones that are fetched by whoever is free",
    )


def _unequal_pieces(site: LossSite, setting: Setting) -> Diagnosis | None:
    """Threads that are started for a piece of work each, as std::async does: the longest ones say nothing of how those
    that ran beside them differ, but all of them do."""
    if site.region is None or many_processes(site.tally) > 1:
        return None
    works = [metrics.work_ns for metrics in site.tally.threads.values() if metrics.work_ns]
    if len(works) <= setting.cores or max(works) < _UNEQUAL * sum(works) / len(works):
        return None
    if pieces_may_be_equal(works, setting.total):
        return None
    if alone(site.tally.metrics, setting.cores) < _OFTEN_ALONE:
        return None
    shown = f"the largest {max(works) / min(works):.1f} times the smallest"
    return Diagnosis(
        Kind.IMBALANCE,
        f"{len(works)} threads have pieces of unequal sizes, {shown}",
        "pieces of equal size, or smaller ones that are fetched by whoever is free",
    )


def _too_few_threads(threads: int, setting: Setting) -> Diagnosis:
    """All have the same share, and there are fewer than cores."""
    idle = setting.cores - threads
    remedy = "start as many threads as there are cores, and divide the work among all of them"
    if setting.is_openmp:
        remedy = "use more threads (OMP_NUM_THREADS, num_threads)"
    return Diagnosis(
        Kind.IMBALANCE, f"{threads} threads share the work, {idle} of {setting.cores} cores have none", remedy
    )


def _starved(site: LossSite, setting: Setting) -> Diagnosis | None:
    if is_single(site.tally, setting.cores) or _takes_too_slowly(site):
        queue = queue_of_takers(site, setting)  # others worked beside it, or it were serial code
        if not queue and setting.total[WAIT] and site.region is None and not setting.is_openmp:
            share = 100 * alone(site.tally.metrics, setting.cores)
            return Diagnosis(
                Kind.SERIAL,
                f"one thread works here, {share:.0f} % of that time alone",
                "run it in parallel, or beside more of the other work",
            )
        gives = _GIVES.match(queue)
        return Diagnosis(
            Kind.STARVED,
            "other threads wait for it to take what they make"
            if gives
            else "other threads wait for what it makes",
            "share it out among threads, or make it cheaper",
        )
    if setting.is_openmp and site.region is not None and len(workers(site.tally)) > setting.cores:
        return too_many_threads(site, setting)
    by_itself = alone(site.tally.metrics, setting.cores)
    if _is_of_pool(site, setting) and by_itself >= _OFTEN_ALONE:
        return _unequal_by_turns("threads", by_itself)
    if (late := _late_by_turns(site, setting, by_itself)) is not None:
        return late
    remedy = "smaller pieces of work, with fewer dependences"
    who = "processes" if many_processes(site.tally) > 1 else "threads"
    if setting.is_openmp and who == "threads":
        remedy = "try schedule(dynamic), or smaller pieces with fewer dependences"
    what = (
        f"{who} have equal shares, yet wait for each other at times: uneven or few pieces, or a busy machine"
    )
    return Diagnosis(Kind.STARVED, what, remedy, is_likely=False)


def _late_by_turns(site: LossSite, setting: Setting, by_itself: float) -> Diagnosis | None:
    """Threads do as much in the end, but sleep for each other at a barrier while now this one and now that one is alone
    at work: the pieces of each step are unequal, unless others had the cores, or the runtime takes much of the time."""
    metrics = site.tally.metrics
    if by_itself < _OFTEN_ALONE or away_ns(metrics) >= _BUSY * lost_ns(metrics):
        return None
    if metrics.overhead_ns >= _FINE * metrics.work_ns or many_processes(site.tally) > 1:
        return None
    waits = waits_around(site, spins=setting.is_openmp) or {}
    at_barriers = sum(
        amount for name, amount in waits.items() if is_at_barrier(name, is_openmp=setting.is_openmp)
    )
    # of a team only the first thread spins in the program's functions
    whole = sum(waits.values()) if setting.is_openmp else metrics.idleness_ns
    if not at_barriers or at_barriers < _FOR_WORK * whole:
        return None
    remedy = "pieces of equal size in each step, or smaller ones that are fetched by whoever is free"
    if setting.is_openmp:
        remedy = "try schedule(dynamic) or schedule(guided)"
    return Diagnosis(
        Kind.IMBALANCE,
        f"threads have equal shares in the end, but {100 * by_itself:.0f} % of the time one works alone while others "
        "wait for it at a barrier: now one has the longer piece, now another",
        remedy,
    )


def _is_of_pool(site: LossSite, setting: Setting) -> bool:
    """Whether threads work here that sleep for something to do while cores are idle: which of them gets the longest
    piece differs from one time to the next."""
    if setting.is_openmp or many_processes(site.tally) > 1:
        return False
    return waits_for_work_ns(site) >= _FOR_WORK * site.tally.metrics.idleness_ns > 0


KINDS: tuple[Test, ...] = (
    stall,
    _creation,
    _overhead,
    brief_processes,
    lone_process,
    lock,
    machine,
    few_requests,
    lone_rank,
    _serial,
    _imbalance,
    _starved,
)


def diagnose(site: LossSite, setting: Setting) -> Diagnosis:
    """What is wrong at a site."""
    for test in KINDS:
        found = test(site, setting)
        if found is not None:
            return found
    raise AssertionError("the last entry of the table holds always")


def _loop_of(site: LossSite) -> str:
    """Where the loop is that a serial site consists of, as its name says."""
    place = site.place
    if not place.procedure.is_loop:
        return ""
    return place.procedure.name.removeprefix("loop at ")
