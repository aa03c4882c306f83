"""Threads that sleep for long while context switches are too dear to be followed: found in ``/proc``, each told with
its place and for how long.

A glimpse (`parprof.kernel.glimpses`) is over after some hundredths of a second and stands for what was around it: it
tells of many short sleeps, and of one long one only if that began in it. But who sleeps for long stands still, and
that costs nobody anything to see: between two looks the kernel has not counted a turn on a CPU of such a thread. What
it reads of threads is no more than `_MOST_READ` at a look, however many there are.

When it fell asleep, and when it woke up, tell its last sample before and its first one after. If there is none, it was
between two looks: there it has used CPU time, and had as many turns on a CPU as it has in so much of the time else.
While all threads of a job sleep looks come often, for nobody is there whom they could disturb.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from parprof.kernel.counts import ByTime
from parprof.kernel.scopes import wait_key
from parprof.kernel.stacks import StackTable
from parprof.kernel.unended import LastSeen
from parprof.model import Count, Facts, ThreadState, add_facts
from parprof.process.threads import thread_ids
from parprof.session.asleep import NO_TABLE, Asleep, Finder, Sleepers, Tables, look_at
from parprof.session.looks import Thread
from parprof.session.target import Target
from parprof.values import dataclass

_MOST_READ = 64
"""Threads that are read at a look: each takes some 5 us."""
_MOST_SLEEPERS = 32
"""Of these, such as sleep for long already."""
_REST_SHARE, _FREE_NS = 50, 100_000_000
"""Looks take one part in so many of a CPU, but for so much: the first ones read unwind tables."""
_ERROR_SHARE, _LEAST_REST_S = 20, 0.01
"""While all sleep, the next look comes when so small a share of that time has passed again, but no sooner."""
_LONG_IN_GLIMPSE_NS = 40_000_000
"""Where all threads have slept for so long there is nothing more to be seen in a glimpse."""
_FEW_TURNS = 4
_NEAR_NS = 20_000_000
"""Samples of a thread that does not sleep for long are no farther apart than that."""
_NS = 1e9


@dataclass(frozen=True, slots=True)
class Turns:
    """What the kernel counts of a thread: it stands still while this stays the same."""

    ran_ns: int
    waited_ns: int
    """For a CPU."""
    number: int
    """Of its turns on a CPU."""

    def awake_ns(self, before: Turns, rate: float, took_ns: int) -> int:
        """For how long the thread was awake in so much time, at whose begin it had ``before``, and in which it slept
        once: for what it ran and waited for a CPU, at least. ``rate``: turns in a nanosecond while it does not sleep
        for long; 0: not known. Of a few turns nobody knows whether it slept for long again after them: half of it.

        >>> Turns(500, 10, 30).awake_ns(Turns(400, 10, 10), 0.1, 1000)
        200
        >>> Turns(800, 20, 30).awake_ns(Turns(400, 10, 10), 0.1, 1000)
        410
        >>> Turns(500, 0, 12).awake_ns(Turns(400, 0, 10), 0.1, 900)
        500
        """
        least_ns = min(max(self.ran_ns - before.ran_ns + self.waited_ns - before.waited_ns, 0), took_ns)
        if not rate or self.number - before.number <= _FEW_TURNS:
            return (least_ns + took_ns) // 2
        return min(max(round((self.number - before.number) / rate), least_ns), took_ns)


@dataclass(slots=True)
class _Thread:
    """One that is looked at. Times are CLOCK_MONOTONIC."""

    target: Target
    tid: int
    turns: Turns
    moved_ns: int
    """When it was seen last to do something else than now."""
    fell_ns: int
    """When it fell asleep, if it does since the last look at which it had moved."""
    rate: float
    """Its turns in a nanosecond between the two looks before it was as it is now; 0: not known."""
    rate_before: float
    """The same before that: of the end of these, or of all, it may have slept."""
    still_ns: int
    """When it was first seen as it is now,"""
    seen_ns: int
    """and last."""
    begun_ns: int = 0
    """Since when it sleeps; 0: not for long."""
    is_ours: bool = False
    """Whether nobody else will tell of its sleep."""
    place: Asleep | None = None


@dataclass(slots=True)
class _Stall:
    """All threads of a scope sleep."""

    begun_ns: int
    seen_ns: int
    threads: dict[Thread, Asleep]


class LongSleeps:
    """Those of one session."""

    def __init__(
        self,
        tables: Tables,
        stacks: StackTable,
        known: Callable[[int, int], LastSeen],
        *,
        finder: Finder = look_at,
        turns: Callable[[int, int], Turns | None] | None = None,
    ) -> None:
        """``tables`` must not wait: others want to go on. ``known``: what the programs know of the sleep of a thread,
        by thread id and image. ``turns``: instead of ``/proc``, of a process and a thread."""
        self._tables = tables
        self._stacks = stacks
        self._known = known
        self._finder = finder
        self._turns = turns or _turns
        self._threads: dict[Thread, _Thread] = {}
        self._cursor = 0
        self._stalls: dict[int, _Stall] = {}
        """By number of the scope."""
        self._told: ByTime = {}
        self._unseen_ns = 0
        """Since when nobody followed switches at the last look at which that was so."""
        self._void_ns = 0
        """When a glimpse began in which all slept: nobody saw anything in it, either."""
        self._paid_ns = 0
        self._begun_ns = 0
        self.all_asleep_since_ns = 0
        """In a glimpse: since when all threads have slept for long; 0: they do not."""
        self.stall_ns = 0
        """Time in which nobody worked that was told of so far."""

    def look(self, targets: Iterable[Target], unseen_since_ns: int, glimpse_ns: int) -> None:
        """See who has not moved since the last look.

        ``unseen_since_ns``: since when nobody follows switches, not even for a moment; 0: somebody does.
        ``glimpse_ns``: when the last glimpse began. Times are CLOCK_MONOTONIC.
        """
        now_ns = time.monotonic_ns()
        self._begun_ns = self._begun_ns or now_ns
        if now_ns - self._begun_ns < _REST_SHARE * (self._paid_ns - _FREE_NS):
            return
        paid_ns = time.thread_time_ns()
        if unseen_since_ns and unseen_since_ns == self._void_ns:
            unseen_since_ns = self._unseen_ns
        self._unseen_ns = unseen_since_ns or self._unseen_ns
        living = {target.image: target for target in targets}
        threads = [(target, tid) for target in living.values() for tid in _threads_of(target)]
        there = {(target.image, tid) for target, tid in threads}
        for key in [key for key in self._threads if key not in there]:
            gone = self._threads.pop(key)
            self._end(gone, (gone.seen_ns + now_ns) // 2, now_ns, unseen_since_ns)
        chosen = self._chosen(threads)
        for target, tid in chosen:
            self._look_at(target, tid, unseen_since_ns)
        if len(chosen) == len(threads):
            self._look_for_stalls(living, unseen_since_ns)
        else:
            self._end_stalls(now_ns)
        is_asked = len(chosen) == len(threads) and not unseen_since_ns
        self.all_asleep_since_ns = self._all_asleep_since_ns(glimpse_ns) if is_asked else 0
        if self.all_asleep_since_ns == glimpse_ns:
            self._void_ns = glimpse_ns
        self._paid_ns += time.thread_time_ns() - paid_ns

    def _chosen(self, threads: list[tuple[Target, int]]) -> list[tuple[Target, int]]:
        """Those that are read this time: all, or some that sleep for long, and the next of all."""
        if len(threads) <= _MOST_READ:
            return threads
        asleep = sorted((one for one in self._threads.values() if one.begun_ns), key=lambda one: one.seen_ns)
        out = {(one.target.image, one.tid): (one.target, one.tid) for one in asleep[:_MOST_SLEEPERS]}
        for _ in range(len(threads)):
            if len(out) >= _MOST_READ:
                break
            self._cursor = (self._cursor + 1) % len(threads)
            target, tid = threads[self._cursor]
            out[target.image, tid] = target, tid
        return list(out.values())

    def _look_at(self, target: Target, tid: int, unseen_since_ns: int) -> None:
        key = target.image, tid
        turns, now_ns = self._turns(target.process.pid, tid), time.monotonic_ns()
        before = self._threads.get(key)
        if before is not None and turns == before.turns:
            before.seen_ns = now_ns
            if not before.begun_ns and unseen_since_ns:
                self._begin(before, unseen_since_ns)
            elif before.begun_ns and (before.place is None or before.place.user.end == NO_TABLE):
                before.place = self._finder(target, tid, self._tables) or before.place
            return
        if before is not None and turns is not None:
            took_ns = now_ns - before.seen_ns
            awake_ns = turns.awake_ns(before.turns, before.rate, took_ns)
            measured = (turns.number - before.turns.number) / took_ns
            rates = (before.rate, 0.0) if before.begun_ns else (measured, before.rate)
            self._end(before, self._woke_ns(before, now_ns - awake_ns, now_ns), now_ns, unseen_since_ns)
            fell_ns = before.seen_ns + awake_ns
            self._threads[key] = _Thread(target, tid, turns, before.seen_ns, fell_ns, *rates, now_ns, now_ns)
        elif before is not None:
            self._end(self._threads.pop(key), (before.seen_ns + now_ns) // 2, now_ns, unseen_since_ns)
        elif turns is not None:
            self._threads[key] = _Thread(target, tid, turns, now_ns, now_ns, 0.0, 0.0, now_ns, now_ns)

    def _all_asleep_since_ns(self, glimpse_ns: int) -> int:
        """When the last of all fell asleep, in a glimpse that began then; 0: not all of them have slept for long."""
        ones = self._threads.values()
        if not ones or any(one.seen_ns - one.still_ns < _LONG_IN_GLIMPSE_NS for one in ones):
            return 0
        since_ns = [self._known(one.tid, one.target.image).since_ns for one in ones]
        unknown = [one for one, ns in zip(ones, since_ns, strict=True) if not ns]
        if any(self._finder(one.target, one.tid, self._tables) is None for one in unknown):
            return 0
        return max(glimpse_ns, *since_ns)

    def _begin(self, one: _Thread, unseen_since_ns: int) -> None:
        """It has not moved since the last look: does it sleep, since when, and where?"""
        place = self._finder(one.target, one.tid, self._tables)
        if place is None:  # it waits for a CPU
            return
        known = self._known(one.tid, one.target.image)
        begun_ns = one.fell_ns
        if one.moved_ns < known.shown_ns < one.still_ns:
            begun_ns = min(max(begun_ns, known.shown_ns), known.shown_ns + _NEAR_NS)
        one.is_ours = not known.since_ns or known.in_glimpse
        if known.since_ns:
            begun_ns = max(unseen_since_ns, begun_ns) if known.in_glimpse else known.since_ns
        one.begun_ns, one.place, one.rate = begun_ns, place, one.rate_before or one.rate

    def _woke_ns(self, one: _Thread, estimate_ns: int, now_ns: int) -> int:
        """When it did, by its first sample since, if there is one, else by what is estimated."""
        if not one.begun_ns:
            return estimate_ns
        begun_ns, ended_ns = self._known(one.tid, one.target.image).gap_ns
        if begun_ns < one.seen_ns < ended_ns < now_ns:
            return max(min(estimate_ns, ended_ns), ended_ns - _NEAR_NS, one.seen_ns)
        return estimate_ns

    def _end(self, one: _Thread, woke_ns: int, now_ns: int, unseen_since_ns: int) -> None:
        """It has moved, between the last look and a time. What began while switches were followed is told of by the
        programs, unless it ends while they are not."""
        if not one.begun_ns or one.place is None:
            return
        stall = self._stalls.get(one.target.scope.number)
        if stall is not None and (one.target.image, one.tid) in stall.threads:
            self._end_stall(one.target.scope.number, woke_ns)
        if one.is_ours or 0 < unseen_since_ns <= one.seen_ns:
            self._tell(
                now_ns, self._placed({(one.target.image, one.tid): one.place}, one, woke_ns - one.begun_ns)
            )
        one.begun_ns, one.place = 0, None

    def _placed(self, places: Mapping[Thread, Asleep], one: _Thread, took_ns: int) -> Facts:
        if took_ns <= 0:
            return {}
        key = wait_key(ThreadState.BLOCKED, one.target.image, one.tid, 0, 0, 0, 0)
        return self._sleepers(places, {key: Count(1, took_ns)}).placed({key: Count(1, took_ns)}, self._stacks)

    def _sleepers(self, places: Mapping[Thread, Asleep], unended: Facts) -> Sleepers:
        targets = {one.target.image: one.target for one in places.values()}
        out = Sleepers(targets, self._tables, lambda target, tid, _: places.get((target.image, tid)))
        out.look(unended)
        return out

    def _look_for_stalls(self, living: Mapping[int, Target], unseen_since_ns: int) -> None:
        """All threads of these have been read."""
        by_scope: defaultdict[int, list[_Thread]] = defaultdict(list)
        for one in self._threads.values():
            if one.target.image in living:
                by_scope[one.target.scope.number].append(one)
        for number, threads in by_scope.items():
            stall = self._stalls.get(number)
            places = {(one.target.image, one.tid): one.place for one in threads if one.begun_ns and one.place}
            if not unseen_since_ns or len(places) < len(threads):
                if stall is not None:
                    self._end_stall(number, stall.seen_ns)
                continue
            seen_ns = min(one.seen_ns for one in threads)
            if stall is None or stall.begun_ns < unseen_since_ns:
                begun_ns = max(unseen_since_ns, *(one.begun_ns for one in threads))
                self._stalls[number] = _Stall(begun_ns, seen_ns, places)
            else:
                stall.seen_ns, stall.threads = seen_ns, places

    def _end_stalls(self, now_ns: int) -> None:
        for number, stall in list(self._stalls.items()):
            self._end_stall(number, min(stall.seen_ns, now_ns))

    def _end_stall(self, number: int, ended_ns: int) -> None:
        stall = self._stalls.pop(number)
        took_ns = ended_ns - stall.begun_ns
        if took_ns <= 0:
            return
        unended: Facts = {
            wait_key(ThreadState.BLOCKED, image, tid, 0, 0, 0, 0): Count(1, took_ns)
            for image, tid in stall.threads
        }
        facts = self._sleepers(stall.threads, unended).stall(number, took_ns, self._stacks)
        self.stall_ns += took_ns if facts else 0
        self._tell(ended_ns, facts)

    def _tell(self, at_ns: int, facts: Facts) -> None:
        if facts:
            add_facts(self._told.setdefault(at_ns, {}), facts)

    def pause(self) -> None:
        """Switches are followed again for good, or the measurement has ended."""
        self._close(time.monotonic_ns())

    def _close(self, now_ns: int) -> None:
        """What lasts and is ours is told of up to then."""
        for number in list(self._stalls):
            self._end_stall(number, now_ns)
        for one in self._threads.values():
            if one.is_ours:
                one.seen_ns = now_ns
                self._end(one, now_ns, now_ns, 0)
        self._threads.clear()

    def facts(self, started_ns: int, ended_ns: int) -> ByTime:
        """All that was found, by time since a measurement has started, up to its end. Times are CLOCK_MONOTONIC."""
        self._close(ended_ns)
        told, self._told = self._told, {}
        out: ByTime = {}
        for at_ns, facts in told.items():
            add_facts(out.setdefault(max(at_ns - started_ns, 0), {}), facts)
        return out

    @property
    def is_on(self) -> bool:
        """Whether threads are looked at now."""
        return bool(self._threads)

    @property
    def threads(self) -> set[Thread]:
        """Who sleeps for long now."""
        return {key for key, one in self._threads.items() if one.begun_ns}

    @property
    def scopes(self) -> set[int]:
        """Those in which all do, by number."""
        return set(self._stalls)

    def rest_s(self) -> float:
        """The next look is to come so soon; infinite: whenever it comes."""
        if not self._stalls:
            return math.inf
        now_ns = time.monotonic_ns()
        begun_ns = max(stall.begun_ns for stall in self._stalls.values())
        return max((now_ns - begun_ns) / _NS / _ERROR_SHARE, _LEAST_REST_S)


def _threads_of(target: Target) -> list[int]:
    with suppress(OSError):
        return thread_ids(target.process.pid)
    return []


def _turns(pid: int, tid: int) -> Turns | None:
    """What the kernel has counted of a thread; ``None``: it has ended, or the kernel does not."""
    with suppress(OSError, ValueError):
        with open(f"/proc/{pid}/task/{tid}/schedstat", "rb") as file:
            ran_ns, waited_ns, number = file.read().split()
        return Turns(int(ran_ns), int(waited_ns), int(number))
    return None
