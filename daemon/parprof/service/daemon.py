"""The daemon's loop: watches the processes that use the machine, and charges what it samples interval by interval.

One thread owns the session; everyone else sees snapshots, which never change, and asks by requests.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace

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
from parprof.profile.naming import FileNamer
from parprof.profile.rows import RowMaker
from parprof.service import footprint
from parprof.service.config.options import DaemonOptions
from parprof.service.folding import fold_cold
from parprof.service.governor import Governor
from parprof.service.groups import Groups
from parprof.service.losses import UNDECIDED, Losses, failure_reason
from parprof.service.model import GroupKey, Labels, ProfileEntry, PushQueue, Snapshot
from parprof.service.recent import RecentProfiles
from parprof.service.requests import Requests
from parprof.service.selection import Candidates
from parprof.service.short_lived import ShortLived
from parprof.service.watching import NOTHING_SAMPLED, Charged, Watching
from parprof.session.session import Pace, Session
from parprof.session.sources import Source
from parprof.session.target import Target
from parprof.symbols import Symbolizer

_LOG = logging.getLogger(__name__)
_STUCK_SECONDS = 30.0
_STACKS_KEPT = 4_000
_STACK_DRAINS = 6
_FRESH_SECONDS = 0.5
"""What was charged so short a time ago is answer enough."""
_RENEWED_SECONDS = 2.0
"""No snapshot is made sooner after the last one because somebody asks: each drains the kernel's tables."""
_TRIM_SECONDS = 60.0
RETRY_SECONDS = 60.0
"""A process that could not be watched is tried again so often."""
_SETTLE_SECONDS = 60.0
"""By then, at the latest, the daemon has met all processes that ran when it started."""


class Daemon:
    """Runs until `stop`; implements `parprof.service.model.Service`."""

    def __init__(self, options: DaemonOptions) -> None:
        """`run` does the rest."""
        self._options = options
        self._requests = Requests()
        self._stopping = False
        self._ready = False
        self._turned_s = time.monotonic()
        self._started_s = time.time()
        self._recent = RecentProfiles(max_bytes=options.ring_bytes)
        self._governor = Governor(options.budget_ratio, options.frequency_hz)
        self._ended = Metrics()
        self._short = ShortLived()
        self._undecided = 0
        """Samples of processes about which nothing was decided, when the last interval ended."""
        self._undecided_s = 0.0
        self._drain_seconds = 0.0
        self._cost_ns = self._cost_ratio = 0.0
        self._notes: tuple[str, ...] = ()
        self._entries: tuple[ProfileEntry, ...] = ()
        self.pushed: Callable[[], Mapping[tuple[str, str], int]] = dict
        """Where the counts of pushed profiles come from."""
        self.push_queues: Callable[[], Mapping[str, PushQueue]] = dict
        """And what waits to be pushed."""
        self.leave: Callable[[Profile, Labels], None] = lambda profile, labels: None
        """Is given what `take_profile` had yet to give of a process image that another one has replaced."""
        self._labels: dict[int, Labels] = {}
        """Of the processes in `_recent`, which may have ended."""
        self._failures: Counter[tuple[str, str]] = Counter()
        self._refused: set[int] = set()
        """PIDs that were to be watched, and could not be."""
        self._asked: set[int] = set()
        """PIDs watched on request, whatever the selection says of them."""
        self._waits_of: set[int] = set()
        """The processes of which it is found out where their threads wait, by PID."""
        self._said: set[str] = set()
        """Problems of caches on disk."""
        self._snapshot = Snapshot(
            self._started_s, self._started_s, (), options.frequency_hz, 0, {}, {}, {}, {}, options.budget_ratio,
            0.0, 0.0,
        )  # fmt: skip

    def tell_protection(self, sentences: tuple[str, ...]) -> None:
        """What was given up of our powers, and what could not be: for those who ask. Before `run`."""
        self._snapshot = replace(self._snapshot, protection=sentences)

    # What other threads may call.

    def snapshot(self) -> Snapshot:
        """The newest snapshot."""
        return self._snapshot

    def refresh(self) -> Future[None]:
        """Charge what was sampled until now, for a snapshot of now; not more often than is worth it."""

        def renew() -> None:
            if time.monotonic() - self._snapshot_s >= _RENEWED_SECONDS:
                self._renew()

        if self._ready:
            return self._requests.ask(renew)
        not_yet: Future[None] = Future()
        not_yet.set_result(None)
        return not_yet

    def profiles(self) -> tuple[ProfileEntry, ...]:
        """The processes of which there is a recent profile."""
        return self._entries

    def profile(self, pid: int, seconds: float) -> Future[Profile]:
        """The last ``seconds`` of a process. Fails with TargetError."""
        return self._last(pid, seconds, by_interval=False)

    def history(self, pid: int, seconds: float, only: tuple[int, int] | None = None) -> Future[Profile]:
        """The same with its intervals, or certain intervals. Fails with TargetError."""
        if only is None:
            return self._last(pid, seconds, by_interval=True)
        first, last = only

        def find() -> Profile:
            found = self._recent.exactly(pid, first, last)
            if found is None:
                raise TargetError(
                    f"that profile of process {pid} is not kept any more; / links to newer ones"
                )
            return found

        return self._requests.ask(find)

    def _last(self, pid: int, seconds: float, *, by_interval: bool) -> Future[Profile]:
        def find() -> Profile:
            target = self._session.live(pid)
            if target is not None and pid in self._waits_of:  # with those that last
                self._session.find_waits(target, True)
                self._charge()
            elif time.monotonic() - self._charged_s >= _FRESH_SECONDS:
                self._charge()
                target = self._session.live(pid)
            if target is None:
                found = self._recent.profile(pid, seconds, by_interval=by_interval)
            else:
                since_s = self._watching.since_s(target)
                found = self._recent.profile(
                    pid, seconds, until_s=self._charged_s, since_s=since_s, by_interval=by_interval
                )
            if found is not None:
                if not found.total().samples:  # its threads only waited
                    found.notes.append(NOTHING_SAMPLED)
                return found
            if target is None:
                raise TargetError(f"process {pid} is not watched, or ended before anything was sampled of it")
            cores, event = self._rows.cores_of(target), self._options.events[0]
            return self._watching.idle_profile(target, seconds, cores, event)

        return self._requests.ask(find)

    def watch(self, pid: int) -> Future[None]:
        """Begin to watch a process, whatever the selection says of it. Fails with TargetError."""

        def begin() -> None:
            self._asked.add(pid)
            try:
                if self._session.live(pid) is None and not self._watch(pid):
                    self._candidates.add(pid)
            except BaseException:
                self._asked.discard(pid)
                raise

        return self._requests.ask(begin)

    def unwatch(self, pid: int) -> Future[None]:
        """Stop to watch a process. Fails with TargetError."""

        def end() -> None:
            was_asked = pid in self._asked
            self._asked.discard(pid)
            target = self._session.live(pid)
            if target is None:
                raise TargetError(f"process {pid} is not watched")
            if was_asked and self._wants(target):
                return  # the selection would have found it by now
            self._session.unwatch(target)
            self._kernel.deny(pid)

        return self._requests.ask(end)

    def find_waits(self, pid: int, wanted: bool) -> Future[None]:
        """Find out from now on where the threads of a process wait, too, or do so no more."""

        def change() -> None:
            (self._waits_of.add if wanted else self._waits_of.discard)(pid)
            target = self._session.live(pid)
            if target is not None:
                self._session.find_waits(target, wanted)

        return self._requests.ask(change)

    def sample_at(self, frequency_hz: int) -> Future[None]:
        """Sample at this rate, if it is higher than the usual one, until further notice; 0: at the usual one."""

        def change() -> None:
            self._governor.ask_for(frequency_hz)
            self._charge()

        return self._requests.ask(change)

    def cut(self, pid: int) -> Future[float]:
        """End the interval that is under way, and with it the waits of a process that go on; answers when it ended.

        Waits first, in the caller's thread, for programs that are being loaded: those of waits, and of interpreters.
        """
        self._kernel.await_programs()

        def end() -> float:
            target = self._session.live(pid)
            if target is not None and pid in self._waits_of:
                self._session.find_waits(target, True)
            self._charge()
            return self._charged_s

        return self._requests.ask(end)

    def is_healthy(self) -> str:
        """Empty while the loop turns."""
        late_s = time.monotonic() - self._turned_s
        return f"the loop has not turned for {late_s:.0f} s" if late_s > _STUCK_SECONDS else ""

    def is_ready(self) -> str:
        """Empty once programs and events are in place."""
        return "" if self._ready else "BPF programs are being loaded"

    def stop(self) -> None:
        """End `run` soon. May be called from a signal handler."""
        self._stopping = True
        self._requests.wake_up()

    # The loop's thread.

    def run(self, each_turn: Callable[[], None] = lambda: None) -> None:
        """Watch until `stop`. ``each_turn`` is called about once a second.

        Raises:
            PrivilegeError, KernelUnsupported: see `BpfKernel`.
        """
        options = self._options
        with (
            BpfKernel(
                options.events,
                options.frequency_hz,
                system_wide=True,
                sizes=footprint.ring_sizes(),
                budget=Budget(options.budget_ratio),
            ) as kernel,
            Symbolizer(footprint.FILE_SECONDS, _LOG.info, footprint.SYMBOLS_SECONDS) as symbolizer,
            FileNamer(
                symbolizer, loops=options.loops, kernel_pass_seconds=footprint.KERNEL_PASS_SECONDS
            ) as namer,
        ):
            self._kernel = kernel
            pace = Pace(
                poll=1.0, drain=footprint.drain_seconds(options), rates=1.0, tables=footprint.TURN_SECONDS,
                cores=footprint.CORES_SECONDS, drain_at_exit=False,
            )  # fmt: skip
            self._candidates = Candidates(options.selection, options.max_processes)
            self._session = Session(kernel, pace, self._candidates.add, spare_plain=True)
            groups = None if options.by_process else Groups(options.max_groups)
            self._watching = Watching(self._session, groups=groups)
            self._watching.shows_arguments = options.arguments
            self._rows = RowMaker(AddressBook(namer, by_line=True, kernel_depth=options.kernel_depth))
            self._losses = Losses(kernel.lost)
            self._losses.also("candidates_full", lambda: self._candidates.refused)
            self._losses.also("path_incomplete", lambda: self._rows.incomplete)
            self._session.wake_up_by(self._requests.wake_fd)
            kernel.breaker.set_prices(machine_prices(kernel))
            footprint.collect_less()
            self._charged_s = self._snapshot_s = self._sampling_s = time.monotonic()
            self._trimmed_s = self._retried_s = self._sampling_s
            self._tell_of_caches()
            try:
                self._ready = True
                while not self._stopping:
                    self._turn(each_turn)
                self._charge()
            finally:
                self._ready = False
                self._session.finish()
                self._session.close()
                self._requests.refuse()

    def apply(self, options: DaemonOptions) -> None:
        """Go on with other options, those that need a restart aside. For the loop's thread (``each_turn``)."""
        self._options = replace(
            options, events=self._options.events, interval_seconds=self._options.interval_seconds
        )
        self._governor.set_budget(options.budget_ratio, options.frequency_hz)
        self._kernel.breaker.set_budget(Budget(options.budget_ratio))
        self._recent.resize(options.ring_bytes)
        self._watching.shows_arguments = options.arguments
        self._candidates.selection = options.selection
        self._candidates.max_processes = options.max_processes
        for target in list(self._session.targets.values()):
            if not target.ended and not self._wants(target):
                self._session.unwatch(target)
        self._kernel.forget_verdicts()

    def recent_pids(self) -> list[int]:
        """The processes that `take_profile` may have something of. For the loop's thread."""
        return list(self._recent.pids())

    def take_profile(self, pid: int) -> tuple[Profile, Labels] | None:
        """What was sampled of a process since the last call, if anything. For the loop's thread."""
        profile = self._recent.take(pid)
        return None if profile is None else (profile, self._labels.get(pid, Labels()))

    def _turn(self, each_turn: Callable[[], None]) -> None:
        time.sleep(max(self._turned_s + footprint.TURN_SECONDS - time.monotonic(), 0.0))
        self._session.step(self._candidates.wait_seconds(min(1.0, self._options.interval_seconds)))
        self._requests.answer()
        self._consider()
        now_s = time.monotonic()
        if now_s - self._snapshot_s >= self._options.interval_seconds:
            self._renew()
        if self._refused and now_s - self._retried_s >= RETRY_SECONDS:
            self._retried_s = now_s
            self._kernel.forget_verdicts(self._refused)
            self._refused.clear()
        if now_s - self._trimmed_s >= _TRIM_SECONDS:
            self._trimmed_s = now_s
            self._trim()
        self._turned_s = now_s
        each_turn()

    def _renew(self) -> None:
        self._snapshot_s = time.monotonic()
        self._charge()
        self._settle(self._snapshot_s - self._sampling_s)
        self._snapshot = self._make_snapshot()

    def _consider(self) -> None:
        """Decide about processes that have been seen."""
        for pid, wanted in self._candidates.due(time.monotonic(), self._watching.count()):
            if self._session.live(pid) is not None:
                continue  # on request, since it was seen
            if not wanted and pid not in self._asked:
                self._short.met(pid)
                self._kernel.deny(pid)
                continue
            try:
                if not self._watch(pid):  # nobody waits for that
                    self._candidates.add(pid)
                elif pid in self._waits_of and (target := self._session.live(pid)) is not None:
                    self._session.find_waits(target, True)
            except (ParprofError, OSError) as error:  # one target's failure never stops the daemon
                self._asked.discard(pid)
                if reason := failure_reason(pid, error):
                    self._failures["none", reason] += 1
                    self._refused.add(pid)
                _LOG.debug("process %d is not watched: %s", pid, error)
                self._kernel.deny(pid)

    def _watch(self, pid: int) -> bool:
        """See `Watching.watch`."""
        has_begun = self._watching.watch(pid)
        if has_begun:
            self._short.met(pid)
        return has_begun

    def _settle(self, seconds: float) -> None:
        if self._losses.is_settling and (not self._candidates or seconds >= _SETTLE_SECONDS):
            self._losses.settle()

    def _wants(self, target: Target) -> bool:
        return target.pid in self._asked or self._candidates.wants(target.pid, target.process.comm)

    def _reselect(self) -> None:
        """Leave those alone that have become another program, by exec, which the selection leaves out."""
        for target in list(self._session.targets.values()):
            if not target.ended and not self._watching.knows(target) and not self._wants(target):
                self._session.unwatch(target)
                self._kernel.deny(target.pid)

    def _charge(self) -> None:
        """Take what was sampled since the last time and charge it."""
        self._reselect()
        session, before_s = self._session, time.monotonic()
        session.drain()
        self._watching.look()
        seconds = before_s - self._charged_s
        self._charged_s = before_s
        drained = session.take()
        self._undecided_until_now()
        self._set_frequency()  # before anything else: what is sampled from now on is weighed with the new one
        rows = self._rows.rows(drained)
        charged = self._watching.charge(
            drained.facts,
            rows,
            seconds,
            self._options.paths_per_process,
            fold_cold,
            self._rows.fine_n_working,
            drained.frequency_hz,
        )
        self._ended.add(self._watching.take_strays())
        for one in charged:
            profile = self._watching.profile(one, self._rows.cores_of(one.target), self._options.events[0])
            pid = one.target.pid
            if self._recent.image(pid) not in (None, one.target.image):
                left = self.take_profile(pid)
                if left is not None:
                    self.leave(*left)
            self._labels[pid] = one.labels
            self._recent.add(profile, image=one.target.image, uid=one.labels.uid, ended_s=before_s)
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
        gone = {target.pid for target in ended if session.live(target.pid) is None}
        self._asked -= gone
        self._waits_of -= gone
        self._entries = self._recent.entries()
        self._drain_seconds = time.monotonic() - before_s

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
        kept = set(self._recent.pids())
        self._labels = {pid: labels for pid, labels in self._labels.items() if pid in kept}
        self._kernel.trim_stacks(_STACK_DRAINS, _STACKS_KEPT)
        self._session.trim()
        self._rows.trim()
        self._tell_of_caches()
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
        return Snapshot(
            time_s=time.time(),
            started_s=self._started_s,
            processes=processes,
            frequency_hz=self._kernel.frequency_hz,
            samples=self._rows.samples,
            lost=lost,
            probe_hits=self._watching.probe_hits(),
            edge_hits=self._watching.edge_hits(),
            attach_failures=dict(self._failures + self._watching.failures()),
            governor_transitions=dict(self._governor.transitions),
            budget_ratio=self._options.budget_ratio,
            cost_ratio=self._cost_ratio,
            drain_seconds=self._drain_seconds,
            cores=os.cpu_count() or 1,
            idle_s=self._watching.idle_s,
            ended=self._ended.copy(),
            pushed=self.pushed(),
            push_queues=self.push_queues(),
            cost_seconds=self._session.cost.by_name_s(self._session.targets.values()),
            left_out={name: counted[f"left_out_{name}"] for name in LEFT_OUT.values()},
            impossible=self._watching.violations,
            checks=self._watching.checks.made,
            disagreements=self._watching.checks.failed,
            follows_switches=self._kernel.breaker.follows_switches,
            levels_s=self._watching.levels_s,
            detaching=detacher.pending,
            dropped={"intervals": self._recent.dropped_intervals, "call paths": self._recent.dropped_rows},
            short_lived_s=self._short_lived(),
            groups=self._watching.groups(self._options.functions_per_process),
            notes=self._notes,
            protection=self._snapshot.protection,
        )


__all__ = ["Daemon", "DaemonOptions", "Source"]
