"""Threads that look around by the clock while others wait for something to do: a ticker, a progress bar, a watchdog.

Such a thread is the last to fall asleep nearly all the time, for it wakes up again and again, and so it has the time in
which nobody works. But nobody waits for it. It is known by doing nothing else: it sleeps in one place for all of the
time, hardly works, and wakes nobody up, or that one would be the last to fall asleep.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import field

from parprof.attribution.waiting import WaitKind
from parprof.metrics import OUTSIDE, STALL, WAIT
from parprof.model import NOT_LOOKED_AT, SEVERAL_THREADS, Origin, Path, PathSample
from parprof.values import dataclass

ThreadId = tuple[int, int]
ThreadLabel = tuple[int, int, str]
"""Process, number and name of a thread; files of before have no numbers."""

_FOR_TIME = WaitKind.SLEEP.frame_name
_IN_PASSING = frozenset(
    kind.frame_name for kind in (WaitKind.LOCK, WaitKind.GIL, WaitKind.FAULT, WaitKind.OTHER)
)
"""Whoever wakes up may have to wait so."""
_BY_OTHERS = frozenset(
    kind.frame_name
    for kind in (WaitKind.REQUESTS, WaitKind.FILE, WaitKind.CHILD, WaitKind.PIPE, WaitKind.NETWORK)
)
"""Who waits so waits for none of its process: it is for that one's sake that nobody works."""
_SOMEWHERE = NOT_LOOKED_AT[-1].name
_ALL_THE_TIME = 0.8
"""Of the longest time that a thread of its process slept: who does nothing but sleep does so for as long."""
_ITS_SHARE = 0.2
"""Of the time in which nobody works: who wakes others up has hardly any of it, those have it."""
_HARDLY = 0.05
"""Of the time that it sleeps: more work is no look around, and of more that nobody saw nobody knows what it is."""


@dataclass(slots=True, eq=False)
class _Thread:
    slept_ns: float = 0.0
    work_ns: float = 0.0
    kept_ns: float = 0.0
    """How long nobody worked and it was the last to fall asleep, in core time."""
    waited_ns: float = 0.0
    """For what none of its process does."""
    unseen_ns: float = 0.0
    """How long it slept nobody knows where, as when we came."""
    places: set[Path] = field(default_factory=set)
    sleeps_only: bool = True

    def only_looks_around(self, longest_ns: float, kept_ns: float) -> bool:
        """``longest_ns``: the most that a thread of its process waited for what none of these does. ``kept_ns``: how
        long nobody worked and any of them was the last to fall asleep."""
        if not self.sleeps_only or len(self.places) != 1:
            return False
        if max(self.work_ns, self.unseen_ns) > _HARDLY * self.slept_ns:
            return False
        if not _ALL_THE_TIME * longest_ns <= self.slept_ns <= longest_ns / _ALL_THE_TIME:
            return False
        return self.kept_ns >= _ITS_SHARE * kept_ns > 0


def tickers(rows: Iterable[PathSample]) -> frozenset[ThreadId]:
    """The threads that only look around while another one of their process waits for what none of these does."""
    by_process: dict[int, dict[int, _Thread]] = defaultdict(lambda: defaultdict(_Thread))
    for row in rows:
        origin = row.origin
        thread = by_process[origin.pid][origin.tid]
        thread.work_ns += row.metrics.work_ns + row.metrics.spin_ns
        thread.kept_ns += row.metrics[STALL] + row.metrics[OUTSIDE]
        if not row.path or not (wait_ns := row.metrics[WAIT]):
            continue
        waits = row.path[-1].name
        if waits == _FOR_TIME:
            thread.slept_ns += wait_ns
            thread.places.add(row.path)
        elif waits in _BY_OTHERS:
            thread.waited_ns += wait_ns
        if waits == _SOMEWHERE:
            thread.unseen_ns += wait_ns
        thread.sleeps_only &= waits in (_FOR_TIME, _SOMEWHERE) or waits in _IN_PASSING
    found: set[ThreadId] = set()
    for pid, threads in by_process.items():
        longest_ns = max(thread.waited_ns for thread in threads.values())
        kept_ns = sum(thread.kept_ns for thread in threads.values())
        for tid, thread in threads.items():
            if tid != SEVERAL_THREADS and thread.only_looks_around(longest_ns, kept_ns):
                found.add((pid, tid))
    return frozenset(found)


def thread_of(origin: Origin) -> ThreadId:
    """Which thread it was."""
    return origin.pid, origin.tid
