"""How threads wait, told by the functions that they sleep or spin in: for a lock, for something to come, in a queue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from parprof.attribution.waiting import WaitKind
from parprof.causes.barriers import is_barrier
from parprof.causes.evidence import Place
from parprof.causes.gil import is_for_gil
from parprof.causes.sites import LossSite
from parprof.causes.tallies import Tally
from parprof.causes.tickers import ThreadId, thread_of
from parprof.metrics import STALL, WAIT
from parprof.model import PathSample
from parprof.patterns import regex

_OF_FILES = r"(?:flock|fcntl\d*|lockf\d*|sem(?:timed)?op)\b.*\[waits: lock\]"
"""By which processes keep each other out."""
_OF_A_FILE = regex(rf".*{_OF_FILES}")
_LOCKS = regex(
    rf".*(?:{_OF_FILES}|critical|mutex|(?:set|test|nest)_lock|lll_|futex|_lock(?:_wait|_slow|_contended)?(?:@|\Z)|rwlock|spin_lock|"
    r"atomic_start|take_gil|acquire_lock|sem_(?:wait|clockwait)|ordered|doacross|monitor_?(?:try_)?enter|"
    r"complete_monitor_locking|"
    r"Threading\.Monitor:\w*enter|"
    r"java\.util\.concurrent\.locks\..*\[waits: lock\])",
    re.IGNORECASE,
)
_EXCLUSIVE = regex(
    rf".*(?:{_OF_FILES}|critical|mutex|(?:set|nest)_lock|lll_lock|rwlock|spin_lock|atomic_start|"
    r"monitor_?(?:try_)?enter|complete_monitor_locking|"
    r"Threading\.Monitor:\w*enter)",
    re.IGNORECASE,
)
_LETS_GO = regex(
    r".*(?:unlock|unset_lock|end_critical|critical_end|release|monitor_?exit|::~\w*(?:lock|guard))",
    re.IGNORECASE,
)
_ARRIVAL = regex(
    r".*(?:pthread_cond|condition_variable|condvar|cnd_|semaphore|barrier|join|latch|future|promise|mpsc|channel)",
    re.IGNORECASE,
)
_QUEUE = regex(r".*(?:pthread_cond|condition_variable|condvar|cnd_|sem_|mpsc|channel|queue)", re.IGNORECASE)
_FOR_TASKS = regex(r".*(?:GOMP_task(?:wait|group_end)|kmpc_(?:omp_taskwait|end_taskgroup))")
_FOR_ARRIVAL = tuple(kind.frame_name for kind in (WaitKind.CONDITION, WaitKind.BARRIER, WaitKind.THREAD))
_AT_BARRIER = WaitKind.BARRIER.frame_name
_SERVES = 0.01
"""Of the time that it waits for requests: who works for less serves none."""
_IN_SERVICE = 0.5
"""Of the time in which nobody works."""
_FOR_SOMETHING = WaitKind.CONDITION.frame_name
_WAITING = 0.1
"""Of the work: who waits in turn for what others hold sleeps, or spins, for so long at least."""
_FOR_EACH = 0.5
"""Of their work: who waits for threads one by one sleeps for most of it."""
_FOR_REQUESTS = WaitKind.REQUESTS.frame_name
_FOR_OTHERS = regex(
    rf"(?!.*\[waits: (?!(?:{'|'.join(kind.value for kind in WaitKind if kind.is_for_threads)})\])).*"
)
"""Not asleep for a time, a file or the like: that is nobody's turn."""


def asleep_for_requests_ns(samples: Iterable[PathSample]) -> float:
    """For how long threads waited for something to do from outside."""
    return sum(one.metrics[WAIT] for one in samples if _is_for_requests(one))


def asleep_to_serve_ns(samples: Sequence[PathSample]) -> float:
    """The same where threads wait of which one works, too: what a library waits for all the time is no request."""
    worked: dict[ThreadId, float] = {}
    for one in samples:
        worked[thread_of(one.origin)] = worked.get(thread_of(one.origin), 0.0) + one.metrics.work_ns
    waits = [one for one in samples if _is_for_requests(one)]
    served = {one.path for one in waits if worked[thread_of(one.origin)] >= _SERVES * one.metrics[WAIT] > 0}
    return asleep_for_requests_ns(one for one in waits if one.path in served)


def _is_for_requests(sample: PathSample) -> bool:
    return bool(sample.path) and sample.path[-1].name == _FOR_REQUESTS


def tidies_up(samples: Sequence[PathSample]) -> bool:
    """Whether a program that hardly does anything, and sleeps, does so beside threads that wait for requests, as one
    that tidies up now and then: it is not those who serve requests themselves that sleep for most of that time."""
    servers = {thread_of(one.origin) for one in samples if _is_for_requests(one)}
    stall_ns = sum(one.metrics[STALL] for one in samples)
    in_service_ns = sum(one.metrics[STALL] for one in samples if thread_of(one.origin) in servers)
    return bool(servers) and in_service_ns < _IN_SERVICE * stall_ns


def is_lock(function: str) -> bool:
    """Whether a thread in a function of that name wants something that others hold: no event, no item of a queue."""
    return is_for_gil(function) or (bool(_LOCKS.match(function)) and not _ARRIVAL.match(function))


def is_exclusive(function: str) -> bool:
    """Whether that is a lock which keeps others out: no semaphore, no turn in a loop."""
    return bool(_EXCLUSIVE.match(function)) and not _ARRIVAL.match(function)


def lets_go(function: str) -> bool:
    """Whether it is how a lock is given back: compilers make a jump of that where it is the last thing that a function
    does, and then it looks as if the caller did it."""
    return bool(_LETS_GO.match(function))


def is_file_lock(function: str) -> bool:
    """Whether that is one by which processes keep each other out."""
    return bool(_OF_A_FILE.match(function))


def is_arrival(function: str) -> bool:
    """Whether threads wait there for something to come, or for each other, but for no lock."""
    if is_for_gil(function):
        return False
    return bool(_ARRIVAL.match(function)) or (function.endswith(_FOR_ARRIVAL) and not _LOCKS.match(function))


def is_at_barrier(function: str, *, is_openmp: bool) -> bool:
    """Whether threads wait there for all others of a team. ``is_openmp``: in its runtime, too."""
    return function.endswith(_AT_BARRIER) or (is_openmp and is_barrier(function.partition(" [")[0]))


def waits_of(tally: Tally) -> dict[str, float]:
    """For how long threads slept for others, or spun, in which foreign functions."""
    waits: dict[str, float] = {}
    for name, metrics in tally.runtime.items():
        function = name.partition(":")[2]
        if (amount := metrics[WAIT] + metrics.spin_ns) and _FOR_OTHERS.fullmatch(function):
            waits[function] = waits.get(function, 0.0) + amount
    return waits


def waits_around(site: LossSite, *, spins: bool = True) -> dict[str, float] | None:
    """The same at a site, or the nearest of its callers in its region where it is considerable. ``None``: nowhere.

    ``spins``: whether it may be so by spinning.
    """
    place: Place | None = site.place
    while place is not None and place.parent is not None:
        waits = waits_of(place.all)
        spun = 0.0 if spins else place.all.metrics.spin_ns
        if sum(waits.values()) - spun >= _WAITING * site.tally.metrics.work_ns:
            return waits
        if place is site.region:
            break
        place = place.parent
    return None


def exclusive_waits(site: LossSite) -> dict[str, float]:
    """Waits for locks that keep others out, in the whole program that a site is in, but of the thread that works there:
    it does not wait for what it holds."""
    threads = {label: metrics.work_ns for label, metrics in site.tally.threads.items() if label[1]}
    holder = max(threads, key=lambda label: threads[label], default=None)
    found: dict[str, float] = {}
    root = site.place.root
    for place in root.walk() if any(map(is_exclusive, waits_of(root.all))) else ():
        waits = {name: amount for name, amount in waits_of(place.own).items() if is_exclusive(name)}
        if not waits:
            continue
        waited = {label: metrics[WAIT] + metrics.spin_ns for label, metrics in place.own.threads.items()}
        others = 1 - waited.get(holder, 0.0) / sum(waited.values()) if holder else 1.0
        for name, amount in waits.items():
            found[name] = found.get(name, 0.0) + others * amount
    return found


def file_lock_waits(site: LossSite) -> dict[str, float]:
    """For how long processes that do not work at a site waited for locks of files, by the function they sleep in."""
    work: dict[int, float] = {}
    for (pid, _, _), metrics in site.tally.threads.items():
        work[pid] = work.get(pid, 0.0) + metrics.work_ns
    root = site.place.root
    if not any(map(is_file_lock, waits_of(root.all))):
        return {}
    found: dict[str, float] = {}
    for place in root.walk():
        if not any(work.get(pid) for pid, _, _ in place.own.threads):
            for name, amount in waits_of(place.own).items():
                if is_file_lock(name):
                    found[name] = found.get(name, 0.0) + amount
    return found


def is_queue(function: str) -> bool:
    """Whether threads wait there for something to come: by the function's name, or, where that is a template's or a
    language's own, by the kind of its wait."""
    is_one = _QUEUE.match(function) or (function.endswith(_FOR_SOMETHING) and not _ARRIVAL.match(function))
    return bool(is_one) and not is_for_gil(function)


def queue_of(site: LossSite) -> str:
    """The function in which other threads wait for the next one of a pipeline, if they do so for most of the time that
    a thread's function alone is at work; else empty.

    Who has nothing to do all the time, as the spare threads of a language's scheduler, is no consumer.
    """
    if site.region is None and not _is_of_a_thread(site.tally):
        return ""
    return queue_beside(site)


def queue_beside(site: LossSite) -> str:
    """The same for whichever thread, the main thread too.

    While that one alone is at work, the threads of a pool wait for something to do as well: it makes what they wait
    for where they work beside it at other times.
    """
    whole = site.place.root.all
    waits = {
        name: amount - whole.idlers.get(name, 0.0)
        for name, amount in waits_of(whole).items()
        if is_queue(name)
    }
    # for what it waits itself, as it begins perhaps, is not what it makes
    own_ns = sum(amount for name, amount in waits_of(site.tally).items() if is_queue(name))
    if sum(waits.values()) - own_ns < 0.5 * site.tally.metrics.idleness_ns:
        return ""
    return max(waits, key=lambda name: waits[name], default="")


def waits_for_work_ns(site: LossSite) -> float:
    """For how long threads that work at times slept for something to come, in the whole program that a site is in."""
    whole = site.place.root.all
    for_work = ((name, amount) for name, amount in waits_of(whole).items() if name.endswith(_FOR_SOMETHING))
    return sum(amount - whole.idlers.get(name, 0.0) for name, amount in for_work)


def _is_of_a_thread(tally: Tally) -> bool:
    """Whether it is mostly done by a thread that the program started: by which call may not have been seen, where we
    attached later."""
    if tally.launched_ns > 0.5 * tally.metrics.work_ns:
        return False
    pid, tid, _ = max(tally.threads, key=lambda thread: tally.threads[thread].work_ns, default=(0, 0, ""))
    return tid not in (0, pid)


def task_waits(place: Place | None) -> Place | None:
    """The nearest caller of a place that waits for tasks itself: who created what runs there."""
    while place is not None and not any(map(_FOR_TASKS.match, place.own.runtime)):
        place = place.parent
    return place


def thread_waits(site: LossSite) -> Place | None:
    """The nearest caller of what threads run at a site that waits for them for as long: who started them."""
    place = site.region and site.region.parent
    while place is not None and place.parent is not None:
        waits = sum(amount for name, amount in waits_of(place.own).items() if is_arrival(name))
        if waits >= _FOR_EACH * site.tally.metrics.work_ns:
            return place
        place = place.parent
    return None
