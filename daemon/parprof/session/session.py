"""A profiling session: targets come and go, facts are drained, control records are acted upon.

One thread, no locks: `step` is called in a loop and waits for the next thing to do.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from parprof.errors import ParprofError, TargetError
from parprof.facts.drain import Drain
from parprof.facts.measurement import Measurement
from parprof.kernel import records
from parprof.kernel.engine import BpfKernel
from parprof.kernel.file_tables import FoundMapping
from parprof.kernel.records import ControlRecord, TraceRecord
from parprof.kernel.stacks import CodeAt, SentCode
from parprof.languages import Instance
from parprof.model import Count, Facts, SampleKey, add_facts
from parprof.probes.facts_book import BOOK
from parprof.probes.shared import SharedProbes
from parprof.process.identity import Process, inspect, is_32_bit, parent_of
from parprof.process.loadmap import DsoCache
from parprof.process.threads import is_running
from parprof.session.cores import Rounds
from parprof.session.cost import CostMeter
from parprof.session.lifecycle import End, Lives, State
from parprof.session.region_rate import RegionRate
from parprof.session.scopes import Scope
from parprof.session.sources import Source
from parprof.session.spins import SpinFinder
from parprof.session.stops import Stops, let_go
from parprof.session.target import Target, Watched
from parprof.untrusted import visible
from parprof.unwind.builder import TableBuilder
from parprof.unwind.cache import TableCache
from parprof.unwind.placing import Placer

_CHECK_SECONDS = 5.0
"""How often at least the costs are measured, and losses looked at."""
_MANY = 8
_MAX_THREAD_NAMES = 1 << 14
_SETTLED_SECONDS = 0.2
"""A young process that still runs then gets probes of its own."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a session does what it does. Seconds."""

    poll: float = 0.1
    drain: float = 1.0
    rates: float = 0.25
    tables: float = 0.003
    """While unwind tables are being built: until they are there stacks are cut short."""
    cores: float = 1.0
    """At most so often it is read how many cores a process may use; infinite: only when it is met."""
    drain_at_exit: bool = True
    """Take a process's last samples as soon as it ends, rather than with the next drain."""


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
        share_probes: bool = False,
        one_job: bool = False,
        on_planned: Callable[[Target], None] | None = None,
    ) -> None:
        """``one_job``: all processes are one scope; else each is its own, with the children that it forks.

        ``on_planned``: see `Watched`.
        """
        self.kernel = kernel
        self._one_job = one_job
        self.scopes: dict[int, Scope] = {}
        """By number."""
        self.pace = pace or Pace()
        self._on_seen = on_seen
        self.cache = DsoCache()
        self.builder = TableBuilder(TableCache())
        self.watched = Watched(kernel, self.cache, Placer(kernel, self.builder), wanted_source, blame_locks,
            SharedProbes(kernel) if share_probes else None, on_planned=on_planned)  # fmt: skip
        self._poller = select.epoll()
        self._lives = Lives[Target](
            kernel, self._poller, _SETTLED_SECONDS, Stops(kernel.plain_programs).judge
        )
        self.targets = self._lives.by_image
        """By image id; ended ones stay, because their samples need their load map."""
        self.facts: Facts = {}
        self._by_cores: dict[SampleKey, dict[int, Count]] = {}
        """See `Drain.by_cores`."""
        self.thread_names: dict[tuple[int, int], str] = {}
        self.trace: list[TraceRecord] = []
        self._spins = SpinFinder(kernel.stacks)
        self.cost = CostMeter(kernel)
        self.regions = RegionRate(kernel)
        self.started_ns = time.monotonic_ns()
        self.ended_ns = self.started_ns
        self.started_s = time.time()
        self._core_rounds = Rounds(self.pace.cores)
        self._next_image = 1
        self._last_drain = time.monotonic()
        self._last_rates = self._last_check = self._last_drain
        self._control_losses = 0
        self._maps_due_s = math.inf
        """When some target's load map is to be looked at again."""
        self._poller.register(kernel.control_fd, select.EPOLLIN)
        self._poller.register(kernel.breaker.fd, select.EPOLLIN)

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
        """Begin to profile a running process.

        ``follow``: children that it forks, too. ``stop``: it has yet to exec, and is to be stopped at each exec until
        its probes are in place. ``patient``: see `Target.prepare`; without it stacks are cut short until tables that
        have to be built are there. Not to ``wait`` means not to begin before everything is known of its files.
        ``children``: processes that are to be counted from the same moment on; those that are gone are left out.

        Raises:
            TargetError: gone, a kernel thread, a zombie; FilesUnknown: try again.
        """
        target = self._meet(pid, self._scope_for(self._next_image), follow, stop)
        with self._or_forget(target):
            if stop:
                self.kernel.watch(
                    pid, target.image, target.config(), from_exec=True, scope=target.scope.number
                )
                self._join(target)
                return target
            target.prepare(patient, wait)
            others = self._prepared(children, target, patient, wait)
            if wait:
                self.kernel.await_programs()
        self._begin(target, others, wait)
        return target

    def _begin(self, target: Target, children: Sequence[Target], wait: bool) -> None:
        """Count prepared processes from one moment on; children that are gone by now are left out."""
        together = (target, *children)
        # where somebody runs, the job's time begins with the first thread that is seen to work
        begun_ns = 0 if any(is_running(one.pid) for one in together) else time.monotonic_ns()
        with self._or_forget(*together):
            target.begin(begun_ns, wait)
            self._join(target)
        for child in children:
            with suppress(TargetError), self._or_forget(child):
                child.begin(begun_ns, wait)
                self._join(child)

    def _prepared(
        self, children: Collection[int], parent: Target, patient: Callable[[int], bool] | None, wait: bool
    ) -> list[Target]:
        """The children that are not watched yet and live, ready to begin."""
        found = []
        for pid in children:
            if not self.is_watched(pid):
                with suppress(TargetError):
                    scope = parent.scope if self._one_job else self._scope_for(self._next_image)
                    child = self._meet(pid, scope, parent.follows, stop=False)
                    with self._or_forget(child):
                        child.prepare(patient, wait)
                    found.append(child)
        return found

    def _meet(self, pid: int, scope: Scope, follow: bool, stop: bool) -> Target:
        """A process that runs already, for which nothing has been done yet.

        Raises:
            TargetError: gone, a kernel thread, a zombie, none that can be profiled.
        """
        process = inspect(pid)
        self._lives.make_room(pid)
        target = Target(self.watched, process, self._next_image, follow=follow, stop=stop, scope=scope)
        self._next_image += 1
        with self._or_forget(target):
            # from now on the descriptor in `target` keeps the PID from meaning another
            if inspect(pid).start_ticks != process.start_ticks:
                raise TargetError(f"process {pid} ended while we attached to it")
            if is_32_bit(pid):
                raise TargetError(
                    f"process {pid} ({process.comm}) is a 32-bit program: only 64-bit ones can be profiled"
                )
            self._lives.begin(target, State.SETTLED, time.monotonic())
        return target

    @contextmanager
    def _or_forget(self, *targets: Target) -> Iterator[None]:
        """What fails in this context leaves nothing of the targets."""
        try:
            yield
        except BaseException:
            for target in targets:
                self._lives.end(target, End.FAILED)
                self._lives.forget(target)
                if target.scope.number not in self.scopes:
                    self.kernel.scopes.forget(target.scope.number)
            raise

    def _join(self, target: Target) -> None:
        """A process image counts in its scope from now on."""
        self.scopes.setdefault(target.scope.number, target.scope).add(target)

    def _scope_for(self, image: int) -> Scope:
        """The scope of a process that comes from outside."""
        if self._one_job and self.scopes:
            return next(iter(self.scopes.values()))
        return Scope(self.kernel.scopes, image)

    def wake_up_by(self, fd: int) -> None:
        """Let `step` end when a descriptor becomes readable; whoever owns it reads it."""
        self._poller.register(fd, select.EPOLLIN)

    def unwatch(self, target: Target) -> None:
        """Stop to profile a process that runs on. What was sampled of it stays."""
        self._lives.end(target, End.LEFT)

    def find_waits(self, target: Target, wanted: bool) -> None:
        """Find out from now on where the threads of a process wait, and for how long; or do so no more.

        Waits and stalls that last are cut in two here: what they took until now counts as if they were over, if it was
        of interest.
        """
        now_ns = time.monotonic_ns()
        unended = self.kernel.unended({target.image: target.scope.number}, now_ns)
        self.kernel.find_waits(target.pid, now_ns if wanted else 0)
        self._add(unended.facts)

    def drained(self) -> Drain:
        """What has been drained so far."""
        return Drain(
            self.facts,
            self.kernel.stacks,
            self.targets,
            self.thread_names,
            self.kernel.events,
            self.kernel.frequency_hz,
            self._by_cores,
        )

    def take(self) -> Drain:
        """What has been drained since the last call: its facts are no longer the session's."""
        taken = self.drained()
        self.facts, self._by_cores = {}, {}
        return taken

    def drop_ended(self) -> list[Target]:
        """Forget the targets that have ended: call it when all of their facts have been dealt with."""
        ended = self._lives.forget_ended()
        self.cost.forget(ended)
        images = {target.image for target in ended}
        self._drop_scopes(images)
        if images:
            self.kernel.forget_images(images)
            self.thread_names = {key: name for key, name in self.thread_names.items() if key[0] not in images}
        return ended

    def _drop_scopes(self, images: set[int]) -> None:
        for number, scope in list(self.scopes.items()):
            for image in images & scope.members.keys():
                del scope.members[image]
            if not scope.members:
                del self.scopes[number]
                self.kernel.scopes.forget(number)

    def measurement(
        self, main: Target, *, own_cpu_s: float = 0.0, cores: int | None = None, notes: Sequence[str] = ()
    ) -> Measurement:
        """All that was measured, after `finish`.

        ``main`` is the process that it is named after, ``own_cpu_s`` our CPU time, ``cores`` n if the user says so.
        """
        return Measurement(
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
        )

    def is_watched(self, pid: int) -> bool:
        """Whether the programs count it already, as they do with children whose parent is followed."""
        return self.live(pid) is not None or self.kernel.process_state(pid) is not None

    def live(self, pid: int) -> Target | None:
        """The newest image of a process that has not ended."""
        return self._lives.live(pid)

    def step(self, seconds: float | None = None) -> None:
        """Wait up to ``seconds`` (or the session's pace) for something to happen, and deal with all that did."""
        readable = self._wait(self.pace.poll if seconds is None else seconds)
        self._act_on_records()
        self._cut_off()
        self._take_in()
        now = time.monotonic()
        self._look_again(now)
        self.watched.placer.pump()
        self._settle(now)
        self._follow_cores(now)
        self._clear_away(readable)
        self._note_rates(now)
        self._drain_in_time(now)
        self._learn_spins()
        self._check_in_time(now)

    def _wait(self, seconds: float) -> list[int]:
        """Until something happens, but for so long at most: the descriptors that are readable."""
        if self.watched.placer.is_waiting or BOOK.is_busy:
            seconds = min(seconds, self.pace.tables)
        seconds = max(min(seconds, self._maps_due_s - time.monotonic()), 0.0)
        with suppress(InterruptedError):
            return [fd for fd, _ in self._poller.poll(seconds)]
        return []

    def _learn_spins(self) -> None:
        """Tell the programs of loops in which threads turned out to wait."""
        found = {dso.key for dso in self._spins.found()}
        if found:
            for target in self._lives.living():
                if target.load_map is not None and any(dso.key in found for dso in target.load_map.dsos()):
                    target.learn_spins()

    def _act_on_records(self) -> None:
        """Do what the programs have told that is to be done."""
        for record in self.kernel.control_records():
            self._act(record)

    def _take_in(self) -> None:
        """Take over what the programs found out: stacks and mappings, functions that may be gone soon, traces."""
        self.kernel.poll()
        self._note_mappings()
        self._resolve_functions()
        self.trace.extend(self.kernel.trace_records())

    def _look_again(self, now: float) -> None:
        """Read the load maps that may have changed."""
        if self.cache.answers_again():
            for target in self._lives.living():
                target.stale = True
        for target in self._lives.living():
            if target.stale and now >= target.next_refresh_s:
                target.careful_follow()
        for target in self._lives.living():
            if target.plan_due(time.monotonic()):
                target.careful_plan()
                break  # the maps of all others come first
        self._maps_due_s = min((target.due_s() for target in self._lives.living()), default=math.inf)

    def _settle(self, now: float) -> None:
        """Look closely at those that have lived for a while."""
        for target in self._lives.settle_due(now):
            target.settle()

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

    def _drain_in_time(self, now: float) -> None:
        if now - self._last_drain >= self.pace.drain:
            self.drain()

    def _check_in_time(self, now: float) -> None:
        if now - self._last_check >= min(self.pace.drain, _CHECK_SECONDS):
            self._last_check = now
            self._resynchronise()

    def _cut_off(self) -> None:
        """Go on without what the breaker has cut off."""
        for cut in self.kernel.breaker.take():
            target = self.live(cut.pid)
            if target is not None and target.image == cut.image:
                try:
                    target.cut_off(cut)
                except (ParprofError, OSError) as error:
                    target.note_failure(f"{type(error).__name__}: {error}")

    def _act(self, record: ControlRecord) -> None:
        if record.kind == records.RECORD_SEEN:
            if self._on_seen is not None:
                self._on_seen(record.pid)
            return
        try:
            if record.kind in (records.RECORD_EXEC, records.RECORD_FORK):
                self._new_image(record)
            else:
                self._act_on_target(record)
        except (ParprofError, OSError) as error:  # one target's failure never stops the others
            target = self.live(record.pid)
            if target is not None:
                target.note_failure(f"{type(error).__name__}: {error}")

    def _leader_ended(self, target: Target) -> None:
        """The first thread of a process has ended, as a rule with all others."""
        if target.life.state in (State.YOUNG, State.GONE) and target.is_gone():
            self._lives.end(target, End.EXITED)
            return
        target.observe()
        if target.life.state is State.YOUNG:  # some thread of it lives, or it is just about to end
            self._lives.linger(target)

    def _act_on_target(self, record: ControlRecord) -> None:
        target = (
            self._lives.newest(record.pid) if record.kind == records.RECORD_EXIT else self.live(record.pid)
        )
        if target is None or target.image != record.image:
            return
        if record.kind == records.RECORD_LEARNED:
            target.learn(record.address)
        elif record.kind == records.RECORD_LOAD_MAP:
            target.load_maps.begin(record.address)
            if record.stopped:
                target.refresh(wait=True)
                target.resume(started_libraries=True)
            else:
                target.stale = True
        elif record.kind == records.RECORD_STALE_MAP:
            target.stale = True
        elif record.kind == records.RECORD_EXIT:
            self._leader_ended(target)
        elif record.kind == records.RECORD_REPLACED:
            self._lives.end(target, End.REPLACED)

    def _new_image(self, record: ControlRecord) -> None:
        """A watched process called exec, or a child was forked: the kernel already counts the new image."""
        is_exec = record.kind == records.RECORD_EXEC
        before = self._lives.newest(record.pid if is_exec else record.parent_pid)
        if not is_exec:
            self._lives.make_room(record.pid)
        elif before is not None:
            self._lives.end(before, End.REPLACED)
        like = before if before and not (record.stopped or (is_exec and not before.stops)) else None
        scope = before.scope if before is not None else self._scope_for(record.image)
        try:
            target = Target(
                self.watched, self._describe(record, like), record.image, follow=before.follows if before else False,
                stop=before.stops if before else False, scope=scope, program=record.address, like=like,
            )  # fmt: skip
        except TargetError:
            self.kernel.unwatch(record.pid)
            return
        self._join(target)
        if not is_exec and before is not None:
            target.inherit(before)
        self._lives.begin(target, target.first_state, time.monotonic())
        if target.life.state is State.SETTLED:
            target.refresh(wait=record.stopped)
            if record.stopped:
                target.resume(started_libraries=False)
        elif target.life.state is State.YOUNG and not is_exec and before is not None:
            self.watched.placer.inherit(before.pid, target.pid)

    @staticmethod
    def _describe(record: ControlRecord, like: Target | None) -> Process:
        """The process that a record is about; with ``like``, what is known of it without looking.

        Raises:
            TargetError: it is gone.
        """
        if like is None:
            return inspect(record.pid)
        if record.kind == records.RECORD_FORK:
            return replace(like.process, pid=record.pid)
        comm = visible(record.comm.encode())
        return replace(like.process, pid=record.pid, comm=comm, command=f"[{comm}]", exe="")

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
                self._divide({key: count for key, count in self.facts.items() if key.image == target.image})
            target.change_cores(cores)
            target.scope.note_cores()

    def _divide(self, facts: Facts) -> None:
        """Note that these were counted with what their processes are allowed now."""
        for key, count in facts.items():
            divided = self._by_cores.setdefault(key, {})
            divided.setdefault(self.targets[key.image].cores, Count()).add(count)

    def _resynchronise(self) -> None:
        """After a lost control record: look again at everything that a record could have told."""
        lost = self.kernel.lost().get("control_ring", 0)
        if lost == self._control_losses:
            return
        self._control_losses = lost
        self.kernel.forget_verdicts()
        self.kernel.forget_learned(self.targets.keys())
        for pid, image in self.kernel.images().items():
            if image not in self.targets:
                kind = records.RECORD_EXEC if self.live(pid) else records.RECORD_FORK
                self._act(ControlRecord(kind, pid, pid, image, parent_of(pid), False, 0, 0, ""))
        for target in self._lives.unheard():
            if target.is_gone():
                self._lives.end(target, End.EXITED)
        for target in self._lives.living():
            target.careful_refresh()
            target.resume(started_libraries=False)

    def drain(self) -> None:
        """Take all samples from the kernel now."""
        self._add(self.kernel.drain())
        self._note_mappings()
        self._resolve_functions()
        self._last_drain = time.monotonic()
        living = self._lives.living()
        with self._states_of(living):
            for target in living:
                target.observe()

    def _states_of(self, targets: Sequence[Target]) -> AbstractContextManager[None]:
        """Within this, the kernel's states of all processes are read at once if these are many."""
        return self.kernel.one_look() if len(targets) >= _MANY else nullcontext()

    def _note_mappings(self) -> None:
        """Add what the kernel found mapped to load maps that lack it."""
        by_image: dict[int, list[FoundMapping]] = {}
        for found in self.kernel.found_mappings():
            by_image.setdefault(found.image, []).append(found)
        for image, mappings in by_image.items():
            if (target := self.targets.get(image)) is not None:
                target.note_mappings(mappings)

    def _resolve_functions(self) -> None:
        """Look up the functions of interpreted languages in new stacks."""
        sent: dict[int, list[SentCode]] = {}
        for image, function in self.kernel.python_functions():
            sent.setdefault(image, []).append(function)
        for image, functions in sent.items():
            if (language := self._language(image)) is not None:
                language.take(functions)
        fresh: dict[int, list[tuple[int, tuple[CodeAt, ...]]]] = {}
        for image, digest, frames in self.kernel.python_stacks():
            fresh.setdefault(image, []).append((digest, frames))
        for image, stacks in fresh.items():
            if (language := self._language(image)) is not None:
                language.resolve(stacks)

    def _language(self, image: int) -> Instance | None:
        target = self.targets.get(image)
        return target.language if target is not None else None

    def _add(self, facts: Facts) -> None:
        images = {key.image for key in facts}
        self._core_rounds.note(images)
        changed = {image for image in images & self.targets.keys() if self.targets[image].allowed.changes}
        if changed:
            self._divide({key: count for key, count in facts.items() if key.image in changed})
        for key, count in facts.items():
            if key.event == 0 and key.image in self.targets:
                self.targets[key.image].clock_samples += count.samples
            if (key.image, key.tid) not in self.thread_names:
                self.thread_names[key.image, key.tid] = self._thread_name(key.image, key.tid)
        for scope in self.scopes.values():
            scope.changed()
        self._spins.look(facts, self.targets)
        add_facts(self.facts, facts)

    def _thread_name(self, image: int, tid: int) -> str:
        target = self.targets.get(image)
        if target is not None and not target.ended:
            with suppress(OSError):
                return Path(f"/proc/{target.pid}/task/{tid}/comm").read_bytes()[:-1].decode(errors="replace")
        return f"tid {tid}"

    def samples(self) -> int:
        """Clock samples so far."""
        return sum(count.samples for key, count in self.facts.items() if key.event == 0)

    def finish(self) -> None:
        """Take the last samples, detach all probes. Targets keep running; the facts stay."""
        self._act_on_records()
        self._cut_off()
        self.ended_ns = self.kernel.freeze()
        for target in self._lives.unended():
            if not target.ended and target.is_gone():
                self._lives.note_gone(target)
        for scope in self.scopes.values():
            scope.finish(self.ended_ns)
        self.drain()
        living = {target.image: target.scope.number for target in self._lives.living()}
        unended = self.kernel.unended(living, self.ended_ns)
        self._add(unended.facts)
        for target in self._lives.unended():
            self._lives.end(target, End.EXITED if target.ended else End.LEFT)
        for image, ready_ns in unended.ready_ns.items():
            self.targets[image].ready_ns += ready_ns
        self.watched.placer.free_idle()
        time.sleep(0.01)
        self._add(self.kernel.drain())
        self._note_mappings()
        self._resolve_functions()
        self._add(self.kernel.unresolved())
        self.trace.extend(self.kernel.trace_records())

    def trim(self) -> None:
        """Give back what has not been used for some time."""
        if len(self.thread_names) > _MAX_THREAD_NAMES:  # of threads that are gone, in processes that live on
            self.thread_names.clear()
        self.builder.trim()
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
        if self.watched.shared is not None:
            self.watched.shared.close()
        self.builder.close()
        BOOK.close()
        self.cache.close()
        self._poller.close()
