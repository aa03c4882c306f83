"""One watched process image: its load map, its probes, what the programs are told of it."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field

from parprof.dso import Key
from parprof.epochs import LoadMaps
from parprof.errors import ParprofError, ProbeAttachError, TargetError
from parprof.interpreters.cpython import find_cpython
from parprof.interpreters.functions import PythonStacks
from parprof.kernel.engine import Kernel
from parprof.kernel.records import (
    BLAME_LOCKS,
    CACTUS,
    FOLLOW_CHILDREN,
    STOP_AT_EXEC,
    STOP_AT_LOAD,
    WatchConfig,
)
from parprof.kernel.uprobes import ProbeSet, Site
from parprof.loadmap import Dso, DsoCache, LoadMap
from parprof.probing import Plan, loader_sites, make_plan, outlined_site
from parprof.processes import Process, allowed_cores
from parprof.seeding import guess_threads
from parprof.sharedprobes import SharedProbes
from parprof.sources import (
    MemoryChoice,
    Source,
    can_probe_edges,
    first_source,
    flags_for,
    look_again,
    look_for_memory,
    next_source,
)
from parprof.symbols.perfmap import PerfMap
from parprof.unwind.placing import Placer

_RATE_SECONDS = 0.25
"""Over how long the rate of probe hits is taken."""
_SWITCHES_KEPT = 8
_STARTUP_STOPS = 2
"""ld.so reports a change before and after it maps the first libraries."""


def open_pidfd(pid: int) -> int:
    """A descriptor that names this very process, whatever happens to its PID.

    Raises:
        TargetError: the process is gone.
    """
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        raise TargetError(f"no process {pid}: it has ended") from error


@dataclass(frozen=True, slots=True)
class Watched:
    """What all targets of a session share."""

    kernel: Kernel
    cache: DsoCache
    placer: Placer
    wanted_source: Source | None = None
    """Where n_w is to come from, if the user says so."""
    blame_locks: bool = False
    shared: SharedProbes | None = None
    """Where rare probes go that serve all processes; None: each process has its own."""
    no_python: set[Key] = field(default_factory=set)
    """Files that are known to be no Python interpreter."""


class Target:
    """A process image under observation. ``image`` is the id under which the kernel counts it."""

    def __init__(self, watched: Watched, process: Process, image: int, *, follow: bool, stop: bool) -> None:
        self.kernel = watched.kernel
        self.cache = watched.cache
        self.placer = watched.placer
        self.process = process
        self.image = image
        self.plan = Plan()
        self.source = Source.SCHEDULER
        self.memory = MemoryChoice()
        self.wanted_source = watched.wanted_source
        self.shortest_region_us = 0.0
        """Mean time between two regions when they came fastest; 0: not known."""
        self.switches: list[str] = []
        """Changes of the n_w source, each with its reason."""
        self._transitions: list[tuple[str, str]] = []
        self.probe_hits = self.n_working = 0
        """Both as they were at the last `observe`."""
        self._hits = (time.monotonic(), 0)
        self._planned_for: LoadMap | None = None
        self.load_maps = LoadMaps()
        self.stale = False
        """The load map may have changed."""
        self.next_refresh_s = 0.0
        self.python: PythonStacks | None = None
        self._no_python = watched.no_python
        self._shared = watched.shared
        self.cores = 1
        self.ended = False
        self.members_max = 0
        self.failures: list[str] = []
        self._flags = (FOLLOW_CHILDREN if follow else 0) | (STOP_AT_EXEC if stop else 0)
        if watched.blame_locks:
            self._flags |= BLAME_LOCKS
        self._probes: list[ProbeSet] = []
        self._edge_probes: list[ProbeSet] = []
        self._placed: set[tuple[str, int]] = set()
        self._rare: set[tuple[str, int]] = set()
        """Those among them that stay whatever the source."""
        self._stops_left = _STARTUP_STOPS if stop else 0
        self.pidfd = open_pidfd(process.pid)
        self.perf_map = PerfMap(process.pid)
        with suppress(ParprofError):
            self.cores = allowed_cores(process.pid)

    @property
    def pid(self) -> int:
        """Process id, as this namespace sees it."""
        return self.process.pid

    @property
    def has_edges(self) -> bool:
        """Whether its work edges can be probed."""
        return can_probe_edges(self.plan.sites)

    @property
    def n_w_source(self) -> str:
        """Where n_w comes from: see `Source`."""
        return str(self.source)

    @property
    def follows(self) -> bool:
        """Whether its children are profiled too."""
        return bool(self._flags & FOLLOW_CHILDREN)

    @property
    def stops(self) -> bool:
        """Whether it is stopped at exec until its probes are in place."""
        return bool(self._flags & STOP_AT_EXEC)

    def inherit(self, parent: Target) -> None:
        """A fork starts with its parent's memory."""
        self.plan, self.source, self.memory = parent.plan, parent.source, parent.memory
        if parent.load_map is not None:
            self.load_maps.add(0, parent.load_map)
        if parent.python is not None:
            self.python = parent.python.for_child(self.pid)
            self.kernel.set_interpreter(self.pid, self.python.python.kernel_facts())

    def config(self) -> WatchConfig:
        """What the programs are told of this process."""
        flags = self._flags | flags_for(self.source, self.memory)
        if self._stops_left:
            flags |= STOP_AT_LOAD
        plan = self.plan
        if any(agent.cactus for agent in plan.agents):
            flags |= CACTUS
        return WatchConfig(
            flags, tuple(plan.runtime_ranges), tuple(plan.user_ranges), plan.libc_range,
            self.memory.plan, next((agent.closures for agent in plan.agents if agent.closures), None),
        )  # fmt: skip

    @property
    def load_map(self) -> LoadMap | None:
        """The load map as it was read last."""
        return self.load_maps.newest

    def read_load_map(self, wait: bool = False) -> bool:
        """Read the load map again; False when the process is gone or nothing is mapped any more.

        ``wait`` for unwind tables that have to be built, because the process stands still for us.
        """
        epoch, started = self.load_maps.epoch, time.monotonic()
        try:
            fresh = LoadMap.read(self.pid, self.load_map, self.cache)
        except TargetError:
            return False
        now = time.monotonic()
        self.next_refresh_s = now + 10 * (now - started)
        if not fresh.mappings:
            return False
        if fresh is not self.load_map:
            self.placer.update(fresh, wait)
            self._find_interpreter(fresh)
        self.load_maps.add(epoch, fresh)
        return True

    def refresh(self, wait: bool = False) -> None:
        """Read the load map again, and probe what has come with it.

        A process whose map takes long to read, because it is huge, is read less often.
        """
        if self.read_load_map(wait) and self.load_map is not self._planned_for:
            self.place_probes()
        self.stale = False

    def careful_refresh(self) -> None:
        """`refresh`, of which a failure is noted: it is this target's alone."""
        try:
            self.refresh()
        except (ParprofError, OSError) as error:
            self.stale = False
            self.note_failure(f"its files cannot be probed: {error}")

    def _find_interpreter(self, load_map: LoadMap) -> None:
        if self.python is None and (found := find_cpython(load_map, self._no_python)) is not None:
            self.python = PythonStacks(self.pid, found)
            self.kernel.set_interpreter(self.pid, found.kernel_facts())

    def place_probes(self) -> None:
        """Probe whatever the present load map calls for and is not probed yet.

        The programs are told first that there is a runtime: threads that they meet from then on are judged by
        it. A refusal is noted and reported, and does not stop the profiling of this or other processes.
        """
        if self.load_map is None:
            return
        self._make_plan(self.load_map)
        self.kernel.configure(self.pid, self.config())
        self._attach_rare([*loader_sites(self.load_map), *self.plan.rare_sites])
        if self.source is Source.EXACT:
            self._attach(self.plan.sites, self._edge_probes)

    def _make_plan(self, load_map: LoadMap) -> None:
        if self._planned_for is load_map:
            return
        self.plan = make_plan(load_map, bool(self._flags & BLAME_LOCKS))
        self._planned_for = load_map
        if self.memory.plan is None:
            self.memory = look_for_memory(self.plan.agents, load_map)
        else:
            self.memory = look_again(self.memory, load_map)
            if self.source is Source.MEMORY and not self.memory.holds and self.wanted_source is None:
                without = first_source(self.plan.agents, self.memory, None, self.has_edges)
                self.go_over_to(without, self.memory.spoilt_by)
        if self.source is Source.SCHEDULER:
            self.source = first_source(self.plan.agents, self.memory, self.wanted_source, self.has_edges)

    def judge_source(self) -> None:
        """Give up probes that are hit too often for what they cost, for the next best source of n_w."""
        state = self.kernel.process_state(self.pid)
        if state is None or state.image != self.image:
            return
        (before_s, before), now_s = self._hits, time.monotonic()
        self._hits = now_s, state.probe_hits
        if now_s - before_s < _RATE_SECONDS / 2 or self.wanted_source is not None:
            return
        rate = (state.probe_hits - before) / (now_s - before_s)
        if rate:
            self._note_regions(rate)
        found = next_source(self.source, self.memory, rate)
        if found is not self.source:
            self.go_over_to(found, f"{rate:,.0f} probe hits/s")

    def _note_regions(self, hits_per_second: float) -> None:
        """A region hits its entry once and its body once in each thread, and as many ends."""
        threads = max(self.members_max, 1)
        period_us = 1e6 * (2 + 2 * threads) / hits_per_second
        if not self.shortest_region_us or period_us < self.shortest_region_us:
            self.shortest_region_us = period_us

    def go_over_to(self, source: Source, why: str) -> None:
        """Take n_w from another source from now on. Threads are judged anew by the next that is seen of them."""
        self._transitions.append((str(self.source), str(source)))
        self.switches = self.switches[-_SWITCHES_KEPT:]
        self.switches.append(f"n_w source {self.source} -> {source}: {why}")
        self.source = source
        self.kernel.configure(self.pid, self.config())
        if source is Source.EXACT:
            self._planned_for = (
                None  # the files may have been closed since: their descriptors are in the plan
            )
            self.place_probes()
            return
        for probes in self._edge_probes:
            probes.close()
        self._edge_probes.clear()
        self._placed &= self._rare
        self.kernel.forget_learned({self.image})

    def begin(self) -> None:
        """Start on a process that runs already.

        Raises:
            TargetError: it ended meanwhile.
        """
        if not self.read_load_map() or self.load_map is None:
            raise TargetError(f"process {self.pid} ended while we attached to it")
        self._make_plan(self.load_map)
        self.kernel.watch(self.pid, self.image, self.config())
        self.place_probes()
        before = self.load_map
        if self.read_load_map() and self.load_map is not before:  # a dlopen before its probe was there
            self.place_probes()
        self.seed_threads()

    def take_transitions(self) -> list[tuple[str, str]]:
        """Changes of the n_w source since the last call: (from, to)."""
        taken, self._transitions = self._transitions, []
        return taken

    def _attach_rare(self, sites: list[Site]) -> None:
        if self._shared is None:
            self._attach(sites, self._probes)
            self._rare |= {(site.path, site.offset) for site in sites}
            return
        try:
            self._shared.attach(sites)
        except ProbeAttachError as error:
            self.note_failure(str(error))

    def note_failure(self, text: str) -> None:
        """For the report."""
        if text not in self.failures:
            self.failures.append(text)

    def _attach(self, sites: list[Site], kept: list[ProbeSet]) -> None:
        fresh = [site for site in sites if (site.path, site.offset) not in self._placed]
        if not fresh:
            return
        try:
            kept.append(self.kernel.attach_probes(self.pid, fresh))
            self._placed.update((site.path, site.offset) for site in fresh)
        except ProbeAttachError as error:
            self.note_failure(str(error))

    def learn(self, address: int) -> None:
        """An outlined function without a symbol was passed to the runtime: probe it."""
        found = self.load_map.find(address) if self.load_map else None
        if found is None and self.read_load_map() and self.load_map:
            found = self.load_map.find(address)
        site = outlined_site(self.plan.agents[0], *found) if found and self.plan.agents else None
        if site is not None and self.source is Source.EXACT:
            self.plan.outlined += 1
            self._attach([site], self._edge_probes)

    def seed_threads(self) -> None:
        """Tell the programs which threads exist, with a guess at what the sleeping ones wait for."""
        has_runtime = bool(self.plan.agents)
        for tid, works in guess_threads(self.pid, self.plan.runtime_ranges if has_runtime else None):
            self.kernel.add_thread(self.pid, self.image, tid, works=works, unknown=has_runtime)

    def resume(self, started_libraries: bool) -> None:
        """Let a process go on that was stopped for us at exec or by ld.so."""
        if started_libraries and self._stops_left:
            self._stops_left -= 1
            self.kernel.configure(self.pid, self.config())
        with suppress(OSError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGCONT)

    def find(self, address: int, epoch: int) -> tuple[Dso, int] | None:
        """File and ELF address behind an address that was sampled in an epoch."""
        return self.load_maps.find(address, epoch)

    def has_ended(self) -> bool:
        """Whether the process is gone (all of its threads)."""
        if not self.ended:
            poller = select.poll()
            poller.register(self.pidfd, select.POLLIN)
            self.ended = bool(poller.poll(0))
        return self.ended

    def observe(self) -> None:
        """Remember what the kernel knows, for when the process is gone, and act upon it."""
        state = self.kernel.process_state(self.pid)
        if state is not None and state.image == self.image:
            self.members_max = max(self.members_max, state.members_max)
            self.probe_hits = state.probe_hits
            self.n_working = state.n_working

    def parallel_cores(self) -> int:
        """n: cores that the process could use - those allowed, or its pool of threads once that is known."""
        if self.plan.agents and self.members_max > 0:
            return max(1, min(self.cores, self.members_max))
        return self.cores

    def close(self) -> None:
        """Detach the probes (slow mechanisms in the background) and forget the process."""
        self.placer.forget(self.pid)
        if self.python is not None and self.python.is_open:
            self.kernel.set_interpreter(self.pid, {})
            self.python.close()
        for probes in (*self._probes, *self._edge_probes):
            probes.close()
        self._probes.clear()
        self._edge_probes.clear()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
