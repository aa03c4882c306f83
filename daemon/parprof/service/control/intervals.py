"""What processes did between two looks at them: rates from the cumulative metrics that the daemon gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from parprof.service.control import control_pb2 as pb


@dataclass(frozen=True, slots=True)
class Use:
    """One process over one interval. Metrics are in cores: seconds of it per second."""

    process: pb.Process
    interval_s: float
    work: float
    idleness: float
    overhead: float
    spin: float
    blame: float
    profiling: float

    @property
    def efficiency(self) -> float | None:
        """Useful work / effort, 0 to 1; None when there was no effort."""
        effort = self.work + self.idleness
        return max(self.work - self.overhead, 0.0) / effort if effort else None


SORTS: Mapping[str, Callable[[Use], tuple[float, str]]] = {
    "idleness": lambda use: (-use.idleness, ""),
    "work": lambda use: (-use.work, ""),
    "overhead": lambda use: (-use.overhead, ""),
    "spin": lambda use: (-use.spin, ""),
    "efficiency": lambda use: (2.0 if use.efficiency is None else use.efficiency, ""),
    "cost": lambda use: (-use.process.cost_ratio, ""),
    "pid": lambda use: (use.process.pid, ""),
    "name": lambda use: (0.0, use.process.comm),
}
"""What processes can be sorted by; the first one of each order is what to look at."""


def uses(now: pb.ProcessList, before: pb.ProcessList | None, sort: str) -> list[Use]:
    """What each process did since ``before``; since it was first watched, where it was not there yet."""
    known = {(one.pid, one.started_time_s): one.totals for one in before.processes} if before else {}
    out = []
    for process in now.processes:
        earlier = known.get((process.pid, process.started_time_s))
        since = before.time_s if before and earlier is not None else process.started_time_s
        out.append(_use(process, earlier or pb.Metrics(), now.time_s - since))
    return sorted(out, key=lambda use: (SORTS[sort](use), use.process.pid))


def _use(process: pb.Process, earlier: pb.Metrics, interval_s: float) -> Use:
    def rate(later: float, sooner: float) -> float:
        return max(later - sooner, 0.0) / interval_s if interval_s > 0 else 0.0

    totals = process.totals
    return Use(
        process,
        max(interval_s, 0.0),
        rate(totals.work_s, earlier.work_s),
        rate(totals.idleness_s, earlier.idleness_s),
        rate(totals.overhead_s, earlier.overhead_s),
        rate(totals.spin_s, earlier.spin_s),
        rate(totals.blame_s, earlier.blame_s),
        rate(totals.profiling_s, earlier.profiling_s),
    )
