"""What has been charged to each process since it was first watched, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from parprof.attribution.effort import Effort
from parprof.causes.ownership import Owner, Ownership
from parprof.metrics import ACTIVATIONS, Metrics, add_to
from parprof.model import Count, Frame, PathSample, SampleKey, ThreadState
from parprof.service.model import FunctionUse, Recent

_FUNCTIONS_KEPT = 256
_HISTORY = 120
_CALLS = {ACTIVATIONS}
_Name = tuple[str, str]
_NOBODYS = len(Owner) + 1


def cost_of(metrics: Metrics) -> float:
    """By what functions are ranked: effort and spin, nanoseconds."""
    return metrics.effort_ns + metrics.spin_ns


def charged_function(path: Sequence[Frame], ownership: Ownership) -> Frame | None:
    """The function that what was sampled on a call path is charged to: the innermost one of the program's own code.

    So what that calls in libraries and in the kernel counts as its own: it alone can be changed. Where nothing on the
    path is the program's, it is the innermost of a library's, else of the system's, and last of the kernel's. None:
    there is no function on the path.
    """
    found, best = None, _NOBODYS
    for frame in reversed(path):
        if frame.is_loop:
            continue
        owner = ownership.of(frame)
        if owner is Owner.PROGRAM:
            return frame
        nearness = owner + (frame.name.startswith("[") or frame.module.startswith("["))
        if nearness < best:
            found, best = frame, nearness
    return found


class Account:
    """The metrics of one process. They only ever grow."""

    def __init__(self, started_s: float) -> None:
        """``started_s``: CLOCK_REALTIME."""
        self.started_s = started_s
        self.totals = Metrics()
        self.history: deque[Recent] = deque(maxlen=_HISTORY)
        self.working = self.spinning = 0.0
        """Mean number of threads at work, with or without a CPU, and of spinning ones, in the last interval."""
        self._functions: dict[_Name, Metrics] = {}
        self._ranked: tuple[int, tuple[FunctionUse, ...]] | None = None
        """What `functions` answered to this number, if nothing was charged since."""

    def add(self, rows: Iterable[PathSample]) -> Metrics:
        """Charge the rows of one interval; returns their sum."""
        interval = Metrics()
        ownership = Ownership()
        for row in rows:
            if row.metrics.values.keys() == _CALLS:  # of what somebody attaches to: for his profile alone
                continue
            interval.add(row.metrics)
            function = charged_function(row.path, ownership)
            if function is not None:
                add_to(self._functions, (function.name, function.module), row.metrics)
                self._ranked = None
        self.totals.add(interval)
        self._bound_functions()
        return interval

    def _bound_functions(self) -> None:
        """Functions that cost least become part of what belongs to none: the difference to the totals."""
        if len(self._functions) > 2 * _FUNCTIONS_KEPT:
            costliest = sorted(self._functions.items(), key=lambda item: -cost_of(item[1]))
            self._functions = dict(costliest[:_FUNCTIONS_KEPT])

    def close_interval(
        self, clock_s: float, seconds: float, interval: Metrics, n_working: float, *, in_between: bool = False
    ) -> None:
        """Add a point to the history, unless this was only ``in_between``: it has room for so many.

        ``clock_s``: when it ended, CLOCK_MONOTONIC; ``seconds``: how long it was.
        """
        whole_ns = 1e9 * seconds
        self.working = (interval.work_ns + interval.ready_ns) / whole_ns if seconds else 0.0
        self.spinning = interval.spin_ns / whole_ns if seconds else 0.0
        if not in_between:
            self.history.append(Recent(clock_s, n_working, Effort.of(interval).efficiency))

    def functions(self, count: int) -> tuple[FunctionUse, ...]:
        """The costliest functions."""
        if self._ranked is not None and self._ranked[0] == count:
            return self._ranked[1]
        ranked = sorted(self._functions.items(), key=lambda item: (-cost_of(item[1]), item[0]))
        out = []
        for (name, module), metrics in ranked[:count]:
            out.append(FunctionUse(name, module, metrics.copy()))
        self._ranked = count, tuple(out)
        return self._ranked[1]


def mean_n_working(facts: Mapping[SampleKey, Count], fine: Mapping[int, float]) -> dict[int, float]:
    """By image: the mean of n_w over the time in which somebody worked, from samples of the clock event.

    Each working thread is sampled, so an instant with many of them has many samples: each stands for 1 / n_w of one.
    ``fine``: n_w in phases that are too short for it to be read at each sample, by image.
    """
    sums: dict[int, list[float]] = {}
    for key, count in facts.items():
        if key.event == 0 and key.state is ThreadState.WORKING:
            row = sums.setdefault(key.image, [0.0, 0.0])
            n_working = (fine.get(key.image, 0.0) if key.fine else 0.0) or key.n_working
            row[0] += count.samples
            row[1] += count.samples / max(n_working, 1.0)
    return {image: samples / instants for image, (samples, instants) in sums.items() if instants}


def most_working(facts: Iterable[SampleKey]) -> dict[int, int]:
    """By image: the largest n_w that a sample found."""
    out: dict[int, int] = {}
    for key in facts:
        out[key.image] = max(out.get(key.image, 0), key.n_working)
    return out
