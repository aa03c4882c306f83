"""The profiles of the last minutes, in bounded memory: one interval at a time, merged when somebody asks.

Rows are kept as numbers beside a table of call paths, which the intervals of a process share. For one thread.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from functools import reduce
from itertools import chain, zip_longest

from parprof.attribution.concurrency import plus, trimmed
from parprof.metrics import Metrics, add_column
from parprof.model import Frame, Interval, Levels, Origin, Path, PathSample, Profile
from parprof.profile.accounting import JobTime, Spun, settle
from parprof.profile.intervals import fit
from parprof.profile.merge import Part, Relation, head_of, merged_head
from parprof.service.model import Labels, ProfileEntry

_ROW_BYTES = 4
_VALUE_BYTES = 8
_LEVEL_BYTES = 4
# What CPython 3.11 takes, as tracemalloc saw it (tests/unit/test_recent.py holds us to it).
_INTERVAL_BYTES = 1600
_IDENTITY_BYTES = 1300
_FRAME_BYTES = 700
_EVENT_BYTES = 300
_COLUMN_BYTES = 150
_JOB_BYTES = 900
_JOB_LEVEL_BYTES = 80
_SPUN_BYTES = 150
_EXTRA_BYTES = 250

_Identity = tuple[Path, Origin, Path]
_Objects = tuple[int, int, int]
_NOBODY: _Identity = ((), Origin(), ())

KEPT = "intervals"
"""In `Profile.extra` of a profile with its intervals: the numbers of the first and the last of them."""


class RecentProfiles:
    """Intervals of processes. The oldest ones go when there are too many rows or bytes of them."""

    def __init__(
        self,
        max_rows: int = 200_000,
        max_bytes: int = 24 << 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep at most ``max_rows`` rows (call paths per interval), and about ``max_bytes``."""
        self._clock = clock
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._processes: dict[int, _Process] = {}
        self._intervals: deque[_Interval] = deque()
        self._frames: Counter[Frame] = Counter()
        self._interned: dict[Frame, Frame] = {}
        self._fixed_bytes = 0
        self._next = int(time.time() * 1000)
        """Number of the next interval: another daemon's, before this one, had others."""
        self._forgotten = 0
        """How many of `_intervals` are of processes that were forgotten."""
        self.rows = 0
        self.dropped_intervals = 0
        """How many went to make room, since the start."""
        self.dropped_rows = 0

    @property
    def estimated_bytes(self) -> int:
        """What is kept takes about this much memory."""
        return self._fixed_bytes + _FRAME_BYTES * len(self._frames)

    def resize(self, max_bytes: int) -> None:
        """Keep about ``max_bytes`` at most from now on."""
        self._max_bytes = max_bytes
        while self._intervals and self.estimated_bytes > self._max_bytes:
            self._drop_oldest()

    def add(
        self,
        profile: Profile,
        *,
        image: int = 0,
        labels: Labels | None = None,
        ended_s: float | None = None,
        job_time: JobTime | None = None,
        spun: Spun = (),
    ) -> None:
        """Add the next interval of a process: what was sampled from its ``start_time_s`` on.

        ``ended_s``: when it ended, CLOCK_MONOTONIC; by default now. To name what was sampled can take long.
        ``job_time``, ``spun``: what the rows of a profile are completed with where all of its intervals have that.
        ``labels``: where the process belongs, as of now.
        ``image``: the process image it is about (see `SampleKey`). Where that is a new one, the intervals of the
        one before are dropped: the PID may be another process.
        """
        pid = profile.process.pid
        process = self._processes.get(pid)
        if process is None or process.image != image:
            self.forget(pid)
            process = self._processes[pid] = _Process(image)
        process.labels = labels or process.labels
        numbers = array("I", [self._number(process, sample) for sample in profile.samples])
        for number in numbers:
            process.users[number] += 1
        here = frozenset(numbers if spun else ())
        spun_ns: defaultdict[int, float] = defaultdict(float)
        for sample, ns in spun:
            at = process.numbers.get((sample.path, sample.origin, sample.physical))
            if at is not None and at in here:  # else it was folded
                spun_ns[at] += ns
        interval = _Interval(
            process,
            profile,
            numbers,
            self._clock() if ended_s is None else ended_s,
            self._next,
            job_time,
            dict(spun_ns),
        )
        self._next += 1
        self.rows += len(interval.identities)
        self._fixed_bytes += interval.bytes
        process.intervals.append(interval)
        self._intervals.append(interval)
        while self.rows > self._max_rows or self.estimated_bytes > self._max_bytes:
            self._drop_oldest()

    def _number(self, process: _Process, sample: PathSample) -> int:
        # To hash a call path takes some 10 us. The same ones come again and again, as the same objects.
        objects = id(sample.path), id(sample.physical), id(sample.origin)
        known = process.objects.get(objects)
        if known is not None:
            return known[0]
        number = process.numbers.get((sample.path, sample.origin, sample.physical))
        if number is None:
            number = self._add_identity(process, sample)
        before = process.newest.get(number)
        if before is not None:
            del process.objects[before]
        process.newest[number] = objects
        process.objects[objects] = (number, sample.path, sample.physical, sample.origin)
        return number

    def _add_identity(self, process: _Process, sample: PathSample) -> int:
        identity = self._intern(sample.path), sample.origin, self._intern(sample.physical)
        number = process.free.pop() if process.free else len(process.identities)
        if number == len(process.identities):
            process.identities.append(identity)
            process.users.append(0)
        else:
            process.identities[number] = identity
        process.numbers[identity] = number
        self._fixed_bytes += _identity_bytes(identity)
        return number

    def _intern(self, path: Path) -> Path:
        out = []
        for frame in path:
            out.append(self._interned.setdefault(frame, frame))
            self._frames[frame] += 1
        return tuple(out)

    def _drop_oldest(self) -> None:
        """Make room. Intervals of processes that were forgotten take none any more."""
        interval = self._intervals.popleft()
        process = interval.process
        if not process.intervals:
            self._forgotten -= 1
            return
        process.intervals.popleft()
        self.dropped_intervals += 1
        self.dropped_rows += len(interval.identities)
        if not process.intervals:
            del self._processes[interval.head.process.pid]
        self._release(interval)

    def _release(self, interval: _Interval) -> None:
        process = interval.process
        self.rows -= len(interval.identities)
        self._fixed_bytes -= interval.bytes
        for number in interval.identities:
            process.users[number] -= 1
            if not process.users[number]:
                identity = process.identities[number]
                process.identities[number] = _NOBODY
                process.free.append(number)
                del process.numbers[identity]
                del process.objects[process.newest.pop(number)]
                self._fixed_bytes -= _identity_bytes(identity)
                self._release_frames(identity[0])
                self._release_frames(identity[-1])

    def _release_frames(self, path: Path) -> None:
        for frame in path:
            self._frames[frame] -= 1
            if not self._frames[frame]:
                del self._frames[frame]
                del self._interned[frame]

    def forget(self, pid: int) -> None:
        """Drop what there is of a process: it is gone. `take` before what is wanted of it."""
        process = self._processes.pop(pid, None)
        if process is None:
            return
        for interval in process.intervals:
            self._release(interval)
            interval.empty()
        self._forgotten += len(process.intervals)
        process.intervals.clear()
        if self._forgotten > len(self._intervals) // 2:
            self._intervals = deque(one for one in self._intervals if one.process.intervals)
            self._forgotten = 0

    def entries(self) -> tuple[ProfileEntry, ...]:
        """The processes of which there are intervals, the newest first."""
        found = []
        for pid, process in self._processes.items():
            first, last = process.intervals[0].head, process.intervals[-1]
            # By durations: the clock of the start times may have been set meanwhile.
            duration_s = sum(one.head.duration_s for one in process.intervals)
            count = sum(one.samples for one in process.intervals)
            comm = last.head.process.comm
            entry = ProfileEntry(pid, comm, process.labels.uid, first.start_time_s, duration_s, count)
            found.append((last.ended_s, entry))
        return tuple(entry for _, entry in sorted(found, key=lambda item: -item[0]))

    def profile(
        self,
        pid: int,
        seconds: float,
        *,
        until_s: float | None = None,
        since_s: float = 0.0,
        by_interval: bool = False,
    ) -> Profile | None:
        """The last ``seconds`` of a process, as nearly as whole intervals can be that. None without any.

        They are the last that it was sampled in; or with ``until_s`` those before then, where time in which nothing
        was sampled counts, from ``since_s`` on, when it was first watched. Both: of the clock, CLOCK_MONOTONIC.

        ``by_interval``: with its intervals, and which they are (`KEPT`).
        """
        process = self._processes.get(pid)
        if process is None:
            return None
        if until_s is not None:
            return self._between(process, until_s - seconds, until_s, since_s, by_interval)
        # Counted by durations: the clock of the start times may have been set meanwhile.
        wanted: list[_Interval] = []
        left_s = seconds
        for interval in reversed(process.intervals):
            if wanted and left_s < interval.head.duration_s / 2:
                break  # without it the sum is nearer to what was asked for
            wanted.append(interval)
            left_s -= interval.head.duration_s
        wanted.reverse()
        return _merge(wanted, by_interval) if wanted else None

    def exactly(self, pid: int, first: int, last: int) -> Profile | None:
        """Certain intervals of a process, by their numbers; None: they are not all kept any more."""
        process = self._processes.get(pid)
        wanted = [one for one in process.intervals if first <= one.number <= last] if process else []
        if not wanted or wanted[0].number != first or wanted[-1].number != last:
            return None
        return _merge(wanted, by_interval=True)

    @staticmethod
    def _between(
        process: _Process, from_s: float, until_s: float, since_s: float, by_interval: bool
    ) -> Profile | None:
        """The intervals that have most of their time in between, as the profile of all of that time.

        Of the interval in which the process was first watched, at ``since_s``, only the rest is its own.
        """
        from_s = max(from_s, since_s)
        wanted = [
            one
            for one in process.intervals
            if one.ended_s - from_s >= min(one.head.duration_s, one.ended_s - since_s) / 2
        ]
        if not wanted:
            return None
        out = _merge(wanted, by_interval)
        first = wanted[0]
        began_s = min(first.ended_s - first.head.duration_s, from_s)
        out.start_time_s = first.head.start_time_s - (first.ended_s - first.head.duration_s - began_s)
        out.duration_s = max(out.duration_s, until_s - began_s)
        return out

    def take(self, pid: int) -> tuple[Profile, Labels] | None:
        """What was added to a process since the last call, each interval once, and where the process belongs."""
        process = self._processes.get(pid)
        if process is None:
            return None
        fresh = [interval for interval in process.intervals if not interval.taken]
        for interval in fresh:
            interval.taken = True
        return (_merge(fresh, whole=False), process.labels) if fresh else None

    def image(self, pid: int) -> int | None:
        """The process image that the intervals of a PID are of; None without any."""
        process = self._processes.get(pid)
        return None if process is None else process.image

    def pids(self) -> tuple[int, ...]:
        """The processes of which there are intervals."""
        return tuple(self._processes)


class _Process:
    """The intervals of one process image, and the table that their rows point into."""

    def __init__(self, image: int) -> None:
        self.image = image
        self.labels = Labels()
        self.intervals: deque[_Interval] = deque()
        self.identities: list[_Identity] = []
        self.numbers: dict[_Identity, int] = {}
        self.objects: dict[_Objects, tuple[int, Path, Path, Origin]] = {}
        """Numbers by what `RecentProfiles.add` was last given for them: the ids of objects, which are kept here so
        that no other object gets the same id."""
        self.newest: dict[int, _Objects] = {}
        """Keys of `objects`, by number."""
        self.users = array("I")
        """By number: how many rows point there; 0: the number is free."""
        self.free: list[int] = []


class _Interval:
    """What was sampled of a process in one interval: a column for each metric that any row has."""

    __slots__ = (
        "ended_s",
        "bytes",
        "columns",
        "events",
        "identities",
        "job_time",
        "levels",
        "number",
        "part",
        "process",
        "samples",
        "spun_ns",
        "taken",
    )

    def __init__(
        self,
        process: _Process,
        profile: Profile,
        numbers: array[int],
        ended_s: float,
        number: int,
        job_time: JobTime | None,
        spun_ns: Mapping[int, float],
    ) -> None:
        charged = [sample.metrics for sample in profile.samples]
        rows = [metrics.values for metrics in charged]
        self.process = process
        self.ended_s = ended_s
        """When it ended, CLOCK_MONOTONIC."""
        self.number = number
        """Never given out twice."""
        self.identities = numbers
        self.job_time = job_time
        self.spun_ns = spun_ns
        """By number of identity, of rows that are here."""
        self.levels = _level_columns([sample.levels for sample in profile.samples])
        self.columns = {
            metric: _column([row.get(metric, 0) for row in rows])
            for metric in dict.fromkeys(chain.from_iterable(rows))
        }
        self.events = {row: dict(metrics.events) for row, metrics in enumerate(charged) if metrics.events}
        total = Metrics.of({metric: sum(column) for metric, column in self.columns.items()})
        self.samples = total.samples
        self.part = Part(head_of(profile), total.cpu_ns)
        self.taken = False
        row_bytes = _ROW_BYTES + _VALUE_BYTES * len(self.columns) + _LEVEL_BYTES * len(self.levels)
        self.bytes = (
            _INTERVAL_BYTES
            + _COLUMN_BYTES * (len(self.columns) + len(self.levels))
            + row_bytes * len(rows)
            + _EVENT_BYTES * len(self.events)
            + _SPUN_BYTES * len(spun_ns)
            + _EXTRA_BYTES * len(profile.extra)
        )
        if job_time is not None:
            self.bytes += _JOB_BYTES + _JOB_LEVEL_BYTES * len(job_time.level_ns)

    @property
    def head(self) -> Profile:
        """The profile without its samples."""
        return self.part.head

    def add_to(self, sums: defaultdict[int, Metrics]) -> None:
        """Add the rows to the sums by number of identity. By column: that is twice as fast as row by row."""
        rows = [sums[number] for number in self.identities]
        values = [row.values for row in rows]
        for metric, column in self.columns.items():
            add_column(metric, values, column)
        for row, events in self.events.items():
            rows[row].add(Metrics(events=events))

    def add_levels_to(self, sums: dict[int, Levels]) -> None:
        """Add how much of the rows' work there was at each n_w."""
        for number, *levels in zip(self.identities, *self.levels, strict=True) if self.levels else ():
            sums[number] = plus(sums.get(number, ()), trimmed(levels))

    def empty(self) -> None:
        """Give back the rows."""
        self.identities = array("I")
        self.columns = {}
        self.levels = []
        self.events = {}
        self.job_time, self.spun_ns = None, {}


def _column(values: list[float]) -> array[float]:
    """Values in little memory: whole ones stay such."""
    try:
        return array("q", values)  # raises if one is not whole
    except (TypeError, OverflowError):
        return array("d", values)


def _level_columns(rows: list[Levels]) -> list[array[float]]:
    """Histograms by element, up to the last that any has; in half the memory, as they are only proportions."""
    return [array("f", column) for column in zip_longest(*rows, fillvalue=0.0)]


def _identity_bytes(identity: _Identity) -> int:
    return _IDENTITY_BYTES + 2 * 8 * (len(identity[0]) + len(identity[2]))


def _merge(intervals: list[_Interval], by_interval: bool = False, whole: bool = True) -> Profile:
    """The profile of intervals of one process, which are in order.

    ``whole``: with what is only known of all of their time together, if it is.
    """
    sums: defaultdict[int, Metrics] = defaultdict(Metrics)
    levels: dict[int, Levels] = {}
    for interval in intervals:
        interval.add_to(sums)
        interval.add_levels_to(levels)
    identities = intervals[-1].process.identities
    out = merged_head([interval.part for interval in intervals], Relation.ONE_AFTER_ANOTHER)
    for number, metrics in sums.items():
        path, origin, physical = identities[number]
        out.samples.append(PathSample(path, metrics, origin, physical, levels.get(number, ())))
    if whole:
        _complete(out, intervals, dict(zip(sums, out.samples, strict=True)))
    if by_interval:
        rows = {number: row for row, number in enumerate(sums)}
        out.intervals, shares = _parts(intervals, rows)
        if out.accounting is not None:
            fit(out.samples, out.intervals, shares)
        out.extra = {**out.extra, KEPT: f"{intervals[0].number}-{intervals[-1].number}"}
    return out


def _complete(profile: Profile, intervals: list[_Interval], rows: Mapping[int, PathSample]) -> None:
    """Let the rows have all core time of the process, if so much is known. ``rows``: by number of identity."""
    times = [one.job_time for one in intervals if one.job_time is not None]
    if len(times) < len(intervals) or not any(one.times.elapsed_ns for one in times):
        return
    spun_ns: defaultdict[int, float] = defaultdict(float)
    for one in intervals:
        for number, ns in one.spun_ns.items():
            spun_ns[number] += ns
    spun = [(rows[number], ns) for number, ns in spun_ns.items()]
    process = profile.process
    origin = Origin(process.pid, process.comm, "", process.runtime, "", intervals[-1].process.image)
    profile.accounting, more = settle(reduce(JobTime.joined, times), profile.samples, spun, origin)
    profile.samples += more


def _parts(
    intervals: list[_Interval], rows: dict[int, int]
) -> tuple[list[Interval], list[dict[int, Metrics]]]:
    """Each by itself; and their rows. ``rows``: of the profile, by number of identity."""
    began_s = intervals[0].ended_s - intervals[0].head.duration_s
    end_s = 0.0
    out, shares = list[Interval](), list[dict[int, Metrics]]()
    for one in intervals:
        own: defaultdict[int, Metrics] = defaultdict(Metrics)
        one.add_to(own)
        begin_s = max(one.ended_s - one.head.duration_s - began_s, end_s)
        end_s = max(one.ended_s - began_s, begin_s)
        shares.append({rows[number]: metrics for number, metrics in own.items()})
        level_ns = one.job_time.level_ns if one.job_time is not None else ()
        out.append(Interval(begin_s, end_s, tuple(ns / 1e9 for ns in level_ns), shares[-1]))
    return out, shares
