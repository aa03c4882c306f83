"""The breaker's side in Python: what the programs cut off is taken away, and put back when there is room again.

What each process pays is held to its budget by the programs themselves: bpf/budget.bpf.c.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Collection
from typing import Any

from parprof.kernel import bpf
from parprof.kernel.alarms import Alarms, Cut
from parprof.kernel.cpu_time import CpuTime
from parprof.kernel.cpus import possible_cpus
from parprof.kernel.glimpses import Glimpses
from parprof.kernel.objects import LoadedObject
from parprof.kernel.records import (
    COMMAND_FREEZE,
    COMMAND_LEAVE,
    COMMAND_PLACE,
    COMMAND_PROBE,
    COMMAND_RECOUNT,
    COMMAND_SETTLE,
    COMMAND_TRACE,
    COMMAND_WAITS,
    Budget,
    Cost,
    Prices,
)
from parprof.kernel.ringbuf import RingBuffer
from parprof.kernel.sampling import SWITCHES, Tracepoints
from parprof.kernel.settings import Settings
from parprof.kernel.unended import PlacelessWait
from parprof.kernel.uprobes import ProbeSet

_SETTLED_SECONDS = 0.002
"""Programs that still saw the old numbers end within microseconds."""
_SHOWN_PERIODS = 1.5
"""Of sampling: by then each thread that runs has been sampled, if it was not switched before."""
_LONGEST_BEGINNING_S = 0.1
"""Where that takes longer there are no glimpses: nobody is served meanwhile."""
_GLIMPSE_SHARE, _LONGEST_GLIMPSE_SHARE = 16, 4
"""A glimpse takes one part in 16 of what a process may pay at once, half of what it has earned by then: ask_for_glimpse
in bpf/budget.bpf.c. Each that is used up before it has begun makes the next ones twice as long, up to a fourth."""
_LONG_GLIMPSE_NS = 1_000_000_000
"""A process that has not used up its glimpse by then can be followed for good."""
_HOOKS = (1, 2)
"""The meters of context switches and wake-ups: ``enum metered``."""


class Breaker:
    """Of one session. Ends with `close`."""

    def __init__(self, loaded: LoadedObject, settings: Settings, ring: RingBuffer) -> None:
        """``ring``: of the alarms. Context switches are followed at once.

        Raises:
            KernelUnsupported: there are no such tracepoints here.
        """
        self._object = loaded
        self._settings = settings
        self._lock = threading.Lock()
        self._switches = Tracepoints(loaded, SWITCHES)
        self._switches.attach()
        self._command_program = loaded.program("on_command")
        self._glimpse_cost_ns = 0
        self._glimpse_share = _GLIMPSE_SHARE
        self._cpu_time = CpuTime()
        self.glimpses = Glimpses()
        """What the programs see while switches are followed for a moment, and what that stands for."""
        self._alarms = Alarms(ring, loaded.layouts["control_record"], self.leave_switches)

    @property
    def fd(self) -> int:
        """Becomes readable when there are cuts to be taken."""
        return self._alarms.fd

    def take(self) -> list[Cut]:
        """What the programs have cut off since the last call. The probes concerned are being taken away by now."""
        return self._alarms.take()

    def guard(self, pid: int, cost: Cost, probes: ProbeSet) -> None:
        """Take these probes away when that kind is cut off in this process."""
        self._alarms.guard(pid, cost, probes)

    def forget(self, pid: int) -> None:
        """The process is watched no more."""
        self._alarms.forget(pid)

    def set_budget(self, budget: Budget) -> None:
        """What each process may pay from now on."""
        self._settings.write(budget=budget)

    @property
    def budget(self) -> Budget:
        """What each process may pay."""
        return self._settings.budget

    def set_prices(self, prices: Prices) -> None:
        """What events cost on this machine, as measured; typical prices before that."""
        self._settings.write(prices=prices)

    @property
    def follows_switches(self) -> bool:
        """Whether context switches are followed; if not, n_w is what runs on the CPUs at each sample."""
        return self._switches.attached

    def leave_switches(self, at_ns: int = 0) -> None:
        """Follow them no more. Any thread may call it. ``at_ns``: since when the programs do not; 0: now."""
        with self._lock:
            if self._switches.attached:
                self._settings.write(ticks=True, glimpse=(0, 0))
                self.glimpses.leave(
                    at_ns or time.monotonic_ns(), self._use(followed=True), self._glimpse_cost_ns
                )
                self._switches.detach()

    def follow_switches(self, pids: Collection[int]) -> None:
        """Follow them again. ``pids``: all processes that are watched.

        Raises:
            KernelUnsupported: the kernel refused.
        """
        with self._lock:
            if self._switches.attached:
                return
            self._switches.attach()
            for pid in pids:
                self._command(COMMAND_RECOUNT, pid)
            self._settings.write(ticks=False)
            self.glimpses.finish(time.monotonic_ns(), self._use(followed=False))
            time.sleep(_SETTLED_SECONDS)
            for pid in pids:
                self._command(COMMAND_SETTLE, pid)

    def glimpse(self, pids: Collection[int], frequency_hz: int) -> None:
        """Follow them for a moment: until what that may cost is used up. ``pids``: as above.

        ``frequency_hz``: samples a second. What is seen counts as soon as all threads that run have shown themselves;
        until then n_w is what runs on the CPUs.

        Raises:
            KernelUnsupported: the kernel refused.
        """
        beginning_s = max(_SETTLED_SECONDS, _SHOWN_PERIODS / frequency_hz)
        with self._lock:
            if self._switches.attached or beginning_s > _LONGEST_BEGINNING_S:
                return
            cost_ns = self._glimpse_cost_ns = self.budget.burst_ns // self._glimpse_share
            number = self.glimpses.next_number()
            self._settings.write(glimpse=(number, 0))
            try:
                self._switches.attach()
            except BaseException:
                self._settings.write(glimpse=(0, 0))
                raise
            for pid in pids:
                self._command(COMMAND_RECOUNT, pid, cost_ns)
            time.sleep(beginning_s)
            for pid in pids:
                self._command(COMMAND_SETTLE, pid)
            if self._any_left(pids):  # used up by then
                self._glimpse_share = max(self._glimpse_share // 2, _LONGEST_GLIMPSE_SHARE)
                self._settings.write(glimpse=(0, 0))
                self._switches.detach()
                return
            begun_ns = time.monotonic_ns()
            self._settings.write(ticks=False, glimpse=(number, begun_ns))
            self.glimpses.begin(begun_ns, self._use(followed=False))

    def _any_left(self, pids: Collection[int]) -> bool:
        """Whether the switches of some of these processes are not followed."""
        for pid in pids:
            entry: Any = self._object.get("processes", struct.pack("<I", pid), "process")
            if entry is not None and entry.ticks:
                return True
        return False

    def look_at_glimpses(self) -> None:
        """To be called now and then: follow switches for good if a glimpse shows that there is room for that."""
        last, now_ns = self.glimpses.last, time.monotonic_ns()
        if last is None:
            return
        with self._lock:
            self._cpu_time.look()  # processes may end before the next glimpse
            if self._switches.attached and not last.end_ns and now_ns - last.begin_ns >= _LONG_GLIMPSE_NS:
                self._settings.write(glimpse=(0, 0))
                self.glimpses.finish(now_ns, self._use(followed=True))

    def finish(self, at_ns: int) -> None:
        """The measurement has ended then: what glimpses stand for is known."""
        with self._lock:
            self.glimpses.finish(at_ns, self._use(followed=self._switches.attached))

    def _use(self, *, followed: bool) -> int:
        """CPU time that the processes have used so far, in nanoseconds.

        To be called whenever switches are followed from then on, or no longer. ``followed``: whether they were since
        the last time; else samples are asked, too, for many processes may come and go that nobody looked at.
        """
        pids = [pid for pid, entry in self._object.entries("processes", "process") if not entry.dead]
        samples = sum(scope.unfollowed for _, scope in self._object.entries("scopes", "scope"))
        return self._cpu_time.used_ns(pids, samples * self._settings.period_ns, by_clocks=followed)

    def leave(self, pid: int) -> None:
        """A process is watched no more: its threads count for its scope no longer."""
        self._command(COMMAND_LEAVE, pid)

    def freeze(self, pid: int) -> None:
        """Count nothing of a process any more, and keep what is known of it."""
        self._command(COMMAND_FREEZE, pid)

    def find_waits(self, pid: int, since_ns: int) -> None:
        """The waits of a process are of interest from then on; 0: no more."""
        self._command(COMMAND_WAITS, pid, since_ns)

    def place_wait(
        self, pid: int, wait: PlacelessWait, user: int, kernel: int, epoch: int, awaits: int
    ) -> None:
        """Where a thread sleeps, if it still does.

        ``user``, ``kernel``: its stacks, by hash. ``epoch``: of the load map. ``awaits``: as in `SampleKey`.
        """
        arguments = COMMAND_PLACE, pid, wait.tid, wait.since_ns, user, kernel, epoch, awaits
        bpf.run_raw_tracepoint(self._command_program, arguments)

    def trace(self, pid: int, *, on: bool) -> None:
        """Tell what the threads of a process do, and of children that it forks, or no more."""
        self._command(COMMAND_TRACE, pid, int(on))

    def probe_again(self, pid: int) -> None:
        """Let probes count again that were cut off in a process."""
        self._command(COMMAND_PROBE, pid)

    def _command(self, command: int, pid: int, argument: int = 0) -> None:
        bpf.run_raw_tracepoint(self._command_program, (command, pid, argument))

    def hooks_ns(self) -> float:
        """CPU time that following context switches took so far, on the whole machine."""
        size, layout = self._object.definitions["meters"]["value_size"], self._object.layouts["meter"]
        out = 0.0
        for _, raw in bpf.map_read_all(self._object.maps["meters"], 4, size * possible_cpus(), 2):
            for at in range(0, len(raw), size):
                meter: Any = layout.from_buffer_copy(raw[at : at + size])
                out += sum(meter.hits[kind] * meter.price_ns[kind] for kind in _HOOKS)
        return out

    def close(self) -> None:
        """End; what is attached is taken away."""
        self._alarms.close()
        self._switches.detach()
