"""One watched process image: its load map, its probes, what the programs are told of it."""

from __future__ import annotations

import os
import select
import signal
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from parprof.dso import Key
from parprof.epochs import LoadMaps
from parprof.errors import ParprofError, ProbeAttachError, TargetError
from parprof.interpreters.cpython import find_cpython
from parprof.interpreters.functions import PythonStacks
from parprof.kernel.engine import (
    FOLLOW_CHILDREN,
    HAS_RUNTIME,
    STOP_AT_EXEC,
    STOP_AT_LOAD,
    Kernel,
    WatchConfig,
)
from parprof.kernel.uprobes import ProbeSet, Site
from parprof.loadmap import Dso, DsoCache, LoadMap
from parprof.probing import Plan, loader_sites, make_plan, outlined_site
from parprof.processes import Process, allowed_cores
from parprof.symbols.perfmap import PerfMap
from parprof.unwind.placing import Placer

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


class Target:
    """A process image under observation. ``image`` is the id under which the kernel counts it."""

    def __init__(self, watched: Watched, process: Process, image: int, *, follow: bool, stop: bool) -> None:
        self.kernel = watched.kernel
        self.cache = watched.cache
        self.placer = watched.placer
        self.process = process
        self.image = image
        self.plan = Plan()
        self._planned_for: LoadMap | None = None
        self.load_maps = LoadMaps()
        self.stale = False
        """The load map may have changed."""
        self.next_refresh_s = 0.0
        self.python: PythonStacks | None = None
        self._no_python: set[Key] = set()
        self.cores = 1
        self.ended = False
        self.members_max = 0
        self.failures: list[str] = []
        self._flags = (FOLLOW_CHILDREN if follow else 0) | (STOP_AT_EXEC if stop else 0)
        self._probes: list[ProbeSet] = []
        self._placed: set[tuple[str, int]] = set()
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
    def n_w_source(self) -> str:
        """Where n_w comes from: exact (probes) or scheduler."""
        return "exact" if self.plan.agents else "scheduler"

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
        self.plan = parent.plan
        if parent.load_map is not None:
            self.load_maps.add(0, parent.load_map)
        if parent.python is not None:
            self.python = parent.python.for_child(self.pid)
            self.kernel.set_interpreter(self.pid, self.python.python.kernel_facts())

    def config(self) -> WatchConfig:
        """What the programs are told of this process."""
        flags = self._flags | (HAS_RUNTIME if self.plan.agents else 0)
        if self._stops_left:
            flags |= STOP_AT_LOAD
        plan = self.plan
        return WatchConfig(flags, tuple(plan.runtime_ranges), tuple(plan.user_ranges), plan.libc_range)

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
        before = self.load_map
        if self.read_load_map(wait) and self.load_map is not before:
            self.place_probes()
        self.stale = False

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
        if self._planned_for is not self.load_map:
            self.plan = make_plan(self.load_map)
            self._planned_for = self.load_map
        self.kernel.configure(self.pid, self.config())
        self._attach([*loader_sites(self.load_map), *self.plan.sites])

    def begin(self) -> None:
        """Start on a process that runs already.

        Raises:
            TargetError: it ended meanwhile.
        """
        if not self.read_load_map() or self.load_map is None:
            raise TargetError(f"process {self.pid} ended while we attached to it")
        self.plan = make_plan(self.load_map)
        self._planned_for = self.load_map
        self.kernel.watch(self.pid, self.image, self.config())
        self.place_probes()
        before = self.load_map
        if self.read_load_map() and self.load_map is not before:  # a dlopen before its probe was there
            self.place_probes()
        self.seed_threads()

    def _attach(self, sites: list[Site]) -> None:
        fresh = [site for site in sites if (site.path, site.offset) not in self._placed]
        if not fresh:
            return
        try:
            self._probes.append(self.kernel.attach_probes(self.pid, fresh))
            self._placed.update((site.path, site.offset) for site in fresh)
        except ProbeAttachError as error:
            if str(error) not in self.failures:
                self.failures.append(str(error))

    def learn(self, address: int) -> None:
        """An outlined function without a symbol was passed to the runtime: probe it."""
        found = self.load_map.find(address) if self.load_map else None
        if found is None and self.read_load_map() and self.load_map:
            found = self.load_map.find(address)
        site = outlined_site(*found) if found else None
        if site is not None:
            self.plan.outlined += 1
            self._attach([site])

    def seed_threads(self) -> None:
        """Tell the programs which threads exist, with a guess at what the sleeping ones wait for."""
        has_runtime = bool(self.plan.agents)
        with suppress(OSError):
            for name in os.listdir(f"/proc/{self.pid}/task"):
                tid = int(name)
                works = tid == self.pid or not has_runtime
                if has_runtime and (waits := self._sleeps_in_runtime(tid)) is not None:
                    works = not waits
                self.kernel.add_thread(self.pid, self.image, tid, works=works, unknown=has_runtime)

    def _sleeps_in_runtime(self, tid: int) -> bool | None:
        """Whether a blocked thread's system call was made by the runtime; None when it runs or can't be told."""
        try:
            words = Path(f"/proc/{self.pid}/task/{tid}/syscall").read_text().split()
            if len(words) < 3:
                return None  # "running"
            sp, pc = int(words[-2], 16), int(words[-1], 16)
            if self._in_runtime(pc):
                return True
            with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
                memory.seek(sp)
                return self._in_runtime(struct.unpack("<Q", memory.read(8))[0])
        except (OSError, ValueError, struct.error, OverflowError):
            return None

    def _in_runtime(self, address: int) -> bool:
        return any(start <= address < end for start, end in self.plan.runtime_ranges)

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
        """Remember what the kernel knows, for when the process is gone."""
        state = self.kernel.process_state(self.pid)
        if state is not None and state.image == self.image:
            self.members_max = max(self.members_max, state.members_max)

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
        for probes in self._probes:
            probes.close()
        self._probes.clear()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
