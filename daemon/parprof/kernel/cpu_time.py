"""CPU time of processes, and what all that are watched have used, for spans of time that begin and end at once."""

from __future__ import annotations

import time
from collections.abc import Iterable

_CPU_CLOCK = 2
"""With a PID, what clock_gettime(2) knows a process's CPU time by: see clock_getcpuclockid(3)."""


def cpu_time_ns(pid: int) -> int | None:
    """CPU time that a process has used so far, in nanoseconds; None if it is gone."""
    try:
        return time.clock_gettime_ns(~pid << 3 | _CPU_CLOCK)
    except OSError:
        return None


class CpuTime:
    """Of the processes of one session. One thread at a time may call it.

    Processes have clocks of their own, which are exact, but only those that are there: many may come and go between two
    looks. Samples miss none of them, and are too few where a program sleeps and wakes thousands of times a second: the
    kernel sets timers and changes threads with interrupts off, in which no sample is taken. (10,000 naps a second in a
    virtual machine: samples 0.52 s where the clock said 0.65.) So a span without a look is what the one or the other
    saw, whichever is more.
    """

    def __init__(self) -> None:
        """Nothing was used yet."""
        self._clocks: dict[int, int] = {}
        """What the clock of each process said last, by PID. Nanoseconds."""
        self._gone_ns = 0
        """That of processes that are gone."""
        self._used_ns = self._clocks_ns = self._sampled_ns = 0
        """As `used_ns` had it last: what it said, and what it saw."""

    def look(self, pids: Iterable[int] = ()) -> None:
        """Read the clocks of processes that are known, and of these: they may end before the next span does."""
        for pid in {*self._clocks, *pids}:
            used_ns = cpu_time_ns(pid)
            if used_ns is None:
                self._gone_ns += self._clocks.pop(pid, 0)
            else:
                self._clocks[pid] = used_ns

    def used_ns(self, pids: Iterable[int], sampled_ns: int, *, by_clocks: bool) -> int:
        """What was used up to now: up to the last call, and since then as the clocks say. Nanoseconds.

        ``pids``: those that are watched now; ``sampled_ns``: what samples stand for so far, those of all processes;
        ``by_clocks``: nobody came and went since the last call that the clocks would not know of.
        """
        self.look(pids)
        clocks_ns = self._gone_ns + sum(self._clocks.values())
        more_ns = clocks_ns - self._clocks_ns
        if not by_clocks:
            more_ns = max(more_ns, sampled_ns - self._sampled_ns)
        self._used_ns += max(more_ns, 0)
        self._clocks_ns, self._sampled_ns = clocks_ns, sampled_ns
        return self._used_ns
