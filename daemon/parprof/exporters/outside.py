"""The rule that waiting for something to do is no loss (docs/concepts.md), switched off: for programs that should
have had something to do, as a worker whose queue is kept empty by a slow reader."""

from __future__ import annotations

from dataclasses import replace

from parprof.metrics import OUTSIDE, STALL, Metrics
from parprof.model import Interval, Profile

NOTE = "time in which the program waited for requests, events or keys counts as stall (--count-outside)"


def counted(profile: Profile) -> Profile:
    """The same profile where the outside is stall, and so a part of effort, efficiency and verdicts."""
    return replace(
        profile,
        samples=[replace(sample, metrics=_counted(sample.metrics)) for sample in profile.samples],
        intervals=[_interval(interval) for interval in profile.intervals],
        notes=[*profile.notes, NOTE],
    )


def _interval(interval: Interval) -> Interval:
    return replace(interval, rows={row: _counted(metrics) for row, metrics in interval.rows.items()})


def _counted(metrics: Metrics) -> Metrics:
    outside = metrics[OUTSIDE]
    if not outside:
        return metrics
    out = metrics.copy()
    out[STALL] += outside
    out[OUTSIDE] = 0
    return out
