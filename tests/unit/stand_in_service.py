# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the daemon behind `parprof.service.model.Service`: real data classes, invented programs."""

from __future__ import annotations

import math
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from operator import add

from parprof.errors import TargetError
from parprof.metrics import UNUSED, Metrics
from parprof.model import Interval, ProcessInfo, Profile
from parprof.service.groups import clean_key
from parprof.service.kept_intervals import KEPT
from parprof.service.levels import FIRST_OF_LEVEL, NONE
from parprof.service.model import (
    FunctionUse,
    GroupKey,
    GroupSnapshot,
    Labels,
    ProcessSnapshot,
    ProfileEntry,
    PushQueue,
    Recent,
    Snapshot,
)
from parprof.service.past import Past, point_of
from profiles import heat

CORES = 8
STEP_S = 5.0
BEGUN_S = 5000.0
"""When it started, CLOCK_MONOTONIC."""
UNUSED_SHARE = 0.25
"""Of idleness, the rest of which other programs had."""
KEPT_NUMBERS = (3, 8)


@dataclass
class Program:
    """An invented process: how many of its threads work as time goes by, and in which functions."""

    pid: int
    comm: str
    mean_n_working: float = 4.0
    swing: float = 2.0
    runtime: str = "libgomp"
    n_w_source: str = "exact"
    functions: dict[str, float] = field(default_factory=lambda: {"solve": 0.7, "checksum": 0.3})
    """Share of the work by function."""
    labels: Labels = Labels()
    command: str = ""
    cost_ratio: float = 0.004
    notes: tuple[str, ...] = ()
    totals: Metrics = field(default_factory=Metrics)
    by_function: dict[str, Metrics] = field(default_factory=dict)
    history: tuple[Recent, ...] = ()
    n_working: int = 0
    age_s: float = 0.0
    levels_s: tuple[float, ...] = NONE
    is_parallel: bool = True

    def run(self, seconds: float, clock_s: float) -> None:
        """Live for some time."""
        self.age_s += seconds
        n_working = self.mean_n_working + self.swing * math.sin(self.age_s / 40 + self.pid)
        n_working = min(max(n_working, 0.2), CORES)
        work = seconds * n_working * 1e9
        spent = Metrics(
            samples=round(99 * seconds * n_working),
            work_ns=work,
            idleness_ns=seconds * (CORES - n_working) * 1e9,
            overhead_ns=0.05 * work,
            spin_ns=0.1 * seconds * (CORES - n_working) * 1e9,
            profiling_ns=0.01 * work,
            ready_ns=0.02 * work,
            stolen_ns=0.01 * work,
        )
        if self.is_parallel:
            spent[UNUSED] = UNUSED_SHARE * spent.idleness_ns
        self.totals.add(spent)
        for name, share in self.functions.items():
            part = Metrics(
                round(share * spent.samples),
                share * spent.work_ns,
                share * spent.idleness_ns,
                share * spent.overhead_ns,
                share * spent.spin_ns,
            )
            self.by_function.setdefault(name, Metrics()).add(part)
        self.n_working = round(n_working)
        level = max(at for at, first in enumerate(FIRST_OF_LEVEL) if first <= self.n_working)
        self.levels_s = tuple(took + seconds * (at == level) for at, took in enumerate(self.levels_s))
        efficiency = 0.95 * spent.work_ns / spent.effort_ns
        self.history = (*self.history, Recent(clock_s, n_working, efficiency))[-120:]

    def snapshot(self, started_s: float, begun_s: float = BEGUN_S) -> ProcessSnapshot:
        """What the daemon would say of it."""
        spinning = 1 if self.n_working < CORES else 0
        return ProcessSnapshot(
            pid=self.pid,
            labels=replace(self.labels, comm=self.comm),
            command=self.command or f"/usr/bin/{self.comm} --input data",
            runtime=self.runtime,
            n_w_source=self.n_w_source,
            cores=CORES,
            started_s=started_s,
            begun_s=begun_s,
            threads={
                "working": self.n_working,
                "spinning": spinning,
                "blocked": CORES - self.n_working - spinning,
            },
            n_working=self.n_working,
            totals=self.totals.copy(),
            functions=tuple(
                FunctionUse(name, f"/usr/bin/{self.comm}", metrics.copy())
                for name, metrics in self.by_function.items()
            ),
            cost_ratio=self.cost_ratio,
            frequency_hz=99,
            history=self.history,
            notes=self.notes,
            levels_s=self.levels_s,
            group=clean_key(replace(self.labels, comm=self.comm)),
            is_parallel=self.is_parallel,
        )


class StandInService:
    """Serves what the tests set; time passes when they say so."""

    def __init__(self, programs: list[Program] | None = None) -> None:
        self.by_process = True
        self.all_programs: list[Program] = []
        """Ended ones too."""
        self.programs = (
            programs if programs is not None else [Program(42, "heat"), Program(77, "solver", 7, 1)]
        )
        self.ended = Metrics()
        self.ended_levels_s = NONE
        self.started_s = time.time() - 100 * STEP_S
        self.now_s = self.started_s
        self.passed_s = 0.0
        self.unhealthy = self.not_ready = ""
        self.pending: list[Future[Profile]] = []
        self.asked: list[tuple[int, tuple[int, int] | None]] = []
        """Whose `history`, and of which intervals alone."""
        self.hangs = False
        self.lost: Counter[str] = Counter({"ring_full": 0, "stack_map_full": 0})
        self.probe_hits: Counter[str] = Counter()
        self.refreshed, self.is_busy = 0, False
        self.attach_failures: Counter[tuple[str, str]] = Counter()
        self.transitions: Counter[tuple[str, str]] = Counter()
        self.pushed: Counter[tuple[str, str]] = Counter()
        self.samples = 0
        self.idle_s = 0.0
        self.past = Past()
        self._snapshot = self._make()
        self.advance(STEP_S, steps=100)

    @property
    def clock_s(self) -> float:
        """CLOCK_MONOTONIC now."""
        return BEGUN_S + self.passed_s

    def advance(self, seconds: float, steps: int = 1) -> None:
        """Let time pass, in steps, and make a new snapshot."""
        for _ in range(steps):
            self.now_s += seconds
            self.passed_s += seconds
            self.idle_s += seconds
            for program in self.programs:
                before = program.totals.samples
                program.run(seconds, self.clock_s)
                self.samples += program.totals.samples - before
            self.probe_hits["libgomp"] += round(100 * seconds)
            self.lost["ring_full"] += 1
            self.transitions["exact", "sampled"] += 1
            self.attach_failures["libomp", "stripped"] += 1
            self.pushed["pyroscope", "sent"] += 1
            total = self.ended.copy()
            for program in self.programs:
                total.add(program.totals)
            cost_s = 0.002 * CORES * self.passed_s
            self.past.add(point_of(self.clock_s, total, self.idle_s, cost_s, sum(self.lost.values())))
        self._snapshot = self._make()

    def end(self, pid: int) -> None:
        """Let a process end."""
        gone = next(p for p in self.programs if p.pid == pid)
        self.ended.add(gone.totals)
        self.ended_levels_s = tuple(map(add, self.ended_levels_s, gone.levels_s))
        self.programs = [program for program in self.programs if program.pid != pid]
        self._snapshot = self._make()

    def _groups(self) -> tuple[GroupSnapshot, ...]:
        """Of all programs that there have been: as `parprof.service.groups` has them."""
        self.all_programs += [one for one in self.programs if one not in self.all_programs]
        sums: dict[GroupKey, tuple[Metrics, dict[str, Metrics], list[tuple[float, ...]]]] = {}
        parallel = set()
        for program in self.all_programs:
            key = clean_key(replace(program.labels, comm=program.comm))
            totals, functions, levels = sums.setdefault(key, (Metrics(), {}, []))
            totals.add(program.totals)
            parallel |= {key} if program.is_parallel else set()
            levels.append(program.levels_s)
            for name, metrics in program.by_function.items():
                functions.setdefault(name, Metrics()).add(metrics)
        return tuple(
            GroupSnapshot(
                key,
                totals,
                tuple(FunctionUse(name, f"/usr/bin/{key.comm}", one) for name, one in functions.items()),
                tuple(map(sum, zip(*levels, strict=True))),
                is_parallel=key in parallel,
            )
            for key, (totals, functions, levels) in sums.items()
        )

    def _make(self) -> Snapshot:
        return Snapshot(
            time_s=self.now_s,
            started_s=self.started_s,
            clock_s=self.clock_s,
            begun_s=BEGUN_S,
            processes=tuple(program.snapshot(self.started_s) for program in self.programs),
            frequency_hz=99,
            samples=self.samples,
            lost=dict(self.lost),
            probe_hits=dict(self.probe_hits),
            edge_hits={"work": sum(self.probe_hits.values())},
            attach_failures=dict(self.attach_failures),
            governor_transitions=dict(self.transitions),
            budget_ratio=0.01,
            cost_ratio=0.002,
            drain_seconds=0.012,
            checks=self.samples // 1000,
            disagreements=self.samples // 100_000,
            cores=CORES,
            idle_s=self.idle_s,
            ended=self.ended.copy(),
            short_lived_s={GroupKey("make", "build.service"): 0.02 * self.samples},
            groups=None if self.by_process else self._groups(),
            levels_s=tuple(
                map(sum, zip(self.ended_levels_s, *(p.levels_s for p in self.programs), strict=True))
            ),
            pushed=dict(self.pushed),
            push_queues={
                "parca": PushQueue(0, 0),
                "pyroscope": PushQueue(self.pushed["pyroscope", "sent"], 2_500_000, "no answer within 10 s"),
            },
            cost_seconds={"samples": 1e-3 * self.samples, "timer": 2e-3 * self.samples},
            left_out={"probe_hits": self.samples},
            dropped={"intervals": 1, "call paths": 200},
            kept_bytes=3_000_000,
            past=self.past.points(),
        )

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def profiles(self) -> tuple[ProfileEntry, ...]:
        return tuple(
            ProfileEntry(p.pid, p.comm, 1000, self.now_s - 30, 30.0, p.totals.samples) for p in self.programs
        )

    def profile(self, pid: int, seconds: float) -> Future[Profile]:
        out: Future[Profile] = Future()
        if self.hangs:
            self.pending.append(out)
            return out
        program = next((p for p in self.programs if p.pid == pid), None)
        if program is None:
            out.set_exception(TargetError(f"process {pid} is not watched; /profiles lists those that are"))
        else:
            process = ProcessInfo(pid, program.comm, program.command, program.runtime, 4, program.n_w_source)
            out.set_result(replace(heat(), process=process, duration_s=seconds))
        return out

    def history(self, pid: int, seconds: float, only: tuple[int, int] | None = None) -> Future[Profile]:
        self.asked.append((pid, only))
        if only not in (None, KEPT_NUMBERS):
            out: Future[Profile] = Future()
            out.set_exception(TargetError(f"that profile of process {pid} is not kept any more"))
            return out
        out = self.profile(pid, seconds)
        if out.done() and out.exception() is None:
            found = out.result()
            found.intervals = [
                Interval(at, at + 1.0, (), {row: one.metrics.copy()})
                for at, (row, one) in enumerate(enumerate(found.samples))
            ]
            found.extra = {KEPT: "-".join(map(str, KEPT_NUMBERS))}
        return out

    def watch(self, pid: int) -> Future[bool]:
        raise NotImplementedError

    def unwatch(self, pid: int) -> Future[None]:
        raise NotImplementedError

    def refresh(self) -> Future[None]:
        self.refreshed += 1
        out: Future[None] = Future()
        if not self.is_busy:
            out.set_result(None)
        return out

    def losses(self) -> Future[dict[str, int]]:
        raise NotImplementedError

    def cut(self, pid: int) -> Future[float]:
        raise NotImplementedError

    def find_waits(self, pid: int, wanted: bool) -> Future[None]:
        raise NotImplementedError

    def is_healthy(self) -> str:
        return self.unhealthy

    def is_ready(self) -> str:
        return self.not_ready
