"""Losses to locks: others wait for what one holds, or all wait in turn."""

from __future__ import annotations

from parprof.causes.barriers import BARRIERS
from parprof.causes.diagnosis import Diagnosis, Kind, Setting
from parprof.causes.machine import is_busy
from parprof.causes.shares import (
    goes_through_threads,
    is_mostly_one,
    leading,
    many_processes,
    one_at_a_time,
    shares_explain,
)
from parprof.causes.sites import LossSite, alone, is_single, workers
from parprof.causes.spinning import own_spin_ns, spinner
from parprof.causes.stalls import wait_of
from parprof.causes.waiting import (
    exclusive_waits,
    file_lock_waits,
    is_arrival,
    is_exclusive,
    is_file_lock,
    is_lock,
    lets_go,
    waits_around,
    waits_of,
)
from parprof.metrics import WAIT
from parprof.patterns import regex

_ORDERED = regex(r".*ordered")
_DOACROSS = regex(r".*doacross")
_LONGEST = 60
"""A longer name of a function, as that of a template, tells a reader nothing."""
_FOR_THAT_LOCK = 0.6
"""Of the idleness at a place: if others sleep so long for a lock, it is that which makes cores idle."""
_SPINS = 0.1
"""Of its work: for so long at least each thread spins that has to wait for its turn."""
_LEAST_TAKEN, _TAKEN = 5, 0.005
"""Samples, and of all samples: a lock that is taken so often is what routines wait for that work one at a time."""
_GIL_REMEDY = "use processes (multiprocessing, concurrent.futures), or a library that gives the lock away"
_MASTER_LOCK_REMEDY = "use processes (Unix.fork), or the domains of OCaml 5"
_MASTER_LOCK = regex(r"caml_(?!ml_mutex|mutex).*\[waits: lock\]")
"""Wherever threads of OCaml 4 give way to each other; its functions for mutexes are others."""
_NAMELESS = regex(r"\[(?:lib)|.*\+0x")
"""Functions of stripped runtimes: in the middle of a region threads wait there for locks, seldom for anything else."""


def lock(site: LossSite, setting: Setting) -> Diagnosis | None:
    """Threads wait for a lock, by what blame, functions or turns tell."""
    metrics = site.tally.metrics
    is_held = metrics.blame_ns >= 0.3 * metrics.idleness_ns > 0
    if (is_held or not setting.total.blame_ns) and (
        found := _gil(site, setting, is_held=is_held)
    ) is not None:
        return found
    if is_held:
        return lock_diagnosis(site, setting, "others wait for a lock that it holds:")
    if (for_file := _lock_of_file(site, setting)) is not None:
        return for_file
    if is_single(site.tally, setting.cores):
        return _lock_of_one(site, setting)
    if goes_through_threads(site, setting):
        return _lock_of_routines(site, setting)
    seen, barriers, nameless = (
        sum(found.samples for name, found in site.tally.runtime.items() if holds(name.partition(":")[2]))
        for holds in (is_lock, BARRIERS.match, _NAMELESS.match)
    )
    if seen >= 5 and seen > 0.03 * metrics.samples and seen > barriers / 2:
        return lock_diagnosis(site, setting, "threads wait for a lock here:")
    if _waits_in_turn(site, setting, is_lock_likely=not setting.is_openmp or seen + nameless > barriers):
        return lock_diagnosis(site, setting, "one works, the others wait in turn:")
    if _waits_for_as_long(site, setting):
        return lock_diagnosis(site, setting, "threads wait for a lock here:")
    return _spins_in_turn(site, setting)


def _spins_in_turn(site: LossSite, setting: Setting) -> Diagnosis | None:
    """All threads that work here spin in the program's own code for as long as they would sleep for a lock.

    How far they are alone at work tells less: who spins counts as working until a sample finds it there.
    """
    if setting.is_openmp or setting.is_mpi or many_processes(site.tally) > 1:
        return None
    threads = [site.tally.threads[thread] for thread in workers(site.tally)]
    spun_ns = own_spin_ns(site.tally)
    least_ns = max(_FOR_THAT_LOCK * site.tally.metrics.idleness_ns, _SPINS * site.tally.metrics.work_ns)
    if spun_ns < least_ns or any(one.spin_ns < _SPINS * one.work_ns for one in threads):
        return None
    place = spinner(site)
    where = "" if place is None else f" in {place.procedure.name}"
    return Diagnosis(
        Kind.LOCK,
        f"one works, the others spin meanwhile{where}: {len(threads)} threads",
        "hold for shorter what they spin for, or divide what it guards",
    )


def _waits_for_as_long(site: LossSite, setting: Setting) -> bool:
    """Whether threads sleep for a lock that keeps others out for as long as cores are idle, though one works alone for
    less than that: of more threads than cores some are on their way to sleep, or look again before they do. Those of
    OpenMP's teams spin, and nobody may be seen at work while such a lock goes from one to the next."""
    if site.is_mixed or many_processes(site.tally) > 1 or is_mostly_one(site, setting):
        return False
    waits = waits_around(site, spins=setting.is_openmp) or {}
    keeps_out = is_lock if setting.is_openmp else is_exclusive  # a turn in an ordered loop, too
    exclusive = sum(amount for name, amount in waits.items() if keeps_out(name))
    idle = site.tally.metrics.idleness_ns
    if not idle or exclusive < max(_FOR_THAT_LOCK * idle, 0.5 * sum(waits.values())):
        return False
    return not shares_explain(site.tally, setting.cores)


def _gil(site: LossSite, setting: Setting, *, is_held: bool) -> Diagnosis | None:
    """Something runs here, and meanwhile others sleep for as long to get the interpreter's lock.

    ``is_held``: samples showed that it has that lock. Who works alone has it; of several that work, one.
    """
    others = site.tally.beside
    if not others.gil_ns or others.idle_ns < _FOR_THAT_LOCK * site.tally.metrics.idleness_ns:
        return None
    is_held = is_held or alone(site.tally.metrics, setting.cores) >= _FOR_THAT_LOCK
    who = "it" if is_held else "it, or what runs beside it,"
    told = f"others wait for the interpreter's lock (the GIL), which {who} has: {others.gil_ns / 1e9:.1f} s"
    if others.locks_ns > 0.3 * others.gil_ns:
        told += f", and {others.locks_ns / 1e9:.1f} s for locks of its own (who holds those is not told)"
    return Diagnosis(Kind.LOCK, told, _GIL_REMEDY)


def _lock_of_one(site: LossSite, setting: Setting) -> Diagnosis | None:
    """A function that one thread alone runs, and that takes a lock, while others sleep to get one for as long."""
    if not any(is_exclusive(name.partition(":")[2]) for name in site.function.all.runtime):
        return None
    waits = exclusive_waits(site)
    if sum(waits.values()) < _FOR_THAT_LOCK * site.tally.metrics.idleness_ns:
        return None
    call, _ = wait_of(max(waits, key=lambda name: waits[name]))
    told = f"others wait for a lock that it holds ({call})"
    return Diagnosis(Kind.LOCK, told, "hold it for shorter: prepare what it guards first, then exchange it")


def _lock_of_file(site: LossSite, setting: Setting) -> Diagnosis | None:
    """One process at a time works here, and others that do something else sleep for a lock of a file for as long: as a
    rule it is held for this, by who started it (``flock FILE PROGRAM``)."""
    if alone(site.tally.metrics, setting.cores) < _FOR_THAT_LOCK:
        return None
    waits = file_lock_waits(site)
    if not waits or sum(waits.values()) < _FOR_THAT_LOCK * site.tally.metrics.idleness_ns:
        return None
    call, _ = wait_of(max(waits, key=lambda name: waits[name]))
    told = f"other processes wait meanwhile for a lock of a file ({call}): {sum(waits.values()) / 1e9:.1f} s"
    return Diagnosis(Kind.LOCK, told, "hold it for shorter, or have a file (a part of it) for each of them")


def _lock_of_routines(site: LossSite, setting: Setting) -> Diagnosis | None:
    """Of routines that wait for a lock no thread sleeps for it, but whoever has a core is seen to take it."""
    taken = (
        found.samples for name, found in site.tally.runtime.items() if is_exclusive(name.partition(":")[2])
    )
    if sum(taken) < max(_LEAST_TAKEN, _TAKEN * site.tally.metrics.samples):
        return None
    return lock_diagnosis(site, setting, "one works, the others wait in turn:")


def _waits_in_turn(site: LossSite, setting: Setting, *, is_lock_likely: bool) -> bool:
    """Whether threads work here one at a time, and the others wait meanwhile, as far as is known for a lock.

    ``is_lock_likely``: by the samples of the site itself, where nobody looked at how threads wait.
    """
    if site.is_mixed or is_mostly_one(site, setting):
        return False
    if (
        many_processes(site.tally) > 1
    ):  # of a lock in memory that they share; else each waits for threads of its own
        among = waits_of(site.function.all) or waits_around(site) or {}
        exclusive = sum(amount for name, amount in among.items() if is_exclusive(name))
        return exclusive >= _FOR_THAT_LOCK * site.tally.metrics.idleness_ns > 0
    waits = waits_around(site)
    if waits is None:
        return not setting.total[WAIT] and is_lock_likely and one_at_a_time(site, setting)
    whole = sum(waits.values())
    arrivals = sum(amount for name, amount in waits.items() if is_arrival(name))
    if setting.is_openmp:
        locks = sum(amount for name, amount in waits.items() if is_lock(name))
        is_asleep = not setting.total[WAIT] or waits_around(site, spins=False) is not None
        is_for_lock = locks > 0.5 * whole or (is_lock_likely and is_asleep and arrivals <= 0.5 * whole)
    else:
        is_for_lock = arrivals <= 0.5 * whole
    if not is_for_lock:
        return False
    return one_at_a_time(site, setting) or (is_busy(site.tally.metrics) and _is_in_turn(site, whole))


def _is_in_turn(site: LossSite, waits: float) -> bool:
    """Whether threads wait for as long as others work, where the machine is too busy for it to look like turns."""
    tally = site.tally
    others = len(workers(tally)) - 1
    return not shares_explain(tally, others + 1) and 0 < 0.5 * others * tally.metrics.work_ns <= waits


def _is_for_master_lock(site: LossSite) -> bool:
    waits = waits_around(site) or {}
    theirs = sum(amount for name, amount in waits.items() if _MASTER_LOCK.match(name))
    return theirs > 0.5 * sum(waits.values())


def lock_diagnosis(site: LossSite, setting: Setting, what: str) -> Diagnosis:
    """``what``: the beginning of what is told, to which how many threads or how much of the time is added."""
    waits = waits_around(site) or {}
    of_files = [function for function in waits if is_file_lock(function)]
    longest = max(of_files, key=lambda function: waits[function], default="")
    taken = [function for function in waits if is_lock(function) and not lets_go(function)]
    longest = longest or max(taken, key=lambda function: waits[function], default="")
    name, _ = wait_of(longest or leading(site.tally, holds=is_lock))
    who = "processes" if many_processes(site.tally) > 1 else "threads"
    if (
        len(name) > _LONGEST
        or name.startswith(("_ZN", "_R"))
        or (setting.has_scripts and "gil" in name.lower())
    ):
        name = ""
    team = site.region.all if site.region is not None and setting.is_openmp else site.tally
    told = f"{what} {len(workers(team)) or len(team.threads)} {who}"
    if what.startswith("the lock itself"):
        metrics = site.tally.metrics
        told = f"{what} {100 * metrics.overhead_ns / max(metrics.work_ns, 1):.0f} % of the CPU time"
    told += f" ({name})" if name and not name.startswith("[") else ""
    if setting.has_scripts and not name:
        return Diagnosis(
            Kind.LOCK,
            f"{told}; as a rule that is the interpreter's own lock (the GIL)",
            _GIL_REMEDY,
        )
    remedy = "hold it for shorter, take it less often, or divide what it guards"
    if _is_for_master_lock(site):
        told, remedy = f"{told}; as a rule that is OCaml's master lock", _MASTER_LOCK_REMEDY
    if setting.is_openmp:
        remedy = "use a reduction, or keep a copy for each thread and combine them at the end"
        longest = max(waits, key=lambda function: waits[function], default="")
        if _DOACROSS.match(longest):
            told = "iterations wait for those that they depend on (ordered, depend(sink))"
            remedy = (
                "depend on fewer, or on earlier ones, and do what nobody depends on behind depend(source)"
            )
        if _ORDERED.match(longest):
            told = "threads wait for their turn in an ordered loop"
            remedy = "do less in ordered: keep results, and put them in order after the loop"
    return Diagnosis(Kind.LOCK, told, remedy)
