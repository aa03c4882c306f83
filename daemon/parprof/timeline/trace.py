"""From what the programs told of a measurement to its execution trace."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import IO

from parprof.attribution.waiting import WaitKind
from parprof.facts.drain import MeasuredImage
from parprof.facts.measurement import Measurement
from parprof.facts.names import Namer
from parprof.kernel.trace import PathRecord, ThreadRecord, TraceLog
from parprof.model import SampleKey
from parprof.profile.addresses import AddressBook
from parprof.profile.intervals import parts_of
from parprof.profile.rows import RowMaker
from parprof.timeline.callpaths import Stay, call_slices, until_the_next
from parprof.timeline.minimum import MinimumTime, minimum_time
from parprof.timeline.perfetto import TraceWriter
from parprof.timeline.slices import (
    WAITING,
    CounterStep,
    Slice,
    TracedThread,
    by_thread,
    end_replaced,
    n_working,
    runs,
    states,
)
from parprof.timeline.sync import Instant, sync_points
from parprof.values import dataclass

_BY_EDGES = ("exact", "scheduler")
"""Sources of n_w (`parprof.session.sources.Source`) for which each change of it is told."""
_MOST_LATE = 10
"""Periods for which a sample stands at most, where the next came late."""
_STOPPED = "stopped by parprof"
_OUTSIDE = frozenset((WaitKind.SLEEP, WaitKind.FILE, WaitKind.FAULT, WaitKind.REQUESTS))
"""Waits that no thread of the program ends, even if one is interrupted by what does."""


@dataclass(frozen=True, slots=True)
class TraceResult:
    """A trace that was written, and what it says."""

    minimum: MinimumTime
    threads: int
    began_ns: int
    ended_ns: int
    """CLOCK_MONOTONIC: what is in the file."""
    bound: str
    """Which bound cut it short; empty: it is whole."""
    lost: int = 0
    """Records that found no room."""
    is_blind: bool = False
    """Context switches were not followed for some time: states were not seen to change then."""

    def sentence(self, path: str) -> str:
        """For the report."""
        traced_s = (self.ended_ns - self.began_ns) / 1e9
        text = f"trace of {self.threads} threads over {traced_s:.3f} s: {path}"
        if self.bound:
            text += f", cut short there by its bound of {self.bound}"
        if self.lost:
            text += f", {self.lost:,} records of it lost"
        if self.is_blind:
            return f"{text}; no minimum time: context switches were too dear to be followed (--budget allows for more)"
        took_s, least_s = self.minimum.elapsed_ns / 1e9, self.minimum.minimum_ns / 1e9
        # records behind the end of a file that is cut short count, too
        is_in_file = self.minimum.elapsed_ns <= self.ended_ns - self.began_ns
        took = f"{took_s:.3f} s" if is_in_file else f"all {took_s:.3f} s that were recorded"
        return (
            f"{text}; with the machine to itself {least_s:.3f} s of {took} would remain "
            f"({self.minimum.saved_percent:.1f} % less: minimum time)"
        )


class _Names:
    """Functions at addresses, by process image."""

    def __init__(self, measured: Measurement, namer: Namer, paths: Iterable[PathRecord]) -> None:
        self._images, self._namer = measured.drain.images, namer
        self._epochs: dict[int, int] = {}
        for record in paths:
            key = record.key
            self._epochs[key.image] = max(key.epoch, self._epochs.get(key.image, 0))
        self._known: dict[tuple[int, int], str] = {}

    def learn(self, records: Iterable[ThreadRecord]) -> None:
        """Look up the code that records name, all at once."""
        wanted = {}
        for place in {(one.image, one.function) for one in records if one.function}:
            image = self._images.get(place[0])
            found = image.find(place[1], self._epochs.get(place[0], 0)) if image else None
            if found is not None:
                wanted[place] = (found[0], found[1], False)
        frames = self._namer.name(dict.fromkeys(wanted.values(), 1), 1) if wanted else {}
        for place, request in wanted.items():
            names = [frame.name for frame in frames[request] if not frame.is_loop]
            self._known[place] = names[-1] if names else ""

    def of(self, image: int) -> Callable[[int], str]:
        """The names of one process image."""
        return lambda address: self._known.get((image, address)) or f"{address:#x}"


class _Maker:
    def __init__(self, measured: Measurement, log: TraceLog, namer: Namer) -> None:
        self._measured, self._namer = measured, namer
        pids = {number: image.process.pid for number, image in measured.images.items()}
        self.records = end_replaced(log.threads(), pids)
        self.paths = log.paths()
        ends = [one.time_ns for one in self.records[-1:]] + [one.time_ns for one in self.paths[-1:]]
        self.end_ns = max(ends, default=0)
        self._rows = RowMaker(AddressBook(namer), measured.cores)
        self._rows.rows(measured.drain, [part.facts for part in parts_of(measured)])
        self._names = _Names(measured, namer, self.paths)
        self._names.learn(self.records)
        self.is_blind = measured.kernel.statistics()["ticks"] > 0
        self._shown: dict[SampleKey, tuple[str, ...]] = {}
        self._kinds: dict[TracedThread, dict[int, WaitKind]] = {}
        for path in self.paths:
            if path.since_ns:
                thread = path.key.image, path.key.tid
                kind = self._rows.wait_kind(measured.drain, path.key) if path.key.kernel else None
                if kind is not None:
                    self._kinds.setdefault(thread, {})[path.time_ns] = kind

    @property
    def began_ns(self) -> int:
        return self.records[0].time_ns if self.records else 0

    def minimum(self) -> MinimumTime:
        """See `minimum_time`."""
        main = self._measured.images[self._measured.main]
        outside = {
            (thread, end_ns)
            for thread, kinds in self._kinds.items()
            for end_ns, kind in kinds.items()
            if kind in _OUTSIDE
        }
        return minimum_time(self.records, self._rows.mean_cores(main), self.end_ns, outside, os.getpid())

    def fill(self, writer: TraceWriter) -> int:
        """All tracks; how many threads there are."""
        images, drain = self._measured.images, self._measured.drain
        threads = by_thread(self.records)
        stays = self._stays()
        processes: dict[int, int] = {}
        self._add_n_working(writer, images)
        for thread in sorted(threads.keys() | stays.keys()):
            image = images.get(thread[0])
            if image is None:
                continue
            process = processes.get(thread[0])
            if process is None:
                process = processes[thread[0]] = writer.add_process(image.process.pid, image.process.comm)
            is_main = thread[1] == image.process.pid
            name = image.process.comm if is_main else drain.thread_names.get(thread) or f"tid {thread[1]}"
            track = writer.add_thread(image.process.pid, thread[1], name, process)
            records = threads.get(thread, [])
            found, instants = sync_points(records, self.end_ns, self._names.of(thread[0]))
            writer.add_slices(track, found)
            writer.add_instants(track, instants)
            writer.add_slices(writer.add_track("state", track), self._states(thread, records))
            period_ns = 1e9 / drain.frequency_hz
            sampled = stays.get(thread, [])
            if not self.is_blind:
                sampled = until_the_next(sampled, runs(records, self.end_ns), _MOST_LATE * period_ns)
            slices = call_slices(sampled, period_ns / 2)
            writer.add_slices(writer.add_track("samples", track), slices)
        return len(threads)

    def _add_n_working(self, writer: TraceWriter, images: Mapping[int, MeasuredImage]) -> None:
        seen = {one.image for one in self.records}
        if all(image.n_w_source in _BY_EDGES for number, image in images.items() if number in seen):
            steps = n_working(self.records)
        else:
            steps = [
                CounterStep(one.time_ns, one.key.n_working)
                for one in self.paths
                if not one.since_ns and not one.key.state
            ]
        writer.add_counter("n_w", "threads", steps)

    def _states(self, thread: TracedThread, records: list[ThreadRecord]) -> list[Slice]:
        """The states of a thread; waits with what for, where that is known."""
        kinds = {end_ns: kind.value for end_ns, kind in self._kinds.get(thread, {}).items()}
        kinds.update({one.time_ns: _STOPPED for one in records if one.waker == os.getpid()})
        return [
            one._replace(name=f"{WAITING}: {kinds[one.end_ns]}")
            if one.name == WAITING and one.end_ns in kinds
            else one
            for one in states(records, self.end_ns)
        ]

    def _stays(self) -> dict[TracedThread, list[Stay]]:
        period_ns = int(1e9 / self._measured.drain.frequency_hz)
        found: dict[TracedThread, list[Stay]] = {}
        for one in self.paths:
            begin_ns, end_ns = one.since_ns or one.time_ns, one.time_ns + (0 if one.since_ns else period_ns)
            found.setdefault((one.key.image, one.key.tid), []).append(
                Stay(begin_ns, min(end_ns, self.end_ns), self._path(one.key))
            )
        for stays in found.values():
            stays.sort()
        return found

    def _path(self, key: SampleKey) -> tuple[str, ...]:
        shown = self._shown.get(key)
        if shown is None:
            path = self._rows.path_of(self._measured.drain, key)
            shown = self._shown[key] = tuple(frame.name for frame in path if not frame.is_loop)
        return shown


def write_trace(
    measured: Measurement, log: TraceLog, namer: Namer, file: IO[bytes], limit_bytes: int
) -> TraceResult:
    """Write the trace of a measurement in at most so many bytes, and a few."""
    maker = _Maker(measured, log, namer)
    writer = TraceWriter()
    threads = maker.fill(writer)
    minimum = maker.minimum()
    lost = measured.kernel.lost().get("trace_ring", 0)
    notes = []
    if maker.records and not maker.is_blind:
        took, least = minimum.elapsed_ns / 1e9, minimum.minimum_ns / 1e9
        notes.append(Instant(maker.began_ns, f"minimum time (malony-1987): {least:.6f} s of {took:.6f} s"))
    if log.met:
        notes.append(Instant(maker.end_ns, f"the trace ends here: its bound of {log.met} was met"))
    if notes:
        writer.add_instants(writer.add_track("parprof"), notes)
    cut_ns = writer.write(file, limit_bytes)
    bound = f"{limit_bytes / (1 << 20):g} MiB of file" if cut_ns else log.met
    return TraceResult(minimum, threads, maker.began_ns, cut_ns or maker.end_ns, bound, lost, maker.is_blind)
