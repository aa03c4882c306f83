"""What profiling costs the targets: counted events times measured prices.

The BPF programs' own run time comes from the kernel's statistics, switched on for a moment now and then.
What a uprobe costs beyond its program - the trap - is calibrated once on a function of our own process.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from parprof.codescan import cheap_probe_site
from parprof.elf import ElfFile
from parprof.errors import ParprofError
from parprof.kernel import bpf
from parprof.kernel.engine import Kernel
from parprof.kernel.uprobes import Site
from parprof.runtimes import Edge

_STATISTICS_SECONDS = 0.3
_STATISTICS_EVERY_SECONDS = 10.0
_INTERRUPT_NS = 1500
"""A sample's timer interrupt around the program, a typical value: there is no way to measure it from here."""
_DEFAULT_PROBE_NS = 1000
_CALIBRATION_FUNCTIONS = ("btowc", "setlogmask", "random", "rand")
"""Harmless functions of libc, called with 0; in Debian 12 the first two begin with a push."""


class CostMeter:
    """Estimates the CPU time that the session took from its targets."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._statistics = -1
        self._started = time.monotonic()
        self._next = self._started + 0.2
        self.probe_ns = _DEFAULT_PROBE_NS

    def calibrate(self) -> None:
        """Measure the price of a probe hit on ourselves, some 10 ms; without success it stays a typical one."""
        with suppress(OSError, ParprofError, StopIteration):
            self.probe_ns = _calibrate(self._kernel) or self.probe_ns

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

    def prices_ns(self) -> tuple[float, float]:
        """What a sample and what a probe hit cost the target, nanoseconds; a sample's walk included."""
        mean = self.program_ns()
        return (
            mean.get("on_sample", 2000.0) + mean.get("on_unwind", 1000.0) + _INTERRUPT_NS,
            self.probe_ns + mean.get("on_edge", 200.0),
        )

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


def _calibrate(kernel: Kernel) -> int | None:
    """Price of one probe hit on this machine, without what the program does for watched processes."""
    path = next(
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "/libc.so" in line or "/libc-" in line
    )
    with ElfFile.open(path) as elf:
        for name, symbols in elf.lookup(_CALIBRATION_FUNCTIONS).items():
            place = cheap_probe_site(elf, symbols[0].value, symbols[0].size)
            offset = elf.file_offset(place.vaddr)
            if place.cheap and offset is not None:
                function = getattr(ctypes.CDLL(None), name)
                bare = _best_ns(function)
                probes = kernel.attach_probes(os.getpid(), [Site(path, offset, int(Edge.LEARN))])
                try:
                    return max(int(_best_ns(function) - bare), 100)
                finally:
                    probes.close()
    return None


def _best_ns(function: Callable[[int], object], calls: int = 1000) -> float:
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter_ns()
        for _ in range(calls):
            function(0)
        best = min(best, (time.perf_counter_ns() - start) / calls)
    return best
