"""The kernel side of a profiling session: what is watched, and the facts that come out.

``BpfKernel`` is the only face of the BPF maps. Nothing above it sees bytes, map names or descriptors.
"""

from __future__ import annotations

import errno
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from parprof.errors import KernelUnsupported, TargetError
from parprof.kernel import bpf, records
from parprof.kernel.amount_events import AmountEvents
from parprof.kernel.amounts import Amount
from parprof.kernel.breaker import Breaker
from parprof.kernel.call_counts import CallCounter
from parprof.kernel.counters import Counters
from parprof.kernel.counts import ByTime, together
from parprof.kernel.cpus import possible_cpus
from parprof.kernel.drains import Drains
from parprof.kernel.file_tables import FileTables, FoundMapping
from parprof.kernel.objects import load_object
from parprof.kernel.phases import PhaseCounter
from parprof.kernel.plain_programs import PlainPrograms
from parprof.kernel.process_entries import fill_config, process_state
from parprof.kernel.records import Budget, Cost, ProcessState, WatchConfig
from parprof.kernel.ringbuf import RingBuffer
from parprof.kernel.sampling import LIVES, SampleEvents, Tracepoints
from parprof.kernel.scopes import Scopes
from parprof.kernel.settings import Settings
from parprof.kernel.sizes import FEW_SCOPES, activation_sizes, amount_sizes, map_sizes, trace_ring_bytes
from parprof.kernel.stacks import CodeAt, SentCode, StackTable
from parprof.kernel.store import Store
from parprof.kernel.thread_table import ThreadTable
from parprof.kernel.trace import TraceBounds, TraceLog
from parprof.kernel.unended import (
    LastSeen,
    PlacelessWait,
    Unended,
    cut_by_glimpse,
    find_unended,
    last_seen,
    placeless_wait,
)
from parprof.kernel.uprobes import Prober, ProbeSet, Site
from parprof.kernel.verdicts import Verdicts
from parprof.model import Facts, ThreadState
from parprof.plans import Edge
from parprof.resources import Closing

_FULL = (errno.E2BIG, errno.ENOMEM, errno.ENOSPC)
_CALLS_SECONDS = 1.0
"""How often it is looked for what is new in samples' stacks, beside a program that is recorded."""
_DEAR_PROGRAMS = ("on_switch", "on_unwind", "on_sample")
"""What takes the verifier longest, of what is always loaded."""


class BpfKernel(Closing):
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
        system_wide: bool = False,
        waits: bool = False,
        activations: bool = False,
        amounts: Sequence[Amount] = (),
        traced: TraceBounds | None = None,
        sizes: dict[str, int] | None = None,
        budget: Budget | None = None,
        edges_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """``system_wide``: ask, by RECORD_SEEN, about each process that uses the CPU. See `watch` and `Verdicts`.

        ``waits``: find out where the threads of all processes sleep, and for how long; see `find_waits`.
        ``activations``: tell calls apart by comparing each thread's samples; rows of `ACTIVATION`. With ``system_wide``
        of the processes whose waits are found out, once `load_comparing` was called.
        ``amounts``: of the events, the last ones, those that are sampled by amount.
        ``traced``: keep what each thread does from when on, within these bounds: `trace_log`.
        ``budget``: what each process may pay; events beyond it are left out by the programs themselves.
        ``edges_wanted``: whether work edges will be probed, as far as that is known: their program is then loaded
        beside the others. Asked in another thread.
        """
        self.events = tuple(events)
        self._first_hz = frequency_hz
        self._list_generation = 0
        self._breaker: Breaker | None = None
        self._lost_here: Counter[str] = Counter()
        self._rings: dict[str, RingBuffer] = {}
        self._states: dict[bytes, bytes] | None = None
        self._trace = trace
        self._bounds = traced
        self.trace_log: TraceLog | None = None
        """What the threads did when; None: nobody asked for that."""
        self.finds_waits = waits
        """Whether it finds out where the threads of all processes sleep."""
        self._walks_thread: threading.Thread | None = None
        self._has_learned = False
        self._events: SampleEvents | None = None
        rate = frequency_hz * len(self.events)
        fewer = {} if system_wide else {"scopes": FEW_SCOPES}
        more = activation_sizes(possible_cpus()) if activations else {}
        more.update(amount_sizes([one.name for one in amounts]))
        if traced:
            more["trace"] = trace_ring_bytes(possible_cpus())
        self._object = load_object({**map_sizes(possible_cpus(), rate), **fewer, **more, **(sizes or {})})
        self.stacks = StackTable(self._object.our_code)
        """The stacks behind the ids in facts, and the contexts."""
        self.prober = Prober(self._object)
        self.prober.prepare(edges_wanted)  # beside what follows
        self._object.load_ahead((*_DEAR_PROGRAMS, *(("on_wait_unwind",) if waits else ())))
        self.calls = CallCounter(self._object)
        """Exact calls of chosen functions; nothing until some are."""
        self.phases = PhaseCounter(self._object, self.calls.times)
        """Work and span by barrier phase; nothing until they are asked for."""
        self._compares = activations and not system_wide
        self._perf_events = self.events[: len(self.events) - len(amounts)]
        self.amounts = AmountEvents(self._object, amounts, self.events)
        """The events that are sampled by amount."""
        self._settings = Settings(
            self._object,
            frequency_hz,
            budget or Budget(),
            trace=trace,
            system_wide=system_wide,
            activations=activations,
        )
        self._lives = Tracepoints(self._object, LIVES)
        definition = self._object.definitions["counters"]
        self._counters = Counters(self._object.maps["counters"], definition["max_entries"])
        calls_seconds = 0.0 if system_wide else _CALLS_SECONDS  # attachments to the daemon want them in time
        self._drains = Drains(self._object, self._settings, self.stacks, calls_seconds)
        self.file_tables = FileTables(self._object.maps["file_tables"])
        self.scopes = Scopes(self._object)
        self.plain_programs = PlainPrograms(self._object.maps["plain_programs"])
        self.threads = ThreadTable(self._object, self._losing)
        self.verdicts = Verdicts(self._object.maps["verdicts"])
        chunks = self._object.definitions["store"]["max_entries"]
        self.store = Store(self._object.maps["store"], self._object.definitions["store_chunk"], chunks)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        self.threads.prepare()
        for name in ("stacks", "control", "alarms", *(("trace",) if self._trace or self._bounds else ())):
            self._rings[name] = RingBuffer(
                self._object.maps[name], self._object.definitions[name]["max_entries"]
            )
        if self._bounds:
            self.trace_log = TraceLog(
                self._rings["trace"], self._object.layouts, self._bounds, self._stop_tracing
            )
        self._lives.attach()
        self._breaker = Breaker(self._object, self._settings, self._rings["alarms"])
        self._object.load_unwinder()
        if self._compares:
            self.load_comparing()
        # In a thread of its own: until the verifier is done nobody's wait or creator is placed, and that is counted.
        self._walks_thread = threading.Thread(target=self._load_walks, name="parprof-waits", daemon=True)
        self._walks_thread.start()
        self._events = SampleEvents(self._object.program("on_sample"), self._perf_events, self._first_hz)
        self.amounts.begin()

    def _stop_tracing(self) -> None:
        self._bounds = None
        for pid in self.images():
            self.breaker.trace(pid, on=False)

    def await_programs(self) -> None:
        """Wait until the programs are there that are loaded beside all else: those of waits and of the creators of
        threads, and of interpreters."""
        self.await_walks()
        self._object.await_interpreters()

    @property
    def are_programs_coming(self) -> bool:
        """Whether `await_programs` would wait."""
        walks = self._walks_thread
        return (walks is not None and walks.is_alive()) or self._object.are_interpreters_coming

    def await_walks(self) -> None:
        """Wait until waits and creators of threads can be placed."""
        if self._walks_thread is not None:
            self._walks_thread.join()

    def _load_walks(self) -> None:
        with suppress(OSError, KernelUnsupported):
            self._object.load_wait_unwinder()

    @property
    def frequency_hz(self) -> int:
        """Samples a second and CPU."""
        return self._events.frequency_hz if self._events else self._first_hz

    @property
    def has_ticked(self) -> bool:
        """Whether context switches were not followed for some time, of any process."""
        return self._counters.statistics()["ticks"] > 0

    @property
    def budget_ratio(self) -> float:
        """How much of its CPU time a process may pay for being profiled."""
        return self._settings.budget.ratio

    def set_frequency(self, frequency_hz: int) -> None:
        """Sample at another rate from now on. Drain before: what was counted so far has the old one.

        Raises:
            KernelUnsupported: it is refused; the old one stays.
        """
        assert self._events
        self._events.set_frequency(frequency_hz)
        self._settings.write(frequency_hz=frequency_hz)

    @property
    def breaker(self) -> Breaker:
        """What holds the targets' cost to the budget."""
        assert self._breaker
        return self._breaker

    @property
    def control_fd(self) -> int:
        """Becomes readable when control records wait."""
        return self._rings["control"].fd

    def watch(
        self,
        pid: int,
        image: int,
        config: WatchConfig,
        *,
        from_exec: bool = False,
        scope: int | None = None,
        begun_ns: int = 0,
    ) -> None:
        """Begin to count process ``pid`` under image id ``image`` (below 2**31).

        ``from_exec``: only from its next exec on, under the id that the kernel then gives. ``scope``: what n_w is
        summed up over, the number of a process image; by default the process alone. Forked children share it.
        ``begun_ns``: since when the scope's time counts, see `Scopes.ensure`.

        Raises:
            TargetError: the maps are full.
        """
        self.configure(pid, config)
        process: Any = self._object.layouts["process"]()
        process.image, process.dead, process.left_ns = image, from_exec, self._settings.budget.burst_ns
        process.scope = scope or image
        process.waits_since_ns = time.monotonic_ns() if self.finds_waits else 0
        process.traced = self._bounds is not None
        with self._needing_room(pid, "scopes"):
            self.scopes.ensure(process.scope, begun_ns)
        self._put("processes", pid, process)

    def configure(self, pid: int, config: WatchConfig) -> None:
        """Replace what the programs know of a process. At most MAX_RUNTIME_RANGES, MAX_USER_RANGES ranges.

        Raises:
            TargetError: the map is full.
        """
        raw: Any = self._object.layouts["process_config"]()
        fill_config(raw, config)
        self._put("configs", pid, raw)

    def _put(self, name: str, pid: int, value: Any) -> None:
        with self._needing_room(pid, name):
            self._object.put(name, struct.pack("<I", pid), value)

    @contextmanager
    def _needing_room(self, pid: int, name: str) -> Iterator[None]:
        """A map without which the process cannot be watched."""
        try:
            yield
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise TargetError(
                f"process {pid}: the BPF map {name} is full; watch fewer processes at a time"
            ) from error

    @contextmanager
    def _losing(self, reason: str) -> Iterator[None]:
        """A map that has no room for what is known of a process or thread: counted, and done without."""
        try:
            yield
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._lost_here[reason] += 1

    def set_mapping_list(self, pid: int, word: int, count: int) -> None:
        """Where in the store the load map of a process is; a count of 0 means that it has none."""
        key = struct.pack("<I", pid)
        if count:
            self._list_generation += 1
            value = struct.pack("<QQ", word << 32 | count, self._list_generation)
            with self._losing("load_maps_full"):  # frame pointers are all there is then
                bpf.map_update(self._object.maps["mapping_lists"], key, value)
        else:
            bpf.map_delete(self._object.maps["mapping_lists"], key)

    def set_interpreter(
        self, pid: int, facts: Mapping[str, int | tuple[int, ...]], structure: str = "interpreter"
    ) -> None:
        """Where a CPython interpreter keeps its frames, by field of ``struct interpreter``, or a JVM its code, ``jvm``.

        Empty: it is watched no more.
        """
        table = f"{structure}s"
        if facts:
            if structure == "interpreter":
                self._object.load_interpreters()
            layout = self._object.layouts[structure]
            with self._losing("interpreters_full"):
                self._object.put(table, struct.pack("<I", pid), layout(**facts))
        else:
            bpf.map_delete(self._object.maps[table], struct.pack("<I", pid))

    def own_stacks(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """(image, stack id, words) of the stacks of JVMs that came since the last call."""
        return self.stacks.take_own()

    def python_stacks(self) -> list[tuple[int, int, tuple[CodeAt, ...]]]:
        """(image, stack id, Python frames) of the stacks with such frames that came since the last call."""
        return self.stacks.take_fresh()

    def python_functions(self) -> list[tuple[int, SentCode]]:
        """(image, function) of what new Python stacks are in, as `StackTable.take_functions`."""
        return self.stacks.take_functions()

    def found_mappings(self) -> list[FoundMapping]:
        """Executable memory that walks came upon since the last call, before Python had told of it."""
        return self.stacks.take_mappings()

    def find_waits(self, pid: int, since_ns: int) -> None:
        """Find out where the threads of a process sleep, and for how long.

        ``since_ns``: what was before does not count, also of a wait or stall that lasts; 0: that is of no interest any
        more. CLOCK_MONOTONIC.
        """
        self.breaker.find_waits(pid, since_ns)

    def load_comparing(self) -> None:
        """Load what compares the stacks of samples, unless that was done: it takes the verifier a while.

        Raises:
            KernelUnsupported: it is refused.
        """
        self._object.load_activations()

    def forget_last_stacks(self, but: Collection[int] = ()) -> None:
        """Compare no sample with what was before, but for those of these process images.

        Whose waits are found out from now on has no calls from before; and whose are not takes no room.
        """
        fd = self._object.maps["last_stacks"]
        kept = {image.to_bytes(4, "little") for image in (0, *but)}
        size = self._object.definitions["last_stacks"]["value_size"]
        bpf.map_delete_batch(
            fd, [key for key, raw in bpf.map_read_all(fd, 4, size, chunk=256) if raw[:4] not in kept]
        )
        self._settings.compare_anew()
        if not but:
            self._drains.forget_calls()

    def unwatch(self, pid: int, has_threads: bool = True) -> None:
        """Stop counting a process at once and forget its threads, if it still has some."""
        key = struct.pack("<I", pid)
        self.breaker.forget(pid)
        self.breaker.leave(pid)
        bpf.map_delete(self._object.maps["processes"], key)
        bpf.map_delete(self._object.maps["configs"], key)
        bpf.map_delete(self._object.maps["interpreters"], key)
        if has_threads:
            self.threads.forget(pid)

    def process_state(self, pid: int) -> ProcessState | None:
        """Live counters of a watched process; None when it is not watched."""
        key = struct.pack("<I", pid)
        if self._states is None:
            raw = self._object.get("processes", key, "process")
        else:
            found = self._states.get(key)
            raw = self._object.layouts["process"].from_buffer_copy(found) if found is not None else None
        if raw is None:
            return None
        return process_state(raw, follows_switches=self.breaker.follows_switches)

    @contextmanager
    def one_look(self) -> Iterator[None]:
        """Within this context `process_state` answers from a single reading of the table, for all processes."""
        size = self._object.definitions["processes"]["value_size"]
        self._states = dict(bpf.map_read_all(self._object.maps["processes"], 4, size, chunk=512))
        try:
            yield
        finally:
            self._states = None

    def attach_probes(self, pid: int, sites: list[Site], cost: Cost | None = None) -> ProbeSet:
        """Probe ``sites`` in process ``pid`` alone; 0: in all. They go when ``cost``, if any, is cut off there.

        Those of the loader come by themselves, as they have a program of their own.

        Raises:
            ProbeAttachError: the kernel refused.
        """
        kinds = {site.kind for site in sites}
        assert Edge.LOAD_MAP not in kinds or len(kinds) == 1
        probes = self.prober.attach(sites, pid, "on_load_map" if Edge.LOAD_MAP in kinds else "on_edge")
        if cost is not None:
            self.breaker.guard(pid, cost, probes)
        return probes

    def control_records(self) -> Iterator[records.ControlRecord]:
        """Events since the last call, oldest first."""
        layout = self._object.layouts["control_record"]
        for raw in self._rings["control"].read():
            r: Any = layout.from_buffer_copy(raw)
            self._has_learned |= r.type == records.RECORD_LEARNED
            yield records.ControlRecord(
                r.type,
                r.tgid,
                r.tid,
                r.image,
                r.parent_tgid,
                bool(r.stopped),
                r.address,
                r.time_ns,
                r.comm.decode(errors="replace"),
            )

    def trace_records(self) -> Iterator[records.TraceRecord]:
        """Single samples since the last call; only with ``trace``."""
        if not self._trace:
            return
        layout = self._object.layouts["trace_record"]
        for raw in self._rings["trace"].read():
            r: Any = layout.from_buffer_copy(raw)
            yield records.TraceRecord(
                r.image, r.tid, r.time_ns, r.ip, r.n_working, ThreadState(r.state), bool(r.unsure)
            )

    def _read_stacks(self) -> None:
        self.stacks.add(self._rings["stacks"].read())

    def poll(self) -> None:
        """Empty the rings; call several times a second."""
        self._read_stacks()
        if self.trace_log is not None:
            self.trace_log.take()

    def slice_time(self, begin_ns: int, length_ns: int) -> None:
        """Tell apart when what is counted came, in slices of the time; see `drain_by_time`.

        ``begin_ns``: of the first slice (CLOCK_MONOTONIC). In force from the next drain on; the first time at once,
        which is before anything is counted.
        """
        self._drains.slice_time(begin_ns, length_ns)

    def drain(self) -> Facts:
        """All samples counted since the last drain."""
        return together(self.drain_by_time())

    def drain_by_time(self) -> ByTime:
        """The same, by when they came: ns since the first slice of `slice_time`; where that was not called, 0."""
        if self._events is not None:
            self._lost_here["cpu_gap"] += self._events.follow_cpus()
        return self._drains.take(self.poll, self.breaker.glimpses.weigh)

    def trim_stacks(self, drains: int, limit: int) -> int:
        """Forget stacks that were in none of the last ``drains``, if there are more than ``limit``; how many.

        Those that are forgotten by one call are gone after the next.
        """
        return self._drains.trim_stacks(drains, limit)

    def forget_images(self, images: Collection[int]) -> None:
        """These process images are gone, and all of their samples have been dealt with."""
        self.stacks.forget(images)
        self.forget_learned(images)

    def forget_learned(self, images: Collection[int]) -> None:
        """Tell again of the outlined functions of these images, when they are met again."""
        if self._has_learned:
            fd = self._object.maps["learned"]
            entries = bpf.map_read_all(fd, 8, 8, chunk=512)
            bpf.map_delete_batch(fd, [key for key, raw in entries if int.from_bytes(raw, "little") in images])

    def images(self) -> dict[int, int]:
        """The images of the watched processes, by PID, as the programs have them."""
        entries = self._object.entries("processes", "process")
        return {pid: state.image for pid, state in entries if not state.dead}

    def freeze(self) -> int:
        """Count nothing of any process any more: all that is known is of the same time, which is returned.

        CLOCK_MONOTONIC, ns. Processes are still watched, and to be given up one by one.
        """
        for pid in self.images():
            self.breaker.freeze(pid)
        now_ns = time.monotonic_ns()
        self.breaker.finish(now_ns)
        self._take_cut_waits(now_ns)
        return now_ns

    def glimpse(self) -> None:
        """Follow context switches for a moment, as a process has asked for that can pay it.

        Raises:
            KernelUnsupported: the kernel refused.
        """
        if self.breaker.follows_switches:
            return
        self._take_cut_waits(time.monotonic_ns())
        self.breaker.glimpse(self.images(), self.frequency_hz)

    def _take_cut_waits(self, now_ns: int) -> None:
        """Take the waits that the last glimpse has cut."""
        cut = self.breaker.glimpses.take_cut(now_ns)
        if cut is not None:
            glimpse, until_ns = cut
            self._drains.add(glimpse.end_ns, cut_by_glimpse(self._object, glimpse, until_ns))

    def unended(
        self, images: Mapping[int, int], now_ns: int, cut: Callable[[], None] | None = None
    ) -> Unended:
        """What lasts at a time: waits of threads, stalls of scopes, working threads' wait for a CPU.

        ``images``: of each process that is of interest its scope, by image. ``cut``: see `find_unended`.
        """
        follows = self.breaker.follows_switches
        return find_unended(self._object, self.scopes, images, now_ns, follows_switches=follows, cut=cut)

    def last_seen(self, tid: int, image: int) -> LastSeen:
        """What the programs know of the sleep of a thread."""
        return last_seen(self._object, tid, image)

    def placeless_wait(self, tid: int, image: int) -> PlacelessWait | None:
        """That of a thread that sleeps, if nobody knows where; see `Breaker.place_wait`."""
        return placeless_wait(self._object, tid, image)

    def cut_waits(self, pid: int, images: Mapping[int, int], now_ns: int, *, wanted: bool) -> Unended:
        """`find_waits` from ``now_ns`` on, or no more, and what lasted then: `unended`."""
        return self.unended(images, now_ns, lambda: self.find_waits(pid, now_ns if wanted else 0))

    def unresolved(self) -> ByTime:
        """Facts whose stack never arrived, given out without it at the end of a session; as `drain_by_time`."""
        return self._drains.rest(self.breaker.glimpses.weigh)

    def lost(self) -> dict[str, int]:
        """Losses so far, by reason; reasons with none are left out."""
        return dict(self._lost_here + self._drains.lost() + Counter(self._counters.lost()))

    def statistics(self) -> dict[str, int]:
        """What the programs counted: samples, switches, probe hits and so on; see `counters.NAMES`."""
        seen = self._breaker.glimpses.statistics() if self._breaker is not None else {}
        return {**self._counters.statistics(), **self.amounts.statistics(), **seen}

    def edge_hits(self) -> dict[int, int]:
        """Probe hits by ``enum edge_kind``."""
        return self._counters.edges()

    def run_time_ns(self) -> dict[str, tuple[int, int]]:
        """(nanoseconds, runs) of each program while BPF statistics were enabled."""
        return {n: bpf.program_run_stats(fd) for n, fd in self._object.loaded_programs().items()}

    def close(self) -> None:
        """Detach and free everything."""
        if self._events is not None:
            self._events.close()
        self.amounts.close()
        self._lives.detach()
        if self._breaker is not None:
            self._breaker.close()
            self._breaker = None
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()
        self.prober.close()
        self.phases.close()
        self.calls.close()
        self.store.close()
        self._object.close()
