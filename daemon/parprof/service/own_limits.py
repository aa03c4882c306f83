"""What the daemon itself may use: of memory and of CPU time its cgroup can have too little, and that has to be said,
because the kernel says nothing when it ends a process, and a loop that is stopped looks like one that hangs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from parprof.process.cgroups import CGROUP_ROOT, Quota, cgroup_quota, membership_of, memory_limit, throttled

LEAST_BYTES = 256 << 20
"""Its BPF maps take 80 MB in the kernel, itself 60 to 90 MB, and a child that reads symbols as much again."""
_MUCH = 0.25
"""Of the time: so long its threads were stopped, all together."""


def too_little_memory(membership: str, root: Path = CGROUP_ROOT) -> str:
    """What is to be said of the memory limit of a cgroup; empty if it is high enough."""
    limit = memory_limit(membership, root)
    if limit is None or limit >= LEAST_BYTES:
        return ""
    return (
        f"the limit of {limit / 1e6:.0f} MB on this cgroup's memory is too low: below some {LEAST_BYTES / 1e6:.0f} MB "
        "BPF maps are refused, names are missing, or the kernel ends the daemon without a word; raise MemoryMax, or "
        "the container's limit"
    )


class QuotaAlarm:
    """Tells when a CPU quota stops the daemon for much of the time, and when that is over."""

    def __init__(
        self, find: Callable[[], Quota | None] = lambda: cgroup_quota(membership_of(os.getpid()))
    ) -> None:
        """``find``: the quota as it is now."""
        self._find = find
        self._before: tuple[float, Path, float] | None = None
        self._is_told = False

    def look(self, now_s: float) -> str:
        """What is to be said; empty if that is nothing new. ``now_s``: CLOCK_MONOTONIC."""
        quota = self._find()
        found = throttled(quota.folder) if quota is not None else None
        if quota is None or found is None:
            self._before = None
            return ""
        before, self._before = self._before, (now_s, quota.folder, found.seconds)
        if before is None or before[1] != quota.folder or now_s <= before[0]:
            return ""
        share = (found.seconds - before[2]) / (now_s - before[0])
        was_told, self._is_told = self._is_told, share >= _MUCH
        if self._is_told and not was_told:
            return (
                f"its CPU quota has stopped the daemon for {share:.0%} of the last {now_s - before[0]:.0f} s (all its "
                "threads and children together): it answers late, and samples may be lost; raise CPUQuota, or the "
                "container's limit"
            )
        if was_told and not self._is_told:
            return "its CPU quota does not hold the daemon up any more"
        return ""
