"""The watched processes of the daemon, and what each is charged with."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from operator import add
from types import MappingProxyType

from parprof.attribution.invariant import CoreTime
from parprof.attribution.ready import share_ready
from parprof.facts.cores import CoresHeld, held_since, mean_cores
from parprof.kernel.counters import EDGE_NAMES
from parprof.kernel.records import COST_NAMES, Cost
from parprof.metrics import IDLENESS, READY, STOLEN, UNUSED, Metrics
from parprof.model import Count, PathSample, ProcessInfo, Profile, SampleKey
from parprof.profile.accounting import JobTime, Spun
from parprof.profile.cost import BUDGET, SPUN, cost_shares, percent_of_rest, with_spun
from parprof.profile.rows import RowMaker
from parprof.service.accounts import Account, mean_n_working, most_working
from parprof.service.agreement import IdlenessChecks
from parprof.service.governor import Usage
from parprof.service.groups import Group, Groups
from parprof.service.labels import read_labels
from parprof.service.levels import NONE, LevelClock
from parprof.service.machine import IdleTime, unused_share
from parprof.service.model import GroupSnapshot, Labels, ProcessSnapshot
from parprof.session.session import Session
from parprof.session.target import FilesUnknown, Target
from parprof.values import dataclass

Fold = Callable[[Iterable[PathSample], int], tuple[list[PathSample], int]]


NOTHING_SAMPLED = "nothing was sampled: the process did not use the CPU in this time"
NOT_FOLLOWED = (
    "context switches were not followed all the time, as all those on this machine cost more than the budget: where "
    "threads slept then, and why nobody worked, is not known"
)


@dataclass(slots=True)
class _Watched:
    target: Target
    labels: Labels
    account: ProcessAccount
    group: Group | None = None
    begun_s: float = field(default_factory=time.monotonic)
    _parallel: bool = False

    def is_parallel(self) -> bool:
        """Whether it has, or had, more than one thread."""
        if not self._parallel:
            self._parallel = self.target.threads_created > 0 or _thread_count(self.target.pid) > 1
        return self._parallel


class ProcessAccount(Account):
    """An account with what only the daemon knows."""

    cost_ratio = 0.0
    folded = 0
    charged_hits = 0
    charged_ready_ns = 0
    allowed_s: Mapping[int, float] = MappingProxyType({})
    """For how long it had been allowed how many cores when it was charged last."""
    violation = ""
    """What could not be in the last interval; empty if all could."""
    charged_ns: tuple[int, ...] = (0,) * len(Cost)
    levels_s: tuple[float, ...] = NONE
    """For how long n_w was at each level."""

    def take_held(self, held: Sequence[CoresHeld]) -> list[CoresHeld]:
        """For how long it was allowed how many cores since the last call, of all the time until now."""
        since = held_since(held, self.allowed_s)
        self.allowed_s = {one.allowed: one.seconds for one in held}
        return since


@dataclass(slots=True)
class Charged:
    """What one process was charged with in one interval."""

    target: Target
    labels: Labels
    account: ProcessAccount
    rows: list[PathSample]
    usage: Usage
    start_s: float
    frequency_hz: int
    """At which it was sampled."""
    paid_ns: Mapping[str, float] = field(default_factory=dict)
    """What it paid for being profiled, by kind: see `with_spun`."""
    own_percent: float = 0.0
    """Of a CPU: what the daemon itself took in the interval, for all processes."""
    is_attached: bool = False
    """Somebody attaches to it: all is to be known of it, whatever memory that takes."""
    job_time: JobTime | None = None
    """Of such a process, if it is a job of its own: what its rows are completed with."""
    spun: Spun = ()
    """Of such a process: see `Spun`."""


class Watching:
    """Keeps accounts by process image."""

    def __init__(
        self, session: Session, idle_time: IdleTime | None = None, groups: Groups | None = None
    ) -> None:
        """``session`` has the targets; ``idle_time`` is the machine's; ``groups``: are charged, too."""
        self._session = session
        self._groups = groups
        self._watched: dict[int, _Watched] = {}
        self._hits: Counter[str] = Counter()
        self._strays = Metrics()
        self._idle_time = idle_time or IdleTime()
        self._level_clock = LevelClock()
        self._levels_s: Mapping[int, tuple[float, ...]] = {}
        self._ticks = 0
        self._own_cpu_s = time.process_time()
        self._spun_for_us_ns = 0.0
        self.attached: dict[int, float] = {}
        """The processes that somebody attaches to, by PID: of these all is to be known. Since when, CLOCK_MONOTONIC."""
        self.checks = IdlenessChecks()
        """Exact totals of idleness against sampled ones."""
        self.shows_arguments = False
        """Whether commands have their arguments, which may hold secrets, wherever they are shown."""
        self.violations = 0
        """Intervals in which a process was charged with more core time than there was."""

    def watch(self, pid: int) -> bool:
        """Begin to watch a process; False if its files have to be looked into first, which has begun.

        Raises:
            TargetError: it cannot be watched.
        """
        try:
            self._known(self._session.watch(pid, wait=False))
        except FilesUnknown:
            return False
        return True

    def knows(self, target: Target) -> bool:
        """Whether a process image was watched on purpose, or charged before."""
        return target.image in self._watched

    def since_s(self, target: Target) -> float:
        """When a process image was first watched, CLOCK_MONOTONIC."""
        return self._known(target).begun_s

    def count(self) -> int:
        """Number of processes that are watched now."""
        return sum(not target.ended for target in self._session.targets.values())

    def _known(self, target: Target) -> _Watched:
        known = self._watched.get(target.image)
        if known is None:
            labels = read_labels(target.pid, target.process.comm)
            group = None if self._groups is None else self._groups.join(labels)
            known = self._watched[target.image] = _Watched(target, labels, ProcessAccount(time.time()), group)
        return known

    def attached_images(self) -> set[int]:
        """The process images that somebody attaches to."""
        targets = self._session.targets.values() if self.attached else ()
        return {target.image for target in targets if target.pid in self.attached}

    def look(self) -> int:
        """Read for how long n_w was how high.

        Returns until when, CLOCK_MONOTONIC, nanoseconds: waits that go on are cut in two there, and the interval ends.
        """
        self._levels_s = self._level_clock.advance(self._session.targets.values())
        return self._level_clock.read_ns

    def charge(
        self,
        facts: Mapping[SampleKey, Count],
        rows: Iterable[PathSample],
        seconds: float,
        limit: int,
        fold: Fold,
        fine: Mapping[int, float],
        spun_alone: Iterable[tuple[PathSample, float]],
        frequency_hz: int,
        *,
        in_between: bool = False,
    ) -> list[Charged]:
        """Charge one interval of ``seconds``; at most ``limit`` call paths of each process stay apart.

        `look` comes first. ``fine``: see `mean_n_working`. ``spun_alone``: see `RowMaker.spun_alone`.
        ``frequency_hz``: the rate of its samples. ``in_between``: it is no point in the history of processes.
        """
        end_s = time.time()
        by_image: dict[int, list[PathSample]] = {}
        for row in rows:
            by_image.setdefault(row.origin.image, []).append(row)
        for image in by_image.keys() - self._session.targets.keys():
            for row in by_image[image]:
                self._strays.add(row.metrics)
        idleness_ns = sum(row.metrics.idleness_ns for rows_of_one in by_image.values() for row in rows_of_one)
        unused = unused_share(idleness_ns, self._idle_time.take_ns())
        means, most = mean_n_working(facts, fine), most_working(facts)
        levels_s, self._levels_s = self._levels_s, {}
        ticks = self._session.kernel.statistics()["ticks"]
        ticked, self._ticks = ticks != self._ticks, ticks
        own_percent = self._own_percent(seconds)
        spun: dict[int, list[tuple[PathSample, float]]] = {}
        for row, number in spun_alone:
            spun.setdefault(row.origin.image, []).append((row, number * 1e9 / frequency_hz))
        out = []
        for target in self._session.targets.values():
            watched = self._known(target)
            account, found = watched.account, by_image.get(target.image, [])
            levels = levels_s.get(target.image, NONE)
            account.levels_s = tuple(map(add, account.levels_s, levels))
            folded = 0
            if len(found) > limit:
                found, folded = fold(found, limit)
                account.folded += folded
            ready_ns = max(target.ready_ns - account.charged_ready_ns, 0)
            account.charged_ready_ns = target.ready_ns
            rest_ns = share_ready(ready_ns, found)
            interval = account.add(found)
            account.totals[READY] += rest_ns
            unused_ns = unused * interval.idleness_ns if watched.is_parallel() else None
            account.totals[UNUSED] += unused_ns or 0.0
            if watched.group:
                watched.group.charge(found, unused_ns, levels, folded, rest_ns)
            mean = means.get(target.image, 0.0)
            account.close_interval(time.monotonic(), seconds, interval, mean, in_between=in_between)
            hits, account.charged_hits = target.probe_hits - account.charged_hits, target.probe_hits
            self._hits[target.plan.runtime] += max(hits, 0)
            cores = mean_cores(account.take_held(target.cores_held()))
            times = CoreTime(
                interval.work_ns / 1e9,
                interval.idleness_ns / 1e9,
                ready_ns / 1e9,
                cores,
                seconds,
                1 / frequency_hz,
                most.get(target.image, 0),
            )
            self._check(account, times)
            self._compare(target, interval, times, ticked)
            paid = [now - then for now, then in zip(target.spent_ns, account.charged_ns, strict=True)]
            account.charged_ns = target.spent_ns
            is_attached = target.pid in self.attached
            if found or hits or is_attached:
                by_kind = with_spun(
                    {COST_NAMES[kind]: paid[kind] for kind in Cost}, interval.spin_ns, round(cores)
                )
                usage = Usage(
                    seconds,
                    interval.cpu_ns,
                    interval.samples,
                    max(hits, 0),
                    sum(paid),
                    paid[Cost.SAMPLE] + paid[Cost.TIMER],
                )
                self._spun_for_us_ns += by_kind[SPUN]
                one = Charged(
                    target,
                    watched.labels,
                    account,
                    found,
                    usage,
                    end_s - seconds,
                    frequency_hz,
                    by_kind,
                    own_percent,
                    is_attached,
                )
                if is_attached:
                    one.job_time = self._job_time(one, cores, ready_ns, facts, ticked=ticked)
                    one.spun = spun.get(target.image, ())
                out.append(one)
            else:
                account.cost_ratio = 0.0
        return out

    def _own_percent(self, seconds: float) -> float:
        """Of a CPU: what the daemon took since the last call, that long ago."""
        before_s, self._own_cpu_s = self._own_cpu_s, time.process_time()
        return 100 * (self._own_cpu_s - before_s) / seconds if seconds > 0 else 0.0

    def _check(self, account: ProcessAccount, times: CoreTime) -> None:
        """Note what can never be, and should not be."""
        account.violation = "" if times.is_possible else times.violation()
        self.violations += not times.is_possible

    def _compare(self, target: Target, interval: Metrics, times: CoreTime, ticked: bool) -> None:
        """Hold sampled idleness against the exact total, if it has one of its own."""
        level_ns = self._level_clock.since_ns.get(target.image)
        scope = target.scope
        if level_ns is None or len(scope.members) > 1 or not scope.times(ticked).exact or times.cores % 1:
            self.checks.skip(target.image)
            return
        sampled_s = (interval[IDLENESS] + interval[STOLEN]) / 1e9
        self.checks.add(target.image, level_ns, sampled_s, times.ready_s, times.cores, times.period_s)

    def _job_time(
        self,
        charged: Charged,
        cores: float,
        ready_ns: float,
        facts: Mapping[SampleKey, Count],
        *,
        ticked: bool,
    ) -> JobTime | None:
        """What the interval's rows of a process are completed with; None: it is not a job of its own."""
        target = charged.target
        times = self._level_clock.times(target, exact=target.scope.times(ticked).exact)
        if times is None:
            return None
        return JobTime.of(times, cores, ready_ns, facts, charged.frequency_hz, ticked=ticked)

    def take_strays(self) -> Metrics:
        """What was charged to processes that were gone already, since the last call."""
        strays, self._strays = self._strays, Metrics()
        return strays

    def profile(self, charged: Charged, cores: int, event: str) -> Profile:
        """The profile of one interval of one process."""
        target = charged.target
        return Profile(
            process=ProcessInfo(
                target.pid,
                target.process.comm,
                self._command(target),
                target.plan.runtime,
                cores,
                target.n_w_source,
            ),
            duration_s=charged.usage.seconds,
            frequency_hz=charged.frequency_hz,
            samples=charged.rows,
            event=event,
            target_cost_percent=percent_of_rest(sum(charged.paid_ns.values()), charged.usage.cpu_ns),
            daemon_cost_percent=charged.own_percent,
            notes=[*self._impossible(self._known(target)), *_not_followed(charged), *target.notes()],
            extra=self._costs(charged) if charged.is_attached else {},
            start_time_s=charged.start_s,
        )

    def _costs(self, charged: Charged) -> dict[str, str]:
        """By kind, and the budget."""
        budget = f"{100 * self._session.kernel.budget_ratio:g}"
        return {BUDGET: budget, **cost_shares(charged.paid_ns, charged.usage.cpu_ns)}

    def _command(self, target: Target) -> str:
        """How a process is shown. Not by the first word of its command line: many programs write all of it there."""
        process = target.process
        return process.command if self.shows_arguments else process.exe or f"[{process.comm}]"

    def idle_profile(self, target: Target, seconds: float, cores: int, event: str) -> Profile:
        """The profile of a process of which nothing was sampled in these seconds."""
        watched, start_s = self._known(target), time.time() - seconds
        nothing = Usage(seconds, 0.0, 0, 0)
        profile = self.profile(
            Charged(
                target,
                watched.labels,
                watched.account,
                [],
                nothing,
                start_s,
                self._session.kernel.frequency_hz,
            ),
            cores,
            event,
        )
        profile.notes.append(NOTHING_SAMPLED)
        return profile

    def machine(self, charged: Iterable[Charged], seconds: float) -> Usage:
        """All of an interval together."""
        usages = [one.usage for one in charged]
        return Usage(
            seconds,
            sum(usage.cpu_ns for usage in usages),
            sum(usage.samples for usage in usages),
            sum(usage.probe_hits for usage in usages),
            sum(usage.spent_ns for usage in usages),
            sum(usage.samples_ns for usage in usages),
        )

    def snapshots(self, rows: RowMaker, functions: int) -> tuple[ProcessSnapshot, ...]:
        """The processes that are watched now."""
        return tuple(
            self._snapshot(self._known(target), rows.cores_of(target), functions)
            for target in self._session.targets.values()
            if not target.ended
        )

    def _snapshot(self, watched: _Watched, cores: int, functions: int) -> ProcessSnapshot:
        target, account = watched.target, watched.account
        threads = _thread_count(target.pid)
        working = min(round(account.working), threads)
        spinning = min(round(account.spinning), threads - working)
        return ProcessSnapshot(
            pid=target.pid,
            labels=watched.labels,
            command=self._command(target),
            runtime=target.plan.runtime,
            n_w_source=target.n_w_source,
            cores=cores,
            started_s=account.started_s,
            begun_s=watched.begun_s,
            threads={"working": working, "spinning": spinning, "blocked": threads - working - spinning},
            n_working=working if target.by_ticks else target.n_working,
            totals=account.totals.copy(),
            functions=account.functions(functions),
            cost_ratio=account.cost_ratio,
            frequency_hz=self._session.kernel.frequency_hz,
            history=tuple(account.history),
            notes=(*self._impossible(watched), *target.notes()),
            folded=account.folded,
            levels_s=account.levels_s,
            group=watched.group.key if watched.group else None,
            is_parallel=watched.is_parallel(),
        )

    def groups(self, functions: int) -> tuple[GroupSnapshot, ...] | None:
        """What groups of processes were charged with; None without any."""
        return None if self._groups is None else self._groups.snapshots(functions)

    @property
    def levels_s(self) -> tuple[float, ...]:
        """For how long n_w was at each level, summed up over all processes, ended ones too."""
        return self._level_clock.total_s

    def _impossible(self, watched: _Watched) -> list[str]:
        notes = watched.account.violation, self.checks.note(watched.target.image)
        return [note for note in notes if note]

    @property
    def idle_s(self) -> float:
        """Core time in which the machine had nothing to do, up to the last interval's end."""
        return self._idle_time.total_s

    @property
    def spun_for_us_s(self) -> float:
        """CPU time in which threads spun while others were held up by profiling, of all processes: an estimate."""
        return self._spun_for_us_ns / 1e9

    def probe_hits(self) -> dict[str, int]:
        """Probe hits by runtime."""
        return {runtime: hits for runtime, hits in self._hits.items() if hits}

    def edge_hits(self) -> dict[str, int]:
        """The same hits by kind of edge, as far as they are of one."""
        edges = self._session.kernel.edge_hits()
        return {EDGE_NAMES[kind]: hits for kind, hits in edges.items() if hits and kind in EDGE_NAMES}

    def failures(self) -> Counter[tuple[str, str]]:
        """Probes that could not be attached, by (runtime, reason), in the processes watched now."""
        out: Counter[tuple[str, str]] = Counter()
        for target in self._session.targets.values():
            if target.failures:
                out[target.plan.runtime, "probes"] += len(target.failures)
            if target.memory.problem:
                out[target.plan.runtime, "memory"] += 1
        return out

    def forget(self, target: Target) -> Metrics:
        """A process is gone: what it was charged with in all."""
        watched = self._watched.pop(target.image, None)
        self.checks.keep(self._watched)
        if watched and watched.group and self._groups is not None:
            self._groups.leave(watched.group)
        return watched.account.totals if watched else Metrics()


def _thread_count(pid: int) -> int:
    """Number of threads; 0 if the process is gone. The kernel keeps it in what costs a fifth of a look at stat."""
    try:
        return max(os.stat(f"/proc/{pid}/task").st_nlink - 2, 0)
    except OSError:
        return 0


def _not_followed(charged: Charged) -> list[str]:
    """What its reader must know if switches were not followed: what others cost the service is felt by all."""
    return [NOT_FOLLOWED] if charged.job_time is not None and charged.job_time.ticked else []
