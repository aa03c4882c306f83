"""What people read from hardware counters: ratios of events that were counted, of any set of samples."""

from __future__ import annotations

from collections.abc import Mapping

from parprof.values import dataclass

CYCLES, INSTRUCTIONS = "cycles", "instructions"
LINE_BYTES = 64
"""What a miss of the last cache brings from memory."""
_MISSES = (
    ("branch-misses", "branch MPKI"),
    ("L1-dcache-load-misses", "L1 MPKI"),
    ("LLC-load-misses", "LLC MPKI"),
    ("dTLB-load-misses", "dTLB MPKI"),
    ("cache-misses", "cache MPKI"),
)
_LLC = "LLC-load-misses"
_CPU_TIME = ""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A number that follows from two events: ``scale`` x ``of`` / ``by``."""

    name: str
    """As a column is headed."""
    key: str
    """In JSON."""
    meaning: str
    of: str
    by: str
    scale: float = 1.0

    def value(self, events: Mapping[str, int], cpu_ns: float) -> float | None:
        """None: what it follows from was not counted, or did not happen here."""
        below = cpu_ns if self.by == _CPU_TIME else events.get(self.by, 0)
        if not below or self.of not in events:
            return None
        return self.scale * events[self.of] / below


RATIOS = (
    Ratio("IPC", "instructions_per_cycle", "instructions per cycle", INSTRUCTIONS, CYCLES),
    *(
        Ratio(
            short, f"{event.lower().replace('-', '_')}_per_thousand_instructions",
            f"{event} per 1,000 instructions", event, INSTRUCTIONS, 1000.0,
        )
        for event, short in _MISSES
    ),
    Ratio(
        "GB/s", "memory_gb_per_cpu_second",
        f"GB from memory a second of CPU time, estimated: {LINE_BYTES} bytes for each of LLC-load-misses; what "
        "the hardware fetches ahead is not in it",
        _LLC, _CPU_TIME, float(LINE_BYTES),
    ),
)  # fmt: skip
"""All that are known. Bytes a nanosecond are GB a second."""


def ratios_of(total: Mapping[str, int], cpu_ns: float) -> list[Ratio]:
    """Those that can be made of the events of a whole profile."""
    return [ratio for ratio in RATIOS if ratio.value(total, cpu_ns) is not None]


def derive(events: Mapping[str, int], cpu_ns: float) -> dict[str, float]:
    """All ratios of some samples, by `Ratio.key`.

    >>> derive({"cycles": 4000, "instructions": 6000, "LLC-load-misses": 30}, 2000.0)["instructions_per_cycle"]
    1.5
    """
    found = ((ratio.key, ratio.value(events, cpu_ns)) for ratio in RATIOS)
    return {key: value for key, value in found if value is not None}
