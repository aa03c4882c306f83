"""Writes a trace as Perfetto reads it (ui.perfetto.dev): the TracePackets of proto/perfetto_trace.proto."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, NamedTuple

from parprof.timeline import perfetto_pb2 as pb
from parprof.timeline.slices import CounterStep, Slice
from parprof.timeline.sync import Instant

_MONOTONIC = 3
_CLOCKS = ((1, time.CLOCK_REALTIME), (_MONOTONIC, time.CLOCK_MONOTONIC), (6, time.CLOCK_BOOTTIME))
"""With Perfetto's numbers."""
_SEQUENCE = 1
_CLEARED, _NEEDS_STATE = 1, 2
_BEGIN, _END = pb.TrackEvent.TYPE_SLICE_BEGIN, pb.TrackEvent.TYPE_SLICE_END
_INSTANT, _COUNTER = pb.TrackEvent.TYPE_INSTANT, pb.TrackEvent.TYPE_COUNTER


class _Event(NamedTuple):
    time_ns: int
    kind: int
    track: int
    value: int
    """Of a counter the number, else which name; 0: none."""


class TraceWriter:
    """Takes tracks and what is on them, then writes all of it in the order of time."""

    def __init__(self) -> None:
        self._tracks: list[pb.TrackDescriptor] = []
        self._names: dict[str, int] = {}
        self._events: list[_Event] = []

    def _track(self, name: str, parent: int) -> pb.TrackDescriptor:
        track = pb.TrackDescriptor(uuid=len(self._tracks) + 1)
        if name:
            track.name = name
        if parent:
            track.parent_uuid = parent
        self._tracks.append(track)
        return track

    def add_process(self, pid: int, name: str) -> int:
        """A process; the number of its track."""
        track = self._track("", 0)
        track.process.pid, track.process.process_name = pid, name
        return int(track.uuid)

    def add_thread(self, pid: int, tid: int, name: str, process: int) -> int:
        """A thread of the process with that track."""
        track = self._track("", process)
        track.thread.pid, track.thread.tid, track.thread.thread_name = pid, tid, name
        return int(track.uuid)

    def add_track(self, name: str, parent: int = 0) -> int:
        """A line below another, or below none."""
        return int(self._track(name, parent).uuid)

    def add_counter(self, name: str, unit: str, steps: Iterable[CounterStep], parent: int = 0) -> None:
        """A number over time."""
        track = self._track(name, parent)
        track.counter.unit_name = unit
        self._events += [_Event(step.time_ns, _COUNTER, int(track.uuid), step.value) for step in steps]

    def add_slices(self, track: int, slices: Sequence[Slice]) -> None:
        """Slices in the order of their beginnings; one lies in another, or beside it."""
        within: list[Slice] = []
        for one in slices:
            while within and within[-1].end_ns <= one.begin_ns:
                self._events.append(_Event(within.pop().end_ns, _END, track, 0))
            within.append(one)
            self._events.append(_Event(one.begin_ns, _BEGIN, track, self._name(one.name)))
        while within:
            self._events.append(_Event(within.pop().end_ns, _END, track, 0))

    def add_instants(self, track: int, instants: Iterable[Instant]) -> None:
        """What takes no time."""
        self._events += [_Event(one.time_ns, _INSTANT, track, self._name(one.name)) for one in instants]

    def _name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names) + 1)

    def write(self, file: IO[bytes], limit_bytes: int) -> int:
        """Write the trace; the time at which it had to be cut to keep to the limit, 0: it is whole.

        All that is open there ends there.
        """
        self._events.sort(key=lambda event: event.time_ns)  # stable: a track's own events are in order
        size = 0
        for packet in self._head():
            size += _put(file, packet)
        packet = pb.TracePacket(trusted_packet_sequence_id=_SEQUENCE, sequence_flags=_NEEDS_STATE)
        open_slices: dict[int, int] = {}
        for event in self._events:
            if size >= limit_bytes:
                for track, count in open_slices.items():
                    for _ in range(count):
                        _put(file, _fill(packet, _Event(event.time_ns, _END, track, 0)))
                return event.time_ns
            if event.kind in (_BEGIN, _END):
                open_slices[event.track] = open_slices.get(event.track, 0) + (
                    1 if event.kind == _BEGIN else -1
                )
            size += _put(file, _fill(packet, event))
        return 0

    def _head(self) -> Iterator[pb.TracePacket]:
        first = pb.TracePacket(trusted_packet_sequence_id=_SEQUENCE, sequence_flags=_CLEARED)
        first.trace_packet_defaults.timestamp_clock_id = _MONOTONIC
        for name, number in self._names.items():
            first.interned_data.event_names.add(iid=number, name=name)
        snapshot = pb.TracePacket(trusted_packet_sequence_id=_SEQUENCE)
        snapshot.clock_snapshot.primary_trace_clock = _MONOTONIC
        for number, clock in _CLOCKS:
            snapshot.clock_snapshot.clocks.add(clock_id=number, timestamp=time.clock_gettime_ns(clock))
        yield snapshot
        yield first
        for track in self._tracks:
            yield pb.TracePacket(trusted_packet_sequence_id=_SEQUENCE, track_descriptor=track)


def _fill(packet: pb.TracePacket, event: _Event) -> pb.TracePacket:
    packet.timestamp = event.time_ns
    packet.ClearField("track_event")
    inside = packet.track_event
    inside.type, inside.track_uuid = event.kind, event.track  # type: ignore[assignment]
    if event.kind == _COUNTER:
        inside.counter_value = event.value
    elif event.kind != _END:
        inside.name_iid = event.value
    return packet


def _put(file: IO[bytes], packet: pb.TracePacket) -> int:
    data = packet.SerializeToString()
    head = bytearray(b"\x0a")  # field 1 of Trace, with its length
    rest = len(data)
    while rest > 0x7F:
        head.append(rest & 0x7F | 0x80)
        rest >>= 7
    head.append(rest)
    file.write(head)
    file.write(data)
    return len(head) + len(data)
