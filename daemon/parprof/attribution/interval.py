"""How far sampled numbers can be trusted: 95 % intervals from how many samples there were.

Samples are taken as a Poisson process, which overstates the spread of regular ones. A value that is the sum of samples
of at most ``step`` each then has at most the variance ``step x value``. A sample stands for a period of CPU time, and
for up to n - 1 periods of idleness. What is measured at each event instead of sampled has a step of 0; it
differs from one run to the next all the same.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from parprof.metrics import (
    ACTIVATIONS,
    BLAME,
    IDLENESS,
    OVERHEAD,
    PROFILING,
    SAMPLES,
    SPIN,
    STOLEN,
    UNUSED,
    WORK,
    Metric,
    Metrics,
    Whole,
)
from parprof.units import NANOSECONDS
from parprof.values import dataclass

Z = 1.96
"""Standard deviations to each side of what is expected, between which 95 % of all outcomes are."""

_NONE_SEEN = 3.0
"""Of what is seen in none of many samples, there are no more than so many with 95 % probability: exp(-3) = 0.05."""

TOLERANCE = 0.01
"""Of n x time, or of a metric's total where that is more or no time: what is measured, not sampled, may be off by so
much between two runs of one program, as sleeps end late and the disk takes longer."""


@dataclass(frozen=True, slots=True)
class MeasuredTime:
    """Of a metric, and how far off it may be (95 %)."""

    value: float
    spread: float


@dataclass(frozen=True, slots=True)
class Change:
    """From one run's amount to another's."""

    before: MeasuredTime
    after: MeasuredTime

    @property
    def delta(self) -> float:
        """How much more it is."""
        return self.after.value - self.before.value

    @property
    def spread(self) -> float:
        """How far off that may be: both errors are independent."""
        return math.hypot(self.before.spread, self.after.spread)

    @property
    def is_real(self) -> bool:
        """Whether it is more than sampling, and what two runs differ in anyway, make of nothing."""
        return abs(self.delta) > self.spread


def amount_of(metric: Metric, part: Metrics, total: Metrics, cores: int, available_ns: float) -> MeasuredTime:
    """What a part has of a metric. ``available_ns``: n x time."""
    value = part[metric]
    step = step_of(metric, period_ns(total), cores)
    if step:
        return MeasuredTime(value, Z * math.sqrt(max(value * step, 0.0)))
    return MeasuredTime(value, measured_spread(metric, part, total, available_ns))


def measured_spread(metric: Metric, part: Metrics, total: Metrics, available_ns: float) -> float:
    """How far off a part's amount may be that is not sampled."""
    whole = max(total[metric], available_ns if metric.unit is NANOSECONDS else 0.0)
    return min(abs(part[metric]), TOLERANCE * whole)


def period_ns(total: Metrics) -> float:
    """The CPU time that a sample stands for."""
    return total.cpu_ns / total.samples if total.samples else 0.0


def step_of(metric: Metric, period: float, cores: int) -> float:
    """What one sample adds to a metric at most; 0 for those that are not sampled."""
    steps = {
        SAMPLES: 1.0,
        ACTIVATIONS: 1.0,
        IDLENESS: max(cores - 1, 0) * period,
        STOLEN: max(cores - 1, 0) * period,
        UNUSED: max(cores - 1, 0) * period,
        BLAME: cores * period,
    }
    if metric in (WORK, OVERHEAD, SPIN, PROFILING):
        return period
    return steps.get(metric, 0.0)


def share_interval(part: float, whole: float, step: float, rest_step: float) -> tuple[float, float]:
    """The 95 % interval of the share of a part in a whole, 0 to 1.

    The share is that of L in L + R. To first order its variance is ``(1 - s)^2 var(L) + s^2 var(R)`` over the square of
    the whole. ``step``, ``rest_step``: what a sample adds to L and to R at most.

    >>> low, high = share_interval(10.0, 100.0, 1.0, 1.0)
    >>> f"{low:.3f} {high:.3f}"
    '0.041 0.159'
    """
    if not whole:
        return 0.0, 0.0
    share = part / whole
    if not part:
        return 0.0, min(_NONE_SEEN * step / whole, 1.0)
    variance = (1 - share) ** 2 * part * step + share**2 * max(whole - part, 0.0) * rest_step
    spread = Z * math.sqrt(max(variance, 0.0)) / whole
    return max(share - spread, 0.0), min(share + spread, 1.0)


def metric_interval(metric: Metric, part: Metrics, total: Metrics, cores: int) -> tuple[float, float]:
    """The same of a metric of a row, as a share of what it is a part of: see `Metrics.whole_of`."""
    period = period_ns(total)
    most = max(cores, 1) * period if metric.whole is Whole.EFFORT else period
    return share_interval(part[metric], total.whole_of(metric), step_of(metric, period, cores), most)


def are_told_apart(one: float, other: float, step: float, other_step: float | None = None) -> bool:
    """Whether two sums of different samples differ by more than chance explains, with 95 % probability.

    >>> are_told_apart(100.0, 130.0, 1.0), are_told_apart(100.0, 120.0, 1.0)
    (True, False)
    """
    variance = one * step + other * (step if other_step is None else other_step)
    return abs(one - other) > Z * math.sqrt(max(variance, 0.0))


def rank_intervals(falling: Sequence[float], step: float) -> list[tuple[int, int]]:
    """Which places, from 1 on, rows may as well have that are in order of these values: the first and the last.

    >>> rank_intervals([900.0, 110.0, 100.0, 10.0], 1.0)
    [(1, 1), (2, 3), (2, 3), (4, 4)]
    """
    rising = [-value for value in falling]
    square = Z * Z * step
    out = []
    for place, value in enumerate(falling):
        # |x - value| = Z sqrt(step (x + value)), solved for x
        root = math.sqrt(square * square + 8 * square * value)
        first = bisect_left(rising, -(value + (root + square) / 2))
        last = bisect_right(rising, -(value - (root - square) / 2))
        out.append((min(first, place) + 1, max(last, place + 1)))
    return out
