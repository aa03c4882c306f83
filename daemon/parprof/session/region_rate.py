"""How fast parallel regions come while they are probed: n_w cannot be read in time in very short ones."""

from __future__ import annotations

import time

from parprof.kernel.engine import BpfKernel
from parprof.plans import Edge


class RegionRate:
    """Of all processes of a session together."""

    def __init__(self, kernel: BpfKernel) -> None:
        self._kernel = kernel
        self._before = (time.monotonic(), 0)
        self.shortest_us = 0.0
        """Mean time between two regions when they came fastest, microseconds; 0: not known."""

    def note(self, now_s: float) -> None:
        """Look at the counters; call it several times a second. ``now_s``: CLOCK_MONOTONIC."""
        (before_s, before), hits = self._before, self._kernel.edge_hits().get(Edge.REGION, 0)
        count = hits // 2  # a region's probe is hit at its entry and at its end
        self._before = now_s, count
        if count > before and now_s > before_s:
            period_us = 1e6 * (now_s - before_s) / (count - before)
            self.shortest_us = min(self.shortest_us or period_us, period_us)
