"""The profiles of the last minutes, in bounded memory: one interval at a time, merged when somebody asks.

What goes when there are too many is decided here; how an interval is kept, in `parprof.service.kept_intervals`. For one
thread.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable

from parprof.model import Frame, Path, PathSample, Profile
from parprof.profile.accounting import JobTime, Spun
from parprof.service.kept_intervals import NO_IDENTITY, KeptInterval, KeptProcess, identity_bytes, merged
from parprof.service.model import Labels, ProfileEntry

_FRAME_BYTES = 700
"""What CPython 3.11 takes for one, as tracemalloc saw it."""


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
        self._processes: dict[int, KeptProcess] = {}
        self._intervals: deque[KeptInterval] = deque()
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
            process = self._processes[pid] = KeptProcess(image)
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
        interval = KeptInterval(
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

    def _number(self, process: KeptProcess, sample: PathSample) -> int:
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

    def _add_identity(self, process: KeptProcess, sample: PathSample) -> int:
        identity = self._intern(sample.path), sample.origin, self._intern(sample.physical)
        number = process.free.pop() if process.free else len(process.identities)
        if number == len(process.identities):
            process.identities.append(identity)
            process.users.append(0)
        else:
            process.identities[number] = identity
        process.numbers[identity] = number
        self._fixed_bytes += identity_bytes(identity)
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

    def _release(self, interval: KeptInterval) -> None:
        process = interval.process
        self.rows -= len(interval.identities)
        self._fixed_bytes -= interval.bytes
        for number in interval.identities:
            process.users[number] -= 1
            if not process.users[number]:
                identity = process.identities[number]
                process.identities[number] = NO_IDENTITY
                process.free.append(number)
                del process.numbers[identity]
                del process.objects[process.newest.pop(number)]
                self._fixed_bytes -= identity_bytes(identity)
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
        wanted: list[KeptInterval] = []
        left_s = seconds
        for interval in reversed(process.intervals):
            if wanted and left_s < interval.head.duration_s / 2:
                break  # without it the sum is nearer to what was asked for
            wanted.append(interval)
            left_s -= interval.head.duration_s
        wanted.reverse()
        return merged(wanted, by_interval) if wanted else None

    def exactly(self, pid: int, first: int, last: int) -> Profile | None:
        """Certain intervals of a process, by their numbers; None: they are not all kept any more."""
        process = self._processes.get(pid)
        wanted = [one for one in process.intervals if first <= one.number <= last] if process else []
        if not wanted or wanted[0].number != first or wanted[-1].number != last:
            return None
        return merged(wanted, by_interval=True)

    @staticmethod
    def _between(
        process: KeptProcess, from_s: float, until_s: float, since_s: float, by_interval: bool
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
        out = merged(wanted, by_interval)
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
        return (merged(fresh, whole=False), process.labels) if fresh else None

    def image(self, pid: int) -> int | None:
        """The process image that the intervals of a PID are of; None without any."""
        process = self._processes.get(pid)
        return None if process is None else process.image

    def pids(self) -> tuple[int, ...]:
        """The processes of which there are intervals."""
        return tuple(self._processes)
