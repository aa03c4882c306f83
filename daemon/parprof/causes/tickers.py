"""Threads that look around by the clock while others wait for something to do: a ticker, a progress bar, a watchdog,
and the main thread of a server that looks after its processes.

Such a thread is the last to fall asleep nearly all the time, for it wakes up again and again, and so it has the time in
which nobody works. But nobody waits for it. It is known by doing nothing else: it sleeps in one place, for a time, or
until it is told something but for a time at most, for nearly all of the time, hardly works once it has begun, asks
nobody, and wakes nobody up, or that one would be the last to fall asleep.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import field

from parprof.attribution.waiting import WaitKind
from parprof.causes.ownership import SCRIPT
from parprof.causes.preparing import is_import
from parprof.metrics import OUTSIDE, STALL, WAIT
from parprof.model import NOT_LOOKED_AT, SEVERAL_THREADS, Origin, Path, PathSample
from parprof.patterns import regex
from parprof.values import dataclass

ThreadId = tuple[int, int]
ThreadLabel = tuple[int, int, str]
"""Process, number and name of a thread; files of before have no numbers."""

_FOR_TIME, _FOR_MORE = WaitKind.SLEEP.frame_name, WaitKind.CONDITION.frame_name
_FOR_REQUESTS = WaitKind.REQUESTS.frame_name
_IN_PASSING = frozenset(
    kind.frame_name
    for kind in (WaitKind.LOCK, WaitKind.GIL, WaitKind.FAULT, WaitKind.REQUESTS, WaitKind.OTHER)
)
"""Whoever wakes up may have to wait so; and who looks after others asks them whether they are there, which takes long
while these start. No lateness of its own is in that: it sleeps for nearly all of the time none the less."""
_ASKS = frozenset(kind.frame_name for kind in (WaitKind.PIPE, WaitKind.NETWORK))
"""Who waits so, be it for a moment, has asked somebody."""
_BY_OTHERS = _ASKS | {kind.frame_name for kind in (WaitKind.REQUESTS, WaitKind.FILE, WaitKind.CHILD)}
"""Who waits so waits for none of its process: it is for that one's sake that nobody works."""
_TIMED = regex(r"(?<!abs)timed|clockwait")
"""Functions that wait for a time at most, or may. All call the C library's own ``futex_abstimed_wait``."""
_FOR_SIGNALS = regex(r"(?:\w*_)?(?:sig(?:timed)?wait|sigsuspend|pause\Z|signalfd)")
"""Programs that serve nobody have threads that wait for signals, too."""
_SOMEWHERE = NOT_LOOKED_AT[-1].name
_ALL_THE_TIME = 0.8
"""Of the longest time that a thread of its process slept: who does nothing but sleep does so for as long."""
_INNERMOST = 4
"""Frames by which it is known where a thread sleeps, and in what."""
_ONE_PLACE = 0.9
"""Of its sleep: a server's main thread has slept elsewhere for a moment as it began."""
_BRIEFLY = 0.05
"""Of its sleep: so long it may have waited for what it needed when it began, as files and threads that it started."""
_ITS_SHARE = 0.2
"""Of the time in which nobody works: who wakes others up has hardly any of it, those have it."""
_HARDLY = 0.05
"""Of the time that it sleeps: more work is no look around, and of more that nobody saw nobody knows what it is."""


@dataclass(slots=True, eq=False)
class _Thread:
    slept_ns: float = 0.0
    did: list[PathSample] = field(default_factory=list)
    """All rows in which it worked or spun."""
    kept_ns: float = 0.0
    """How long nobody worked and it was the last to fall asleep, in core time."""
    waited_ns: float = 0.0
    """For what none of its process does."""
    unseen_ns: float = 0.0
    """How long it slept nobody knows where, as when we came."""
    places: dict[tuple[str, ...], float] = field(default_factory=lambda: defaultdict(float))
    """How long it slept by the clock in each."""
    elsewhere_ns: float = 0.0
    """How long it waited for anything else that it may have to wait for."""
    asks: bool = False

    def only_looks_around(self, longest_ns: float, kept_ns: float) -> bool:
        """``longest_ns``: the most that a thread of its process waited for what none of these does, or one of another
        process for requests. ``kept_ns``: how long nobody worked and any of its process was the last to fall asleep."""
        if self.asks or max(self.places.values(), default=0.0) < _ONE_PLACE * self.slept_ns:
            return False
        if self.elsewhere_ns > _BRIEFLY * self.slept_ns:
            return False
        if not _ALL_THE_TIME * longest_ns <= self.slept_ns <= longest_ns / _ALL_THE_TIME:
            return False
        if not self.kept_ns >= _ITS_SHARE * kept_ns > 0:
            return False
        return max(self.work_ns, self.unseen_ns) <= _HARDLY * self.slept_ns

    @property
    def work_ns(self) -> float:
        """How long it worked or spun, but for imports: these are once, whatever a program does later."""
        # nearly all paths of all threads would be looked through, of which next to none only looks around
        did = (row for row in self.did if not any(map(is_import, row.path)))
        return sum(row.metrics.work_ns + row.metrics.spin_ns for row in did)


def tickers(rows: Iterable[PathSample]) -> frozenset[ThreadId]:
    """The threads that only look around while another one of their process waits for what none of these does, or
    another process of the job for requests."""
    by_process: dict[int, dict[int, _Thread]] = defaultdict(lambda: defaultdict(_Thread))
    requests: dict[ThreadId, float] = defaultdict(float)
    for row in rows:
        thread = by_process[row.origin.pid][row.origin.tid]
        _add(thread, row)
        if (wait_ns := row.metrics[WAIT]) and is_for_requests(row):
            requests[thread_of(row.origin)] += wait_ns
    served = _longest_by_process(requests)
    found: set[ThreadId] = set()
    for pid, threads in by_process.items():
        own_ns = max(thread.waited_ns for thread in threads.values())
        others_ns = max((ns for other, ns in served.items() if other != pid), default=0.0)
        kept_ns = sum(thread.kept_ns for thread in threads.values())
        for tid, thread in threads.items():
            longest = (ns for ns in (own_ns, others_ns) if ns)
            if tid != SEVERAL_THREADS and any(thread.only_looks_around(ns, kept_ns) for ns in longest):
                found.add((pid, tid))
    return frozenset(found)


def _add(thread: _Thread, row: PathSample) -> None:
    """To what is known of a thread what it did on one call path."""
    if row.metrics.work_ns or row.metrics.spin_ns:
        thread.did.append(row)
    thread.kept_ns += row.metrics[STALL] + row.metrics[OUTSIDE]
    if not row.path or not (wait_ns := row.metrics[WAIT]):
        return
    waits = row.path[-1].name
    if waits == _FOR_TIME or (waits == _FOR_MORE and is_timed(row)):
        thread.slept_ns += wait_ns
        thread.places[_place_of(row.path)] += wait_ns
    elif waits in _BY_OTHERS:
        thread.waited_ns += wait_ns
    if waits == _SOMEWHERE:
        thread.unseen_ns += wait_ns
    elif waits in _ASKS:
        thread.asks = True
    elif waits not in _IN_PASSING and _place_of(row.path) not in thread.places:
        thread.elsewhere_ns += wait_ns


def _place_of(path: Path) -> tuple[str, ...]:
    """Where a thread sleeps, whatever of an interpreter without names the walk has found on its stack."""
    script = [frame.name for frame in path if frame.module == SCRIPT]
    named = [frame.name for frame in path if not frame.is_loop and "+0x" not in frame.name]
    return (*script[-_INNERMOST:], named[-1]) if script else tuple(named[-_INNERMOST:])


def _longest_by_process(slept: Mapping[ThreadId, float]) -> dict[int, float]:
    """For how long one thread of each process slept."""
    longest: dict[int, float] = {}
    for (pid, _), wait_ns in slept.items():
        longest[pid] = max(longest.get(pid, 0.0), wait_ns)
    return longest


def is_timed(row: PathSample) -> bool:
    """Whether a thread that waits for something to come may wake up by itself, after a time."""
    inner = [frame.name for frame in row.path[-2 * _INNERMOST :] if not frame.is_loop]
    return any(map(_TIMED.search, inner[-_INNERMOST:]))


def is_for_requests(row: PathSample) -> bool:
    """Whether a thread waits for something to do from outside, and not for signals alone."""
    return (
        bool(row.path)
        and row.path[-1].name == _FOR_REQUESTS
        and not any(_FOR_SIGNALS.match(frame.name) for frame in row.path[-3:])
    )


def thread_of(origin: Origin) -> ThreadId:
    """Which thread it was."""
    return origin.pid, origin.tid
