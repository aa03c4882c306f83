"""The overhead governor: holds what profiling costs each target, and the machine, to a budget (DESIGN.md sec. 3).

It knows no kernel. The daemon tells it what was counted in an interval; it answers with what to change.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from parprof.sources import Source

FREQUENCIES_HZ = (19, 49, 99, 199, 499, 999)
"""Rates that sampling may be set to; odd, so as not to run in step with anything."""
_FIRST_RETRY_SECONDS = 60.0
_LONGEST_RETRY_SECONDS = 3600.0
_ROOM = 0.5
"""Go back up only where that is expected to take less than this share of the budget."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What was counted for one process in one interval. ``cpu_ns``: CPU time that it used."""

    seconds: float
    cpu_ns: float
    samples: int
    probe_hits: int
    other_samples: int = 0
    """Of further events, whose rate is not the governor's to set."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What one event costs the target, nanoseconds, as calibrated on this machine."""

    sample_ns: float
    probe_ns: float


@dataclass(slots=True)
class _Degraded:
    since_s: float
    retry_s: float


class Governor:
    """Decides for each process where n_w comes from, and for all of them how often to sample."""

    def __init__(self, budget_ratio: float, frequency_hz: int) -> None:
        """``budget_ratio``: cost as a share of CPU time, in each target, and of samples in all of them together.

        ``frequency_hz``: the rate to aim at.
        """
        self.frequency_hz = frequency_hz
        self.set_budget(budget_ratio, frequency_hz)
        self.transitions: Counter[tuple[str, str]] = Counter()
        self._degraded: dict[int, _Degraded] = {}

    def set_budget(self, budget_ratio: float, frequency_hz: int) -> None:
        """Hold another budget from now on, and aim at another rate."""
        self.budget_ratio = budget_ratio
        self.wanted_hz = frequency_hz

    def cost_ratio(self, usage: Usage, prices: Prices) -> float:
        """Cost in the target as a share of its CPU time; 0 where it used none."""
        cost_ns = (
            usage.samples + usage.other_samples
        ) * prices.sample_ns + usage.probe_hits * prices.probe_ns
        return cost_ns / usage.cpu_ns if usage.cpu_ns > 0 else 0.0

    def judge(
        self, image: int, source: Source, memory_holds: bool, usage: Usage, prices: Prices, now_s: float
    ) -> Source:
        """The source that a process should have from now on. ``now_s``: CLOCK_MONOTONIC."""
        if source is Source.EXACT:
            probes_ns = usage.probe_hits * prices.probe_ns
            if usage.cpu_ns > 0 and probes_ns > self.budget_ratio * usage.cpu_ns:
                self._degrade(image, now_s)
                return self._go(source, Source.MEMORY if memory_holds else Source.SAMPLED)
            return source
        known = self._degraded.get(image)
        if known is not None and now_s - known.since_s >= known.retry_s:
            known.since_s = now_s
            return self._go(source, Source.EXACT)
        return source

    def note_degraded(self, image: int, before: str, after: str, now_s: float) -> None:
        """Somebody else has changed the source of a process. Where it took the probes away: try them again later."""
        self.transitions[before, after] += 1
        if before == Source.EXACT:
            self._degrade(image, now_s)

    def _degrade(self, image: int, now_s: float) -> None:
        """Each time that probes turn out too dear, they rest for twice as long."""
        known = self._degraded.get(image)
        retry_s = min(2 * known.retry_s, _LONGEST_RETRY_SECONDS) if known else _FIRST_RETRY_SECONDS
        self._degraded[image] = _Degraded(now_s, retry_s)

    def _go(self, before: Source, after: Source) -> Source:
        self.transitions[str(before), str(after)] += 1
        return after

    def judge_frequency(self, machine: Usage, prices: Prices) -> int:
        """The sampling rate from now on, by what samples alone cost all processes together."""
        ratio = machine.samples * prices.sample_ns / machine.cpu_ns if machine.cpu_ns > 0 else 0.0
        at = self.frequency_hz
        if ratio > self.budget_ratio:
            fits = [hz for hz in FREQUENCIES_HZ if hz < at and ratio * hz / at <= self.budget_ratio]
            at = max(fits, default=min(FREQUENCIES_HZ[0], at))
        elif at > self.wanted_hz:
            at = self.wanted_hz
        elif at < self.wanted_hz:
            above = [hz for hz in (*FREQUENCIES_HZ, self.wanted_hz) if at < hz <= self.wanted_hz]
            fits = [hz for hz in above if ratio * hz / at <= _ROOM * self.budget_ratio]
            at = max(fits, default=at)
        if at != self.frequency_hz:
            self.transitions[f"{self.frequency_hz} Hz", f"{at} Hz"] += 1
            self.frequency_hz = at
        return at

    def forget(self, image: int) -> None:
        """A process is gone."""
        self._degraded.pop(image, None)
