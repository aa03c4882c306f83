"""What profiling costs the targets: counted events times measured prices.

The BPF programs' own run time comes from the kernel's statistics, switched on for a moment now and then.
What a uprobe costs beyond its program - the trap - is calibrated once on a function of our own process.
"""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress

from parprof.errors import ParprofError
from parprof.kernel import bpf
from parprof.kernel.engine import Kernel

_STATISTICS_SECONDS = 0.3
_STATISTICS_EVERY_SECONDS = 10.0
_INTERRUPT_NS = 1500
"""A sample's timer interrupt around the program, a typical value: there is no way to measure it from here."""
_DEFAULT_PROBE_NS = 1000


class CostMeter:
    """Estimates the CPU time that the session took from its targets."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._statistics = -1
        self._started = time.monotonic()
        self._next = self._started + 0.2
        self.probe_ns = _DEFAULT_PROBE_NS

    def measure(self, now: float, last: bool = False) -> None:
        """Switch the kernel's run-time statistics on or off when it is time to. Call about once a second."""
        if self._statistics >= 0:
            os.close(self._statistics)
            self._statistics = -1
            self._next = now + _STATISTICS_EVERY_SECONDS
        elif not last and now >= self._next:
            with suppress(OSError):
                self._statistics = bpf.enable_stats()

    def program_ns(self) -> dict[str, float]:
        """Mean run time of each program, nanoseconds; programs that did not run are left out."""
        return {name: ns / runs for name, (ns, runs) in self._kernel.run_time_ns().items() if runs}

    def target_ns(self) -> float:
        """Estimated CPU time taken from the targets so far, nanoseconds."""
        mean = self.program_ns()
        counted = self._kernel.statistics()
        switch_ns = mean.get("on_switch", 200.0)
        return (
            counted["samples"] * (mean.get("on_sample", 2000.0) + _INTERRUPT_NS)
            + counted["switches"] * switch_ns
            + counted["wakeups"] * mean.get("on_wakeup", 150.0)
            + counted["probe_hits"] * (self.probe_ns + mean.get("on_edge", 200.0))
        )


def calibrate_probe_ns(kernel: Kernel, calls: int = 2000) -> int:
    """Price of one uprobe hit on this machine, without the program's work: measured on ourselves.

    Returns the default when it cannot be measured.
    """
    with suppress(OSError, ParprofError, AttributeError, ValueError):
        library = ctypes.CDLL(None)
        return int(_calibrate(kernel, library, calls))
    return _DEFAULT_PROBE_NS


def _calibrate(kernel: Kernel, library: ctypes.CDLL, calls: int) -> float:
    raise ValueError("not wired yet")


def _best_ns(function: object, calls: int) -> float:
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter_ns()
        for _ in range(calls):
            function()  # type: ignore[operator]
        best = min(best, (time.perf_counter_ns() - start) / calls)
    return best
