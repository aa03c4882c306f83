"""What would remain of a program's time with the machine to itself (malony-1987 section 5.2, "minimum-time").

The trace is compressed as far as the order of what depends on each other allows: time in which a thread had no CPU
because other programs had it is taken out; who waited for another thread goes on when that one gets there; what comes
from outside (a disk, a timer) takes as long as it took.

Who wakes a sleeping thread is known. Who lets a spinning one go on is not: it is taken to be the thread of its process
that is furthest in the compressed trace, so that what is found is never too little for want of that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from parprof.kernel.trace import ENDED, QUEUES, RUNS, WORKS, ThreadRecord
from parprof.timeline.slices import TracedThread
from parprof.values import dataclass

_PLACED = RUNS | QUEUES
_PASSING_NS = 20_000
"""A thread that is in the runtime for less than this waits for nobody there."""


@dataclass(frozen=True, slots=True)
class MinimumTime:
    """Of a trace."""

    elapsed_ns: int
    """From the first thread that worked to the end, less the time in which we had stopped the program."""
    minimum_ns: float
    """What of that would remain with the machine to itself."""

    @property
    def saved_percent(self) -> float:
        """By how much it would be shorter."""
        return 100 * (1 - self.minimum_ns / self.elapsed_ns) if self.elapsed_ns else 0.0


@dataclass(slots=True)
class _Life:
    """A thread in the compressed trace."""

    clock_ns: float
    """How far it is there."""
    since_ns: int
    """Up to when of the real time that is."""
    taken_ns: float
    """The withheld time at ``since_ns``; see `_Machine`."""
    does: int
    spun_ns: int = 0
    """CPU time that it spun since it worked last."""


class _Machine:
    """How much of the time in which threads queue for a CPU is other programs' doing.

    With r threads on n cores and q in the queue, min(n - r, q) cores are others' (or a quota withholds them). If r + q
    are no more than n, all who queue would run. If they are more, they would take turns, and all would get on n/r times
    as fast: each would need r/n of the time. It is in the queue for q/(r + q) of it, of which so much is withheld that
    the rest of that and its time on a core make r/n: (n - r)(r + q)/nq.
    """

    def __init__(self, cores: float) -> None:
        self._cores = cores
        self._running = self._queued = 0
        self._since_ns = 0
        self.taken_ns = 0.0
        """What a thread that queued all the time would have lost to others."""

    def advance(self, now_ns: int) -> None:
        if self._queued and now_ns > self._since_ns:
            away = max(self._cores - self._running, 0)
            ready = max(self._running + self._queued, self._cores)
            withheld = min(away * ready / (self._cores * self._queued), 1)
            self.taken_ns += (now_ns - self._since_ns) * withheld
        self._since_ns = now_ns

    def move(self, before: int, after: int) -> None:
        self._running += bool(after & RUNS) - bool(before & RUNS)
        self._queued += bool(after & QUEUES) - bool(before & QUEUES)


class _Replay:
    def __init__(self, cores: float, outside: Collection[tuple[TracedThread, int]], ours: int) -> None:
        self._machine = _Machine(cores)
        self._outside = outside
        self._ours = ours
        self._lives: dict[TracedThread, _Life] = {}
        self._of_tid: dict[int, TracedThread] = {}
        self._ended: dict[int, tuple[int, float]] = {}
        """When each thread ended that has, and where it was then."""
        self._furthest_ns = 0.0
        self._began_ns: int | None = None
        self._stopped_ns = 0

    def take(self, record: ThreadRecord) -> None:
        now, thread = record.time_ns, (record.image, record.tid)
        if self._began_ns is None:
            if not record.does & WORKS:
                return
            self._began_ns = now
        self._machine.advance(now)
        life = self._lives.get(thread)
        if life is None:
            life = self._lives[thread] = _Life(self._start(record), now, self._machine.taken_ns, 0)
            self._of_tid[record.tid] = thread
        else:
            self._advance(life, now)
            self._depend(thread, life, record)
        self._furthest_ns = max(self._furthest_ns, life.clock_ns)
        does = 0 if record.does & ENDED else record.does
        self._machine.move(life.does, does)
        life.does = does
        if record.does & ENDED:
            self._ended[record.tid] = now, life.clock_ns
            self._lives.pop(thread)

    def finish(self, end_ns: int) -> MinimumTime:
        self._machine.advance(end_ns)
        for life in self._lives.values():
            self._advance(life, end_ns)
            self._furthest_ns = max(self._furthest_ns, life.clock_ns)
        elapsed_ns = self._elapsed_ns(end_ns)
        return MinimumTime(elapsed_ns, min(self._furthest_ns, elapsed_ns))

    def _elapsed_ns(self, now_ns: int) -> int:
        return now_ns - (now_ns if self._began_ns is None else self._began_ns) - self._stopped_ns

    def _start(self, record: ThreadRecord) -> float:
        """Where a thread begins: with what it was before an exec, with who created it, else where it was met."""
        ended_ns, clock_ns = self._ended.get(record.tid, (-1, 0.0))
        if ended_ns == record.time_ns:
            return clock_ns
        creator_ns = self._waker(record)
        return float(self._elapsed_ns(record.time_ns)) if creator_ns is None else creator_ns

    def _waker(self, record: ThreadRecord) -> float | None:
        """Where the thread is that woke another; None: it was none of ours, or nobody knows."""
        thread = self._of_tid.get(record.waker) if record.waker else None
        life = self._lives.get(thread) if thread else None
        if thread and life is None:  # some are told to have ended before they wake those who wait for that
            return self._ended[record.waker][1]
        if life is None or not life.does & RUNS:
            return None
        self._advance(life, record.time_ns)
        return life.clock_ns

    def _advance(self, life: _Life, now_ns: int) -> None:
        took_ns = max(now_ns - life.since_ns, 0)
        if life.does & WORKS and life.does & RUNS:
            life.clock_ns += took_ns
        elif life.does & RUNS:
            life.spun_ns += took_ns
        elif life.does & WORKS and life.does & QUEUES:
            life.clock_ns += max(took_ns - (self._machine.taken_ns - life.taken_ns), 0)
        if life.does & (WORKS | _PLACED):  # who sleeps stays behind until it is woken: see _depend
            life.since_ns = now_ns
            life.taken_ns = self._machine.taken_ns

    def _depend(self, thread: TracedThread, life: _Life, record: ThreadRecord) -> None:
        """It goes on: not before what it waited for."""
        now = record.time_ns
        if not life.does & _PLACED and (record.does & _PLACED or record.does & ENDED):
            waker_ns = None if (thread, now) in self._outside else self._waker(record)
            if record.waker == self._ours and len(self._lives) == 1:
                self._stopped_ns += now - life.since_ns
            elif waker_ns is not None:
                life.clock_ns = max(life.clock_ns, waker_ns)
            else:
                life.clock_ns += now - life.since_ns
            life.since_ns, life.taken_ns, life.spun_ns = now, self._machine.taken_ns, 0
        elif not life.does & WORKS and record.does & WORKS:
            if life.spun_ns >= _PASSING_NS:
                life.clock_ns = max(life.clock_ns, self._furthest_of(thread[0], now))
            life.spun_ns = 0

    def _furthest_of(self, image: int, now_ns: int) -> float:
        """How far the threads of a process are."""
        furthest_ns = 0.0
        for thread, life in self._lives.items():
            if thread[0] == image:
                self._advance(life, now_ns)
                furthest_ns = max(furthest_ns, life.clock_ns)
        return furthest_ns


def minimum_time(
    records: Iterable[ThreadRecord],
    cores: float,
    end_ns: int,
    outside: Collection[tuple[TracedThread, int]] = (),
    ours: int = -1,
) -> MinimumTime:
    """What would remain of a trace with the machine to itself.

    ``cores``: n. ``outside``: waits, by thread and end, that no thread of the program ended: for a timer, a file.
    ``ours``: our own thread, which stops programs as they start.

    >>> on, off = WORKS | RUNS, WORKS | QUEUES
    >>> alone = [ThreadRecord(0, 1, 1, on), ThreadRecord(10, 1, 1, off), ThreadRecord(30, 1, 1, on)]
    >>> minimum_time(alone, 2, 40)
    MinimumTime(elapsed_ns=40, minimum_ns=20.0)
    """
    replay = _Replay(cores, outside, ours)
    for record in records:
        replay.take(record)
    return replay.finish(end_ns)
