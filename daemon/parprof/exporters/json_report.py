"""The report as JSON, for programs (`parprof report --json`, DESIGN.md section 6)."""

from __future__ import annotations

import json
from typing import IO, Any

from parprof.attribution import Effort, verdict
from parprof.attribution.counters import derive
from parprof.attribution.gain import MOST, row_gain
from parprof.attribution.interval import metric_interval, period_ns, rank_intervals, step_of
from parprof.causes.cause import Cause
from parprof.causes.ranking import find_causes
from parprof.cct.tree import CallingContextTree, Procedure
from parprof.cct.views import FunctionTotals, flat_view, sampled_paths
from parprof.exporters import concurrency
from parprof.exporters.answer import headline, sentence
from parprof.exporters.concurrency import FunctionLevels, by_function, by_process
from parprof.metrics import IDLENESS, METRICS, OVERHEAD, SAMPLES, SPIN, WORK, Metrics
from parprof.model import SCOPE, TRACE_ELAPSED, TRACE_MINIMUM, Profile

SCHEMA = 2
_WITH_INTERVALS = (WORK, IDLENESS, OVERHEAD, SPIN)
"""Metrics that are sampled, and of which readers want shares."""

_ENCODE = json.JSONEncoder(allow_nan=False).encode


def report(profile: Profile) -> dict[str, Any]:
    """The report as plain data. Seconds; efficiency 0 to 1; functions and paths with most idleness first.

    Verdicts and bounds of the gain are those of subtrees: of a function with all that it calls, of a path with all
    that is below it.
    """
    tree = CallingContextTree(profile.samples)
    total = tree.root.inclusive
    process, account = profile.process, profile.accounting
    causes = find_causes(profile)
    functions = sorted(flat_view(tree).values(), key=_function_order)
    levels = by_function(profile.samples)
    step = step_of(IDLENESS, period_ns(total), process.cores)
    ranks = rank_intervals([row.exclusive.idleness_ns for row in functions], step)
    return {
        "schema": SCHEMA,
        "process": process.as_json(),
        "duration_s": profile.duration_s,
        "frequency_hz": profile.frequency_hz,
        "totals": {
            **_metrics(total),
            "efficiency": round(Effort.of(total).efficiency, 6),
            "verdict": verdict(total).value,
            "accounted": round(account.accounted, 6) if account else None,
            "counted_idleness_s": account.counted_idleness_s if account else None,
        },
        "elapsed_s": account.elapsed_s if account else profile.duration_s,
        "concurrency": list(account.level_s) if account else [],
        "scope": _scope(profile),
        "advice": {
            "sentence": headline(profile, causes),
            "paths": [_advice(cause, total) for cause in causes],
        },
        "causes": [_cause(cause) for cause in causes],
        "lost": dict(profile.lost),
        "cost": {
            "target_percent": profile.target_cost_percent,
            "daemon_percent": profile.daemon_cost_percent,
        },
        "functions": [
            _function(row, levels.get(row.procedure, FunctionLevels()), total, process.cores, rank)
            for row, rank in zip(functions, ranks, strict=True)
        ],
        "paths": _paths(tree),
        **_trace(profile),
    }


def _trace(profile: Profile) -> dict[str, Any]:
    """What its execution trace says (`parprof record --trace`); nothing without one."""
    elapsed, minimum = (profile.extra.get(name) for name in (TRACE_ELAPSED, TRACE_MINIMUM))
    if elapsed is None or minimum is None:
        return {}
    return {"trace": {"elapsed_s": float(elapsed), "minimum_time_s": float(minimum)}}


def _scope(profile: Profile) -> dict[str, Any]:
    """What n and n_w were counted over, and the processes of it."""
    levels = by_process(profile.samples)
    processes = profile.by_process()
    return {
        "kind": profile.extra.get(SCOPE) or ("tree" if len(processes) > 1 else "process"),
        "processes": [
            {
                "pid": process.pid,
                "comm": process.comm,
                "runtime": process.runtime,
                "n_w_source": process.n_w_source,
                "others": process.others,
                **_metrics(metrics),
                "concurrency": concurrency.as_json(levels.get(process.pid, ())),
            }
            for process, metrics in processes
        ],
    }


def _cause(cause: Cause) -> dict[str, Any]:
    low, high = cause.interval_percent
    return {
        "kind": cause.kind.value,
        "path": list(cause.path),
        "function": cause.function,
        "file": cause.file,
        "line": cause.line,
        "lost_s": round(cause.lost_ns / 1e9, 9),
        "lost_percent": round(cause.lost_percent, 3),
        "interval_percent": [round(low, 3), round(high, 3)],
        "gain_bound": _bound(cause.gain_bound),
        "what": cause.what,
        "remedy": cause.remedy,
    }


def _bound(gain: float) -> float:
    """A bound of the speed-up; numbers of JSON are finite."""
    return round(min(gain, MOST), 6)


def _advice(cause: Cause, total: Metrics) -> dict[str, Any]:
    """The same as readers of the first schema know it: its ``lost_percent`` is a share of all that is lost."""
    metrics = _metrics(cause.metrics)
    del metrics[SAMPLES.report_key]
    all_lost = total.idleness_ns + total.overhead_ns
    return {
        "frames": list(cause.path),
        "file": cause.file,
        "line": cause.line,
        "verdict": verdict(cause.metrics).value,
        "lost_percent": round(100 * cause.lost_ns / all_lost, 3) if all_lost else 0.0,
        "effort_percent": round(cause.lost_percent, 3),
        **metrics,
        "sentence": sentence(cause),
    }


def write(profile: Profile, file: IO[str]) -> None:
    """Print the report as one line of ASCII JSON."""
    begin = "{"
    for key, value in report(profile).items():
        file.write(f"{begin}{_ENCODE(key)}: ")
        begin = ", "
        if isinstance(value, list):  # row by row: there may be as many as samples
            file.write("[")
            for at, row in enumerate(value):
                file.write(f", {_ENCODE(row)}" if at else _ENCODE(row))
            file.write("]")
        else:
            file.write(_ENCODE(value))
    file.write("}\n")


def _metrics(metrics: Metrics) -> dict[str, Any]:
    """Values in the units of readers; counts of events only where there are any."""
    values: dict[str, Any] = {
        metric.report_key: round(value / metric.unit.scale, 9) if metric.unit.scale > 1 else value
        for metric in METRICS
        for value in (metrics[metric],)
    }
    if not metrics.events:
        return values
    ratios = {key: round(value, 6) for key, value in derive(metrics.events, metrics.cpu_ns).items()}
    counted = {"events": dict(sorted(metrics.events.items()))}
    return {**values, **counted, "ratios": ratios} if ratios else {**values, **counted}


def _function_order(row: FunctionTotals) -> tuple[Any, ...]:
    mine, all_of_it = row.exclusive, row.inclusive
    return -mine.idleness_ns, -all_of_it.idleness_ns, -mine.work_ns, -all_of_it.work_ns, row.procedure


def _intervals(metrics: Metrics, total: Metrics, cores: int) -> dict[str, list[float]]:
    """The 95 % interval of each share, in percent of effort, that of spin of CPU time."""
    found = ((metric, metric_interval(metric, metrics, total, cores)) for metric in _WITH_INTERVALS)
    return {metric.name: [round(100 * low, 3), round(100 * high, 3)] for metric, (low, high) in found}


def _function(
    row: FunctionTotals, levels: FunctionLevels, total: Metrics, cores: int, rank: tuple[int, int]
) -> dict[str, Any]:
    return {
        "name": row.procedure.name,
        "file": row.procedure.file,
        "line": row.hottest_line(IDLENESS),
        "module": row.procedure.module,
        "exclusive": _metrics(row.exclusive),
        "inclusive": _metrics(row.inclusive),
        "interval_percent": {
            "exclusive": _intervals(row.exclusive, total, cores),
            "inclusive": _intervals(row.inclusive, total, cores),
        },
        "rank_interval": list(rank),
        "concurrency": {
            "exclusive": concurrency.as_json(levels.exclusive),
            "inclusive": concurrency.as_json(levels.inclusive),
        },
        "gain_bound": _bound(row_gain(row.inclusive, total)),
        "verdict": verdict(row.inclusive).value,
    }


def _paths(tree: CallingContextTree) -> list[dict[str, Any]]:
    """One row for each call path that was sampled, root first, without loops."""
    total = tree.root.inclusive
    rows = [_path(path, own, inclusive, total) for path, own, inclusive in sampled_paths(tree) if own]
    return sorted(rows, key=lambda row: (-row["idleness_s"], -row["work_s"], -row["spin_s"], row["frames"]))


def _path(path: tuple[Procedure, ...], own: Metrics, inclusive: Metrics, total: Metrics) -> dict[str, Any]:
    return {
        "frames": [procedure.name for procedure in path],
        **_metrics(own),
        "gain_bound": _bound(row_gain(inclusive, total)),
        "verdict": verdict(inclusive).value,
    }
