"""Which kind of loss a site is, and what helps against it.

`KINDS` is the table: a kind of loss is one entry. The first entry whose test holds gives a site its kind, so those that
rest on a measurement of their own (who waited for whom, what no thread worked through) stand before those that are
inferred from who ran when.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from parprof.causes.barriers import BARRIERS, is_barrier
from parprof.causes.evidence import Tally
from parprof.causes.sites import (
    ALONE,
    Site,
    alone,
    is_single,
    knows_threads,
    lost_ns,
    share_of_first,
)
from parprof.causes.waiting import (
    exclusive_waits,
    is_arrival,
    is_exclusive,
    is_lock,
    queue_of,
    waits_around,
)
from parprof.metrics import SAMPLES, STALL, STOLEN, WAIT, Metric, Metrics


class Kind(StrEnum):
    """What can go wrong. The names are those of the JSON report."""

    SERIAL = "serial"
    IMBALANCE = "imbalance"
    LOCK = "lock"
    STARVED = "starved"
    STALL = "stall"
    OVERHEAD = "overhead"
    OVERSUBSCRIBED = "oversubscribed"
    BUSY_MACHINE = "busy_machine"
    SERIAL_PROGRAM = "serial_program"

    @property
    def words(self) -> str:
        """For people."""
        return _WORDS[self]


_WORDS = {
    Kind.SERIAL: "serial code",
    Kind.IMBALANCE: "imbalance",
    Kind.LOCK: "lock",
    Kind.STARVED: "too little work at a time",
    Kind.STALL: "blocked",
    Kind.OVERHEAD: "too fine",
    Kind.OVERSUBSCRIBED: "too many threads",
    Kind.BUSY_MACHINE: "busy machine",
    Kind.SERIAL_PROGRAM: "single-threaded",
}

_LEADING_UNDERSCORES = re.compile(r"\A_+(?:GI_+)?(?:libc_)?")
_ALL_ALONE = 0.995
_AWAY = 0.5
"""Of a stall at a barrier: where threads were without a core for so long, the last of the team was late for that."""
_MOSTLY = 0.8
_SPINS = 0.1
"""Of the work: beside so much spinning, who works alone does not look quite alone."""
_IMPORTS = 0.6
"""So much of the idleness at a place is imports if that is what is said of it."""

_GIVES = re.compile(r".*(?:send|push|\bput)", re.IGNORECASE)
_ORDERED = re.compile(r".*ordered")
_CREATE = re.compile(r"_*(?:GI_+|libc_)*(?:pthread_create|thrd_create|v?fork\b|posix_spawn|clone)")
_LONGEST = 60
"""A longer name of a function, as that of a template, tells a reader nothing."""
_CLEARLY_UNEQUAL = 1.8
"""Shares of the work with this ratio are unequal though the machine is busy, which wears on threads unequally."""
_CROWD = 20
"""Threads for each core: nobody keeps so many at work."""
_BRIEF = 5
"""Samples: a thread with so few did little."""
_NAMELESS = re.compile(r"\[(?:lib)|.*\+0x")
"""Functions of stripped runtimes: in the middle of a region threads wait there for locks, seldom for anything else."""
_OPENMP = re.compile(r"lib(?:gomp|omp|iomp)")


_STALL_REMEDY = "let it happen beside the computation: read ahead, write behind, or in a thread of its own"
_WAIT = re.compile(r"(.*?) ?\[waits: ([\w ]+)\]\Z")
_CALLS_THAT_WAIT = (
    (re.compile(r"(?:clock_)?(?:nano|u)?sleep"), "sleep"),
    (re.compile(r"(?:do_)?wait(?:4|3|pid|id)?\Z"), "child"),
    (re.compile(r"(?:new_)?sem_|pthread_(?:cond|join|barrier)|futex|lll_|thrd_join"), "lock"),
)
"""Where the kind of a wait is not known: what the call does."""
_WAITS = {
    "sleep": (
        "for time to pass (sleep)",
        "wait for what is to happen, not for a time; or do something else meanwhile",
    ),
    "child": (
        "for a child process",
        "start several children at once, or do something else while they run",
    ),
    "lock": ("for another thread", "who is waited for does nothing, either: see what that one waits for"),
    "file": ("for a file", _STALL_REMEDY),
    "page fault": (
        "for memory to be read in (page faults)",
        "touch it earlier, in a thread of its own, or have the kernel read ahead (madvise)",
    ),
    "pipe": ("for a pipe", _STALL_REMEDY),
    "network": ("for the network", "have several requests under way at once, or ask ahead of time"),
}
"""By kind of wait: what is waited for, in words, and what to do about it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The program that a site is in."""

    cores: int
    runtime: str
    total: Metrics
    has_scripts: bool

    @property
    def is_openmp(self) -> bool:
        """Whether remedies can be in OpenMP's words."""
        return bool(_OPENMP.match(self.runtime))


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A kind, and what to tell the reader of it."""

    kind: Kind
    what: str
    """What was seen, with its figures."""
    remedy: str
    is_likely: bool = True
    """False where nothing speaks for this kind but that no other one fits."""


_BUSY_MACHINE = Diagnosis(
    Kind.BUSY_MACHINE,
    "its threads waited for cores that others used",
    "not your code: measure on a quiet machine, or give the program cores of its own",
    is_likely=False,
)
_SPIN_ALONE = Diagnosis(
    Kind.STARVED,
    "its threads spin, waiting for each other: pieces of work too short to see, or a busy machine",
    "larger pieces of work at a time, or fewer threads (OMP_NUM_THREADS, OPENBLAS_NUM_THREADS)",
)
Test = Callable[[Site, Setting], Diagnosis | None]


def _stall(site: Site, setting: Setting) -> Diagnosis | None:
    metrics = site.tally.metrics
    if metrics.stall_ns < 0.5 * lost_ns(metrics):
        return None
    leading = _leading(site.tally, by=STALL)
    if not _WAIT.match(leading) and metrics.spin_ns * setting.cores >= 0.5 * metrics.stall_ns:
        # who spins waits for a thread, and that is found to work at none of its samples, or has no core
        return _BUSY_MACHINE if _away_ns(setting.total) >= _AWAY * metrics.stall_ns else _SPIN_ALONE
    call, kind = _wait_of(leading)
    what, remedy = _WAITS.get(kind, (f"in {call}" if call else "", _STALL_REMEDY))
    # all are on their way through a barrier, to sleep or just woken: more often than not others had the cores
    at_barrier = setting.runtime != "none" and is_barrier(call)
    if at_barrier and _away_ns(setting.total) >= _AWAY * metrics.stall_ns:
        return _BUSY_MACHINE
    what = f"no thread works while this waits {what}".rstrip()
    return Diagnosis(Kind.STALL, what, remedy, is_likely=not at_barrier)


def _wait_of(innermost: str) -> tuple[str, str]:
    """The call that waits, and the kind of its wait, each empty where it is not known."""
    wait = _WAIT.match(innermost)
    call, kind = wait.groups() if wait else (innermost, "")
    call = _LEADING_UNDERSCORES.sub("", call)
    return call, kind or next((kind for calls, kind in _CALLS_THAT_WAIT if calls.match(call)), "")


def _away_ns(metrics: Metrics) -> float:
    """For how long threads had no core, and cores no thread, because others had the cores."""
    return metrics.ready_ns + metrics[STOLEN]


def _is_busy(metrics: Metrics) -> bool:
    """Whether threads lacked cores for longer than cores lacked threads."""
    return _away_ns(metrics) >= max(lost_ns(metrics), 1.0)


def _machine(site: Site, setting: Setting) -> Diagnosis | None:
    """Threads that could work had no core: the others waited for them, or so it looks."""
    metrics = site.tally.metrics
    if (crowd := _crowd(site, setting)) is not None:
        return crowd
    if is_single(site.tally, setting.cores) or not _is_busy(metrics):
        return None
    if _shares_explain(site.tally, setting.cores):
        return None
    threads = len(_workers(site.tally))
    if threads > setting.cores:
        return Diagnosis(
            Kind.OVERSUBSCRIBED,
            f"{threads} threads share {setting.cores} cores, and wait for each other",
            f"use {setting.cores} threads" + (" (OMP_NUM_THREADS)" if setting.is_openmp else ""),
        )
    return _BUSY_MACHINE


def _crowd(site: Site, setting: Setting) -> Diagnosis | None:
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


def _shares_explain(tally: Tally, cores: int) -> bool:
    """Whether cores were idle here for about as long as the busiest thread had more to do than the others.

    Without a core a thread does nothing, so how much each did is the same on a busy machine, but where threads fetch
    their work: there, who has a core does more, and hardly any core is idle.
    """
    if not knows_threads(tally):
        return False
    works = sorted((metrics.work_ns for metrics in tally.threads.values()), reverse=True)[:cores]
    more = sum(works[0] - each for each in works) + works[0] * (cores - len(works)) if works else 0.0
    if _imbalance_ratio(tally, cores) < _CLEARLY_UNEQUAL:
        return False
    idle = tally.metrics.idleness_ns
    return 0.5 * idle <= more <= 2.0 * (idle + tally.metrics[STOLEN])


def _creation(site: Site, setting: Setting) -> Diagnosis | None:
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


def _overhead(site: Site, setting: Setting) -> Diagnosis | None:
    metrics = site.tally.metrics
    if not metrics.work_ns or metrics.overhead_ns < max(0.5 * lost_ns(metrics), 0.1 * metrics.work_ns):
        return None
    kinds: dict[str, float] = {}
    locks = 0.0
    for name, found in site.tally.runtime.items():
        kind, _, function = name.partition(":")
        kinds[kind] = kinds.get(kind, 0.0) + found.overhead_ns
        locks += found.overhead_ns * is_lock(function)
    if locks > 0.5 * metrics.overhead_ns:
        return _lock_diagnosis(site, setting, "the lock itself takes")
    share = 100 * metrics.overhead_ns / metrics.work_ns
    most = max(kinds, key=lambda kind: kinds[kind], default="other")
    what, remedy = _TOO_FINE.get(most, _TOO_FINE["other"])
    if most in ("schedule", "other") and setting.is_openmp:
        remedy = "larger chunks: schedule(dynamic, 64), say, or schedule(static)"
    elif most == "create" and setting.is_openmp:
        remedy = "larger pieces: a cut-off for tasks (if or final), or one parallel region around the loop"
    return Diagnosis(Kind.OVERHEAD, f"{share:.0f} % of its CPU time is spent {what}", remedy)


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


def _lock(site: Site, setting: Setting) -> Diagnosis | None:
    metrics = site.tally.metrics
    if metrics.blame_ns >= 0.3 * metrics.idleness_ns > 0:
        return _lock_diagnosis(site, setting, "others wait for a lock that it holds:")
    if is_single(site.tally, setting.cores):
        return _lock_of_one(site, setting)
    seen, barriers, nameless = (
        sum(found.samples for name, found in site.tally.runtime.items() if holds(name.partition(":")[2]))
        for holds in (is_lock, BARRIERS.match, _NAMELESS.match)
    )
    if seen >= 5 and seen > 0.03 * metrics.samples and seen > barriers / 2:
        return _lock_diagnosis(site, setting, "threads wait for a lock here:")
    if _waits_in_turn(site, setting, is_lock_likely=not setting.is_openmp or seen + nameless > barriers):
        return _lock_diagnosis(site, setting, "one works, the others wait in turn:")
    return None


def _lock_of_one(site: Site, setting: Setting) -> Diagnosis | None:
    """A function that one thread alone runs, and that takes a lock, while others sleep to get one for as long."""
    if not any(is_exclusive(name.partition(":")[2]) for name in site.function.all.runtime):
        return None
    waits = exclusive_waits(site)
    if sum(waits.values()) < 0.6 * site.tally.metrics.idleness_ns:
        return None
    call, _ = _wait_of(max(waits, key=lambda name: waits[name]))
    told = f"others wait for a lock that it holds ({call})"
    return Diagnosis(Kind.LOCK, told, "hold it for shorter: prepare what it guards first, then exchange it")


def _waits_in_turn(site: Site, setting: Setting, *, is_lock_likely: bool) -> bool:
    """Whether threads work here one at a time, and the others wait meanwhile, as far as is known for a lock.

    ``is_lock_likely``: by the samples of the site itself, where nobody looked at how threads wait.
    """
    if site.is_mixed or _many_processes(site.tally) > 1 or _is_mostly_one(site, setting):
        return False
    waits = waits_around(site)
    if waits is None:
        return not setting.total[WAIT] and is_lock_likely and _one_at_a_time(site, setting)
    whole = sum(waits.values())
    if setting.is_openmp:
        locks = sum(amount for name, amount in waits.items() if is_lock(name))
        is_asleep = not setting.total[WAIT] or waits_around(site, spins=False) is not None
        is_for_lock = locks > 0.5 * whole or (is_lock_likely and is_asleep)
    else:
        is_for_lock = sum(amount for name, amount in waits.items() if is_arrival(name)) <= 0.5 * whole
    if not is_for_lock:
        return False
    return _one_at_a_time(site, setting) or (_is_busy(site.tally.metrics) and _is_in_turn(site, whole))


def _is_in_turn(site: Site, waits: float) -> bool:
    """Whether threads wait for as long as others work, where the machine is too busy for it to look like turns."""
    tally = site.tally
    others = len(_workers(tally)) - 1
    return not _shares_explain(tally, others + 1) and 0 < 0.5 * others * tally.metrics.work_ns <= waits


def _one_at_a_time(site: Site, setting: Setting) -> bool:
    """Whether several threads work here, but one at a time."""
    return alone(site.tally.metrics, setting.cores) >= 0.6 and _all_alone(site.tally, setting.cores)


def _others_wait(site: Site, setting: Setting) -> bool:
    """Whether threads sleep here, or in its callers; taken for granted where nobody looked where threads sleep.

    Else it is one piece of work that goes from thread to thread, as routines do in languages with a scheduler of their
    own (Go).
    """
    return not setting.total[WAIT] or waits_around(site) is not None


def _lock_diagnosis(site: Site, setting: Setting, what: str) -> Diagnosis:
    name = _leading(site.tally, holds=is_lock)
    if len(name) > _LONGEST or name.startswith(("_ZN", "_R")):
        name = ""
    told = f"{what} {len(_workers(site.tally))} threads"
    if what.startswith("the lock itself"):
        metrics = site.tally.metrics
        told = f"{what} {100 * metrics.overhead_ns / max(metrics.work_ns, 1):.0f} % of the CPU time"
    told += f" ({name})" if name else ""
    if setting.has_scripts and not name:
        return Diagnosis(
            Kind.LOCK,
            f"{told}; as a rule that is the interpreter's own lock (the GIL)",
            "use processes (multiprocessing, concurrent.futures), or a library that gives the lock away",
        )
    remedy = "hold it for shorter, take it less often, or divide what it guards"
    if setting.is_openmp:
        remedy = "use a reduction, or keep a copy for each thread and combine them at the end"
        waits = waits_around(site) or {}
        if _ORDERED.match(max(waits, key=lambda function: waits[function], default="")):
            told = "threads wait for their turn in an ordered loop"
            remedy = "do less in ordered: keep results, and put them in order after the loop"
    return Diagnosis(Kind.LOCK, told, remedy)


def _serial(site: Site, setting: Setting) -> Diagnosis | None:
    idle = setting.cores - 1
    others = "the other core is idle" if idle == 1 else f"{idle} of {setting.cores} cores are idle"
    if site.region is None and (module := _imports(site.tally)):
        return Diagnosis(
            Kind.SERIAL,
            f"one thread imports {module} most of that time, {others}",
            "import less of it, or where it is needed (python -X importtime tells what takes long)",
        )
    metrics = site.tally.metrics
    is_mostly_one = _is_mostly_one(site, setting)
    # outside of OpenMP a thread that spins counts as working until a sample finds it there
    spins = not setting.is_openmp and setting.total.spin_ns > _SPINS * setting.total.work_ns
    # and where it is known how threads wait, others that worked for a moment are no reason to doubt it
    knows_waits = site.region is None and setting.total[WAIT] > 0
    least = _MOSTLY if (spins or knows_waits) and is_single(site.tally, setting.cores) else ALONE
    if alone(metrics, setting.cores) < least and not is_mostly_one:
        return None
    if not setting.is_openmp and is_single(site.tally, setting.cores) and queue_of(site):
        return None
    processes = _many_processes(site.tally)
    if processes > 1 and not is_single(site.tally, setting.cores):
        return Diagnosis(
            Kind.SERIAL,
            f"{processes} processes run it one after the other",
            "run several of them at a time (make -j, xargs -P)",
        )
    if is_mostly_one:
        share = f"{100 * share_of_first(site.tally):.0f} % of the work"
        return Diagnosis(
            Kind.SERIAL,
            f"one thread does {share}, most of it alone: {others}",
            "run it in parallel, or beside other work",
        )
    if not is_single(site.tally, setting.cores):
        if site.region is None and _one_at_a_time(site, setting) and not _others_wait(site, setting):
            turns = f"one thread at a time works, {len(_workers(site.tally))} of them in turn: {others}"
            return Diagnosis(Kind.SERIAL, turns, "run it in parallel, or beside other work")
        return None
    if site.region is not None and setting.is_openmp:
        return Diagnosis(
            Kind.SERIAL,
            f"one thread works, its team waits: {others}",
            "share it out (for, sections, taskloop), or let the team go on (nowait)",
        )
    loop = _loop_of(site)
    what = f"the loop at {loop}" if loop else "it"
    remedy = f"run {what} in parallel" + (" (parallel for)" if setting.is_openmp and loop else "")
    return Diagnosis(Kind.SERIAL, f"one thread works, {others}", f"{remedy}, or beside other work")


def _imports(tally: Tally) -> str:
    """The module that is imported while cores are idle here; empty if it is mostly something else that goes on then."""
    if sum(tally.imports.values()) < _IMPORTS * tally.metrics.idleness_ns:
        return ""
    return max(tally.imports, key=lambda module: tally.imports[module], default="")


def _is_mostly_one(site: Site, setting: Setting) -> bool:
    """Whether the work is one thread's but for a little of others at times, as those that a library starts."""
    tally = site.tally
    if site.region is not None or not knows_threads(tally) or is_single(tally, setting.cores):
        return False
    if _many_processes(tally) > 1:  # as the workers of a pool
        return False
    first = max(tally.threads.values(), key=lambda metrics: metrics.work_ns)
    return share_of_first(tally) >= _MOSTLY and alone(first, setting.cores) >= _MOSTLY


def _imbalance(site: Site, setting: Setting) -> Diagnosis | None:
    if site.region is None and is_single(site.tally, setting.cores):
        return None
    tally = site.tally
    if site.region is not None and is_single(tally, setting.cores):
        if queue_of(site):
            return None
        tally = site.region.all
        if knows_threads(tally) and is_single(tally, setting.cores):
            return None
    shown = ""
    if knows_threads(tally):
        ratio = _imbalance_ratio(tally, setting.cores)
        if ratio < 1.2:
            return None
        shown = f", {ratio:.1f}:1" if ratio < 10 else f", {ratio:.0f}:1"
    remedy = "pieces of equal size, or smaller ones that threads fetch when they are free"
    if setting.is_openmp:
        remedy = "try schedule(dynamic) or schedule(guided)"
    return Diagnosis(Kind.IMBALANCE, f"threads have unequal shares of the work{shown}", remedy)


def _starved(site: Site, setting: Setting) -> Diagnosis | None:
    if is_single(site.tally, setting.cores):
        gives = _GIVES.match(queue_of(site))
        return Diagnosis(
            Kind.STARVED,
            "other threads wait for it to take what they make"
            if gives
            else "other threads wait for what it makes",
            "share it out among threads, or make it cheaper",
        )
    remedy = "smaller pieces of work, with fewer dependences"
    if setting.is_openmp:
        remedy = "try schedule(dynamic), or smaller pieces with fewer dependences"
    what = (
        "threads have equal shares, yet wait for each other at times: uneven or few pieces, or a busy machine"
    )
    return Diagnosis(Kind.STARVED, what, remedy, is_likely=False)


KINDS: tuple[Test, ...] = (_stall, _creation, _overhead, _lock, _machine, _serial, _imbalance, _starved)


def diagnose(site: Site, setting: Setting) -> Diagnosis:
    """What is wrong at a site."""
    for test in KINDS:
        found = test(site, setting)
        if found is not None:
            return found
    raise AssertionError("the last entry of the table holds always")


def _all_alone(tally: Tally, cores: int) -> bool:
    """Whether each thread was alone for most of its work, not only the one that had most of it."""
    return all(alone(tally.threads[thread], cores) >= 0.5 for thread in _workers(tally))


def _many_processes(tally: Tally) -> int:
    return len({thread[0] for thread in _workers(tally)})


def _workers(tally: Tally) -> list[tuple[int, int, str]]:
    """The threads that did some of the work worth the name."""
    least = 0.02 * tally.metrics.work_ns
    return [thread for thread, metrics in tally.threads.items() if metrics.work_ns > least]


def _imbalance_ratio(tally: Tally, cores: int) -> float:
    """The most that one thread had to do, over what the others had on average."""
    works = sorted((metrics.work_ns for metrics in tally.threads.values()), reverse=True)[: max(cores, 2)]
    if not works or not works[0]:
        return 1.0
    others = [*works[1:], *([0.0] * (cores - len(works)))]
    mean = sum(others) / len(others) if others else 0.0
    return works[0] / max(mean, 0.01 * works[0])


def _leading(tally: Tally, holds: Callable[[str], bool] | None = None, by: Metric = SAMPLES) -> str:
    """The foreign function that most of it was in, by a metric."""
    amounts: dict[str, float] = {}
    for name, metrics in tally.runtime.items():
        function = name.partition(":")[2]
        if holds is None or holds(function):
            amounts[function] = amounts.get(function, 0.0) + metrics[by]
    return max(amounts, key=lambda name: amounts[name], default="")


def _loop_of(site: Site) -> str:
    """Where the loop is that a serial site consists of, as its name says."""
    place = site.place
    if not place.procedure.is_loop:
        return ""
    return place.procedure.name.removeprefix("loop at ")


def program_is_serial(whole: Tally, cores: int) -> bool:
    """Whether one thread did all the work of a program."""
    if not knows_threads(whole):
        return alone(whole.metrics, cores) >= _ALL_ALONE
    return len(whole.threads) == 1 or share_of_first(whole) >= _ALL_ALONE
