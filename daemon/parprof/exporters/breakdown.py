"""A profile by thread, and by source line: rows of the same shape as those of functions."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence

from parprof.cct.tree import Procedure
from parprof.cct.views import FunctionTotals
from parprof.metrics import Metrics
from parprof.model import Frame, PathSample

ThreadKey = tuple[int, int, str, str]
"""PID, thread id, name, command. Files of before know threads by name only."""


def thread_of(sample: PathSample) -> ThreadKey:
    """Which thread a row is of."""
    origin = sample.origin
    return origin.pid, origin.tid, origin.thread, origin.comm


def by_thread(samples: Sequence[PathSample]) -> dict[ThreadKey, FunctionTotals]:
    """One row for each thread, with the function that it was in most."""
    rows: dict[ThreadKey, FunctionTotals] = {}
    places: dict[ThreadKey, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    processes = {sample.origin.pid for sample in samples}
    for sample in samples:
        key = thread_of(sample)
        row = rows.setdefault(key, FunctionTotals(Procedure()))
        row.exclusive.add(sample.metrics)
        places[key][_innermost(sample).name] += sample.metrics.cpu_ns
    for (pid, tid, thread, comm), row in rows.items():
        most = places[pid, tid, thread, comm]
        name = thread or (f"thread {tid}" if tid else "no thread")
        if tid and str(tid) not in name:
            name += f" {tid}"
        if len(processes) > 1:
            name += f" of {comm} {pid}"
        where = max(most, key=lambda function: most[function])
        row.procedure = Procedure(f"{name}: {where}" if where else name)
        row.inclusive = row.exclusive
    return rows


def by_line(samples: Sequence[PathSample]) -> list[FunctionTotals]:
    """One row for each line of known source: what was sampled there, and with what was called there.

    What has no line counts where it was called; what has none on its whole path is one row.
    """
    rows: dict[tuple[str, int], FunctionTotals] = {}
    for sample in samples:
        seen: set[tuple[str, int]] = set()
        own: FunctionTotals | None = None
        for frame in reversed(sample.path):
            if not frame.line or frame.is_loop:
                continue
            key = frame.file, frame.line
            row = rows.get(key)
            if row is None:
                row = rows[key] = _line_row(frame)
            own = own or row
            if key not in seen:
                seen.add(key)
                row.inclusive.add(sample.metrics)
        if own is None:
            own = rows.setdefault(("", 0), FunctionTotals(Procedure("[no line known]")))
            own.inclusive.add(sample.metrics)
        own.exclusive.add(sample.metrics)
    return list(rows.values())


def _line_row(frame: Frame) -> FunctionTotals:
    name = f"{os.path.basename(frame.file) or '?'}:{frame.line} {frame.name}"
    return FunctionTotals(Procedure(name), exclusive=Metrics(), inclusive=Metrics())


def _innermost(sample: PathSample) -> Frame:
    """The function that was sampled, if its name says anything."""
    named = (frame for frame in reversed(sample.path) if not frame.is_loop and not frame.name.startswith("["))
    return next(named, Frame(""))
