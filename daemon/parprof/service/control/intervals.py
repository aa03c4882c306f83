"""What processes did between two looks at them: rates from the cumulative metrics that the daemon gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from parprof.metrics import IDLENESS, METRICS, OVERHEAD, UNUSED, WORK, Metric, Shown
from parprof.service.blame import worst
from parprof.service.control import control_pb2 as pb
from parprof.service.control.amounts import amount
from parprof.values import dataclass


@dataclass(frozen=True, slots=True)
class Use:
    """One process over one interval."""

    process: pb.Process
    interval_s: float
    values: Mapping[Metric, float]
    """Times in cores: seconds of it per second. Counts per second. What does not add up: as it is now."""
    blamed: str = ""
    """The function that is to blame for most of the idleness; empty where none is by itself, and for programs that are
    serial by design."""
    blamed_share: float = 0.0
    """Its share of the idleness, 0 to 1."""

    def __getitem__(self, metric: Metric) -> float:
        """One of the values."""
        return self.values.get(metric, 0.0)

    @property
    def efficiency(self) -> float | None:
        """Useful work / (work + cores that were really idle), 0 to 1.

        None when there was neither, and for programs that are serial by design.
        """
        effort = 0.0 if self.process.serial else self[WORK] + self[UNUSED]
        return max(self[WORK] - self[OVERHEAD], 0.0) / effort if effort else None


Order = Callable[[Use], tuple[float, str]]


def sorts() -> dict[str, Order]:
    """What processes can be sorted by; the first one of each order is what to look at."""
    shown = [metric for metric in METRICS.by_name().values() if metric.has(Shown.TOP)]
    return {
        **{metric.name: _by(metric) for metric in shown},
        "efficiency": lambda use: (2.0 if use.efficiency is None else use.efficiency, ""),
        "function": lambda use: (-use.blamed_share * use[IDLENESS], ""),
        "cost": lambda use: (-use.process.cost_ratio, ""),
        "pid": lambda use: (use.process.pid, ""),
        "name": lambda use: (0.0, use.process.comm),
    }


def _by(metric: Metric) -> Order:
    return lambda use: (-use[metric], "")


def uses(now: pb.ProcessList, before: pb.ProcessList | None, sort: str) -> list[Use]:
    """What each process did since ``before``; since it was first watched, where it was not there yet."""
    known = {(one.pid, one.started_time_s): one for one in before.processes} if before else {}
    order = sorts()[sort]
    out = []
    for process in now.processes:
        earlier = known.get((process.pid, process.started_time_s))
        seconds = _seconds(before, now) if before and earlier is not None else _watched_s(process, now)
        out.append(_use(process, earlier, seconds))
    return sorted(out, key=lambda use: (order(use), use.process.pid))


def _seconds(before: pb.ProcessList, now: pb.ProcessList) -> float:
    """Between two answers."""
    if now.clock_s:
        return now.clock_s - before.clock_s
    return now.time_s - before.time_s  # of a daemon that does not say more


def _watched_s(process: pb.Process, now: pb.ProcessList) -> float:
    return process.watched_s if now.clock_s else now.time_s - process.started_time_s


def _use(process: pb.Process, earlier: pb.Process | None, interval_s: float) -> Use:
    totals = earlier.totals if earlier else pb.Metrics()

    def value(metric: Metric) -> float:
        later = amount(process.totals, metric)
        if not metric.additive:
            return later
        return max(later - amount(totals, metric), 0.0) / interval_s if interval_s > 0 else 0.0

    values = {metric: value(metric) for metric in METRICS}
    lost_s = 0.0 if process.serial else values[IDLENESS] * interval_s
    found = worst(_idleness(process, earlier), lost_s)
    (blamed, _), share = found or (("", ""), 0.0)
    return Use(process, max(interval_s, 0.0), values, blamed, share)


def _idleness(process: pb.Process, earlier: pb.Process | None) -> dict[tuple[str, str], float]:
    """That of its functions, in seconds; only of those that were among the costliest ones before, too."""
    before = {(one.name, one.module): one.idleness_s for one in earlier.functions} if earlier else {}
    out: dict[tuple[str, str], float] = {}
    for one in process.functions:
        key = one.name, one.module
        if earlier is None or key in before:
            out[key] = out.get(key, 0.0) + max(one.idleness_s - before.get(key, 0.0), 0.0)
    return out
