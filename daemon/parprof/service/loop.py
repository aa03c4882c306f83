"""The daemon's loop: watches the processes that use the machine, and charges what it samples interval by interval.

All of it is done by one thread, which owns the session. What it leaves for others to read is on the `Board`; what they
want done they ask `parprof.service.daemon.Daemon` for.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import field, replace

from parprof import cache
from parprof.errors import ParprofError, TargetError
from parprof.kernel.counters import LEFT_OUT
from parprof.kernel.detacher import detacher
from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import Budget
from parprof.metrics import Metrics
from parprof.model import Profile
from parprof.probes.prices import machine_prices
from parprof.profile.addresses import AddressBook
from parprof.profile.cost import SPUN
from parprof.profile.naming import FileNamer
from parprof.profile.rows import RowMaker
from parprof.resources import collect_less
from parprof.service import footprint
from parprof.service.config.options import DaemonOptions
from parprof.service.folding import fold_cold
from parprof.service.governor import Governor
from parprof.service.groups import Groups
from parprof.service.losses import CANDIDATES, UNDECIDED, Losses, unexpected
from parprof.service.model import GroupKey, Labels, ProfileEntry, PushQueue, Snapshot
from parprof.service.open_intervals import Kept, OpenIntervals
from parprof.service.own_limits import QuotaAlarm
from parprof.service.past import Past, point_of
from parprof.service.recent import RecentProfiles
from parprof.service.requests import Requests
from parprof.service.selection import Candidates
from parprof.service.short_lived import ShortLived
from parprof.service.watching import NOTHING_SAMPLED, Charged, Watching
from parprof.service.watchlist import Watchlist
from parprof.session.pace import Pace
from parprof.session.session import Session
from parprof.session.sources import Source
from parprof.values import dataclass

_LOG = logging.getLogger(__name__)
_STACKS_KEPT = 1_000
"""Beyond these the ones go that were in no sample for `_STACK_DRAINS` drains: there are new ones every minute, since
interrupts come anywhere in the kernel, and what grows until there are thousands looks like a leak for hours."""
_STACK_DRAINS = 6
_FRESH_SECONDS = 0.5
"""What was charged so short a time ago is answer enough."""
_RENEWED_SECONDS = 2.0
"""No snapshot is made sooner after the last one because somebody asks: each drains the kernel's tables."""
_TRIM_SECONDS = 60.0
_PART_SECONDS, _MOST_PARTS, _PART_DRAINS = 1.0, 64, 20
"""While somebody attaches to a process, intervals end so often at most, or so often in the time since he began, so that
it is told what was when; and no sooner than after so many times the CPU time that it takes: the least of the last few,
for now and then there is much to look up."""
_FEW = 4
_SETTLE_SECONDS = 60.0
"""By then, at the latest, the daemon has met all processes that ran when it started."""


@dataclass(slots=True)
class Board:
    """What the loop leaves for all threads to read. A value is never changed, only put in the place of another."""

    snapshot: Snapshot
    entries: tuple[ProfileEntry, ...] = ()
    """The processes of which there is a recent profile."""
    turned_s: float = field(default_factory=time.monotonic)
    """When the loop turned last, CLOCK_MONOTONIC."""


def _nothing_left(profile: Profile, labels: Labels) -> None:
    """No store wants it."""


@dataclass(slots=True)
class Pushing:
    """What the loop has to do with profiles that are pushed to stores."""

    outcomes: Callable[[], Mapping[tuple[str, str], int]] = dict
    """Where the counts of pushed profiles come from."""
    queues: Callable[[], Mapping[str, PushQueue]] = dict
    """And what waits to be pushed."""
    leave: Callable[[Profile, Labels], None] = _nothing_left
    """Is given what nobody has taken yet of a process image that another one has replaced."""


class DaemonLoop:
    """One run of the daemon, from the first sample to `finish`. For one thread."""

    def __init__(
        self,
        options: DaemonOptions,
        kernel: BpfKernel,
        namer: FileNamer,
        board: Board,
        recent: RecentProfiles,
        push: Pushing,
        wake_fd: int,
    ) -> None:
        """``recent`` outlives it; the loop turns at once when ``wake_fd`` becomes readable."""
        self._options = options
        self._kernel = kernel
        self._board = board
        self._recent = recent
        self._push = push
        self._namer = namer
        self._governor = Governor(options.budget_ratio, options.frequency_hz)
        self._ended = Metrics()
        self._undecided = 0
        """Samples of processes about which nothing was decided, when the last interval ended."""
        self._undecided_s = 0.0
        self._drain_seconds = 0.0
        self._charges_cpu_s = deque([0.0], maxlen=_FEW)
        self._cost_ns = self._cost_ratio = 0.0
        self._open = OpenIntervals()
        self._past = Past()
        self._quota = QuotaAlarm()
        self._quota.look(time.monotonic())
        self._said: set[str] = set()
        """Problems of caches on disk."""
        pace = Pace(
            poll=1.0,
            drain=footprint.drain_seconds(options),
            rates=1.0,
            tables=footprint.TURN_SECONDS,
            cores=footprint.CORES_SECONDS,
            drain_at_exit=False,
            glimpses=False,
        )
        self._candidates = Candidates(options.selection, options.max_processes)
        self._session = Session(kernel, pace, self._candidates.add, spare_plain=True)
        self._session.wake_up_by(wake_fd)
        groups = None if options.by_process else Groups(options.max_groups)
        self._watching = Watching(self._session, groups=groups)
        self._watching.shows_arguments = options.arguments
        self._short = ShortLived()
        self._watchlist = Watchlist(kernel, self._session, self._watching, self._candidates, self._short)
        self._rows = RowMaker(AddressBook(namer, by_line=True, kernel_depth=options.kernel_depth))
        self._losses = Losses(kernel.lost)
        self._losses.also(CANDIDATES, lambda: self._candidates.refused)
        self._losses.also("path_incomplete", lambda: self._rows.incomplete)
        kernel.breaker.set_prices(machine_prices(kernel))
        collect_less()
        self._began_s = self._charged_s = self._snapshot_s = self._trimmed_s = time.monotonic()
        self._tell_of_caches()

    def turn(self, requests: Requests[DaemonLoop]) -> None:
        """Wait for something to happen, deal with it, and with what was asked."""
        requests.answer_until(self, self._board.turned_s + footprint.TURN_SECONDS)
        longest_s = min(1.0, self._options.interval_seconds, self._part_due_s() - time.monotonic())
        self._session.step(self._candidates.wait_seconds(max(longest_s, 0.0)))
        requests.answer(self)
        self._watchlist.consider()
        now_s = time.monotonic()
        if now_s - self._snapshot_s >= self._options.interval_seconds:
            self._renew()
        elif now_s >= self._part_due_s():
            self.charge(in_between=True)
        if now_s - self._trimmed_s >= _TRIM_SECONDS:
            self._trimmed_s = now_s
            self._trim()
        self._board.turned_s = now_s

    def _part_due_s(self) -> float:
        """When to charge what was sampled although the interval is not over, CLOCK_MONOTONIC."""
        attached = self._watching.attached
        if not attached:
            return math.inf
        took_s = (time.monotonic() - max(attached.values())) / _MOST_PARTS
        return self._charged_s + max(_PART_SECONDS, took_s, _PART_DRAINS * min(self._charges_cpu_s))

    def finish(self) -> None:
        """Detach from everything. Targets run on."""
        self._session.finish()
        self._session.close()

    # What is asked of it.

    def renew(self) -> None:
        """A snapshot of now, if the last one is old enough for that to be worth it."""
        if time.monotonic() - self._snapshot_s >= _RENEWED_SECONDS:
            self._renew()

    def exactly(self, pid: int, first: int, last: int) -> Profile:
        """Certain intervals of a process. Raises TargetError."""
        found = self._recent.exactly(pid, first, last)
        if found is None:
            raise TargetError(f"that profile of process {pid} is not kept any more; / links to newer ones")
        return found

    def last(self, pid: int, seconds: float, *, by_interval: bool) -> Profile:
        """The last ``seconds`` of a process. Raises TargetError."""
        is_partly_known = pid in self._watching.attached or len(self._open) > 0
        if is_partly_known or time.monotonic() - self._charged_s >= _FRESH_SECONDS:
            self.charge()
        target = self._session.live(pid)
        if target is None:
            found = self._recent.profile(pid, seconds, by_interval=by_interval)
        else:
            since_s = self._watching.since_s(target)
            found = self._recent.profile(
                pid, seconds, until_s=self._charged_s, since_s=since_s, by_interval=by_interval
            )
        if found is not None:
            if target is not None and target.failures:
                found.lost["probes"] = len(target.failures)
            if not found.total().samples:  # its threads only waited
                found.notes.append(NOTHING_SAMPLED)
            return found
        if target is None:
            raise TargetError(f"process {pid} is not watched, or ended before anything was sampled of it")
        cores, event = self._rows.cores_of(target), self._options.events[0]
        return self._watching.idle_profile(target, seconds, cores, event)

    def watch(self, pid: int) -> bool:
        """Watch a process, whatever the selection says of it: see `Watchlist.begin`. Raises TargetError."""
        return self._watchlist.begin(pid)

    def unwatch(self, pid: int) -> None:
        """Stop to watch a process that was asked for. Raises TargetError."""
        self._watchlist.end(pid)

    def find_waits(self, pid: int, wanted: bool) -> None:
        """Find out from now on where the threads of a process wait, and how often what is called; or do so no more."""
        if wanted and not self._watching.attached:  # what threads wait for, the kernel's functions tell
            self._namer.look_up_kernel(0.0)
            self._rows.trim()
        self._watchlist.find_waits(pid, wanted)
        if not self._watching.attached:
            self._namer.look_up_kernel(footprint.KERNEL_PASS_SECONDS)

    def sample_at(self, frequency_hz: int) -> None:
        """Sample at this rate, if it is higher than the usual one; 0: at the usual one."""
        self._governor.ask_for(frequency_hz)
        self.charge()

    def losses(self) -> dict[str, int]:
        """What was lost of processes that are watched, by reason, so far."""
        return self._losses.of_watched()

    def cut(self, pid: int) -> float:
        """End the interval, and with it waits that go on, of processes that somebody attaches to: so to this one.

        Returns when that was, CLOCK_MONOTONIC.
        """
        self.charge()
        self._watchlist.begin_calls(pid)
        return self._charged_s

    def apply(self, options: DaemonOptions) -> None:
        """Go on with other options, those that need a restart aside."""
        self._options = replace(
            options, events=self._options.events, interval_seconds=self._options.interval_seconds
        )
        self._governor.set_budget(options.budget_ratio, options.frequency_hz)
        self._kernel.breaker.set_budget(Budget(options.budget_ratio))
        self._recent.resize(options.ring_bytes)
        self._watching.shows_arguments = options.arguments
        self._candidates.selection = options.selection
        self._candidates.max_processes = options.max_processes
        self._watchlist.drop_unwanted()

    # What it does of itself.

    def _renew(self) -> None:
        self._snapshot_s = time.monotonic()
        self.charge()
        if self._losses.is_settling and (
            not self._candidates or self._snapshot_s - self._began_s >= _SETTLE_SECONDS
        ):
            self._losses.settle()
        self._board.snapshot = self._make_snapshot()

    def charge(self, in_between: bool = False) -> None:
        """Take what was sampled since the last time and charge it.

        ``in_between``: intervals of processes that nobody attaches to are not over with that.
        """
        self._watchlist.drop_become_others()
        began_s, cpu_s = time.monotonic(), time.thread_time()
        session, now_ns = self._session, self._watching.look()
        before_s = now_ns / 1e9
        self._watchlist.cut_waits(now_ns)
        session.drain()
        seconds = before_s - self._charged_s
        self._charged_s = before_s
        drained = session.take()
        self._undecided_until_now()
        self._set_frequency()  # before anything else: what is sampled from now on is weighed with the new one
        self._rows.tell_threads(self._watching.attached_images())
        rows = self._rows.rows(drained)
        charged = self._watching.charge(
            drained.facts,
            rows,
            seconds,
            self._options.paths_per_process,
            fold_cold,
            self._rows.fine_n_working,
            self._rows.spun_alone(),
            drained.frequency_hz,
            in_between=in_between,
        )
        self._ended.add(self._watching.take_strays())
        self._keep(charged, before_s, in_between)
        self._govern(charged, seconds, drained.frequency_hz)
        before_ns, self._cost_ns = self._cost_ns, session.cost.machine_ns(session.targets.values())
        machine_ns = 1e9 * max(seconds, 0.001) * (os.cpu_count() or 1)
        self._cost_ratio = max(self._cost_ns - before_ns, 0.0) / machine_ns
        ended = session.drop_ended()
        for target in ended:
            had = self._watching.forget(target)
            self._ended.add(had)
            self._short.sampled(target.pid, had.cpu_ns / 1e9)
            self._governor.forget(target.image)
        self._rows.forget({target.image for target in ended})
        self._watchlist.forget(target.pid for target in ended if session.live(target.pid) is None)
        self._board.entries = self._recent.entries()
        self._drain_seconds = time.monotonic() - began_s
        self._charges_cpu_s.append(time.thread_time() - cpu_s)

    def _keep(self, charged: list[Charged], ended_s: float, in_between: bool) -> None:
        """Keep what was charged as recent profiles, or as part of such."""
        living = {image for image, target in self._session.targets.items() if not target.ended}
        kept = self._open.end_all_but(living)  # before another program that they have become
        for one in charged:
            profile = self._watching.profile(one, self._rows.cores_of(one.target), self._options.events[0])
            image = one.target.image
            part = Kept(profile, image, one.labels, ended_s, one.job_time, one.spun)
            kept += self._open.add(part, is_over=not in_between or image not in living)
        if not in_between:
            kept += self._open.end_all_but()
        for interval in kept:
            pid = interval.profile.process.pid
            if self._recent.image(pid) not in (None, interval.image):
                left = self._recent.take(pid)
                if left is not None:
                    self._push.leave(*left)
            self._recent.add(
                interval.profile,
                image=interval.image,
                labels=interval.labels,
                ended_s=interval.ended_s,
                job_time=interval.job_time,
                spun=interval.spun,
            )

    def _govern(self, charged: list[Charged], seconds: float, frequency_hz: int) -> None:
        now_s = time.monotonic()
        for one in charged:
            target = one.target
            one.account.cost_ratio = self._governor.cost_ratio(one.usage)
            if target.ended:
                continue
            for before, after in target.probing.take_transitions():
                self._governor.note_degraded(target.image, before, after, now_s)
            if (
                target.probing.has_edges
                and self._governor.judge(target.image, target.source, now_s) is not target.source
            ):
                _LOG.info("process %d: probes are tried again", target.pid)
                target.probing.go_over_to(Source.EXACT, "probes are tried again")
                target.probing.take_transitions()
        self._govern_switches(now_s)
        if frequency_hz == self._governor.frequency_hz:  # else another rate was asked for meanwhile
            self._governor.judge_frequency(self._watching.machine(charged, seconds))

    def _govern_switches(self, now_s: float) -> None:
        breaker = self._kernel.breaker
        if not self._governor.judge_switches(breaker.follows_switches, now_s):
            return
        try:
            breaker.follow_switches(self._kernel.images())
            _LOG.info("context switches are followed again")
        except (ParprofError, OSError) as error:
            _LOG.warning("context switches are not followed: %s", error)

    def _set_frequency(self) -> None:
        """Sample at the governor's rate from now on: right after a drain, as all that was drained has one rate."""
        frequency_hz = self._governor.frequency_hz
        if frequency_hz == self._kernel.frequency_hz:
            return
        _LOG.info("sampling at %d Hz instead of %d", frequency_hz, self._kernel.frequency_hz)
        try:
            self._kernel.set_frequency(frequency_hz)
        except ParprofError as error:
            _LOG.warning("sampling stays at %d Hz: %s", self._kernel.frequency_hz, error)
            self._governor.frequency_hz = self._kernel.frequency_hz

    def _trim(self) -> None:
        """Give back what has not been used for some time."""
        self._kernel.trim_stacks(_STACK_DRAINS, _STACKS_KEPT)
        self._session.trim()
        self._rows.trim()
        self._tell_of_caches()
        if told := self._quota.look(time.monotonic()):
            _LOG.warning("%s", told)
        footprint.give_back()

    def _tell_of_caches(self) -> None:
        for problem in set(cache.problems()) - self._said:
            self._said.add(problem)
            _LOG.warning(
                "%s: %s; what is kept there is made anew at each start, the BPF programs too",
                cache.cache_directory(),
                problem,
            )

    def _undecided_until_now(self) -> None:
        """Weigh samples of processes about which nothing was decided with the rate at which they were taken."""
        lost = self._kernel.lost().get(UNDECIDED, 0)
        self._undecided_s += max(lost - self._undecided, 0) / self._kernel.frequency_hz
        self._undecided = lost

    def _short_lived(self) -> dict[GroupKey, float]:
        """CPU time of those about which nothing was decided, by what their parents belong to."""
        return dict(self._short.advance(self._undecided_s))

    def _make_snapshot(self) -> Snapshot:
        lost = self._losses.counts()
        counted = self._kernel.statistics()
        processes = self._watching.snapshots(self._rows, self._options.functions_per_process)
        made = Snapshot(
            time_s=time.time(),
            started_s=self._board.snapshot.started_s,
            clock_s=time.monotonic(),
            begun_s=self._board.snapshot.begun_s,
            processes=processes,
            frequency_hz=self._kernel.frequency_hz,
            samples=self._rows.samples,
            lost=lost,
            probe_hits=self._watching.probe_hits(),
            edge_hits=self._watching.edge_hits(),
            attach_failures=dict(Counter(self._watchlist.failures) + self._watching.failures()),
            governor_transitions=dict(self._governor.transitions),
            budget_ratio=self._options.budget_ratio,
            cost_ratio=self._cost_ratio,
            drain_seconds=self._drain_seconds,
            cores=os.cpu_count() or 1,
            idle_s=self._watching.idle_s,
            ended=self._ended.copy(),
            pushed=self._push.outcomes(),
            push_queues=self._push.queues(),
            cost_seconds={
                **self._session.cost.by_name_s(self._session.targets.values()),
                SPUN: self._watching.spun_for_us_s,
            },
            left_out={name: counted[f"left_out_{name}"] for name in LEFT_OUT.values()},
            impossible=self._watching.violations,
            checks=self._watching.checks.made,
            disagreements=self._watching.checks.failed,
            follows_switches=self._kernel.breaker.follows_switches,
            levels_s=self._watching.levels_s,
            detaching=detacher.pending,
            dropped={"intervals": self._recent.dropped_intervals, "call paths": self._recent.dropped_rows},
            kept_bytes=self._recent.estimated_bytes,
            short_lived_s=self._short_lived(),
            groups=self._watching.groups(self._options.functions_per_process),
            protection=self._board.snapshot.protection,
        )
        cost_s = self._cost_ns / 1e9
        self._past.add(point_of(made.clock_s, made.total(), made.idle_s, cost_s, unexpected(lost)))
        return replace(made, past=self._past.points())
