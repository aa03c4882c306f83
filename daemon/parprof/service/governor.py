"""The overhead governor: chooses what to go on with where profiling costs more than the budget (DESIGN.md sec. 3).

The emergency is not its business: the breaker in the programs cuts off what is too dear for a process at once. The
governor tries again later what was cut off, after ever longer rests, and fits the sampling rate to the budget of all
processes together. It knows no kernel: the daemon tells it what was paid in an interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from parprof.session.sources import Source
from parprof.values import dataclass

FREQUENCIES_HZ = (19, 49, 99, 199, 499, 999)
"""Rates that sampling may be set to; odd, so as not to run in step with anything."""
_FIRST_RETRY_SECONDS = 60.0
_LONGEST_RETRY_SECONDS = 3600.0
_ROOM = 0.5
"""Go back up only where that is expected to take less than this share of the budget."""
_SWITCHES = "switches"
"""Stands beside the images of processes: context switches are followed for all of them or none."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one process did, and paid for being profiled, in one interval. ``cpu_ns``: CPU time that it used."""

    seconds: float
    cpu_ns: float
    samples: int
    probe_hits: int
    spent_ns: float = 0.0
    """What it paid in all."""
    samples_ns: float = 0.0
    """What it paid for samples."""


@dataclass(slots=True)
class _Degraded:
    since_s: float
    retry_s: float


class Governor:
    """Decides when to try again what was too dear, and how often to sample."""

    def __init__(self, budget_ratio: float, frequency_hz: int) -> None:
        """``budget_ratio``: cost as a share of CPU time, in each target, and of samples in all of them together.

        ``frequency_hz``: the rate to aim at.
        """
        self.frequency_hz = frequency_hz
        self._asked_hz = self._before_hz = 0
        self.set_budget(budget_ratio, frequency_hz)
        self.transitions: Counter[tuple[str, str]] = Counter()
        self._degraded: dict[Hashable, _Degraded] = {}

    def set_budget(self, budget_ratio: float, frequency_hz: int) -> None:
        """Hold another budget from now on, and aim at another rate."""
        self.budget_ratio = budget_ratio
        self._usual_hz = frequency_hz

    @property
    def wanted_hz(self) -> int:
        """The rate to aim at."""
        return max(self._usual_hz, self._asked_hz)

    def ask_for(self, frequency_hz: int) -> None:
        """Sample at this rate, if it is higher, as long as somebody looks at a process; 0: nobody does any more.

        At once, and whatever it costs all of them together: what each may pay is the breaker's business.
        """
        if frequency_hz and not self._asked_hz:
            self._before_hz = self.frequency_hz
        self._asked_hz = frequency_hz
        if frequency_hz:
            self._go_to(max(self._before_hz, frequency_hz))
        else:
            self._go_to(min(self._before_hz, self._usual_hz))

    def cost_ratio(self, usage: Usage) -> float:
        """Cost in the target as a share of its CPU time; 0 where it used none."""
        return usage.spent_ns / usage.cpu_ns if usage.cpu_ns > 0 else 0.0

    def judge(self, image: int, source: Source, now_s: float) -> Source:
        """The source that a process should have from now on: probes again, after a rest. ``now_s``: CLOCK_MONOTONIC."""
        if source is Source.EXACT or not self._has_rested(image, now_s):
            return source
        self.transitions[str(source), str(Source.EXACT)] += 1
        return Source.EXACT

    def note_degraded(self, image: int, before: str, after: str, now_s: float) -> None:
        """The source of a process was changed. Where that took probes away: try them again later."""
        self.transitions[before, after] += 1
        if before == Source.EXACT:
            self._degrade(image, now_s)

    def judge_switches(self, followed: bool, now_s: float) -> bool:
        """Whether to follow context switches again from now on. ``followed``: they are followed now."""
        known = self._degraded.get(_SWITCHES)
        if followed:
            if known is not None:
                known.since_s = 0.0
            return False
        if known is None or not known.since_s:
            self.transitions["switches", "ticks"] += 1
            self._degrade(_SWITCHES, now_s)
            return False
        if not self._has_rested(_SWITCHES, now_s):
            return False
        self.transitions["ticks", "switches"] += 1
        return True

    def _has_rested(self, what: Hashable, now_s: float) -> bool:
        known = self._degraded.get(what)
        if known is None or now_s - known.since_s < known.retry_s:
            return False
        known.since_s = now_s
        return True

    def _degrade(self, what: Hashable, now_s: float) -> None:
        """Each time that something turns out too dear, it rests for twice as long."""
        known = self._degraded.get(what)
        retry_s = min(2 * known.retry_s, _LONGEST_RETRY_SECONDS) if known else _FIRST_RETRY_SECONDS
        self._degraded[what] = _Degraded(now_s, retry_s)

    def judge_frequency(self, machine: Usage) -> int:
        """The sampling rate from now on, by what samples alone cost all processes together."""
        ratio = machine.samples_ns / machine.cpu_ns if machine.cpu_ns > 0 else 0.0
        at = self.frequency_hz
        if at <= self._asked_hz:
            return at
        if ratio > self.budget_ratio:
            fits = [hz for hz in FREQUENCIES_HZ if hz < at and ratio * hz / at <= self.budget_ratio]
            at = max(fits, default=min(FREQUENCIES_HZ[0], at))
        elif at > self.wanted_hz:
            at = self.wanted_hz
        elif at < self.wanted_hz:
            above = [hz for hz in (*FREQUENCIES_HZ, self.wanted_hz) if at < hz <= self.wanted_hz]
            fits = [hz for hz in above if ratio * hz / at <= _ROOM * self.budget_ratio]
            at = max(fits, default=at)
        self._go_to(at)
        return at

    def _go_to(self, frequency_hz: int) -> None:
        if frequency_hz != self.frequency_hz:
            self.transitions[f"{self.frequency_hz} Hz", f"{frequency_hz} Hz"] += 1
            self.frequency_hz = frequency_hz

    def forget(self, image: int) -> None:
        """A process is gone."""
        self._degraded.pop(image, None)
