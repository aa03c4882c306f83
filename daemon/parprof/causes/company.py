"""What runs beside what: whether a place is one thread's, or routine's, at a time, whichever it is.

It is needed where which thread has a piece of work is chance: where a language's own scheduler runs routines on the
threads (Go's; Erlang's processes), and none of them sleeps for one that waits, or a runtime hands out tasks (oneTBB).
How threads share the work, and how they wait, then tell nothing. But what ran beside a place can be told apart from the
place itself. Where one at a time is in it, whatever runs beside it is elsewhere, and at each instant with two threads
at work it has one of them at most: then others have at least as much company as it has. Routines that do the same,
unequal pieces of it, say, are each other's company.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Protocol

from parprof.causes.tickers import ThreadLabel
from parprof.cct.tree import Procedure
from parprof.metrics import STOLEN, WAIT, Metrics
from parprof.model import Frame, Interval
from parprof.patterns import regex

_SCHEDULER = regex(
    r"erts_schedule|runtime\.(?:goexit|mcall|mstart|schedule|findRunnable|findrunnable|sysmon)(?:\.abi0|\d)?"
)
"""Functions of Go's and of Erlang's, one of which is on the stack of a thread of such a program, at least while it has
nothing to do."""
_WINDOW = 200
"""Samples, at least, of which it is looked how they were beside each other: of fewer chance would tell."""
_TAKERS = 0.5
"""Of what works beside a place: so much of it may be others that take what is made there."""
_ITS_OWN = 0.3
"""Of a place's company: with so much of it that no other place's work can be, several routines are there at once."""


class _Route(Protocol):
    @property
    def length(self) -> int: ...

    def procedure(self, at: int) -> Procedure: ...


class _Row(Protocol):
    @property
    def metrics(self) -> Metrics: ...

    @property
    def thread(self) -> ThreadLabel: ...

    @property
    def function(self) -> str: ...

    @property
    def is_idler(self) -> bool: ...

    @property
    def route(self) -> _Route: ...


def runs_routines(frames: Iterable[Frame]) -> bool:
    """Whether threads run routines of Go's, or processes of Erlang's."""
    return any(_SCHEDULER.fullmatch(frame.name) for frame in frames)


class Company:
    """What ran beside what in a program."""

    def __init__(
        self,
        rows: Sequence[_Row],
        cores: int,
        intervals: Sequence[Interval],
        schedulers: Collection[int] = (),
    ) -> None:
        """``rows``: all samples, by number. ``cores``: n. ``intervals``: what of each was when, if known.
        ``schedulers``: the processes in which a language's own scheduler runs routines on the threads."""
        self._schedulers = schedulers
        self._cores = cores
        self._rows = rows
        self._intervals = intervals
        self._windows: list[Mapping[int, Metrics]] = []
        self._known: dict[Procedure, bool] = {}
        self._takers: dict[Callable[[str], bool], Set[ThreadLabel]] = {}

    def takers(self, takes: Callable[[str], bool]) -> Set[ThreadLabel]:
        """The threads that do something for the program and waited in functions that are such, by their names: looked
        for once for each ``takes``."""
        if takes not in self._takers:
            self._takers[takes] = {
                row.thread
                for row in self._rows
                if row.metrics[WAIT] and not row.is_idler and takes(row.function)
            }
        return self._takers[takes]

    def hides_threads(self, threads: Mapping[ThreadLabel, Metrics]) -> bool:
        """Whether most of what these did was done in processes of a language with a scheduler of its own: which of
        their threads did it tells nothing then. ``threads``: by process, number and name."""
        if not self._schedulers:
            return False
        whole = sum(metrics.work_ns for metrics in threads.values())
        theirs = sum(metrics.work_ns for (pid, _, _), metrics in threads.items() if pid in self._schedulers)
        if not whole:  # they only sleep here
            return any(pid in self._schedulers for pid, _, _ in threads)
        return theirs > 0.5 * whole

    def is_one_at_a_time(self, procedure: Procedure) -> bool:
        """Whether one thread, or routine, at a time is in a procedure or what it calls, as far as anybody can see."""
        known = self._known.get(procedure)
        if known is None:
            self._windows = self._windows or _windows(self._rows, self._intervals)
            known = self._known[procedure] = self._is_one(self._inside(procedure))
        return known

    def lacked_cores(self, procedure: Procedure) -> float:
        """For how much of the time that cores were idle beside a procedure's threads these lacked cores, 0 to 1, each
        in turn at most: who had a core all that time was not waited for because of others on the machine."""
        self._windows = self._windows or _windows(self._rows, self._intervals)
        inside = self._inside(procedure)
        idle_ns = explained_ns = 0.0
        for window in self._windows:
            theirs = [metrics for number, metrics in window.items() if number in inside]
            idle = sum(metrics.idleness_ns + metrics[STOLEN] for metrics in theirs)
            away = sum(metrics.ready_ns + metrics[STOLEN] for metrics in theirs)
            idle_ns += idle
            explained_ns += min(idle, away * max(self._cores - 1, 1))
        return explained_ns / idle_ns if idle_ns else 1.0

    def may_work_beside(
        self, procedure: Procedure, thread: ThreadLabel, others: Collection[ThreadLabel], *, itself: bool
    ) -> bool:
        """Whether ``others`` may have been what worked at the same time as a thread was in a procedure: they worked for
        long enough in the intervals in which it did. ``itself``: in no other code of the program that this calls."""
        inside = {
            number
            for number in self._inside(procedure)
            if (row := self._rows[number]).thread == thread
            and (not itself or row.route.procedure(row.route.length - 1) == procedure)
        }
        beside_ns = others_ns = 0.0
        for interval in self._intervals:
            mine = theirs = 0.0
            for number, metrics in interval.rows.items():
                if number in inside:
                    mine += metrics.work_ns * (self._at_work(metrics) - 1)
                elif self._rows[number].thread in others:
                    theirs += metrics.work_ns
            beside_ns += mine
            others_ns += min(mine, theirs)
        return others_ns >= _TAKERS * beside_ns

    def _inside(self, procedure: Procedure) -> set[int]:
        """The numbers of the rows that go through it; most share their routes."""
        routes = {id(row.route): row.route for row in self._rows}
        through = {key for key, route in routes.items() if _is_through(route, procedure)}
        return {number for number, row in enumerate(self._rows) if id(row.route) in through}

    def _is_one(self, inside: set[int]) -> bool:
        weighed = its_own = 0.0
        for window in self._windows:
            mine = others = idle = 0.0
            for number, metrics in window.items():
                at_work = self._at_work(metrics)
                beside = metrics.work_ns * (at_work - 1)
                if number in inside:  # one of them has at_work - 1 others, each of which has as many
                    mine += beside * (at_work - 1)
                    idle += metrics.idleness_ns + metrics[STOLEN]
                else:  # who waits for a core counts as at work, and has no samples
                    others += beside + metrics.ready_ns
            # where no core was idle, or nothing ran beside it, there is nothing to tell of why cores were
            if weight := min(mine, idle):
                weighed += weight
                its_own += weight * max(mine - others, 0.0) / mine
        return its_own <= _ITS_OWN * weighed

    def _at_work(self, metrics: Metrics) -> float:
        """How many threads worked, on average, while this did."""
        work = metrics.work_ns
        idle = metrics.idleness_ns + metrics[STOLEN]
        return max(self._cores * work / (work + idle), 1.0) if work else 1.0


def _is_through(route: _Route, procedure: Procedure) -> bool:
    return any(route.procedure(at) == procedure for at in range(route.length))


def _windows(rows: Sequence[_Row], intervals: Sequence[Interval]) -> list[Mapping[int, Metrics]]:
    """Pieces of time with enough samples each; one, if it is not known when what was."""
    out: list[Mapping[int, Metrics]] = []
    window: dict[int, Metrics] = {}
    samples = 0.0
    for interval in intervals:
        for number, metrics in interval.rows.items():
            known = window.get(number)
            if known is None:
                window[number] = metrics.copy()
            else:
                known.add(metrics)
            samples += metrics.samples
        if samples >= _WINDOW:
            out.append(window)
            window, samples = {}, 0.0
    if window:
        out.append(window)
    return out or [dict(enumerate(row.metrics for row in rows))]
