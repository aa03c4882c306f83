"""A profiling session: targets come and go, facts are drained, control records are acted upon.

One thread, no locks: `step` is called in a loop and waits for the next thing to do.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from parprof.cost import CostMeter
from parprof.errors import ParprofError, TargetError
from parprof.kernel.engine import (
    RECORD_EXEC,
    RECORD_EXIT,
    RECORD_FORK,
    RECORD_LEARNED,
    RECORD_LOAD_MAP,
    RECORD_REPLACED,
    RECORD_STALE_MAP,
    ControlRecord,
    Kernel,
    TraceRecord,
)
from parprof.kernel.stacks import CodeAt
from parprof.loadmap import DsoCache
from parprof.model import Fact, ThreadState
from parprof.processes import inspect
from parprof.target import Target, Watched
from parprof.unwind.builder import TableBuilder
from parprof.unwind.cache import TableCache
from parprof.unwind.placing import Placer

_POLL_SECONDS = 0.1
_DRAIN_SECONDS = 1.0
_TABLES_SECONDS = 0.003
"""How often to look for unwind tables that are being built: until then stacks are cut short."""
_FORK_SETTLES_SECONDS = 0.2
"""A forked child that has not called exec by then gets probes of its own."""

FactKey = tuple[int, int, int, ThreadState, int, int, int, int]
"""image, tid, event, state, n_working, user stack, kernel stack, load map epoch"""


class Session:
    """Profiles processes until told to stop. The kernel and its lifetime belong to the caller."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.cache = DsoCache()
        self.builder = TableBuilder(TableCache())
        self.watched = Watched(kernel, self.cache, Placer(kernel, self.builder))
        self.targets: dict[int, Target] = {}
        """By image id; ended ones stay, because their samples need their load map."""
        self.facts: dict[FactKey, list[int]] = {}
        self.thread_names: dict[tuple[int, int], str] = {}
        self.trace: list[TraceRecord] = []
        self.cost = CostMeter(kernel)
        self.started_ns = time.monotonic_ns()
        self.ended_ns = self.started_ns
        self.started_s = time.time()
        self._next_image = 1
        self._forked: list[tuple[float, int]] = []
        self._last_drain = time.monotonic()
        self._control_losses = 0
        self._poller = select.poll()
        self._poller.register(kernel.control_fd, select.POLLIN)

    def watch(self, pid: int, *, follow: bool = False, stop: bool = False) -> Target:
        """Begin to profile a running process.

        ``follow``: its children too. ``stop``: it has yet to exec, and is to be stopped at each exec until
        its probes are in place.

        Raises:
            TargetError: gone, a kernel thread, a zombie.
        """
        process = inspect(pid)
        target = Target(self.watched, process, self._next_image, follow=follow, stop=stop)
        self._next_image += 1
        try:
            if inspect(pid) != process:  # the descriptor in `target` now keeps the PID from meaning another
                raise TargetError(f"process {pid} ended while we attached to it")
            self._poller.register(target.pidfd, select.POLLIN)
            self.targets[target.image] = target
            if stop:
                self.kernel.watch(pid, target.image, target.config(), from_exec=True)
            else:
                target.begin()
        except BaseException:
            self._forget(target)
            self.targets.pop(target.image, None)
            raise
        return target

    def _forget(self, target: Target) -> None:
        if target.pidfd >= 0:
            with suppress(KeyError):
                self._poller.unregister(target.pidfd)
        with suppress(OSError, ParprofError):
            if self.live(target.pid) in (target, None):
                self.kernel.unwatch(target.pid)
        target.close()

    def live(self, pid: int) -> Target | None:
        """The newest image of a process that has not ended."""
        found = [t for t in self.targets.values() if t.pid == pid and not t.ended]
        return found[-1] if found else None

    def step(self, seconds: float = _POLL_SECONDS) -> None:
        """Wait up to ``seconds`` for something to happen, and deal with all that did."""
        if self.watched.placer.is_waiting:
            seconds = min(seconds, _TABLES_SECONDS)
        with suppress(InterruptedError):
            self._poller.poll(seconds * 1000)
        for record in self.kernel.control_records():
            self._act(record)
        self.kernel.poll()
        self._resolve_python()
        self.trace.extend(self.kernel.trace_records())
        now = time.monotonic()
        for target in self.targets.values():
            if target.stale and not target.ended and now >= target.next_refresh_s:
                target.refresh()
        self.watched.placer.pump()
        self._settle_forks(now)
        for target in list(self.targets.values()):
            if not target.ended and target.has_ended():
                target.observe()
                self._drain()
                self._forget(target)
        if now - self._last_drain >= _DRAIN_SECONDS:
            self._drain()
            self._resynchronise()
            self.cost.measure(now)

    def _act(self, record: ControlRecord) -> None:
        if record.kind in (RECORD_EXEC, RECORD_FORK):
            self._new_image(record)
            return
        target = self.live(record.pid)
        if target is None or target.image != record.image:
            return
        if record.kind == RECORD_LEARNED:
            target.learn(record.address)
        elif record.kind == RECORD_LOAD_MAP:
            target.load_maps.begin(record.address)
            if record.stopped:
                target.refresh(wait=True)
                target.resume(started_libraries=True)
            else:
                target.stale = True
        elif record.kind == RECORD_STALE_MAP:
            target.stale = True
        elif record.kind == RECORD_EXIT:
            target.observe()
        elif record.kind == RECORD_REPLACED:
            target.ended = True
            target.close()

    def _new_image(self, record: ControlRecord) -> None:
        """A watched process called exec, or a child was forked: the kernel already counts the new image."""
        before = self.live(record.pid if record.kind == RECORD_EXEC else record.parent_pid)
        is_exec = record.kind == RECORD_EXEC
        if is_exec and before is not None:
            before.ended = True
            with suppress(KeyError):
                self._poller.unregister(before.pidfd)
            before.close()
        try:
            process = inspect(record.pid)
            target = Target(
                self.watched, process, record.image,
                follow=before.follows if before else False, stop=before.stops if before else False,
            )  # fmt: skip
        except TargetError:
            self.kernel.unwatch(record.pid)
            return
        self.targets[record.image] = target
        self._poller.register(target.pidfd, select.POLLIN)
        if not is_exec and before is not None:
            target.inherit(before)
            target.read_load_map()
            self._forked.append((time.monotonic() + _FORK_SETTLES_SECONDS, record.image))
            return
        target.refresh(wait=record.stopped)
        if record.stopped:
            target.resume(started_libraries=False)

    def _settle_forks(self, now: float) -> None:
        while self._forked and self._forked[0][0] <= now:
            target = self.targets[self._forked.pop(0)[1]]
            if not target.ended and self.live(target.pid) is target:
                target.refresh()

    def _resynchronise(self) -> None:
        """After a lost control record: look again at everything that a record could have told."""
        lost = self.kernel.lost().get("control_ring", 0)
        if lost == self._control_losses:
            return
        self._control_losses = lost
        for target in list(self.targets.values()):
            if not target.ended:
                target.refresh()
                target.resume(started_libraries=False)

    def _drain(self) -> None:
        self._add(self.kernel.drain())
        self._resolve_python()
        self._last_drain = time.monotonic()
        for target in self.targets.values():
            if not target.ended:
                target.observe()

    def _resolve_python(self) -> None:
        """Look up the functions of new Python stacks while their process has them in memory."""
        fresh: dict[int, list[tuple[int, tuple[CodeAt, ...]]]] = {}
        for image, digest, frames in self.kernel.python_stacks():
            fresh.setdefault(image, []).append((digest, frames))
        for image, stacks in fresh.items():
            target = self.targets.get(image)
            if target is not None and target.python is not None:
                target.python.resolve(stacks)

    def _add(self, facts: Iterable[Fact]) -> None:
        for f in facts:
            key = (f.image, f.tid, f.event, f.state, f.n_working, f.user, f.kernel, f.epoch)
            row = self.facts.setdefault(key, [0, 0, 0])
            row[0] += f.count
            row[1] += f.total
            row[2] += f.count if f.unsure else 0
            if (f.image, f.tid) not in self.thread_names:
                self.thread_names[f.image, f.tid] = self._thread_name(f.image, f.tid)

    def _thread_name(self, image: int, tid: int) -> str:
        target = self.targets.get(image)
        if target is not None and not target.ended:
            with suppress(OSError):
                return Path(f"/proc/{target.pid}/task/{tid}/comm").read_bytes()[:-1].decode(errors="replace")
        return f"tid {tid}"

    def samples(self) -> int:
        """Clock samples so far."""
        return sum(row[0] for key, row in self.facts.items() if key[2] == 0)

    def finish(self) -> None:
        """Take the last samples, detach all probes. Targets keep running; the facts stay."""
        self.ended_ns = time.monotonic_ns()
        for record in self.kernel.control_records():
            self._act(record)
        self._drain()
        self.cost.measure(time.monotonic(), last=True)
        for target in self.targets.values():
            if not target.ended:
                self._forget(target)
                target.ended = True
        time.sleep(0.01)
        self._add(self.kernel.drain())
        self._resolve_python()
        self._add(self.kernel.unresolved())
        self.trace.extend(self.kernel.trace_records())

    def close(self) -> None:
        """Give back what the session holds beyond the kernel's maps."""
        for target in self.targets.values():
            target.close()
            target.perf_map.close()
        self.builder.close()
        self.cache.close()
