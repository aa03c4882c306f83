"""One watched process image: what is known of it, what the programs are told of it, its way from met to forgotten."""

from __future__ import annotations

import math
import os
import select
import signal
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field

from parprof.errors import ParprofError, TargetError
from parprof.facts.cores import CoresHeld
from parprof.files.dso import ANONYMOUS, Dso, FileKey
from parprof.files.dso_cache import DsoCache
from parprof.files.libc import tells_once
from parprof.jit.reader import JitReader
from parprof.jit.registered import RegisteredCode
from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import (
    FOLLOW_CHILDREN,
    LOADS_ONCE,
    STOP_AT_EXEC,
    STOP_AT_LOAD,
    Cost,
    WatchConfig,
)
from parprof.kernel.stacks import Stack
from parprof.languages import Instance, SavedLanguage
from parprof.languages.front_ends import FrontEnds
from parprof.model import StackMerge
from parprof.probes.facts_book import BOOK
from parprof.probes.plan import (
    Plan,
    creates_threads_unprobed,
    has_runtime,
    is_static,
)
from parprof.probes.wait_functions import DEFAULT_RULES, SpinRules
from parprof.process.identity import Process, inspect, is_32_bit, open_pidfd
from parprof.process.loadmap import LoadMap
from parprof.process.threads import guess_threads
from parprof.runtimes import Agent
from parprof.session.cores import AllowedCores, OwnCores, changes_of_n
from parprof.session.following import Following
from parprof.session.lifecycle import UNSETTLED, Life, State
from parprof.session.mapped import Mapped
from parprof.session.probing import Probing
from parprof.session.scopes import Scope
from parprof.session.sources import MemoryChoice, Source
from parprof.session.spoken import Spoken
from parprof.session.waiting_loops import WaitingLoops
from parprof.symbols.perfmap import ABSENT, PerfMap
from parprof.unwind.placing import Placer
from parprof.values import dataclass

MADE_CODE = Dso(("label", ANONYMOUS), ANONYMOUS, problem="no file")
"""Memory that a language has its code in, where the load map does not have it (yet)."""


class FilesUnknown(Exception):
    """What has to be known of a process's files, or loaded for them, is on its way: try again soon."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What all targets of a session share."""

    kernel: BpfKernel
    cache: DsoCache
    placer: Placer
    jit: JitReader
    wanted_source: Source | None = None
    """Where n_w is to come from, if the user says so."""
    blame_locks: bool = False
    spares_plain: bool = False
    """Programs without a parallel runtime get no probes, so that one which they load later is known by its code alone,
    when that is first seen to run."""
    front_ends: FrontEnds = field(default_factory=FrontEnds)
    """Languages whose functions are to be in call paths."""
    on_planned: Callable[[Target], None] | None = None
    """Called when a target's probes are placed, or placed anew: whoever has probes of its own adds them then."""
    awaits_files: Callable[[], bool] | None = None
    """Whether that one waits for files that programs may load later: those that are stopped at exec are then stopped
    whenever they have loaded some, too, until probes are in place."""
    spin_rules: SpinRules = DEFAULT_RULES


class Target:
    """A process image under observation. ``image`` is the id under which the kernel counts it.

    What becomes of it when is `parprof.session.lifecycle`'s to say.
    """

    def __init__(
        self,
        watched: Watched,
        process: Process,
        image: int,
        *,
        follow: bool,
        stop: bool,
        scope: Scope,
        program: int = 0,
        like: Target | None = None,
        begun_ns: int = 0,
        ended_ns: int = 0,
    ) -> None:
        """``scope``: what its n_w is summed up over. ``program``: its executable, as the kernel knows it.

        ``begun_ns``: since when the kernel counts it (CLOCK_MONOTONIC); 0: from now on. ``ended_ns``: until when it
        did; 0: it still does.

        ``like``: the image before it, if this one may end soon: what is dear to find out waits for `settle`.
        """
        self.kernel = watched.kernel
        self.placer = watched.placer
        self.process = process
        self.image = image
        self.scope = scope
        self.clock_samples = 0
        self.probing = Probing(
            watched.kernel,
            process.pid,
            image,
            probed=weakref.proxy(self),  # else both would stay until Python looks for cycles
            wanted_source=watched.wanted_source,
            blame_locks=watched.blame_locks,
            spares_plain=watched.spares_plain,
            spin_rules=watched.spin_rules,
        )
        self.loops = WaitingLoops(self.probing)
        self.probe_hits = self.n_working = 0
        """Both as they were at the last `observe`."""
        self.by_ticks = False
        """Nobody keeps `n_working` up to date: see `ProcessState.ticks`."""
        self.spent_ns: tuple[int, ...] = (0,) * len(Cost)
        """What it paid for being profiled so far, by `Cost`; as of the last `observe`."""
        self.ready_ns = 0
        """Time that its working threads waited for a CPU so far, likewise."""
        self._begun_s = begun_ns / 1e9 if begun_ns else time.monotonic()
        self._ended_s = ended_ns / 1e9
        self.mapped = Mapped(process.pid, watched.cache, watched.placer)
        self.made = RegisteredCode(process.pid, watched.jit, watched.placer)
        """Code that JIT compilers have told debuggers of."""
        self._spoken = Spoken(watched.kernel, process.pid, watched.front_ends)
        self.following = Following(
            self.mapped,
            self.probing,
            self.made,
            self._spoken,
            weakref.proxy(self),
            watched.spin_rules.functions,
        )
        self._on_planned = watched.on_planned
        self._awaits_files = watched.awaits_files
        self.stops_at_loads = False
        """It is stopped whenever it has loaded files, not only those that it starts with."""
        self._own_cores: OwnCores = OwnCores(process.pid, like._own_cores if like else None)
        self.life = Life(f"process {process.pid}, image {image}")
        self.program = program
        self._had_model = like is not None
        self.was_trusted = self._had_model and stop
        """It was not stopped at its start, though others are: its program is known to be plain."""
        self.threads_created = 0
        """As of the last `observe`."""
        self.members_max = 0
        self.failures: list[str] = []
        self._flags = (FOLLOW_CHILDREN if follow else 0) | (STOP_AT_EXEC if stop else 0)
        self._awaits_libraries = stop and like is None
        """It is to be stopped when its first libraries are mapped."""
        self.pidfd = -1
        try:
            if not ended_ns:
                self.pidfd = open_pidfd(process.pid)
        except TargetError:
            if like is None:
                raise
        self.perf_map = ABSENT
        self._is_32_bit = False
        if like is None:
            self._look_around()

    def _look_around(self) -> None:
        self.perf_map = PerfMap(self.process.pid)
        self._is_32_bit = is_32_bit(self.process.pid)
        with suppress(ParprofError):
            self._own_cores.begin()

    @property
    def ended(self) -> bool:
        """Whether there is no process any more, or none of ours."""
        return self.life.is_over

    @property
    def is_young(self) -> bool:
        """Whether it may end soon: what is dear waits for `settle`."""
        return self.life.state in UNSETTLED

    @property
    def first_state(self) -> State:
        """What it begins as."""
        if self.pidfd < 0:
            return State.GONE
        return State.YOUNG if self._had_model else State.SETTLED

    @property
    def pid(self) -> int:
        """Process id, as this namespace sees it."""
        return self.process.pid

    @property
    def plan(self) -> Plan:
        """What its files call for."""
        return self.probing.plan

    @property
    def source(self) -> Source:
        """Where n_w comes from."""
        return self.probing.source

    @property
    def memory(self) -> MemoryChoice:
        """What is known of reading n_w from its memory."""
        return self.probing.memory

    @property
    def n_w_source(self) -> str:
        """Where n_w comes from: see `Source`."""
        return str(self.source)

    @property
    def language(self) -> Instance | None:
        """The interpreter that it runs; None: it runs none that is known."""
        return self._spoken.language

    @property
    def spins_by_samples(self) -> bool:
        """`WaitingLoops.are_told_by_samples`."""
        return self.loops.are_told_by_samples

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
        self.probing.inherit(parent.probing)
        self.mapped.inherit(parent.mapped)
        self._spoken.inherit(parent._spoken)

    @property
    def agents(self) -> list[Agent]:
        """Those of the parallel runtimes that it uses."""
        return [*self.plan.agents, *self.plan.polling]

    @property
    def runtime(self) -> str:
        """Their names, for labels; ``none`` without one."""
        return self.plan.runtime

    def look_at_language(self) -> None:
        """Find out what its interpreter did not tell so far."""
        self._spoken.look_again()

    def merge(self, user: int, stack: Stack) -> StackMerge | None:
        """What puts the frames of an interpreted language into a stack of that id; None if it has none."""
        return self.language.merge(user, stack) if self.language else None

    def saved_language(self, stacks: Mapping[int, Stack]) -> SavedLanguage | None:
        """What its interpreter's front end found of these stacks; None without one."""
        return self.language.saved(stacks) if self.language else None

    def language_counts(self) -> dict[str, int]:
        """What its interpreter's front end counts, by name."""
        return dict(self.language.counts()) if self.language else {}

    def notes(self) -> list[str]:
        """What the reader of its results must know."""
        unsupported = ["it is a 32-bit program, which is not supported: its call paths are not known"]
        return [
            *(unsupported if self._is_32_bit else ()),
            *self.failures,
            *self._spoken.notes(),
            *self.plan.notes,
            *self.probing.switches,
            *changes_of_n(self.allowed, self.parallel_cores, self.cores_held),
        ]

    def remarks(self) -> list[str]:
        """What the reader of a report must know of it: its failures, and what was done without."""
        texts = self.notes()
        if wish := self.probing.unmet_wish():
            texts.append(wish)
        if self.memory.problem:
            texts.append(f"n_w is not read from memory: {self.memory.problem}")
        return texts + self.loops.remarks() + self._own_cores.remarks()

    def jit_names(self, addresses: Iterable[int]) -> dict[int, str]:
        """Names of code that a JIT compiler made: that it told debuggers of, or that are in the map file that it may
        have written."""
        wanted = set(addresses)
        found = self.made.names(wanted)
        return {**self.perf_map.names(wanted - found.keys()), **found}

    @property
    def _loader_tells_once(self) -> bool:
        return self.load_map is not None and any(tells_once(dso.name) for dso in self.load_map.dsos())

    def has_new_libraries(self, epoch: int) -> bool:
        """Whether the load map of that epoch may have more than the one before: not where the loader is about to map
        the first ones. Of a process that ran before we came it may be in the middle of that."""
        return epoch > 1 or not self.stops or self._loader_tells_once

    def config(self) -> WatchConfig:
        """What the programs are told of this process."""
        flags = self._flags | (STOP_AT_LOAD if self._awaits_libraries or self.stops_at_loads else 0)
        if self._loader_tells_once:
            flags |= LOADS_ONCE
        return self.probing.config(flags, self.load_map.code_spans() if self.load_map else ())

    @property
    def load_map(self) -> LoadMap | None:
        """The load map as it was read last."""
        return self.mapped.newest

    def read_load_map(self, wait: bool = False) -> bool:
        """Read the load map again; False when the process is gone or nothing is mapped any more.

        ``wait`` for unwind tables that have to be built, because the process stands still for us.
        """
        return self.following.read(wait)

    def refresh(self, wait: bool = False) -> None:
        """Read the load map again, and probe what has come with it.

        ``wait`` for what is yet to be found out of its files, because the process stands still for us.
        """
        self.following.read_and_plan(wait)

    def careful_follow(self) -> None:
        """`Following.follow`, of which a failure is noted: it is this target's alone."""
        with self._noting_failures():
            self.following.follow()

    def due_s(self) -> float:
        """When its load map is to be read or to be planned for, or its interpreter to be looked at; infinite: not
        before something happens."""
        looking = self.language.due_s if self.language is not None else math.inf
        return min(looking, self.following.due_s())

    def careful_plan(self) -> None:
        """Probe what has come with the load map; a failure is noted."""
        with self._noting_failures():
            self.following.plan()

    def careful_refresh(self) -> None:
        """`refresh`, of which a failure is noted: it is this target's alone."""
        with self._noting_failures():
            self.refresh()

    @contextmanager
    def _noting_failures(self) -> Iterator[None]:
        try:
            yield
        except (ParprofError, OSError) as error:
            self.mapped.is_stale = False
            self.note_failure(f"its files cannot be probed: {error}")

    def settle(self) -> None:
        """It has lived for a while: do what could wait until now."""
        with suppress(ParprofError):
            self.process = inspect(self.pid)
        self._look_around()
        self.careful_refresh()

    @property
    def has_started(self) -> bool:
        """Whether it was seen with all of the libraries that it starts with."""
        return not self._awaits_libraries or (self.load_map is not None and is_static(self.load_map))

    def place_probes(self) -> None:
        """Probe whatever the present load map calls for and is not probed yet."""
        if self.load_map is None or (self.is_young and not has_runtime(self.load_map)):
            return
        known = self.plan.code_lists
        self.probing.place(self.load_map)
        if self.plan.code_lists != known:  # else that was done as the load map was read
            self.made.follow(self.load_map, self.plan.code_lists)
        if self._on_planned is not None:
            self._on_planned(self)
        stops = self.stops and self._awaits_files is not None and self._awaits_files()
        if stops != self.stops_at_loads:
            self.stops_at_loads = stops
            self.configure()

    def configure(self) -> None:
        """Tell the programs what there is to know of it."""
        self.kernel.configure(self.pid, self.config())

    def note_refusal(self, text: str) -> None:
        """The kernel refused probes."""
        if not self.is_gone():  # else there is nothing left to probe
            self.note_failure(text)

    def prepare(self, patient: Callable[[int], bool] | None = None, wait: bool = True) -> None:
        """Have all there that the samples of a process that runs already are made sense of with.

        That are unwind tables, as long as ``patient`` says to wait for those of so many files, its probes, since work
        is rooted where it was created, and code that JIT compilers have made.

        Raises:
            TargetError: it ended meanwhile; FilesUnknown: not ``wait``, and its files have to be looked into first, or
                the programs are not there that walk the stacks of its waits.
        """
        if not self.read_load_map() or self.load_map is None:
            raise TargetError(f"process {self.pid} ended while we attached to it")
        if patient is not None:
            BOOK.coming(self.load_map.dsos())  # beside the tables
            self.placer.await_tables(self.pid, patient)
        elif not wait and BOOK.coming(self.load_map.dsos()):
            raise FilesUnknown(f"process {self.pid}: its files are yet to be looked into")
        elif not wait and self.kernel.are_programs_coming:
            raise FilesUnknown(f"process {self.pid}: what finds out where it waits is yet to be loaded")
        self.place_probes()
        if patient is not None:
            self.made.await_found()

    def begin(self, begun_ns: int, wait: bool = True) -> None:
        """Count it from now on; `prepare` was before. ``begun_ns``: as for `BpfKernel.watch`.

        Raises:
            TargetError: the maps are full.
        """
        self.kernel.watch(self.pid, self.image, self.config(), scope=self.scope.number, begun_ns=begun_ns)
        self._begun_s = time.monotonic()
        before = self.load_map
        if self.read_load_map() and self.load_map is not before:  # a dlopen before its probe was there
            self.following.plan(wait)
        self.seed_threads()

    def note_failure(self, text: str) -> None:
        """For the report."""
        if text not in self.failures:
            self.failures.append(text)

    def learn(self, address: int) -> None:
        """An outlined function without a symbol was passed to the runtime: probe it."""
        found = self.load_map.find(address) if self.load_map else None
        if found is None and self.read_load_map() and self.load_map:
            found = self.load_map.find(address)
        if found is not None:
            self.probing.learn(*found)

    def learn_spins(self, found: Collection[FileKey]) -> None:
        """There are new loops, in these files, of which it is known that threads only wait there."""
        self.loops.learn(found, self.load_map)
        if self.load_map is not None and not self.ended:
            self.configure()

    def seed_threads(self) -> None:
        """Tell the programs which threads exist, with a guess at what the sleeping ones wait for."""
        has_runtime = bool(self.plan.agents)
        for tid, works in guess_threads(self.pid, self.plan.runtime_ranges if has_runtime else None):
            self.kernel.threads.add(
                self.pid, self.image, tid, works=works, unknown=has_runtime, scope=self.scope.number
            )

    def start_again(self, started_libraries: bool) -> None:
        """See to a process that was stopped for us at exec or by ld.so, and let it go on, whatever becomes of that."""
        try:
            self.refresh(wait=True)
        finally:
            self.resume(started_libraries)

    def resume(self, started_libraries: bool) -> None:
        """Let a process go on that was stopped for us at exec or by ld.so."""
        if started_libraries and self._awaits_libraries:
            self._awaits_libraries = False
            self.configure()
        if self.language is not None:
            self.kernel.await_programs()  # else its first threads would be created, and wait, in no function of it
        elif self.has_started and creates_threads_unprobed(self.plan, self.load_map):
            self.kernel.await_walks()  # else nobody would know who created the first ones
        with suppress(OSError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGCONT)

    def find(self, address: int, epoch: int) -> tuple[Dso, int] | None:
        """File and ELF address behind an address that was sampled in an epoch."""
        found = self.mapped.maps.find(address, epoch)
        if found is None and self.language is not None and self.language.has_code(address):
            return MADE_CODE, address
        return found

    def is_gone(self) -> bool:
        """Whether the process has ended: all of its threads."""
        if self.pidfd < 0:
            return True
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def watched_s(self) -> float:
        """For how long it has been watched, or was, until it was closed."""
        return (self._ended_s or time.monotonic()) - self._begun_s

    def observe(self) -> bool:
        """Remember what the kernel knows, for when the process is gone. False if its PID is another's by now."""
        state = self.kernel.process_state(self.pid)
        if state is not None and state.last_image == self.image:
            self.ready_ns = state.last_ready_ns
        if state is None or state.image != self.image:
            return state is None
        self.members_max = max(self.members_max, state.members_max)
        self.probe_hits = state.probe_hits
        self.threads_created = state.threads_created
        self.n_working, self.by_ticks = state.n_working, state.ticks
        self.spent_ns, self.ready_ns = state.spent_ns, state.ready_ns
        return True

    @property
    def cores(self) -> int:
        """Cores that it is allowed to use, as far as we know."""
        return self.allowed.now

    @property
    def allowed(self) -> AllowedCores:
        """The same as it was so far."""
        return self._own_cores.allowed

    @property
    def cpus(self) -> frozenset[int]:
        """The CPUs that it may run on, as far as we know."""
        return self._own_cores.cpus

    def read_cores(self) -> int:
        """How many cores it may use now; what is known if that cannot be read."""
        with suppress(ParprofError):
            return self._own_cores.look()
        return self.cores

    def change_cores(self, cores: int) -> None:
        """It may use another number of cores from now on."""
        self.allowed.change(cores, self.watched_s())

    def parallel_cores(self, allowed: int | None = None) -> int:
        """n: cores that the process could use, see `Scope.parallel_cores`.

        ``allowed``: as it was at another time, rather than now.
        """
        return self.scope.parallel_cores(self, self.cores if allowed is None else allowed)

    @property
    def pool(self) -> int:
        """How many threads its parallel runtime runs; 0: it has none, or nobody knows."""
        return self.members_max if self.plan.agents else 0

    def cores_held(self) -> list[CoresHeld]:
        """How many cores it was allowed, and for how long."""
        held_s = self.allowed.held_s(self.watched_s())
        return [
            CoresHeld(allowed, self.parallel_cores(allowed), seconds) for allowed, seconds in held_s.items()
        ]

    def close(self) -> None:
        """It is watched no more: detach the probes (slow mechanisms in the background), let the process go."""
        self._ended_s = self._ended_s or time.monotonic()
        self._own_cores.close()
        self.made.close()
        self.placer.forget(self.pid)
        self._spoken.close()
        self.probing.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def forget(self) -> None:
        """Close what names its samples."""
        self.perf_map.close()
