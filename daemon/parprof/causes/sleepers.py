"""Who was waited for when nobody worked: of threads that sleep, the last one to fall asleep has the stall, but where
that waits for another thread, or only keeps house, and one of these sleeps for a time, a file or the like, it is that
one which kept all.

Only a thread that waits for nobody among them can be the first to wake up. And what a language's own threads do by the
clock (Go's sysmon, HotSpot's periodic tasks) they do whatever the program waits for, as do the program's that only look
around (`parprof.causes.tickers`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace

from parprof.attribution.waiting import WaitKind, is_wait
from parprof.causes.ownership import Owner, Ownership, is_nameless_code, is_of_stripped
from parprof.causes.tickers import ThreadId, thread_of, tickers
from parprof.metrics import OUTSIDE, STALL, WAIT, Metric
from parprof.model import SEVERAL_THREADS, Interval, Path, PathSample
from parprof.values import dataclass

_FOR_THREADS = frozenset(kind.frame_name for kind in WaitKind if kind.is_for_threads and not kind.is_first)
BY_ITSELF = frozenset(
    kind.frame_name
    for kind in (
        WaitKind.SLEEP,
        WaitKind.FILE,
        WaitKind.FAULT,
        WaitKind.CHILD,
        WaitKind.PIPE,
        WaitKind.NETWORK,
    )
)
"""Who waits so may be the one that the others wait for."""
_FOR_CHILD = WaitKind.CHILD.frame_name
_FOR_TIME = WaitKind.SLEEP.frame_name
_FOR_LOCK = WaitKind.LOCK.frame_name
_HANGS = 0.5
"""Of the time in which nobody worked: HotSpot's threads look at their lock again, at least once a second, and where one
slept before the first time is not known."""
_FOR_PROCESSES = frozenset(kind.frame_name for kind in (WaitKind.PIPE, WaitKind.NETWORK))
"""By which processes of a job wait for each other, too."""
_FOR_OTHERS = _FOR_PROCESSES | {_FOR_CHILD}
"""So may wait who has handed out work to others of the job."""
_HANDS_OUT = 0.2
"""Of the time that it sleeps by itself: who hands out work waits for so long at least for those who do it."""
_FOR_OTHER_PROGRAMS = frozenset((_FOR_CHILD, WaitKind.PIPE.frame_name))
"""So wait those that have begun one: for its end, or for what it writes."""
_TAKES_PART = 0.05
"""Of a job's work: a process that does as much is one that others may wait for."""
ENOUGH = 0.8
"""Who kept the others asleep slept at least for so much of that time."""
RIVAL = 0.3
"""Another thread that slept for so much of it may as well have been the one."""

InnermostNames = tuple[str, ...]
_INNERMOST = 3
"""Frames that a place is known by where a language's scheduler sleeps in its threads, by turns and below other ones."""


_PLACE = 2
"""Functions of the program's: threads that sleep in the same ones do so for the same reason."""


@dataclass(slots=True, eq=False)
class _Sleeper:
    """A thread that sleeps by itself; or several that do so most in one and the same place, as a routine's that goes
    from thread to thread."""

    slept: dict[ThreadId, float] = field(default_factory=dict)
    most: int = -1
    """The row in which it does so most."""
    most_ns: float = 0.0

    @property
    def whole_ns(self) -> float:
        return sum(self.slept.values())

    @property
    def process(self) -> int | None:
        """The process that it is of, if it is of one."""
        pids = {pid for pid, _ in self.slept}
        return pids.pop() if len(pids) == 1 else None

    def add(self, thread: ThreadId, number: int, wait_ns: float) -> None:
        self.slept[thread] = self.slept.get(thread, 0.0) + wait_ns
        if wait_ns > self.most_ns:
            self.most, self.most_ns = number, wait_ns

    def merge(self, other: _Sleeper) -> None:
        for thread, wait_ns in other.slept.items():
            self.slept[thread] = self.slept.get(thread, 0.0) + wait_ns
        if other.most_ns > self.most_ns:
            self.most, self.most_ns = other.most, other.most_ns

    def may_have_kept(self, thread: ThreadId, stall_ns: float) -> bool:
        """Whether it is another thread, or has others that slept for as long: none waits in two places at a time."""
        others = self.whole_ns - self.slept.get(thread, 0.0)
        return others >= ENOUGH * stall_ns


def with_sleepers(
    samples: Sequence[PathSample], cores: int, ownership: Ownership, intervals: Sequence[Interval] = ()
) -> Sequence[PathSample]:
    """The samples with each stall at who kept the others asleep, where that is one thread. ``cores``: n.

    ``intervals``: what of the samples was when, if that is known.
    """
    keeps_house = KeepsHouse(ownership, tickers(samples))
    samples = _at_sleepers(samples, cores, ownership, keeps_house)
    samples = _at_workers(samples, cores, keeps_house)
    samples = _at_masters(samples, cores, keeps_house)
    samples = _at_locked(samples, cores, keeps_house)
    return _at_parents(samples, cores, ownership, keeps_house, intervals)


def _at_sleepers(
    samples: Sequence[PathSample], cores: int, ownership: Ownership, keeps_house: KeepsHouse
) -> Sequence[PathSample]:
    """With those of threads that wait for others, or keep house, at who slept by itself."""
    stalled: dict[int, float] = {}
    for number, sample in enumerate(samples):
        stall = sample.metrics[STALL]
        if stall and sample.path and (sample.path[-1].name in _FOR_THREADS or keeps_house(sample)):
            stalled[number] = stall
    by_process: dict[int, list[int]] = defaultdict(list)
    for number in stalled:
        by_process[samples[number].origin.pid].append(number)
    rest: list[int] = []
    sleepers: dict[int, list[_Sleeper]] = defaultdict(list)  # whoever has the stall, they stay the same
    for one in _sleepers(samples, keeps_house):
        if (pid := one.process) is not None:
            sleepers[pid].append(one)
    for pid, those in by_process.items():
        took_ns = sum(stalled[number] for number in those) / cores
        sleeper = _longest(sleepers[pid], sleepers[pid], took_ns)
        if sleeper is None or samples[sleeper.most].path[-1].name == _FOR_CHILD:
            rest += those
        else:
            kept = _kept_by(sleeper, samples, stalled, those, cores)
            samples = _moved(samples, kept, sleeper.most)
            rest += set(those).difference(kept)
    sleeper = _sleeper(samples, sum(stalled[number] for number in rest) / cores, keeps_house, ownership)
    if not rest or sleeper is None:
        return samples
    return _moved(samples, _kept_by(sleeper, samples, stalled, rest, cores), sleeper.most)


def _kept_by(
    sleeper: _Sleeper,
    samples: Sequence[PathSample],
    stalled: Mapping[int, float],
    those: Iterable[int],
    cores: int,
) -> list[int]:
    """Which of these stalls a sleeper may have brought about."""
    return [
        number
        for number in those
        if sleeper.may_have_kept(thread_of(samples[number].origin), stalled[number] / cores)
    ]


def _at_workers(samples: Sequence[PathSample], cores: int, keeps_house: KeepsHouse) -> Sequence[PathSample]:
    """With those of processes that wait for a pipe at who slept by itself in another one of the job that does some of
    its work, as what reads items for others does; of several workers, that is where all of them sleep."""
    stalled = {
        number: sample.metrics[STALL]
        for number, sample in enumerate(samples)
        if sample.metrics[STALL] and sample.path and sample.path[-1].name in _FOR_PROCESSES
    }
    work: dict[int, float] = defaultdict(float)
    for sample in samples:
        work[sample.origin.pid] += sample.metrics.work_ns
    if not stalled or len(work) < 2:
        return samples
    least = _TAKES_PART * sum(work.values())
    by_path: dict[Path, _Sleeper] = {}
    for one in _sleepers(samples, keeps_house):
        sample = samples[one.most]
        waits = sample.path[-1].name
        if work[sample.origin.pid] < least or waits == _FOR_CHILD or waits in _FOR_PROCESSES:
            continue
        known = by_path.setdefault(sample.path, one)
        if known is not one:
            known.merge(one)
    sleeper = _longest(by_path.values(), by_path.values(), sum(stalled.values()) / cores)
    if sleeper is None:
        return samples
    theirs = {pid for pid, _ in sleeper.slept}
    return _moved(samples, (at for at in stalled if samples[at].origin.pid not in theirs), sleeper.most)


def _at_masters(samples: Sequence[PathSample], cores: int, keeps_house: KeepsHouse) -> Sequence[PathSample]:
    """With those of a pool's processes at who hands out work to them, where that slept by itself in between, for as
    long, all in all, as nobody worked: theirs is the last step when one waits for the lock of the pipe, another for
    what comes through it."""
    stalled = {
        number: sample.metrics[STALL]
        for number, sample in enumerate(samples)
        if sample.metrics[STALL] and sample.path and sample.path[-1].name in _FOR_THREADS | _FOR_PROCESSES
    }
    if not stalled or len({sample.origin.pid for sample in samples}) < 2:
        return samples
    kept_ns = sum(sample.metrics[STALL] + sample.metrics[OUTSIDE] for sample in samples) / cores
    waited: dict[ThreadId, float] = defaultdict(float)
    for sample in samples:
        if sample.path and sample.path[-1].name in _FOR_THREADS | _FOR_OTHERS:
            waited[thread_of(sample.origin)] += sample.metrics[WAIT]
    beside = [
        one
        for one in _sleepers(samples, keeps_house)
        if samples[one.most].path[-1].name not in _FOR_OTHERS and one.process is not None
    ]
    masters = [
        one
        for one in beside
        if one.whole_ns <= kept_ns / ENOUGH
        and sum(waited[thread] for thread in one.slept) >= _HANDS_OUT * one.whole_ns
    ]
    theirs_ns: dict[int, float] = defaultdict(float)
    for number, stall_ns in stalled.items():
        theirs_ns[samples[number].origin.pid] += stall_ns / cores
    for master in masters:
        rest_ns = sum(stall_ns for pid, stall_ns in theirs_ns.items() if pid != master.process)
        if rest_ns and _longest((master,), beside, rest_ns) is master:
            those = (number for number in stalled if samples[number].origin.pid != master.process)
            return _moved(samples, those, master.most)
    return samples


def _at_locked(samples: Sequence[PathSample], cores: int, keeps_house: KeepsHouse) -> Sequence[PathSample]:
    """With those of threads that a language has for itself, which wait for each other and for the clock, at the thread
    of the program's that waited for a lock for most of that time: it hangs, as HotSpot's own threads go on."""
    stalled = {
        number: sample.metrics[STALL]
        for number, sample in enumerate(samples)
        if sample.metrics[STALL]
        and sample.path
        and sample.path[-1].name in _FOR_THREADS
        and sample.origin.tid not in (sample.origin.pid, SEVERAL_THREADS)
        and not keeps_house.shows_program(sample.path)
    }
    if not stalled:
        return samples
    waited: dict[int, float] = {
        number: sample.metrics[WAIT]
        for number, sample in enumerate(samples)
        if sample.path and sample.path[-1].name == _FOR_LOCK and keeps_house.shows_program(sample.path)
    }
    longest = max(waited, key=waited.__getitem__, default=None)
    if longest is None or waited[longest] < _HANGS * sum(stalled.values()) / cores:
        return samples
    return _moved(samples, stalled, longest)


def _at_parents(
    samples: Sequence[PathSample],
    cores: int,
    ownership: Ownership,
    keeps_house: KeepsHouse,
    intervals: Sequence[Interval],
) -> Sequence[PathSample]:
    """With those of programs of which nothing has a name at who waits for their end, or for what they write, where that
    is one thread of a program that has names: its reader can only change that. Where such a thread waits in several
    places, one after the other, it is the place where it waited then."""
    stalled: dict[int, float] = {}
    for number, sample in enumerate(samples):
        stall, path = sample.metrics[STALL], sample.path
        if stall and path and is_wait(path[-1].name) and not _has_name(path, ownership):
            stalled[number] = stall
    if not stalled:
        return samples
    then = _waits_beside(stalled, samples, cores, intervals) if intervals else samples
    waiting = [
        one
        for one in _sleepers(then, keeps_house)
        if samples[one.most].path[-1].name in _FOR_OTHER_PROGRAMS
        and _has_name(samples[one.most].path, ownership)
    ]
    parent = _longest(waiting, waiting, sum(stalled.values()) / cores)
    if parent is None:
        return samples
    pids = {pid for pid, _ in parent.slept}
    return _moved(samples, (at for at in stalled if samples[at].origin.pid not in pids), parent.most)


def _waits_beside(
    stalled: Collection[int], samples: Sequence[PathSample], cores: int, intervals: Sequence[Interval]
) -> Sequence[PathSample]:
    """The samples with so much of each wait as there can have been while nobody worked in some rows, ``stalled``."""
    waits: dict[int, float] = defaultdict(float)
    for interval in intervals:
        stall = sum(interval.rows[row][STALL] for row in stalled if row in interval.rows) / cores
        if stall:
            for row, metrics in interval.rows.items():
                waits[row] += min(metrics[WAIT], stall)
    return [_with(WAIT, sample, waits.get(number, 0.0)) for number, sample in enumerate(samples)]


def _moved(samples: Sequence[PathSample], stalled: Iterable[int], to: int) -> Sequence[PathSample]:
    """The samples with the stalls of some of them at another one."""
    out = list(samples)
    moved = 0.0
    for number in stalled:
        if number != to:
            moved += samples[number].metrics[STALL]
            out[number] = _with(STALL, samples[number], 0.0)
    out[to] = _with(STALL, samples[to], samples[to].metrics[STALL] + moved)
    return out


class KeepsHouse:
    """Whether a thread is one that a language, or a runtime, has for itself: it sleeps for a time, and none of the
    program's code is above that. The main thread of an interpreter is the program's all the same."""

    def __init__(self, ownership: Ownership, those: Collection[ThreadId] = ()) -> None:
        """``those``: threads that do, as is known."""
        self._ownership = ownership
        self._those = those
        self._known: dict[int, bool] = {}
        """By the ids of paths, which the samples keep."""

    def __call__(self, sample: PathSample) -> bool:
        """Whether the thread of a sample is one of those."""
        path, origin = sample.path, sample.origin
        if thread_of(origin) in self._those:
            return True
        if path[-1].name != _FOR_TIME or origin.tid in (origin.pid, SEVERAL_THREADS):
            return False
        return not self.shows_program(path)

    def shows_program(self, path: Path) -> bool:
        """Whether some of the program's code is on a path, or a library's."""
        known = self._known.get(id(path))
        if known is None:
            owns = (
                self._ownership.of(frame) is not Owner.SYSTEM or is_nameless_code(frame) for frame in path
            )
            known = self._known[id(path)] = any(owns)
        return known

    def place(self, path: Path) -> InnermostNames:
        """Where a thread sleeps, whatever else is on its stack: from the program's innermost functions on, that which
        sleeps and its caller."""
        own = [
            at
            for at, frame in enumerate(path)
            if not frame.is_loop and self._ownership.of(frame) is Owner.PROGRAM
        ]
        if not own:
            return tuple(frame.name for frame in path) if self.shows_program(path) else place_of(path)
        begins = own[-_PLACE:][0]
        return tuple(frame.name for frame in path[begins:] if not frame.is_loop)


def _sleeper(
    samples: Sequence[PathSample], stall: float, keeps_house: KeepsHouse, ownership: Ownership
) -> _Sleeper | None:
    """Who slept by itself for about as long; ``None`` if nobody did, or several.

    Where a program waits for a child that only sleeps, it is the child, but if that is a program of which nothing has
    a name: its reader can only change who waits for it. ``stall``: the time that passed while nobody worked.
    """
    found = _sleepers(samples, keeps_house)
    of_child = [one for one in found if samples[one.most].path[-1].name == _FOR_CHILD]
    others = [one for one in found if one not in of_child]
    child = _longest(others, others, stall) or _longest_of_all(samples, others, stall, keeps_house)
    if child is not None and _has_name(samples[child.most].path, ownership):
        return child
    pids = {pid for one in of_child for pid, _ in one.slept}
    beside = [one for one in others if any(pid in pids for pid, _ in one.slept)]
    parent = _longest(of_child, of_child + beside, stall)
    if parent is not None and (child is None or _has_name(samples[parent.most].path, ownership)):
        return parent
    return child


def _sleepers(samples: Sequence[PathSample], keeps_house: KeepsHouse) -> list[_Sleeper]:
    by_thread: dict[tuple[ThreadId, int], _Sleeper] = defaultdict(_Sleeper)
    for number, sample in enumerate(samples):
        wait, path = sample.metrics[WAIT], sample.path
        if wait and path and path[-1].name in BY_ITSELF and not keeps_house(sample):
            thread = thread_of(sample.origin)
            several = id(path) if thread[1] == SEVERAL_THREADS else 0
            by_thread[thread, several].add(thread, number, wait)
    by_place: dict[tuple[int, InnermostNames], _Sleeper] = {}
    for one in by_thread.values():
        sample = samples[one.most]
        known = by_place.setdefault((sample.origin.pid, keeps_house.place(sample.path)), one)
        if known is not one:
            known.merge(one)
    return list(by_place.values())


def _longest(those: Iterable[_Sleeper], rivals: Iterable[_Sleeper], stall: float) -> _Sleeper | None:
    longest = max(those, key=lambda one: one.whole_ns, default=None)
    if longest is None or longest.whole_ns < ENOUGH * stall:
        return None
    if any(one is not longest and one.whole_ns >= RIVAL * stall for one in rivals):
        return None
    return longest


def _longest_of_all(
    samples: Sequence[PathSample], those: Iterable[_Sleeper], stall: float, keeps_house: KeepsHouse
) -> _Sleeper | None:
    """The same of threads of several processes that sleep in the same place: each in turn, as those of a database that
    have a lock of all of them meanwhile."""
    by_place: dict[InnermostNames, _Sleeper] = {}
    for one in those:
        by_place.setdefault(keeps_house.place(samples[one.most].path), _Sleeper()).merge(one)
    return _longest(by_place.values(), by_place.values(), stall)


def place_of(path: Path) -> InnermostNames:
    """Where a thread sleeps, whatever else is on its stack."""
    return tuple(frame.name for frame in path[-_INNERMOST:])


def _has_name(path: Path, ownership: Ownership) -> bool:
    """Whether something of the program's on a path has a name."""
    own = [frame for frame in path if not frame.is_loop and ownership.of(frame) is Owner.PROGRAM]
    return any(not is_of_stripped(frame.name, frame.file) for frame in own)


def _with(metric: Metric, sample: PathSample, value_ns: float) -> PathSample:
    metrics = sample.metrics.copy()
    metrics[metric] = value_ns
    return replace(sample, metrics=metrics)
