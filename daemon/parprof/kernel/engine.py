"""The kernel side of a profiling session: what is watched, and the facts that come out.

``Kernel`` is the only face of the BPF maps. Nothing above it sees bytes, map names or descriptors.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from parprof.errors import KernelUnsupported, PrivilegeError
from parprof.kernel import bpf, perf_events
from parprof.kernel.objects import LoadedObject, get_object
from parprof.kernel.ringbuf import RingBuffer
from parprof.kernel.stacks import PYTHON_ENDS, STACK_ENDS, CodeAt, Stack, StackTable
from parprof.kernel.store import Store
from parprof.kernel.uprobes import Prober, ProbeSet, Site
from parprof.model import Fact, ThreadState

FOLLOW_CHILDREN, STOP_AT_EXEC, HAS_RUNTIME, STOP_AT_LOAD = 1, 2, 4, 8
MAX_RUNTIME_RANGES, MAX_USER_RANGES = 6, 4
RECORD_EXEC, RECORD_FORK, RECORD_EXIT, RECORD_LEARNED, RECORD_LOAD_MAP, RECORD_REPLACED = 2, 3, 4, 5, 6, 8
RECORD_STALE_MAP = 9
_TRACEPOINTS = (
    ("sched_process_exit", "on_exit"),
    ("sched_process_exec", "on_exec"),
    ("sched_process_fork", "on_fork"),
    ("sched_switch", "on_switch"),
    ("sched_wakeup", "on_wakeup"),
    ("sched_wakeup_new", "on_wakeup"),
)
LOST_REASONS = ("counts_full", "stack_ring", "user_stack", "control_ring", "threads_full", "processes_full",
                "nesting", "learned_full", "trace_ring")  # fmt: skip
_STATISTICS = {"samples": 16, "switches": 17, "wakeups": 18, "repaired": 19, "unsure": 20, "caught": 23}  # fmt: skip
_EDGES = 24
_STACKS = 32
_PYTHON = 44


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """A rare event of a watched process. ``kind`` is one of the RECORD_* constants."""

    kind: int
    pid: int
    tid: int
    image: int
    parent_pid: int
    stopped: bool
    address: int
    time_ns: int
    comm: str


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One sample with its instant (CLOCK_MONOTONIC), for tests and self-checks."""

    image: int
    tid: int
    time_ns: int
    ip: int
    n_working: int
    state: ThreadState
    unsure: bool


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What the kernel knows of one process now."""

    image: int
    n_working: int
    n_unknown: int
    members: int
    members_max: int
    probe_hits: int


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """What the programs need to know of one process. Ranges are addresses in it, [start, end)."""

    flags: int = 0
    runtime_ranges: tuple[tuple[int, int], ...] = ()
    user_ranges: tuple[tuple[int, int], ...] = ()
    libc_range: tuple[int, int] = (0, 0)


class Kernel:
    """Programs, events and maps of one session. Use as a context manager; closing leaves nothing behind.

    Raises:
        PrivilegeError: bpf or perf events are not permitted.
        KernelUnsupported: the kernel lacks something; the text names it.
    """

    def __init__(
        self,
        events: Sequence[str],
        frequency_hz: int,
        *,
        trace: bool = False,
        sizes: dict[str, int] | None = None,
    ) -> None:
        self.events = tuple(events)
        self.frequency_hz = frequency_hz
        self._phase = 0
        self._list_generation = 0
        self._stacks = StackTable()
        self._waiting: list[Fact] = []
        self._descriptors: list[int] = []
        self._rings: dict[str, RingBuffer] = {}
        self._lost_here: dict[str, int] = {}
        self._trace = trace
        try:
            self._object = LoadedObject(get_object(), sizes)
        except KernelUnsupported as error:
            if isinstance(error.__cause__, PermissionError):
                raise PrivilegeError(
                    "loading BPF programs is not permitted: run as root or with CAP_BPF and CAP_PERFMON"
                ) from error
            raise
        self._prober = Prober(self._object)
        chunks = self._object.definitions["store"]["max_entries"]
        self.store = Store(self._object.maps["store"], self._object.definitions["store_chunk"], chunks)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        threads = self._object.layouts["thread"]
        self._object.put("threads", struct.pack("<I", 0), threads())  # the template for new threads
        for name in ("stacks", "control", "trace"):
            self._rings[name] = RingBuffer(
                self._object.maps[name], self._object.definitions[name]["max_entries"]
            )
        self._write_settings()
        for tracepoint, program in _TRACEPOINTS:
            fd = self._object.program(program)
            try:
                self._descriptors.append(bpf.raw_tracepoint_open(tracepoint, fd))
            except OSError as error:
                raise KernelUnsupported(f"tracepoint {tracepoint}: {error.strerror}") from error
        for index, name in enumerate(("on_unwind", "on_python")):
            unwinder = self._object.program(name)
            bpf.map_update(
                self._object.maps["unwinders"], struct.pack("<I", index), struct.pack("<I", unwinder)
            )
        sampler = self._object.program("on_sample")
        for index, name in enumerate(self.events):
            for cpu in perf_events.online_cpus():
                try:
                    event = perf_events.open_on_cpu(name, self.frequency_hz, cpu)
                    self._descriptors += [event, bpf.link_perf_event(sampler, event, index)]
                except OSError as error:
                    raise KernelUnsupported(
                        f"perf event {name} at {self.frequency_hz} Hz on CPU {cpu}: {error.strerror}"
                    ) from error

    def _write_settings(self) -> None:
        settings: Any = self._object.layouts["settings"]()
        settings.phase, settings.trace = self._phase, self._trace
        self._object.put("settings_map", struct.pack("<I", 0), settings)

    @property
    def control_fd(self) -> int:
        """Becomes readable when control records wait."""
        return self._rings["control"].fd

    @property
    def probe_mechanism(self) -> str:
        """How uprobes are attached here: session, multi or single."""
        return self._prober.mechanism

    def watch(self, pid: int, image: int, config: WatchConfig, *, from_exec: bool = False) -> None:
        """Begin to count process ``pid`` under image id ``image`` (below 2**31).

        ``from_exec``: only from its next exec on, under the id that the kernel then gives.
        """
        self.configure(pid, config)
        process: Any = self._object.layouts["process"]()
        process.image, process.dead = image, from_exec
        self._object.put("processes", struct.pack("<I", pid), process)

    def configure(self, pid: int, config: WatchConfig) -> None:
        """Replace what the programs know of a process. At most MAX_RUNTIME_RANGES, MAX_USER_RANGES ranges."""
        raw: Any = self._object.layouts["process_config"]()
        for index, (start, end) in enumerate(config.runtime_ranges):
            raw.range_start[index], raw.range_end[index] = start, end
        for index, (start, end) in enumerate(config.user_ranges):
            raw.user_start[index], raw.user_end[index] = start, end
        raw.libc_start, raw.libc_end = config.libc_range
        raw.flags = config.flags
        self._object.put("configs", struct.pack("<I", pid), raw)

    def add_thread(self, pid: int, image: int, tid: int, *, works: bool, unknown: bool) -> None:
        """Tell the programs of a thread that was there before us, unless they met it already.

        ``works`` is what it is thought to do once it runs; ``unknown`` says that this is a guess.
        """
        thread: Any = self._object.layouts["thread"]()
        thread.tgid, thread.image, thread.is_main = pid, image, pid == tid
        thread.base_work, thread.blocked, thread.unknown = works, 1, 2 if unknown else 3
        # It starts as blocked and not counted: the next event or sample of the thread puts that right through
        # the one place where n_working changes. A running thread has one within a sampling period.
        with suppress(FileExistsError):
            self._object.put("threads", struct.pack("<I", tid), thread, bpf.NOEXIST)

    def set_mapping_list(self, pid: int, word: int, count: int) -> None:
        """Where in the store the load map of a process is; a count of 0 means that it has none."""
        key = struct.pack("<I", pid)
        if count:
            self._list_generation += 1
            value = struct.pack("<QQ", word << 32 | count, self._list_generation)
            bpf.map_update(self._object.maps["mapping_lists"], key, value)
        else:
            bpf.map_delete(self._object.maps["mapping_lists"], key)

    def set_interpreter(self, pid: int, facts: Mapping[str, int]) -> None:
        """Where a CPython interpreter keeps its frames, by field of ``struct interpreter``; empty: no more."""
        if facts:
            layout = self._object.layouts["interpreter"]
            self._object.put("interpreters", struct.pack("<I", pid), layout(**facts))
        else:
            bpf.map_delete(self._object.maps["interpreters"], struct.pack("<I", pid))

    def python_stacks(self) -> list[tuple[int, int, tuple[CodeAt, ...]]]:
        """(image, stack id, Python frames) of the stacks with such frames that came since the last call."""
        return self._stacks.take_fresh()

    def unwatch(self, pid: int) -> None:
        """Stop counting a process at once and forget its threads."""
        key = struct.pack("<I", pid)
        bpf.map_delete(self._object.maps["processes"], key)
        bpf.map_delete(self._object.maps["configs"], key)
        layout = self._object.layouts["thread"]
        definition = self._object.definitions["threads"]
        stale = []
        for tid, raw in bpf.map_read_all(
            self._object.maps["threads"], 4, definition["value_size"], chunk=256
        ):
            thread: Any = layout.from_buffer_copy(raw)
            if thread.tgid == pid:
                stale.append(tid)
        bpf.map_delete_batch(self._object.maps["threads"], stale)

    def process_state(self, pid: int) -> ProcessState | None:
        """Live counters of a watched process; None when it is not watched."""
        raw = self._object.get("processes", struct.pack("<I", pid), "process")
        if raw is None:
            return None
        return ProcessState(
            raw.image, raw.n_working, raw.n_unknown, raw.members, raw.members_max, raw.probe_hits
        )

    def attach_probes(self, pid: int, sites: list[Site]) -> ProbeSet:
        """Probe ``sites`` in process ``pid`` alone. Raises ProbeAttachError."""
        return self._prober.attach(sites, pid)

    def control_records(self) -> Iterator[ControlRecord]:
        """Events since the last call, oldest first."""
        layout = self._object.layouts["control_record"]
        for raw in self._rings["control"].read():
            r: Any = layout.from_buffer_copy(raw)
            yield ControlRecord(
                r.type, r.tgid, r.tid, r.image, r.parent_tgid, bool(r.stopped), r.address, r.time_ns,
                r.comm.decode(errors="replace"),
            )  # fmt: skip

    def trace_records(self) -> Iterator[TraceRecord]:
        """Single samples since the last call; only with ``trace``."""
        layout = self._object.layouts["trace_record"]
        for raw in self._rings["trace"].read():
            r: Any = layout.from_buffer_copy(raw)
            yield TraceRecord(
                r.image, r.tid, r.time_ns, r.ip, r.n_working, ThreadState(r.state), bool(r.unsure)
            )

    def _read_stacks(self) -> None:
        self._stacks.add(self._rings["stacks"].read())

    def stack(self, digest: int) -> Stack:
        """The frames behind a stack id of a Fact; none when there is none."""
        return self._stacks.get(digest)

    def poll(self) -> None:
        """Empty the stack ring; call several times a second."""
        self._read_stacks()

    def drain(self) -> list[Fact]:
        """All samples counted since the last drain.

        The kernel first moves on to the other phase, so that no count changes while it is read and deleted.
        """
        old, self._phase = self._phase, 1 - self._phase
        self._write_settings()
        time.sleep(0.002)  # programs that still saw the old phase end within microseconds
        definition = self._object.definitions["counts"]
        fd = self._object.maps["counts"]
        key_layout, value_layout = self._object.layouts["sample_key"], self._object.layouts["sample_value"]
        facts, seen = self._waiting, []
        for raw_key, raw_value in bpf.map_read_all(fd, definition["key_size"], definition["value_size"]):
            key: Any = key_layout.from_buffer_copy(raw_key)
            if key.phase != old:
                continue
            value: Any = value_layout.from_buffer_copy(raw_value)
            seen.append(raw_key)
            facts.append(
                Fact(
                    key.image, key.tid, key.event, ThreadState(key.state), key.n_working, bool(key.unsure),
                    key.user_hash, key.kernel_hash, value.count, value.total, key.epoch,
                )
            )  # fmt: skip
        bpf.map_delete_batch(fd, seen)
        self._read_stacks()  # after the counts: a stack is sent before it is counted
        ready = [f for f in facts if self._is_known(f.user) and self._is_known(f.kernel)]
        self._waiting = [f for f in facts if not (self._is_known(f.user) and self._is_known(f.kernel))]
        return ready

    def _is_known(self, digest: int) -> bool:
        return digest == 0 or digest in self._stacks

    def unresolved(self) -> list[Fact]:
        """Facts whose stack never arrived, given out without it at the end of a session."""
        waiting, self._waiting = self._waiting, []
        out = []
        for fact in waiting:
            user, kernel = self._is_known(fact.user), self._is_known(fact.kernel)
            self._lost_here["stack_missing"] = self._lost_here.get("stack_missing", 0) + fact.count
            out.append(replace(fact, user=fact.user if user else 0, kernel=fact.kernel if kernel else 0))
        return out

    def _counters(self) -> list[int]:
        definition = self._object.definitions["counters"]
        possible = _possible_cpus()
        out = []
        for index in range(definition["max_entries"]):
            raw = bpf.map_lookup(self._object.maps["counters"], struct.pack("<I", index), 8 * possible)
            out.append(sum(struct.unpack(f"<{possible}Q", raw or bytes(8 * possible))))
        return out

    def lost(self) -> dict[str, int]:
        """Losses so far, by reason; reasons with none are left out."""
        values = self._counters()
        out = {name: values[index] for index, name in enumerate(LOST_REASONS) if values[index]}
        return {**out, **self._lost_here}

    def statistics(self) -> dict[str, int]:
        """Counters of the programs: samples, switches, wakeups, repaired, unsure, truncated, probe_hits."""
        values = self._counters()
        out = {name: values[index] for name, index in _STATISTICS.items()}
        out["probe_hits"] = sum(values[_EDGES : _EDGES + 8])
        out.update({f"stacks_{end}": values[_STACKS + index] for index, end in enumerate(STACK_ENDS)})
        out.update({f"python_{end}": values[_PYTHON + index] for index, end in enumerate(PYTHON_ENDS)})
        return out

    def run_time_ns(self) -> dict[str, tuple[int, int]]:
        """(nanoseconds, runs) of each program while BPF statistics were enabled."""
        return {n: bpf.program_run_stats(fd) for n, fd in self._object.loaded_programs().items()}

    def close(self) -> None:
        """Detach and free everything."""
        for fd in self._descriptors:
            with suppress(OSError):
                os.close(fd)
        self._descriptors.clear()
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()
        self.store.close()
        self._object.close()

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _possible_cpus() -> int:
    with open("/sys/devices/system/cpu/possible") as file:
        return int(file.read().strip().replace(",", "-").split("-")[-1]) + 1
