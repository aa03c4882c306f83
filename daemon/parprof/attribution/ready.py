"""Time in which working threads had no CPU, by call path."""

from __future__ import annotations

from collections.abc import Sequence

from parprof.metrics import READY
from parprof.model import PathSample


def share_ready(ready_ns: float, samples: Sequence[PathSample]) -> float:
    """Charge rows with it, besides what they have of it; what is left if there is no work in them.

    A thread is preempted wherever it works, so in proportion to where it does.
    """
    work_ns = sum(sample.metrics.work_ns for sample in samples)
    if not work_ns:
        return ready_ns
    for sample in samples:
        if sample.metrics.work_ns:
            sample.metrics[READY] += ready_ns * sample.metrics.work_ns / work_ns
    return 0.0
