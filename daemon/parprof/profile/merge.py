"""The one way to make one profile of several: files of ranks and nodes, or intervals of one process.

Rows that are alike become one, metric by metric as the table says. What the heads say is added up, weighed, or kept
where all say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import TypeVar

from parprof.attribution.concurrency import plus
from parprof.metrics import Metrics
from parprof.model import Frame, Levels, Origin, Path, PathSample, ProcessInfo, Profile
from parprof.profile.cost import merged_shares
from parprof.values import dataclass

MAX_NOTES = 20
"""Notes in a merged profile; of further ones there is a count."""

_MAY_OVERLAP = 0.01
"""Of how long a recording took: so much earlier the next one may begin, as clocks are read apart."""
_SHORTEST_S = 0.001
_LARGEST = 2**63 - 1
"""What a column of a file can hold. More goes into a further row."""
_Key = tuple[tuple[int, ...], tuple[int, ...], Origin]
"""The frames of the logical and the physical path by their identities, and the origin: rows that are alike."""
_T = TypeVar("_T")


class Relation(Enum):
    """How the parts lie to each other."""

    AS_RECORDED = "files"
    """Each has its own time. Of those that ran at the same time cores are added up, of those that ran one after the
    other times: n times the duration is the core time of all."""
    ONE_AFTER_ANOTHER = "intervals"
    """Intervals of one process, in order: durations are added up, and the last one says how things are."""


class _RowSums:
    """Adds up rows that are alike."""

    def __init__(self) -> None:
        """There are none yet."""
        self._rows: dict[_Key, PathSample] = {}
        self._full: list[PathSample] = []

    def knows(self, key: _Key) -> bool:
        """Whether there is such a row."""
        return key in self._rows

    def begin(self, key: _Key, path: Path, origin: Origin, physical: Path) -> None:
        """Begin a row."""
        self._rows[key] = PathSample(path, Metrics(), origin, physical)

    def add(self, key: _Key, metrics: Metrics, levels: Levels = ()) -> None:
        """Add to a row that was begun."""
        row = self._rows[key]
        if not _fits(row.metrics, metrics):
            self._full.append(row)
            row = self._rows[key] = replace(row, metrics=Metrics(), levels=())
        row.metrics.add(metrics)
        row.levels = plus(row.levels, levels)

    def samples(self) -> list[PathSample]:
        """The rows."""
        return [*self._full, *self._rows.values()]


def _fits(sums: Metrics, more: Metrics) -> bool:
    """Whether a sum can still be written. Values of files are whole numbers, which Python adds up exactly."""
    values = sums.values
    return all(values.get(metric, 0) + value <= _LARGEST for metric, value in more.values.items())


@dataclass(frozen=True, slots=True)
class Part:
    """One of several profiles, without its samples."""

    head: Profile
    cpu_ns: float
    """The CPU time that its samples stand for."""

    @classmethod
    def of(cls, profile: Profile) -> Part:
        """What a profile says besides its samples."""
        return cls(head_of(profile), sum(sample.metrics.cpu_ns for sample in profile.samples))


def head_of(profile: Profile) -> Profile:
    """A profile without its samples, which shares nothing that changes."""
    return replace(profile, samples=[], intervals=[], lost=dict(profile.lost), notes=list(profile.notes))


class Merger:
    """Adds up whole profiles, one after the other; of those that were added only sums are kept."""

    def __init__(self, relation: Relation = Relation.AS_RECORDED) -> None:
        """Nothing is added yet."""
        self._relation = relation
        self._parts: list[Part] = []
        self._frames: dict[Frame, Frame] = {}
        self._rows = _RowSums()

    @property
    def count(self) -> int:
        """How many were added."""
        return len(self._parts)

    def add(self, profile: Profile, labels: Mapping[str, str] | None = None) -> None:
        """Add a profile. ``labels`` win over those that its samples bring along."""
        self._parts.append(Part.of(profile))
        numbers: dict[int, int] = {}
        origins: dict[Origin, Origin] = {}
        for sample in profile.samples:
            origin = origins.get(sample.origin)
            if origin is None:
                both = {**dict(sample.origin.labels), **(labels or {})}
                origin = origins[sample.origin] = sample.origin._replace(labels=tuple(sorted(both.items())))
            key = self._numbers(sample.path, numbers), self._numbers(sample.physical, numbers), origin
            if not self._rows.knows(key):
                self._rows.begin(key, self._interned(sample.path), origin, self._interned(sample.physical))
            self._rows.add(key, sample.metrics, sample.levels)

    def runs(self) -> list[Run]:
        """When what was added was recorded."""
        return runs_of([part.head for part in self._parts])

    def profile(self) -> Profile:
        """The sum."""
        out = merged_head(self._parts, self._relation)
        out.samples = self._rows.samples()
        return out

    def _numbers(self, path: Path, numbers: dict[int, int]) -> tuple[int, ...]:
        """A path by the identities of its frames here. The reader shares frames, so each is hashed once a file."""
        out = []
        for frame in path:
            number = numbers.get(id(frame))
            if number is None:
                number = numbers[id(frame)] = id(self._frames.setdefault(frame, frame))
            out.append(number)
        return tuple(out)

    def _interned(self, path: Path) -> Path:
        return tuple(self._frames[frame] for frame in path)


def merged_head(parts: Sequence[Part], relation: Relation) -> Profile:
    """What is said of all together; samples are yet to come.

    The cost in the target is weighed by the CPU time that it is a share of, in all and by kind. That of the profiler is
    the highest of files, and the mean of intervals.
    """
    heads = [part.head for part in parts]
    cpu_ns = sum(part.cpu_ns for part in parts)
    cost = sum(part.head.target_cost_percent * part.cpu_ns for part in parts)
    head = _as_recorded(heads) if relation is Relation.AS_RECORDED else _one_after_another(heads)
    extra = dict(heads[0].extra)
    for other in heads[1:]:
        extra = {key: value for key, value in extra.items() if other.extra.get(key) == value}
    if len(parts) > 1:
        extra |= merged_shares((part.head.extra, part.cpu_ns) for part in parts)
    return replace(
        head,
        samples=[],
        lost=add_up(one.lost for one in heads),
        target_cost_percent=cost / cpu_ns if cpu_ns else 0.0,
        daemon_cost_percent=_own_cost_percent(heads, relation),
        notes=list(_notes(heads, relation)),
        extra=extra,
        accounting=None,
        processes=[],
    )


def add_up(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of counts by reason."""
    out: dict[str, int] = {}
    for count in counts:
        for reason, value in count.items():
            out[reason] = out.get(reason, 0) + value
    return out


def _own_cost_percent(heads: Sequence[Profile], relation: Relation) -> float:
    duration_s = sum(head.duration_s for head in heads)
    if relation is Relation.AS_RECORDED or not duration_s:
        return max(head.daemon_cost_percent for head in heads)
    return sum(head.daemon_cost_percent * head.duration_s for head in heads) / duration_s


def _one_after_another(heads: Sequence[Profile]) -> Profile:
    duration_s = sum(head.duration_s for head in heads)
    return replace(heads[-1], start_time_s=heads[0].start_time_s, duration_s=duration_s)


def _as_recorded(heads: Sequence[Profile]) -> Profile:
    processes = [head.process for head in heads]
    runs = runs_of(heads)
    return Profile(
        process=ProcessInfo(
            pid=_common((one.pid for one in processes), 0),
            comm=_common((one.comm for one in processes), "(several)"),
            command=_common((one.command for one in processes), f"({len(heads)} commands)"),
            runtime=_common((one.runtime for one in processes), "mixed"),
            cores=max(run.cores for run in runs),
            n_w_source=_common((one.n_w_source for one in processes), "mixed"),
        ),
        duration_s=sum(run.duration_s for run in runs),
        frequency_hz=_common((head.frequency_hz for head in heads), 0),
        samples=[],
        event=_common((head.event for head in heads), "mixed"),
        start_time_s=min((head.start_time_s for head in heads if head.start_time_s), default=0.0),
    )


@dataclass(frozen=True, slots=True)
class Run:
    """Files that were recorded at the same time, or each while another one was."""

    cores: int
    """Of those that ran at once, the most."""
    duration_s: float


def runs_of(heads: Sequence[Profile]) -> list[Run]:
    """Which of some profiles were recorded at the same time, by when they began and how long they took: all of them,
    where that is not known of one."""
    if not all(head.start_time_s for head in heads):
        return [Run(sum(head.process.cores for head in heads), max(head.duration_s for head in heads))]
    edges: list[tuple[float, bool, int, float]] = []
    for head in heads:
        begin_s, took_s, cores = head.start_time_s, max(head.duration_s, _SHORTEST_S), head.process.cores
        edges.append((begin_s, True, cores, begin_s))
        edges.append((begin_s + took_s * (1 - _MAY_OVERLAP), False, -cores, begin_s + took_s))
    runs: list[Run] = []
    began_s = ended_s = 0.0
    now = most = files = 0
    for _, begins, cores, at_s in sorted(edges):  # where one ends as another begins, the end comes first
        if not files:
            began_s, ended_s, most = at_s, at_s, 0
        now += cores
        most, ended_s = max(most, now), max(ended_s, at_s)
        files += 1 if begins else -1
        if not files:
            runs.append(Run(most, ended_s - began_s))
    return runs


def _common(values: Iterable[_T], else_: _T) -> _T:
    found = set(values)
    return found.pop() if len(found) == 1 else else_


def _notes(heads: Sequence[Profile], relation: Relation) -> Iterator[str]:
    """Each note once. Files with it are counted; in which intervals it was said tells the reader nothing."""
    counts: dict[str, int] = {}
    for head in heads:
        for note in dict.fromkeys(head.notes):
            counts[note] = counts.get(note, 0) + 1
    counted = relation is Relation.AS_RECORDED
    for note, count in list(counts.items())[:MAX_NOTES]:
        yield f"{note} ({count} of {len(heads)} files)" if counted and count < len(heads) else note
    if len(counts) > MAX_NOTES:
        yield f"{len(counts) - MAX_NOTES} more notes in the {relation.value}"
