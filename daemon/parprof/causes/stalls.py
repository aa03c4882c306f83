"""Losses while no thread works: what was waited for."""

from __future__ import annotations

from parprof.attribution.effort import lost_ns
from parprof.attribution.waiting import WaitKind
from parprof.causes.barriers import is_barrier
from parprof.causes.diagnosis import Diagnosis, Kind, Setting
from parprof.causes.machine import BUSY_MACHINE, away_ns
from parprof.causes.ownership import is_of_stripped
from parprof.causes.shares import leading
from parprof.causes.sites import LossSite, mostly_spins, unused_ns
from parprof.causes.tallies import Tally
from parprof.causes.upstream import writer
from parprof.causes.waiting import is_lock
from parprof.metrics import STALL, Metrics
from parprof.patterns import regex

_AWAY = 0.5
"""Of a stall at a barrier: where threads were without a core for so long, the last of the team was late for that."""
_OTHERS_REMEDY = "who is waited for does nothing, either: see what that one waits for"
_STALL_REMEDY = "let it happen beside the computation: read ahead, write behind, or in a thread of its own"
_LEADING_UNDERSCORES = regex(r"\A_+(?:GI_+)?(?:libc_)?")
_INSIDE_SEMAPHORE = regex(r"\Anew_(sem_wait)_\w+")
"""Where the C library sleeps in ``sem_wait`` and ``sem_timedwait``, which leave no frame."""
_WAIT = regex(r"(.*?) ?\[waits: ([\w ]+)\]\Z")
_CALLS_THAT_WAIT = (
    (regex(r"(?:clock_)?(?:nano|u)?sleep"), "sleep"),
    (regex(r"(?:do_)?wait(?:4|3|pid|id)?\Z"), "child"),
    (regex(r"(?:new_)?sem_|pthread_(?:cond|barrier)|futex|lll_"), "lock"),
    (regex(r"pthread_join|thrd_join"), "thread"),
)
"""Where the kind of a wait is not known: what the call does."""
_DEADLOCK, _LOCKED = WaitKind.DEADLOCK.value, WaitKind.LOCKED.value
_WAITS = {
    _DEADLOCK: (
        "for another thread",
        "have all take these locks in the same order, or both at once (std::scoped_lock)",
    ),
    "sleep": (
        "for time to pass",
        "wait for what is to happen, not for a time; or do something else meanwhile",
    ),
    "child": (
        "for a child process",
        "start several children at once, or do something else while they run",
    ),
    "lock": ("for another thread", _OTHERS_REMEDY),
    "condition": ("for another thread", _OTHERS_REMEDY),
    "barrier": ("for the other threads of its team", _OTHERS_REMEDY),
    "thread": ("for the end of a thread", _OTHERS_REMEDY),
    "file": ("for a file", _STALL_REMEDY),
    "page fault": (
        "for memory to be read in (page faults)",
        "touch it earlier, in a thread of its own, or have the kernel read ahead (madvise)",
    ),
    "pipe": ("for a pipe", _STALL_REMEDY),
    "network": ("for the network", "have several requests under way at once, or ask ahead of time"),
}
"""By kind of wait: what is waited for, in words, and what to do about it."""
_POLLS = regex(r"p?poll|p?select|epoll_")
_LOCK_OF_PROCESSES = (
    "for a lock that another process has",
    "have that one let it go sooner, by shorter transactions and nothing slow within them, or let them want other rows",
)
"""Processes wait so for each other's locks (`parprof.attribution.waiting.polled_kind`): those of a database."""
_TIMED = regex(r"timed|clock|timeout|::\w+_(?:for|until)\b")
_TIMED_REMEDY = (
    "where it looks again after a time, let it be told when there is something to do; else see what that "
    "thread waits for"
)
"""Calls that wait for either: nobody sees which of the two it was."""
_MPI_STARTS = regex(r"(?i)(?:p?mpi|ompi(?:_mpi)?|gfortran_caf)_(?:init|finali[sz]e)")
_MPI_STARTS_REMEDY = "that is once a run: measure a longer one"
_CALL = regex(r"[a-z]\w{,23}")
"""A name as calls of the C library have them; others are left out of the sentence."""
_MUCH_SPUN = 0.5
"""Of a stall."""
_MOSTLY_GIVEN = 0.8
"""Of all time: a program that had as much of the cores had them."""
_MUCH_OVERHEAD = 0.1
"""Of the work at a place."""
_SPIN_ALONE = Diagnosis(
    Kind.STARVED,
    "its threads spin, waiting for each other: pieces of work too short to see, or a busy machine",
    "larger pieces of work at a time, or fewer threads (OMP_NUM_THREADS, OPENBLAS_NUM_THREADS)",
)


def stall(site: LossSite, setting: Setting) -> Diagnosis | None:
    """No thread works for most of what is lost here."""
    metrics = site.tally.metrics
    if metrics.stall_ns < 0.5 * lost_ns(metrics):
        return None
    innermost = leading(site.tally, by=STALL)
    if _is_spun(innermost, metrics, setting):
        # who spins waits for a thread, and that is found to work at none of its samples, or has no core
        if _may_lack_cores(site, setting):
            return BUSY_MACHINE
        # a lock on its way from one to the next; or pieces so small that the runtime takes much of the work as well
        too_small = metrics.overhead_ns >= _MUCH_OVERHEAD * metrics.work_ns > 0
        return None if is_lock(innermost) or too_small else _SPIN_ALONE
    call, kind = wait_of(innermost)
    if setting.is_mpi and _MPI_STARTS.match(call):
        told = f"nobody works for {elapsed_of(metrics.stall_ns, setting)} while MPI is started or ended"
        return Diagnosis(Kind.STALL, told, _MPI_STARTS_REMEDY, is_likely=False)
    what, remedy = waited_for(call, kind)
    # all are on their way through a barrier, to sleep or just woken: more often than not others had the cores
    at_barrier = setting.runtime != "none" and is_barrier(call)
    naps = kind == "sleep" and _others_spin(site, setting)
    if (at_barrier or naps) and _may_lack_cores(site, setting):
        return BUSY_MACHINE
    is_nameless = kind == "page fault" and _has_no_names(site, setting)
    prepares = sum(site.tally.prepares.values()) >= 0.5 * unused_ns(metrics)
    if is_nameless or (prepares and kind in ("file", "page fault")):
        return while_read_in(metrics.stall_ns, setting)
    if kind == _DEADLOCK:  # which has several places
        told = (
            f"nobody works while this waits {what}, and that one, directly or not, for this one: a deadlock"
        )
        return Diagnosis(Kind.STALL, told, remedy)
    what = f"nobody works for {elapsed_of(metrics.stall_ns, setting)} while this waits {what}".rstrip()
    if kind == "pipe" and (other := _other_end(site, setting)) is not None:
        what, remedy = f"{what}, and {other[0]} meanwhile", other[1]
    return Diagnosis(Kind.STALL, what, remedy, is_likely=not at_barrier)


def spun_ns(site: LossSite, setting: Setting) -> float:
    """For how long, as core time, nobody worked as all threads spun, in a runtime's functions: all of a team are on
    their way into a region or out of it most of the time where regions are next to empty."""
    return sum(found.stall_ns for name, found in site.tally.runtime.items() if _is_spun(name, found, setting))


def _others_spin(site: LossSite, setting: Setting) -> bool:
    """Whether threads were seen to spin for much of the time in which nobody worked and one here slept: as a rule for
    one that has something to do and no core, while this looks in on them by the clock."""
    runtime = site.place.root.all.runtime
    spun = (
        found.stall_ns for name, found in runtime.items() if _is_spun(name.partition(":")[2], found, setting)
    )
    return sum(spun) >= _MUCH_SPUN * site.tally.metrics.stall_ns


def _is_spun(function: str, metrics: Metrics, setting: Setting) -> bool:
    """Whether threads did not sleep in a function, or in what it called, while nobody worked."""
    return not _WAIT.match(function) and mostly_spins(metrics, setting.cores)


def _other_end(site: LossSite, setting: Setting) -> tuple[str, str] | None:
    """What the one other process that slept by itself waited for, which as a rule is who writes to the pipe; and what
    to do about that."""
    pids = {pid for (pid, _, _), metrics in site.tally.threads.items() if metrics[STALL]}
    other = writer(setting.sleeps, pids, site.tally.metrics.stall_ns / setting.cores)
    if other is None:
        return None
    call, kind = wait_of(other.wait)
    what, remedy = waited_for(call, kind)
    if other.function:
        kept, _, shown = what.partition(" (")
        what = f"{kept} in {other.function}" + (f" ({shown}" if shown else "")
    return f"{other.who} {what}", f"if that one writes to the pipe, see to it: {remedy}"


def _has_no_names(site: LossSite, setting: Setting) -> bool:
    """Whether it is in a file without symbols: a program that somebody else made, of which the reader can change
    nothing."""
    here = site.function.procedure
    if setting.is_stripped or here.name != "main":
        return setting.is_stripped or is_of_stripped(here.name, here.file)
    known = (one.procedure for one in site.place.root.walk() if one.procedure.module == here.module)
    return all(one.is_loop or is_of_stripped(one.name, one.file) for one in known)


def _may_lack_cores(site: LossSite, setting: Setting) -> bool:
    """Whether threads of the program were without a core for so long that who is waited for at barriers may have had
    none. All stalls of that kind compete for that time, not this one alone."""
    stalled = sum(
        metrics.stall_ns
        for name, metrics in site.place.root.all.runtime.items()
        if _is_for_team(name.partition(":")[2])
    )
    return away_ns(setting.total) >= _AWAY * max(stalled, site.tally.metrics.stall_ns)


def _is_for_team(innermost: str) -> bool:
    """Whether a thread waits for others of its team there, asleep or not, as far as that is known."""
    return not _WAIT.match(innermost) or is_barrier(wait_of(innermost)[0])


def loading_waits(unnamed: Tally) -> Metrics:
    """What code that is not the program's waits for files while nobody works, as the loader does at the start of a
    program that is not in memory yet. ``unnamed``: what is in no code of the program's."""
    waits = Metrics()
    for name, metrics in unnamed.runtime.items():
        if wait_of(name.partition(":")[2])[1] in ("file", "page fault"):
            waits.add(metrics)
    return waits


def while_read_in(stall_ns: float, setting: Setting) -> Diagnosis:
    """Nobody works while a program that is not in memory yet is read in from disk, as a rule."""
    told = (
        f"nobody works for {elapsed_of(stall_ns, setting)} while files are read in: as a rule programs, libraries and "
        "modules that are loaded"
    )
    remedy = "measure again: what was loaded from disk is in memory then"
    return Diagnosis(Kind.STALL, told, remedy, is_loading=True)


def waited_for(call: str, kind: str) -> tuple[str, str]:
    """What is waited for, in words, with the call where it has a name that tells something; and what to do about it."""
    if kind == _LOCKED:
        what = "with a mutex locked that other threads wait for"
        remedy = "unlock it on every way out of what takes it, and wait for nothing while it is locked"
        return f"in {call}, {what}" if call else what, remedy
    if kind not in _WAITS:
        return f"in {call}" if call else "", _STALL_REMEDY
    what, remedy = _WAITS[kind]
    if kind == "lock" and _POLLS.match(call):
        return _LOCK_OF_PROCESSES
    if kind in ("lock", "condition") and _TIMED.search(call):
        what, remedy = f"{what}, or for time to pass", _TIMED_REMEDY
    if not _CALL.fullmatch(call):
        call = "sleep" if kind == "sleep" else ""
    return f"{what} ({call})" if call and not what.endswith(")") else what, remedy


def elapsed_of(stall_ns: float, setting: Setting) -> str:
    """For how long, and of how long: n idle cores for a second are a second. Shares of the cores' time do not count
    what others had; where that is much, nor does this."""
    stalled_s = stall_ns / setting.cores / 1e9
    digits = 1 if stalled_s >= 0.95 else 2
    given_s = setting.elapsed_s - setting.withheld_s / setting.cores
    is_given = given_s < _MOSTLY_GIVEN * setting.elapsed_s and stalled_s <= given_s
    of_s, told = (given_s, " that it was given") if is_given else (setting.elapsed_s, "")
    of = f" (of {of_s:.{digits}f}{told})" if stalled_s <= of_s else ""
    return f"{stalled_s:.{digits}f} s{of}"


def wait_of(innermost: str) -> tuple[str, str]:
    """The call that waits, and the kind of its wait, each empty where it is not known."""
    wait = _WAIT.match(innermost)
    call, kind = wait.groups() if wait else (innermost, "")
    call = _INSIDE_SEMAPHORE.sub(r"\1", _LEADING_UNDERSCORES.sub("", call))
    return call, kind or next((kind for calls, kind in _CALLS_THAT_WAIT if calls.match(call)), "")
