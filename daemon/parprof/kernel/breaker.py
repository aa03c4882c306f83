"""The breaker's side in Python: what the programs cut off is taken away, and put back when there is room again.

What each process pays is held to its budget by the programs themselves: bpf/budget.bpf.c.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import Any

from parprof.kernel import bpf
from parprof.kernel.alarms import Alarms, Cut
from parprof.kernel.cpus import possible_cpus
from parprof.kernel.objects import LoadedObject
from parprof.kernel.records import (
    COMMAND_FREEZE,
    COMMAND_LEAVE,
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
from parprof.kernel.uprobes import ProbeSet

_SETTLED_SECONDS = 0.002
"""Programs that still saw the old numbers end within microseconds."""
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

    def leave_switches(self) -> None:
        """Follow them no more. Any thread may call it."""
        with self._lock:
            if self._switches.attached:
                self._settings.write(ticks=True)
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
            time.sleep(_SETTLED_SECONDS)
            for pid in pids:
                self._command(COMMAND_SETTLE, pid)

    def leave(self, pid: int) -> None:
        """A process is watched no more: its threads count for its scope no longer."""
        self._command(COMMAND_LEAVE, pid)

    def freeze(self, pid: int) -> None:
        """Count nothing of a process any more, and keep what is known of it."""
        self._command(COMMAND_FREEZE, pid)

    def find_waits(self, pid: int, since_ns: int) -> None:
        """The waits of a process are of interest from then on; 0: no more."""
        self._command(COMMAND_WAITS, pid, since_ns)

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
