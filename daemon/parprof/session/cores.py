"""n while a process runs: its affinity, its cpuset and its quota may change, and CPUs go offline and come back."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from parprof.facts.cores import CoresHeld, mean_cores
from parprof.process.cgroups import Quota, Throttled, throttled
from parprof.process.identity import allowance

_LOOKS = 1
"""Processes that are looked at in one turn of the session, at most: a look takes 0.2 ms."""


class AllowedCores:
    """How many cores one process was allowed to use, and for how long. Times are seconds since it was met."""

    def __init__(self, cores: int) -> None:
        """``cores``: what it may use at first."""
        self.first = self.now = cores
        self.changes = 0
        """How often it changed."""
        self.before = cores
        """What it was before the last change."""
        self.changed_s = 0.0
        """When that was."""
        self._earlier_s: dict[int, float] = {}

    def change(self, cores: int, at_s: float) -> None:
        """From now on it may use another number."""
        self._earlier_s = self.held_s(at_s)
        self.before, self.now = self.now, cores
        self.changed_s = at_s
        self.changes += 1

    def held_s(self, until_s: float) -> dict[int, float]:
        """For how long it was allowed how many.

        >>> cores = AllowedCores(2)
        >>> cores.change(1, at_s=3.0)
        >>> cores.held_s(until_s=4.0)
        {2: 3.0, 1: 1.0}
        """
        out = self._earlier_s.copy()
        out[self.now] = out.get(self.now, 0.0) + max(until_s - self.changed_s, 0.0)
        return out


class QuotaWatch:
    """How often a CPU quota has stopped a process's threads, and those of its cgroup, while it was watched."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._folder: Path | None = None
        self._cores = 0
        self._first = self._last = Throttled()

    def look(self, quota: Quota | None) -> None:
        """``quota``: as it is now; without one, what was found before stays."""
        folder = quota.folder if quota is not None else self._folder
        found = throttled(folder) if folder is not None else None
        if found is None:  # its cgroup may be gone already
            return
        if folder != self._folder:
            self._folder, self._first = folder, found
        self._last = found
        self._cores = quota.cores if quota is not None else self._cores

    def remarks(self) -> list[str]:
        """What a report says of it: nothing, if it stopped nobody."""
        times = self._last.times - self._first.times
        if times <= 0:
            return []
        seconds = self._last.seconds - self._first.seconds
        cores = "1 core" if self._cores == 1 else f"{self._cores} cores"
        return [
            f"its CPU quota ({cores}) has stopped its cgroup {times} times, for {seconds:.2f} s of its CPUs' time "
            "together (nr_throttled): that is waiting for a CPU, and no fault of the code"
        ]


class OwnCores:
    """What one process may use, as it was found when it was looked at."""

    def __init__(self, pid: int, like: OwnCores | None = None) -> None:
        """``like``: those of the process that it was before, or of its parent."""
        self._pid = pid
        self._quota: QuotaWatch = like._quota if like else QuotaWatch()
        self.cpus: frozenset[int] = like.cpus if like else frozenset()
        self.allowed: AllowedCores = AllowedCores(like.allowed.now if like else 1)

    def look(self) -> int:
        """How many cores it may use now.

        Raises:
            ParprofError: that cannot be read.
        """
        found = allowance(self._pid)
        self.cpus = found.cpus
        self._quota.look(found.quota)
        return found.cores

    def begin(self) -> None:
        """What it may use now is what it may use at first.

        Raises:
            ParprofError: that cannot be read.
        """
        self.allowed = AllowedCores(self.look())

    def remarks(self) -> list[str]:
        """What a report says of its quota."""
        return self._quota.remarks()

    def close(self) -> None:
        """It is watched no more."""
        self._quota.look(None)


def changes_of_n(
    allowed: AllowedCores, parallel: Callable[[int], int], held: Callable[[], list[CoresHeld]]
) -> list[str]:
    """What the reader of results is told, if n changed.

    ``parallel``: n of so many cores that are allowed. ``held``: how many it was, and for how long.
    """
    before, now = parallel(allowed.before), parallel(allowed.now)
    if not allowed.changes or (allowed.changes == 1 and before == now):
        return []
    if allowed.changes == 1:
        return [f"n changed from {before} to {now} after {allowed.changed_s:.1f} s"]
    return [
        f"n changed {allowed.changes} times, the last time from {before} to {now} after "
        f"{allowed.changed_s:.1f} s; it was {mean_cores(held()):.2f} on average"
    ]


class Rounds:
    """Whose turn it is to be looked at: those that ran since the last round, a few at a time."""

    def __init__(self, seconds: float) -> None:
        """``seconds``: from the start of one round to that of the next, at least; infinite: there is none."""
        self._seconds = seconds
        self._ran: set[int] = set()
        self._queue: deque[int] = deque()
        self._next_s = 0.0 if math.isfinite(seconds) else seconds

    def note(self, images: Iterable[int]) -> None:
        """These process images were sampled."""
        self._ran.update(images)

    def due(self, now_s: float) -> list[int]:
        """The images to be looked at now."""
        if not self._queue and now_s >= self._next_s:
            self._queue.extend(self._ran)
            self._ran.clear()
            self._next_s = now_s + self._seconds
        return [self._queue.popleft() for _ in range(min(_LOOKS, len(self._queue)))]
