"""How long the machine's CPUs had nothing to do: what all processes together can have left idle, and no more."""

from __future__ import annotations

import psutil


class IdleTime:
    """Of all CPUs together, by the kernel's own account."""

    def __init__(self) -> None:
        """Counts from now on."""
        self._before_s = _idle_s()
        self.total_s = 0.0
        """What was taken so far."""

    def take_ns(self) -> float:
        """Core time since the last call, nanoseconds. Waiting for a disk is idle time, too."""
        before_s, self._before_s = self._before_s, _idle_s()
        taken_s = max(self._before_s - before_s, 0.0)
        self.total_s += taken_s
        return 1e9 * taken_s


def _idle_s() -> float:
    times = psutil.cpu_times()
    return float(times.idle + times.iowait)


def unused_share(idleness_ns: float, idle_ns: float) -> float:
    """How much of what processes were charged with as idleness was idle in truth.

    Each of several is held against all cores, so their idleness may add up to more than there is.

    >>> unused_share(4e9, 1e9), unused_share(1e9, 4e9)
    (0.25, 1.0)
    """
    return min(idle_ns / idleness_ns, 1.0) if idleness_ns > 0 else 0.0
