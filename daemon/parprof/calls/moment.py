"""What a program had used of the machine at one time, and how often it had called: what lies between two is a look."""

from __future__ import annotations

import time

from parprof.process.identity import used_cpu_s
from parprof.process.threads import waited_for_cpu_s
from parprof.values import dataclass


@dataclass(frozen=True, slots=True)
class Moment:
    """Of one process."""

    at_s: float
    """CLOCK_MONOTONIC."""
    cpu_s: float
    """CPU time that it had used."""
    waited_s: float
    """For how long threads of it that could run had had no CPU."""
    cheap_calls: int = 0
    """As counted by then, at cheap places and at dear ones."""
    dear_calls: int = 0

    @property
    def calls(self) -> int:
        """At both."""
        return self.cheap_calls + self.dear_calls

    def unhindered_s(self, begun: Moment, cpu_s: float) -> float:
        """How long that much CPU time would have taken it since then, had its threads never waited for a CPU.

        >>> begun = Moment(10.0, 5.0, 3.0)
        >>> Moment(10.5, 5.25, 3.25).unhindered_s(begun, 0.2)  # one thread computes: half of the time it had no CPU
        0.2
        >>> Moment(11.0, 5.25, 3.25).unhindered_s(begun, 0.25)  # that, and sleeps for as long
        0.75
        >>> Moment(11.0, 7.0, 5.0).unhindered_s(begun, 1.0)  # four threads compute, on two CPUs
        0.25
        """
        elapsed_s, used_s = self.at_s - begun.at_s, self.cpu_s - begun.cpu_s
        waited_s = max(self.waited_s - begun.waited_s, 0.0)
        if used_s <= 0:
            return elapsed_s
        wanted_cpus = max((used_s + waited_s) / elapsed_s, 1.0)
        return cpu_s * (elapsed_s - waited_s / wanted_cpus) / used_s

    @staticmethod
    def now(pid: int, cheap_calls: int = 0, dear_calls: int = 0) -> Moment:
        """With what was counted by now."""
        return Moment(time.monotonic(), used_cpu_s(pid), waited_for_cpu_s(pid), cheap_calls, dear_calls)
