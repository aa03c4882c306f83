"""An execution trace as the programs tell it: what each thread did from when on, within bounds."""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from parprof.kernel.layout import flat_struct
from parprof.kernel.ringbuf import RingBuffer
from parprof.model import SampleKey, ThreadState
from parprof.values import dataclass

WORKS, RUNS, QUEUES, ENDED, KNOWN = 1, 2, 4, 8, 128
"""DOES_* of bpf/wire_records.h."""
_RECORD_THREAD, _RECORD_PATH = 15, 16
_TIME = struct.Struct("<Q")
_STATES = tuple(ThreadState)
_STATE = SampleKey._fields.index("state")


class ThreadRecord(NamedTuple):
    """What a thread does from a time on: ``struct thread_record``."""

    time_ns: int
    tid: int
    image: int
    does: int
    """WORKS (it counts in n_w), RUNS (it has a CPU), QUEUES (it waits for one), ENDED; none of these:
    it sleeps."""
    waker: int = 0
    """At a wake-up: the thread that ran there then, which may be anybody's."""
    edge: int = 0
    """`parprof.plans.Edge` of the probe that was hit; 0: none was."""
    function: int = 0
    """With an edge: the address of the code that begins; 0: something ends."""
    depth: int = 0
    """Work and waits that the thread is in, one within the other, behind the edge."""


class PathRecord(NamedTuple):
    """A sample, or a wait that is over: ``struct path_record``."""

    time_ns: int
    since_ns: int
    """When the wait began; 0: it is a sample."""
    key: SampleKey
    """Where that was, as in the facts of the session."""


@dataclass(frozen=True, slots=True)
class TraceBounds:
    """How much may be traced at most."""

    records_bytes: int = 64 << 20
    """Of records as they come from the kernel."""
    seconds: float = 60.0


class TraceLog:
    """Keeps the records of a session until a bound is met; then ``stop`` is called once."""

    def __init__(
        self,
        ring: RingBuffer,
        layouts: Mapping[str, type[ctypes.Structure]],
        bounds: TraceBounds,
        stop: Callable[[], None],
    ) -> None:
        """``ring``: where the records come from; ``layouts``: those of the compiled object."""
        self._ring = ring
        self._bounds = bounds
        self._stop = stop
        thread, path, key = (layouts[name] for name in ("thread_record", "path_record", "sample_key"))
        self._thread, self._pick_thread = _reader(thread, ThreadRecord._fields)
        self._key, self._pick_key = _reader(key, SampleKey._fields)
        at: Any = path
        self._key_at, self._time_at, self._since_at = at.key.offset, at.time_ns.offset, at.since_ns.offset
        self._threads = bytearray()
        self._paths = bytearray()
        self._path_size = ctypes.sizeof(path)
        self._began_ns = time.monotonic_ns()
        self.met = ""
        """Which bound was met; empty: none."""

    @property
    def kept_bytes(self) -> int:
        """What is kept so far."""
        return len(self._threads) + len(self._paths)

    def take(self) -> None:
        """Empty the ring; call several times a second."""
        for raw in self._ring.read():
            if self.met:
                continue
            kind = raw[0]
            if kind == _RECORD_THREAD:
                self._threads += raw
            elif kind == _RECORD_PATH:
                self._paths += raw
            if self.kept_bytes >= self._bounds.records_bytes:
                self._meet(f"{self._bounds.records_bytes >> 20} MiB of records")
        if not self.met and time.monotonic_ns() - self._began_ns > self._bounds.seconds * 1e9:
            self._meet(f"{self._bounds.seconds:g} s")

    def _meet(self, bound: str) -> None:
        self.met = bound
        self._stop()

    def threads(self) -> list[ThreadRecord]:
        """What the threads did, in the order of time."""
        make, pick = ThreadRecord._make, self._pick_thread
        found = [make(pick(fields)) for fields in self._thread.iter_unpack(self._threads)]
        found.sort(key=lambda one: one.time_ns)
        return found

    def paths(self) -> list[PathRecord]:
        """Samples and waits, in the order of time."""
        found = list(self._read_paths())
        found.sort(key=lambda one: one.time_ns)
        return found

    def _read_paths(self) -> Iterator[PathRecord]:
        for at in range(0, len(self._paths), self._path_size):
            fields = list(self._pick_key(self._key.unpack_from(self._paths, at + self._key_at)))
            fields[_STATE] = _STATES[fields[_STATE]]
            now = _TIME.unpack_from(self._paths, at + self._time_at)[0]
            since = _TIME.unpack_from(self._paths, at + self._since_at)[0]
            yield PathRecord(now, since, SampleKey._make(fields))


def _reader(
    layout: type[ctypes.Structure], wanted: tuple[str, ...]
) -> tuple[struct.Struct, Callable[[Sequence[int]], Sequence[Any]]]:
    """What unpacks a structure, and what picks these fields of it."""
    names = [field[0] for field in layout._fields_]
    return flat_struct(layout), itemgetter(*(names.index(name) for name in wanted))
