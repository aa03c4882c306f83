"""The seam at the kernel: what all that makes profiles knows of where samples come from."""

from __future__ import annotations

from typing import Protocol

from parprof.kernel.stacks import StackTable
from parprof.model import Facts


class Kernel(Protocol):
    """Where samples come from: programs that run in the kernel (`parprof.kernel.engine.BpfKernel`), or a `Recording`.

    What a session does to the kernel beyond that - watch processes, place probes, hold their cost to a budget - only
    the former can do.
    """

    @property
    def events(self) -> tuple[str, ...]:
        """Names of the perf events, the clock first."""

    @property
    def frequency_hz(self) -> int:
        """Samples of the clock a second and CPU."""

    @property
    def budget_ratio(self) -> float:
        """How much of its CPU time a process may pay for being profiled."""

    @property
    def stacks(self) -> StackTable:
        """The stacks behind the ids in facts, and the contexts."""

    def drain(self) -> Facts:
        """All samples counted since the last drain."""

    def lost(self) -> dict[str, int]:
        """Losses so far, by reason; reasons with none are left out."""

    def statistics(self) -> dict[str, int]:
        """What the programs counted: samples, switches, probe hits and so on."""
