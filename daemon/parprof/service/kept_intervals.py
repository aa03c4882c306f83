"""The intervals of a process in little memory, rows as numbers in columns; and the one profile that several make.

Rows point into a table of call paths, which the intervals of a process share.
"""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Mapping
from functools import reduce
from itertools import chain, zip_longest

from parprof.attribution.concurrency import plus, trimmed
from parprof.metrics import Metrics, add_column
from parprof.model import Interval, Levels, Origin, Path, PathSample, Profile
from parprof.profile.accounting import JobTime, settle
from parprof.profile.intervals import fit
from parprof.profile.merge import Part, Relation, head_of, merged_head
from parprof.service.model import Labels

_ROW_BYTES = 4
_VALUE_BYTES = 8
_LEVEL_BYTES = 4
# What CPython 3.11 takes, as tracemalloc saw it (tests/unit/test_recent.py holds us to it).
_INTERVAL_BYTES = 1600
_IDENTITY_BYTES = 1300
_EVENT_BYTES = 300
_COLUMN_BYTES = 150
_JOB_BYTES = 900
_JOB_LEVEL_BYTES = 80
_SPUN_BYTES = 150
_EXTRA_BYTES = 250

RowIdentity = tuple[Path, Origin, Path]
"""What makes rows of several intervals one: the logical path, whose it is, the physical path."""
RowObjects = tuple[int, int, int]
"""The same three (path, physical path, origin) by `id`."""
NO_IDENTITY: RowIdentity = ((), Origin(), ())
"""In place of one that no row has any more."""

KEPT = "intervals"
"""In `Profile.extra` of a profile with its intervals: the numbers of the first and the last of them."""


class KeptProcess:
    """The intervals of one process image, and the table that their rows point into."""

    def __init__(self, image: int) -> None:
        """Without intervals. ``image``: see `SampleKey`."""
        self.image = image
        self.labels = Labels()
        self.intervals: deque[KeptInterval] = deque()
        self.identities: list[RowIdentity] = []
        self.numbers: dict[RowIdentity, int] = {}
        self.objects: dict[RowObjects, tuple[int, Path, Path, Origin]] = {}
        """Numbers by what `RecentProfiles.add` was last given for them: the ids of objects, which are kept here so
        that no other object gets the same id."""
        self.newest: dict[int, RowObjects] = {}
        """Keys of `objects`, by number."""
        self.users = array("I")
        """By number: how many rows point there; 0: the number is free."""
        self.free: list[int] = []


class KeptInterval:
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
        process: KeptProcess,
        profile: Profile,
        numbers: array[int],
        ended_s: float,
        number: int,
        job_time: JobTime | None,
        spun_ns: Mapping[int, float],
    ) -> None:
        """``numbers``: of the samples' identities, in their order. The rest: see `RecentProfiles.add`."""
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


def identity_bytes(identity: RowIdentity) -> int:
    """What one takes beside its frames, which others share."""
    return _IDENTITY_BYTES + 2 * 8 * (len(identity[0]) + len(identity[2]))


def merged(intervals: list[KeptInterval], by_interval: bool = False, whole: bool = True) -> Profile:
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


def _complete(profile: Profile, intervals: list[KeptInterval], rows: Mapping[int, PathSample]) -> None:
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
    intervals: list[KeptInterval], rows: dict[int, int]
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
