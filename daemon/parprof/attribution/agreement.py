"""Idleness is known in two ways where each change of n_w is seen: whether samples and changes say the same."""

from __future__ import annotations

import math

from parprof.attribution.interval import Z
from parprof.values import dataclass

_FEW = 3.0
"""So many samples may be missed, or taken, where none are to be expected."""
_TOLERANCE = 0.03
"""Samples are a clock of their own, and the two are not read at the same instant."""


@dataclass(frozen=True, slots=True)
class TwoWays:
    """Idleness of one scope over some time, and what was stolen of it. Seconds of core time."""

    counted_s: float
    """From each change of n_w."""
    sampled_s: float
    unseen_s: float
    """So much of it samples may miss: while all threads that work wait for a CPU there is none of them to sample."""
    step_s: float
    """What one sample adds to it at most."""

    @property
    def error_s(self) -> float:
        """By how much the two may part: what chance explains 95 times in 100, and 3 %."""
        most_s = max(self.counted_s, self.sampled_s)
        chance_s = max(Z * math.sqrt(max(most_s * self.step_s, 0.0)), _FEW * self.step_s)
        return chance_s + _TOLERANCE * most_s

    @property
    def agree(self) -> bool:
        """Whether they part by no more than that.

        >>> TwoWays(10.0, 9.5, 0.0, 0.01).agree, TwoWays(10.0, 8.5, 0.0, 0.01).agree
        (True, False)
        >>> TwoWays(10.0, 8.5, 1.0, 0.01).agree, TwoWays(10.0, 11.5, 1.0, 0.01).agree
        (True, False)
        """
        low_s = self.counted_s - max(self.unseen_s, 0.0)
        return low_s - self.error_s <= self.sampled_s <= self.counted_s + self.error_s

    def told(self) -> str:
        """For the reader of a report."""
        return (
            f"idleness is {self.sampled_s:.2f} s by samples, {self.counted_s:.2f} s from each change of n_w: "
            f"more apart than samples explain ({self.error_s:.2f} s)"
        )
