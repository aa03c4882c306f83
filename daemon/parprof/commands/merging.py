"""Adds up profiles: rows that are alike become one, and what is said of each becomes what is said of all."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from parprof.exporters import pprof
from parprof.exporters.output import open_output
from parprof.model import Frame, Metrics, Path, PathSample, ProcessInfo, Profile

Labels = tuple[tuple[str, str], ...]
OWN_LABELS = frozenset({"pid", "comm", "thread", "runtime", "overhead", "physical", "logical"})
"""Labels that the files have anyway."""

_MAX_NOTES = 20
_EXACT = 1 << 52
"""Whole numbers up to here, and the sum of two, are exact in a float: more goes into a further row."""
_T = TypeVar("_T")


class Merger:
    """Adds up profiles, one after the other; of those that were added only sums are kept."""

    def __init__(self) -> None:
        """Nothing is added yet."""
        self.files = 0
        self._header = _Header()
        self._frames: dict[Frame, Frame] = {}
        self._rows: dict[tuple[object, ...], _Row] = {}
        self._full: list[_Row] = []

    def add(self, profile: Profile, own: Sequence[Labels], labels: Mapping[str, str]) -> None:
        """Add a profile. ``own`` are the labels its samples bring along, one each; ``labels`` win over those."""
        self.files += 1
        self._header.add(profile)
        numbers: dict[int, int] = {}
        for sample, brought in zip(profile.samples, own, strict=True):
            key = (
                self._numbers(sample.path, numbers), self._numbers(sample.physical, numbers), sample.pid,
                sample.comm, sample.thread, sample.runtime, sample.overhead,
                tuple(sorted({**dict(brought), **labels}.items())),
            )  # fmt: skip
            row = self._rows.get(key)
            if row is None or not row.has_room_for(sample.metrics):
                if row is not None:
                    self._full.append(row)
                row = self._rows[key] = _Row(self._interned(sample), key[-1])
            row.add(sample.metrics)

    def write(self, path: str, skipped: int = 0) -> None:
        """Write the sum.

        Raises:
            OutputError: it cannot be written.
        """
        rows = [*self._full, *self._rows.values()]
        profile = self._header.profile(self.files, skipped)
        profile.samples = [row.sample() for row in rows]
        message = pprof.encode(profile)
        strings = {text: number for number, text in enumerate(message.string_table)}
        for out, row in zip(message.sample, rows, strict=True):
            for name, value in row.labels:
                key, text = (strings.setdefault(one, len(strings)) for one in (name, value))
                out.label.add(key=key, str=text)
        message.string_table.extend(list(strings)[len(message.string_table) :])
        with open_output(path) as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
            packed.write(message.SerializeToString(deterministic=True))

    def _numbers(self, path: Path, numbers: dict[int, int]) -> tuple[int, ...]:
        """A path by the identities of its frames here. The reader shares frames, so each is hashed once a file."""
        out = []
        for frame in path:
            number = numbers.get(id(frame))
            if number is None:
                number = numbers[id(frame)] = id(self._frames.setdefault(frame, frame))
            out.append(number)
        return tuple(out)

    def _interned(self, sample: PathSample) -> PathSample:
        return PathSample(
            tuple(self._frames[frame] for frame in sample.path), Metrics(),
            sample.pid, sample.comm, sample.thread, sample.runtime, sample.overhead,
            tuple(self._frames[frame] for frame in sample.physical),
        )  # fmt: skip


class _Row:
    """The sum of samples that are alike, in whole numbers."""

    def __init__(self, identity: PathSample, labels: object) -> None:
        self._identity = identity
        self.labels: Labels = labels if isinstance(labels, tuple) else ()
        self._sums = [0] * 7
        self._events: dict[str, int] = {}

    def has_room_for(self, metrics: Metrics) -> bool:
        return all(have + more <= _EXACT for have, more in zip(self._sums, _whole(metrics), strict=True))

    def add(self, metrics: Metrics) -> None:
        self._sums = [have + more for have, more in zip(self._sums, _whole(metrics), strict=True)]
        for name, value in metrics.events.items():
            self._events[name] = self._events.get(name, 0) + value

    def sample(self) -> PathSample:
        samples, work, idleness, overhead, spin, blame, ours = self._sums
        self._identity.metrics = Metrics(samples, work, idleness, overhead, spin, blame, ours, self._events)
        return self._identity


def _whole(metrics: Metrics) -> tuple[int, ...]:
    times = (
        metrics.work_ns, metrics.idleness_ns, metrics.overhead_ns, metrics.spin_ns, metrics.blame_ns,
        metrics.profiling_ns,
    )  # fmt: skip
    return (metrics.samples, *map(int, times))


class _Header:
    """What is said of the whole: added up, the longest or the costliest one, or what all have in common."""

    def __init__(self) -> None:
        self._heads: list[Profile] = []
        self._cpu_ns = 0.0
        self._target_cost = 0.0

    def add(self, profile: Profile) -> None:
        total = profile.total()
        self._cpu_ns += total.cpu_ns
        self._target_cost += profile.target_cost_percent * total.cpu_ns
        self._heads.append(replace(profile, samples=[]))

    def profile(self, files: int, skipped: int) -> Profile:
        heads = self._heads
        processes = [head.process for head in heads]
        lost: dict[str, int] = {}
        for head in heads:
            for reason, count in head.lost.items():
                lost[reason] = lost.get(reason, 0) + count
        extra = dict(heads[0].extra)
        for head in heads[1:]:
            extra = {key: value for key, value in extra.items() if head.extra.get(key) == value}
        extra["merged_files"] = str(files)
        if skipped:
            extra["left_out_files"] = str(skipped)
        frequencies = {head.frequency_hz for head in heads}
        starts = [head.start_time_s for head in heads if head.start_time_s]
        return Profile(
            process=ProcessInfo(
                pid=_common((one.pid for one in processes), 0),
                comm=_common((one.comm for one in processes), "(several)"),
                command=_common((one.command for one in processes), f"({files} commands)"),
                runtime=_common((one.runtime for one in processes), "mixed"),
                cores=sum(one.cores for one in processes),
                n_w_source=_common((one.n_w_source for one in processes), "mixed"),
            ),
            duration_s=max(head.duration_s for head in heads),
            frequency_hz=frequencies.pop() if len(frequencies) == 1 else 0,
            samples=[],
            event=_common((head.event for head in heads), "mixed"),
            lost=lost,
            target_cost_percent=self._target_cost / self._cpu_ns if self._cpu_ns else 0.0,
            daemon_cost_percent=max(head.daemon_cost_percent for head in heads),
            notes=list(_notes(heads)),
            extra=extra,
            start_time_s=min(starts, default=0.0),
        )


def _common(values: Iterable[_T], else_: _T) -> _T:
    found = set(values)
    return found.pop() if len(found) == 1 else else_


def _notes(heads: Sequence[Profile]) -> Iterator[str]:
    """Each note once, with the number of files that it is of where those are not all."""
    counts: dict[str, int] = {}
    for head in heads:
        for note in dict.fromkeys(head.notes):
            counts[note] = counts.get(note, 0) + 1
    for note, count in list(counts.items())[:_MAX_NOTES]:
        yield note if count == len(heads) else f"{note} ({count} of {len(heads)} files)"
    if len(counts) > _MAX_NOTES:
        yield f"{len(counts) - _MAX_NOTES} more notes in the files"
