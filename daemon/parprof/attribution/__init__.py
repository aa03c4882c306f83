"""What samples mean: pure functions from counted facts to metrics, and from metrics to a judgement."""

from __future__ import annotations

from parprof.attribution.effort import Effort, Verdict, percent, verdict
from parprof.attribution.idleness import attribute

__all__ = ["Effort", "Verdict", "attribute", "percent", "verdict"]
