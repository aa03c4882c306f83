"""What can never be: more core time charged to a process than there was (DESIGN.md sec. 2, *accounted*)."""

from __future__ import annotations

from parprof.values import dataclass

_TOLERANCE = 0.03
"""Samples are a clock of their own, and n_w is read some microseconds after it ticks."""
_LEAST_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class CoreTime:
    """One process over some time. Seconds of core time, but for ``elapsed_s``, which is wall-clock time."""

    work_s: float
    idleness_s: float
    ready_s: float
    """Working threads waited so long for a CPU."""
    cores: float
    """n: cores that the process could use; the mean where that changed."""
    elapsed_s: float
    period_s: float
    """What one sample stands for."""
    most_working: int
    """The largest n_w among the samples."""

    @property
    def charged_s(self) -> float:
        """Work and idleness; and the time in which working threads had no CPU, unless there were more than cores."""
        return self.work_s + self.idleness_s + (self.ready_s if self.most_working <= self.cores else 0.0)

    @property
    def available_s(self) -> float:
        """n x elapsed time."""
        return self.cores * self.elapsed_s

    @property
    def is_possible(self) -> bool:
        """Whether work + ready + idleness <= n x elapsed time, but for what sampling cannot tell.

        >>> CoreTime(1.0, 0.9, 0.0, 2, 1.0, 0.002, 2).is_possible
        True
        >>> CoreTime(1.0, 1.2, 0.0, 2, 1.0, 0.002, 2).is_possible
        False
        """
        tolerance_s = _TOLERANCE * self.available_s + _LEAST_SAMPLES * self.period_s
        return self.charged_s <= self.available_s + tolerance_s

    def violation(self) -> str:
        """For the reader of a report."""
        return (
            f"work {self.work_s:.2f} s + waiting for a CPU {self.ready_s:.2f} s + idleness {self.idleness_s:.2f} s are "
            f"more than n x time = {self.cores:.4g} x {self.elapsed_s:.2f} s: idleness is overstated; please report "
            "this"
        )
