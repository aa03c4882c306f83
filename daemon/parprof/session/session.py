"""A profiling session: targets come and go, facts are drained, control records are acted upon.

One thread, no locks: `step` is called in a loop and waits for the next thing to do.
"""

from __future__ import annotations

import functools
import math
import select
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import zip_longest

from parprof.facts.drain import Drain
from parprof.facts.intervals import Intervals, without_zeroes
from parprof.facts.late_spins import with_late_spins
from parprof.facts.measurement import Measurement
from parprof.files.dso_cache import DsoCache
from parprof.jit.reader import JitReader
from parprof.kernel.counts import ByTime
from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import TraceRecord
from parprof.model import Facts
from parprof.probes.facts_book import BOOK
from parprof.probes.wait_functions import DEFAULT_RULES, SpinRules
from parprof.session.arrivals import Arrivals
from parprof.session.cores import Rounds
from parprof.session.cost import CostMeter
from parprof.session.finds import StackFinds
from parprof.session.gathered import Gathered
from parprof.session.happenings import Happenings
from parprof.session.lifecycle import End, Lives, State
from parprof.session.pace import Pace
from parprof.session.region_rate import RegionRate
from parprof.session.sleeping import SessionSleep
from parprof.session.sources import Source
from parprof.session.spins import SpinFinder
from parprof.session.stops import Stops, let_go
from parprof.session.target import Target, Watched
from parprof.unwind.builder import TableBuilder
from parprof.unwind.cache import TableCache
from parprof.unwind.placing import Placer

_CHECK_SECONDS = 5.0
"""How often at least the costs are measured, and losses looked at."""
_MANY = 8
_SHORT_NS = 3 * 10**9
"""Samples of a longer measurement were looked at in time, as far as that is worth waiting for at its end."""
_SETTLED_SECONDS = 0.2
"""A young process that still runs then gets probes of its own."""


class Session:
    """Profiles processes until told to stop. The kernel and its lifetime belong to the caller.

    ``on_seen`` is called with the PID of each process that uses the CPU and was not decided upon: only where the
    kernel was made with ``system_wide``.
    """

    def __init__(
        self,
        kernel: BpfKernel,
        pace: Pace | None = None,
        on_seen: Callable[[int], None] | None = None,
        *,
        wanted_source: Source | None = None,
        blame_locks: bool = False,
        spare_plain: bool = False,
        one_job: bool = False,
        on_planned: Callable[[Target], None] | None = None,
        awaits_files: Callable[[], bool] | None = None,
        by_interval: bool = False,
        spin_rules: SpinRules = DEFAULT_RULES,
    ) -> None:
        """``one_job``: all processes are one scope; else each is its own, with the children that it forks.

        ``by_interval``: keep what was counted when, too.
        ``spare_plain``, ``on_planned``, ``awaits_files``: see `Watched`.
        """
        self.kernel = kernel
        self.pace = pace or Pace()
        self.cache = DsoCache()
        self.builder = TableBuilder(TableCache())
        self.watched = Watched(
            kernel,
            self.cache,
            Placer(kernel, self.builder),
            JitReader(),
            wanted_source,
            blame_locks,
            spare_plain,
            on_planned=on_planned,
            awaits_files=awaits_files,
            spin_rules=spin_rules,
        )
        self._poller = select.epoll()
        self._lives = Lives[Target](
            kernel, self._poller, _SETTLED_SECONDS, Stops(kernel.plain_programs).judge
        )
        self._arrivals = Arrivals(self.watched, self._lives, one_job, self._start)
        self.scopes = self._arrivals.scopes
        """By number."""
        self.targets = self._lives.by_image
        """By image id; ended ones stay, because their samples need their load map."""
        self._intervals = Intervals() if by_interval else None
        self._gathered = Gathered(self.targets, self._intervals)
        self._sleeping = SessionSleep(kernel, self.builder, looks_on=by_interval)
        self._finds = StackFinds(kernel, self.targets, self._arrivals.remember)
        self._happenings = Happenings(
            kernel, self._lives, self._arrivals, self._finds.early, on_seen, wants_glimpses=self.pace.glimpses
        )
        self.trace: list[TraceRecord] = []
        self._spins = SpinFinder(kernel.stacks)
        self.cost = CostMeter(kernel)
        self.regions = RegionRate(kernel)
        self.started_ns = time.monotonic_ns()
        """When the first process was counted, after all that was prepared for that; CLOCK_MONOTONIC."""
        self.ended_ns = self.started_ns
        self.started_s = time.time()
        """The same, CLOCK_REALTIME."""
        self._core_rounds = Rounds(self.pace.cores)
        self._last_drain = time.monotonic()
        self._last_rates = self._last_check = self._last_drain
        self._maps_due_s = math.inf
        """When some target's load map is to be looked at again."""
        self._over_s = math.inf
        self._poller.register(kernel.control_fd, select.EPOLLIN)
        self._poller.register(kernel.breaker.fd, select.EPOLLIN)

    def _start(self) -> None:
        self.started_ns, self.started_s = time.monotonic_ns(), time.time()
        if self._intervals is not None:
            self.kernel.slice_time(self.started_ns, self._intervals.length_ns)

    def watch(
        self,
        pid: int,
        *,
        follow: bool = False,
        stop: bool = False,
        patient: Callable[[int], bool] | None = None,
        wait: bool = True,
        children: Collection[int] = (),
    ) -> Target:
        """Begin to profile a running process: see `Arrivals.watch`.

        Raises:
            TargetError: gone, a kernel thread, a zombie; FilesUnknown: try again.
        """
        target = self._arrivals.watch(
            pid, follow=follow, stop=stop, patient=patient, wait=wait, children=children
        )
        if self.kernel.finds_waits and not stop:
            met = (target, *filter(None, map(self.live, children)))
            for one in met:
                self._sleeping.met(one)
        return target

    def wake_up_by(self, fd: int) -> None:
        """Let `step` end when a descriptor becomes readable; whoever owns it reads it."""
        self._poller.register(fd, select.EPOLLIN)

    def wake_up_at(self, time_s: float) -> None:
        """Let `step` rest no longer than until then, CLOCK_MONOTONIC: the measurement is over."""
        self._over_s = time_s

    def unwatch(self, target: Target) -> None:
        """Stop to profile a process that runs on. What was sampled of it stays."""
        self._lives.end(target, End.LEFT)

    def find_waits(self, target: Target, wanted: bool, now_ns: int = 0) -> None:
        """Find out from now on where the threads of a process wait, and for how long; or do so no more.

        Waits and stalls that last are cut in two here: what they took until now counts as if they were over, if it was
        of interest. ``now_ns``: when that is, CLOCK_MONOTONIC; 0: it is looked up.
        """
        now_ns = now_ns or time.monotonic_ns()
        if wanted:
            self.watched.placer.hurry(target.pid)
        images = {target.image: target.scope.number}
        unended = self.kernel.cut_waits(target.pid, images, now_ns, wanted=wanted)
        facts = self._sleeping.cut(target, unended.facts, now_ns, goes_on=wanted)
        self._add({now_ns - self.started_ns: facts})

    @property
    def facts(self) -> Facts:
        """What has been drained and not been taken."""
        return self._gathered.facts

    def drained(self) -> Drain:
        """What has been drained so far."""
        return Drain(
            self._gathered.facts,
            self.kernel.stacks,
            self.targets,
            self._gathered.thread_names,
            self.kernel.events,
            self.kernel.frequency_hz,
            self._gathered.by_cores,
        )

    def take(self) -> Drain:
        """What has been drained since the last call: its facts are no longer the session's."""
        taken = self.drained()
        self._gathered.clear()
        return taken

    def drop_ended(self) -> list[Target]:
        """Forget the targets that have ended: call it when all of their facts have been dealt with."""
        ended = self._lives.forget_ended()
        self.cost.forget(ended)
        images = {target.image for target in ended}
        self._arrivals.drop(images)
        if images:
            self.kernel.forget_images(images)
            self._gathered.forget(images)
            self._sleeping.forget(images)
        return ended

    def measurement(
        self,
        main: Target,
        *,
        own_cpu_s: float = 0.0,
        cores: int | None = None,
        notes: Sequence[str] = (),
        scope: str = "",
    ) -> Measurement:
        """All that was measured, after `finish`.

        ``main`` is the process that it is named after, ``own_cpu_s`` our CPU time, ``cores`` n if the user says so, as
        ``scope`` is what is measured as one job.
        """
        measured = Measurement(
            self.drained(),
            self.targets,
            self.kernel,
            main.image,
            self.started_s,
            (self.ended_ns - self.started_ns) / 1e9,
            own_cpu_s,
            self.cost.by_kind_ns(self.targets.values()),
            self.watched.placer.refused,
            self.regions.shortest_us,
            cores,
            tuple(notes),
            self.builder.problems,
            tuple(scope.times(self.kernel.has_ticked) for scope in self.scopes.values()),
            tuple(self._intervals.all(self.ended_ns - self.started_ns, self._levels(self.ended_ns)))
            if self._intervals
            else (),
            scope,
        )
        return with_late_spins(measured, functools.partial(self._spins.has_found, self.targets))

    def _levels(self, now_ns: int) -> list[int]:
        """For how long n_w was 0, 1, 2, ... so far, in all scopes together."""
        states = [scope.final or scope.state() for scope in self.scopes.values()]
        levels = [without_zeroes(state.until(now_ns).level_ns) for state in states if state]
        return [sum(column) for column in zip_longest(*levels, fillvalue=0)]

    def is_watched(self, pid: int) -> bool:
        """Whether the programs count it already, as they do with children whose parent is followed."""
        return self._arrivals.is_watched(pid)

    def live(self, pid: int) -> Target | None:
        """The newest image of a process that has not ended."""
        return self._lives.live(pid)

    def step(self, seconds: float | None = None) -> None:
        """Wait up to ``seconds`` (or the session's pace) for something to happen, and deal with all that did."""
        readable = self._wait(self._rest_s() if seconds is None else seconds)
        self._happenings.act()
        self.kernel.poll()
        self._finds.note_mappings()
        now = time.monotonic()
        self._look_again(now)
        self.watched.placer.pump()  # stacks are cut short until then: what takes long comes after
        self._take_in()
        self._settle(now)
        self._follow_cores(now)
        self._clear_away(readable)
        self._note_rates(now)
        self._note_levels()
        self._happenings.look_after_storm(now)
        self.kernel.breaker.look_at_glimpses()
        self._sleeping.look(self._lives.living(), now, in_time=self._happenings.wants_glimpses)
        self._drain_in_time(now)
        self._spins.tell(self.targets.values(), self.watched.spin_rules.functions)
        self._check_in_time(now)

    def _wait(self, seconds: float) -> list[int]:
        """Until something happens, but for so long at most: the descriptors that are readable."""
        made = (target.made.is_waiting for target in self._lives.living())
        if self.watched.placer.is_waiting or BOOK.is_busy or any(made):
            seconds = min(seconds, self.pace.tables)
        seconds = max(min(seconds, min(self._maps_due_s, self._over_s) - time.monotonic()), 0.0)
        with suppress(InterruptedError):
            return [fd for fd, _ in self._poller.poll(seconds)]
        return []

    def _rest_s(self) -> float:
        """For how long nothing need be looked at unless something happens."""
        if self._intervals is None:
            return self.pace.poll
        now_s = time.monotonic()
        is_busy = (
            self.kernel.trace_log is not None  # its ring is filled by all that happens
            or self.kernel.breaker.glimpses.is_open
            or self._sleeping.is_looked_for
            or any(target.language is not None for target in self._lives.living())  # functions come and go
        )
        rest_s = self.pace.rest_s(now_s - self.started_ns / 1e9, is_busy=is_busy)
        return min(rest_s, self._sleeping.rest_s(), self._lives.settle_due_s() - now_s)

    def _take_in(self) -> None:
        """Take over what the programs found out of stacks: functions that may be gone soon, traces."""
        self._finds.resolve_functions()
        self.trace.extend(self.kernel.trace_records())

    def _look_again(self, now: float) -> None:
        """Read the load maps that may have changed."""
        if self.cache.answers_again():
            for target in self._lives.living():
                target.mapped.is_stale = True
        for target in self._lives.living():
            if target.mapped.is_stale and now >= target.mapped.next_reading_s:
                target.careful_follow()
        for target in self._lives.living():
            target.made.pump()
        for target in self._lives.living():
            if target.following.plan_due(time.monotonic()):
                target.careful_plan()
                break  # the maps of all others come first
        for target in self._lives.living():
            target.look_at_language()
        self._maps_due_s = min((target.due_s() for target in self._lives.living()), default=math.inf)

    def _settle(self, now: float) -> None:
        """Look closely at those that have lived for a while."""
        for target in self._lives.settle_due(now):
            target.settle()
            target.scope.look_at(target)

    def _clear_away(self, descriptors: Collection[int]) -> None:
        """Deal with processes whose end their descriptors have just told."""
        gone = [target for target in self._lives.told_by(descriptors) if target.is_gone()]
        any_settled = any(target.life.state is State.SETTLED for target in gone)
        for target in gone:
            if not target.ended:  # by a step before, which an error cut short
                self._lives.note_gone(target)
        if any_settled and self.pace.drain_at_exit:
            self.drain()
        for target in gone:
            self._lives.end(target, End.EXITED)

    def _note_rates(self, now: float) -> None:
        if now - self._last_rates >= self.pace.rates:
            self._last_rates = now
            self.regions.note(now)

    def _note_levels(self) -> None:
        """Keep what was when, of n_w too: what the kernel counts of that has no slices."""
        took_ns = time.monotonic_ns() - self.started_ns
        if self._intervals is not None and self._intervals.wants_levels(took_ns):
            self._intervals.note_levels(took_ns, self._levels(self.started_ns + took_ns))

    def _drain_in_time(self, now: float) -> None:
        took_ns = time.monotonic_ns() - self.started_ns
        pace = self.pace.drain if self._intervals is None else self.pace.drain_s(took_ns / 1e9)
        if now - self._last_drain < pace:
            return
        self.drain()
        if self._intervals is not None and self._intervals.make_room(took_ns):
            self.kernel.slice_time(self.started_ns, self._intervals.length_ns)

    def _check_in_time(self, now: float) -> None:
        if now - self._last_check >= min(self.pace.drain, _CHECK_SECONDS):
            self._last_check = now
            self._happenings.resynchronise()

    def _follow_cores(self, now: float) -> None:
        """Notice who may use more cores than before, or fewer. What was sampled until now had the old n."""
        changed = []
        for image in self._core_rounds.due(now):
            target = self.targets.get(image)
            if target is not None and not target.ended and not target.is_young:
                cores = target.read_cores()
                if cores != target.cores:
                    changed.append((target, cores))
        if changed:
            self.drain()
        for target, cores in changed:
            if not target.allowed.changes:
                self._gathered.divide(target.image)
            target.change_cores(cores)
            target.scope.note_cores()

    def drain(self) -> None:
        """Take all samples from the kernel now."""
        self._add(self.kernel.drain_by_time())
        self._finds.note_mappings()
        self._finds.resolve_functions()
        self._last_drain = time.monotonic()
        living = self._lives.living()
        with self._states_of(living):
            for target in living:
                target.observe()

    def _states_of(self, targets: Sequence[Target]) -> AbstractContextManager[None]:
        """Within this, the kernel's states of all processes are read at once if these are many."""
        return self.kernel.one_look() if len(targets) >= _MANY else nullcontext()

    def _add(self, by_time: ByTime) -> None:
        images = {key.image for facts in by_time.values() for key in facts}
        for image in images - self.targets.keys():
            self._arrivals.remember(image)
        facts = self._gathered.add(by_time)
        self._core_rounds.note(images)
        for scope in self.scopes.values():
            scope.changed()
        if self.watched.spin_rules.loops:
            self._spins.look(facts, self.targets)

    def samples(self) -> int:
        """Clock samples so far."""
        return self._gathered.samples()

    def finish(self) -> None:
        """Take the last samples, detach all probes. Targets keep running; the facts stay."""
        self._happenings.wants_glimpses = False
        self._happenings.act()
        self.ended_ns = self.kernel.freeze()
        for target in self._lives.unended():
            if not target.ended and target.is_gone():
                self._lives.note_gone(target)
        for scope in self.scopes.values():
            scope.finish(self.ended_ns)
        self.drain()
        living = {target.image: target for target in self._lives.living()}
        unended = self.kernel.unended(
            {image: target.scope.number for image, target in living.items()}, self.ended_ns
        )
        facts = self._sleeping.at_end(unended.facts, living)
        self._add({self.ended_ns - self.started_ns: facts})
        if seen := self._sleeping.seen(unended.facts, self.targets, self.started_ns, self.ended_ns):
            self._add(seen)
        for target in self._lives.unended():
            self._lives.end(target, End.EXITED if target.ended else End.LEFT)
        for image, ready_ns in unended.ready_ns.items():
            self.targets[image].ready_ns += ready_ns
        self.watched.placer.free_idle()
        time.sleep(0.01)
        self._add(self.kernel.drain_by_time())
        self._finds.note_mappings()
        self._finds.resolve_functions()
        self._add(self.kernel.unresolved())
        if self._intervals is not None:
            if self.ended_ns - self.started_ns < _SHORT_NS and self.watched.spin_rules.loops:
                self._spins.look_back(self.facts, self.targets)
            self._spins.tell(self.targets.values(), self.watched.spin_rules.functions)
        self.trace.extend(self.kernel.trace_records())

    def trim(self) -> None:
        """Give back what has not been used for some time."""
        self._gathered.trim()
        self._finds.trim()
        self.builder.trim()
        self.watched.jit.trim()
        BOOK.trim()
        self.cache.close_unused(
            dso for target in self.targets.values() if target.load_map for dso in target.load_map.dsos()
        )

    def close(self) -> None:
        """Give back what the session holds beyond the kernel's maps. No process is watched any more."""
        if any(target.stops for target in self._lives.unended()):
            let_go(self.kernel)
        for target in self._lives.unended():
            self._lives.end(target, End.LEFT)
        for target in self.targets.values():  # they stay, for whoever still reads their samples
            target.forget()
        self.builder.close()
        self.watched.jit.close()
        self._spins.close()
        BOOK.close()
        self.cache.close()
        self._poller.close()
