"""Samples of threads that only waited, taken before it was known that the code they were in does nothing else.

Where threads wait without going to sleep is found out from samples (`parprof.session.spins`): until the programs are
told, such a thread counts as working, and nobody beside it as working alone. A short run may be over by then. So, once
it is known, what was counted before is judged anew. Of the waiting thread's own samples its stack tells. How many of
those that seemed to work beside another one only waited is told by their samples in the same interval.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace

from parprof.facts.intervals import CountedInterval
from parprof.facts.measurement import Measurement
from parprof.facts.scopes import ScopeTimes, levels_that_were
from parprof.model import Count, Facts, SampleKey, ThreadState, add_facts
from parprof.values import dataclass

_Thread = tuple[int, int]
"""Process image, thread id."""


def with_late_spins(measured: Measurement, waits: Callable[[SampleKey], bool]) -> Measurement:
    """The same measurement, judged by what is known at its end. ``waits``: whether samples are in code that only waits.

    Where it is not known what was when, or the number of cores has changed, it stays as it is.
    """
    if not measured.intervals or measured.drain.by_cores:
        return measured
    late = {key for key in measured.drain.facts if _seems_to_work(key) and waits(key)}
    if not late:
        return measured
    jobs = {image: number for number, scope in enumerate(measured.scopes) for image in scope.images}
    judges = {number: _Judge() for number in {jobs[key.image] for key in late if key.image in jobs}}
    for one in measured.intervals:
        for number, facts in _by_job(one.facts, jobs).items():
            if number in judges:
                judges[number].seen.add(facts, late)
    intervals = tuple(_judged(one, late, jobs, judges) for one in measured.intervals)
    whole: Facts = {}
    for one in intervals:
        add_facts(whole, {key: replace(count) for key, count in one.facts.items()})
    scopes = tuple(
        judges[number].times(scope) if number in judges else scope
        for number, scope in enumerate(measured.scopes)
    )
    return replace(measured, drain=replace(measured.drain, facts=whole), intervals=intervals, scopes=scopes)


def _seems_to_work(key: SampleKey) -> bool:
    return key.event == 0 and key.state is ThreadState.WORKING and not key.fine and key.n_working > 0


def _by_job(facts: Mapping[SampleKey, Count], jobs: Mapping[int, int]) -> dict[int, Facts]:
    out: defaultdict[int, Facts] = defaultdict(dict)
    for key, count in facts.items():
        if _seems_to_work(key) and key.image in jobs:
            out[jobs[key.image]][key] = count
    return out


def _judged(
    one: CountedInterval, late: Collection[SampleKey], jobs: Mapping[int, int], judges: Mapping[int, _Judge]
) -> CountedInterval:
    mine = {number: facts for number, facts in _by_job(one.facts, jobs).items() if number in judges}
    touched = {key for facts in mine.values() for key in facts}
    out: Facts = {key: count for key, count in one.facts.items() if key not in touched}
    for number, facts in mine.items():
        add_facts(out, judges[number].judge(facts, late))
    return replace(one, facts=out)


@dataclass(slots=True)
class _Seen:
    """Samples of threads that seemed to work, by n_w and thread: all of them, and those in which they waited."""

    all: dict[int, dict[_Thread, int]] = field(default_factory=dict)
    waiting: dict[int, dict[_Thread, int]] = field(default_factory=dict)

    def add(self, facts: Mapping[SampleKey, Count], late: Collection[SampleKey]) -> None:
        """These were taken, too."""
        for key, count in facts.items():
            for into in (self.all, self.waiting) if key in late else (self.all,):
                by_thread = into.setdefault(key.n_working, {})
                thread = key.image, key.tid
                by_thread[thread] = by_thread.get(thread, 0) + count.samples

    def share(self, level: int, but: _Thread | None = None) -> float | None:
        """How many of the samples at an n_w are of threads that waited, but for one thread's; None: there are none."""
        whole = _sum(self.all.get(level, {}), but)
        return _sum(self.waiting.get(level, {}), but) / whole if whole else None


def _sum(samples: Mapping[_Thread, int], but: _Thread | None) -> int:
    return sum(samples.values()) - (samples.get(but, 0) if but is not None else 0)


@dataclass(slots=True)
class _Judge:
    """Of one job."""

    seen: _Seen = field(default_factory=_Seen)
    """Over the whole time."""
    _left: dict[_Thread, float] = field(default_factory=dict)
    """What rounding has left over."""

    def judge(self, facts: Facts, late: Collection[SampleKey]) -> Facts:
        """The samples of an interval: waiting where that is known, and beside as many as worked."""
        here = _Seen()
        here.add(facts, late)
        out: Facts = {}
        for key, count in facts.items():
            thread = key.image, key.tid
            share = here.share(key.n_working, thread)
            if share is None:
                share = self.seen.share(key.n_working, thread) or 0.0
            waiting = share * (key.n_working - 1)
            least = math.floor(waiting)
            wanted = count.samples * (waiting - least) + self._left.get(thread, 0.0)
            more = min(max(round(wanted), 0), count.samples)
            self._left[thread] = wanted - more
            waits = key in late
            state = ThreadState.SPINNING if waits else ThreadState.WORKING
            for others, samples in ((least, count.samples - more), (least + 1, more)):
                if samples:
                    n_working = max(key.n_working - others - waits, 0 if waits else 1)
                    judged = key._replace(state=state, n_working=n_working)
                    add_facts(out, {judged: _part(count, samples)})
        return out

    def times(self, scope: ScopeTimes) -> ScopeTimes:
        """For how long n_w was what, of the job's."""
        levels = [0.0] * len(scope.level_ns)
        for level, took_ns in enumerate(scope.level_ns):
            for n_working, part in _levels(level, self.seen.share(level) or 0.0):
                levels[n_working] += part * took_ns
        rounded = _rounded(levels, scope.elapsed_ns)
        gone_ns = sum(n * ns for n, ns in enumerate(scope.level_ns)) - sum(
            n * ns for n, ns in enumerate(rounded)
        )
        return replace(
            scope, level_ns=levels_that_were(rounded), working_ns=max(scope.working_ns - gone_ns, 0)
        )


def _levels(level: int, share: float) -> Iterable[tuple[int, float]]:
    """How many of so many threads work, for which part of the time, if a share of their samples are of waiting.

    >>> list(_levels(2, 0.25)), list(_levels(2, 0.0))
    ([(2, 0.5), (1, 0.5)], [(2, 1.0), (1, 0.0)])
    """
    waiting = share * level
    least = math.floor(waiting)
    yield level - least, 1 - (waiting - least)
    if least < level:
        yield level - least - 1, waiting - least


def _rounded(levels: Sequence[float], whole: int) -> list[int]:
    """Whole numbers that add up to ``whole``."""
    out = [math.floor(one) for one in levels]
    if out:
        out[0] += whole - sum(out)
    return out


def _part(count: Count, samples: int) -> Count:
    return Count(
        samples,
        round(count.total * samples / count.samples),
        round(count.unsure * samples / count.samples),
    )
