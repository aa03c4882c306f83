"""Effort, its split, and what to do about it (tallent-2009 sec. 2.1 to 2.3 and Table 1)."""

from __future__ import annotations

from enum import Enum

from parprof.metrics import UNUSED, Metrics
from parprof.values import dataclass

HIGH_IDLENESS_PERCENT = 10.0
"""Idleness counts as high from this share of effort on.

The paper names no number. Its case study (sec. 5.4) calls 1.6 % "very effective" and acts on 11.6 %.
"""

HIGH_OVERHEAD_PERCENT = 10.0
"""Overhead counts as high from this share of effort on: the same measure, as a lost core-second is lost
whichever way. With both just below, a program still turns 80 % of its effort into useful work.
"""


class Verdict(Enum):
    """The rows of Table 1."""

    PARALLEL = "effectively parallel"
    COARSEN = "coarsen"
    REFINE = "refine"
    SWITCH = "switch strategy"
    UNKNOWN = "unknown"

    @property
    def advice(self) -> str:
        """One sentence for the reader."""
        return _ADVICE[self]


_ADVICE = {
    Verdict.PARALLEL: "effectively parallel; focus on serial performance",
    Verdict.COARSEN: "overhead is high; coarsen the concurrency (fewer, larger pieces of work)",
    Verdict.REFINE: "cores stand idle; refine the concurrency (more, smaller pieces of work)",
    Verdict.SWITCH: "idleness and overhead are both high; switch the parallelization strategy",
    Verdict.UNKNOWN: "no work was sampled, so nothing can be said about it",
}


def lost_ns(metrics: Metrics) -> float:
    """Core time that was no useful work: idleness, overhead, and stall. Nanoseconds."""
    return metrics.idleness_ns + min(metrics.overhead_ns, metrics.work_ns) + metrics.stall_ns


@dataclass(frozen=True, slots=True)
class Effort:
    """Total effort, split into its parts. Nanoseconds."""

    useful_ns: float
    overhead_ns: float
    idleness_ns: float
    stall_ns: float = 0.0

    @classmethod
    def of(cls, metrics: Metrics) -> Effort:
        """Split the effort in ``metrics``."""
        useful_ns = max(metrics.work_ns - metrics.overhead_ns, 0.0)
        return cls(useful_ns, metrics.overhead_ns, metrics.idleness_ns, metrics.stall_ns)

    @classmethod
    def of_machine(cls, metrics: Metrics) -> Effort:
        """The same for several programs on a machine: with the cores that were really idle in the place of idleness.

        Each of them is held against all cores, and their idleness adds up to more than there are.
        """
        useful_ns = max(metrics.work_ns - metrics.overhead_ns, 0.0)
        return cls(useful_ns, metrics.overhead_ns, metrics[UNUSED])

    @property
    def total_ns(self) -> float:
        """Useful work + overhead + idleness + stall."""
        return self.useful_ns + self.overhead_ns + self.idleness_ns + self.stall_ns

    @property
    def efficiency(self) -> float:
        """Parallel efficiency: useful work / effort, 0 to 1; 0 when there was no effort."""
        return self.useful_ns / self.total_ns if self.total_ns else 0.0

    def percentages(self) -> tuple[float, float, float]:
        """Useful work, overhead and idleness in percent of effort; what is missing is stall."""
        parts = (self.useful_ns, self.overhead_ns, self.idleness_ns)
        useful, overhead, idleness = (percent(part, self.total_ns) for part in parts)
        return useful, overhead, idleness


def percent(part: float, whole: float) -> float:
    """``part`` in percent of ``whole``; 0 when there is no whole."""
    return 100.0 * part / whole if whole else 0.0


def verdict(metrics: Metrics) -> Verdict:
    """Judge a whole program, or a subtree by its own effort (Table 1)."""
    effort = Effort.of(metrics)
    if not effort.total_ns:
        return Verdict.UNKNOWN
    _, overhead, idleness = effort.percentages()
    idleness += percent(effort.stall_ns, effort.total_ns)
    if idleness >= HIGH_IDLENESS_PERCENT:
        return Verdict.SWITCH if overhead >= HIGH_OVERHEAD_PERCENT else Verdict.REFINE
    return Verdict.COARSEN if overhead >= HIGH_OVERHEAD_PERCENT else Verdict.PARALLEL
