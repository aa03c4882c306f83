"""One measurement that is over: all that its profile is made of, but for the names of addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from parprof.facts.drain import Drain, MeasuredImage
from parprof.facts.intervals import CountedInterval
from parprof.facts.scopes import ScopeTimes
from parprof.kernel.interface import Kernel
from parprof.kernel.records import Cost
from parprof.values import dataclass


@dataclass(frozen=True, slots=True)
class Measurement:
    """Samples of some processes over some time, and what was noted of the measurement itself."""

    drain: Drain
    images: Mapping[int, MeasuredImage]
    """The same as the drain's, with what a report says of each."""
    kernel: Kernel
    """Its counters; it is drained."""
    main: int
    """The image that the profile is named after."""
    started_s: float
    """CLOCK_REALTIME."""
    duration_s: float
    own_cpu_s: float
    """CPU time that we took ourselves."""
    paid_ns: Mapping[Cost, float]
    """What the processes paid for being profiled: CPU time."""
    tables_refused: int = 0
    """Unwind tables that found no room."""
    shortest_region_us: float = 0.0
    """Mean time between two parallel regions when they came fastest; 0: not known."""
    cores: int | None = None
    """n, where the user said so."""
    notes: tuple[str, ...] = ()
    """What the choice of events left out."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Path of a file -> why its stacks are walked less well than they could be."""
    scopes: tuple[ScopeTimes, ...] = ()
    """The time of each job, by how many of its threads worked."""
    intervals: tuple[CountedInterval, ...] = ()
    """What was counted when; empty where that was not kept."""
    scope: str = ""
    """What was to be measured as one job, where the user said so: tree, cgroup."""
