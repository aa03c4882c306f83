"""What samples add up to: by thread, by what of a runtime they were in, and by what tells the kinds of loss apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import field, replace
from typing import NamedTuple

from parprof.causes.gil import NOTHING, Beside
from parprof.causes.routes import Route
from parprof.causes.tickers import ThreadLabel
from parprof.metrics import WAIT, Metrics, add_to, total
from parprof.values import dataclass


class SampleRoute(NamedTuple):
    """A sample, and how it comes through the program."""

    metrics: Metrics
    thread: ThreadLabel
    runtime: str
    """What it was in besides the program: the kind of overhead, and the function."""
    route: Route
    effort_ns: float = 0.0
    """Its total effort, and time spun: by this is seen where there is enough to look at."""
    is_idler: bool = False
    """Whether its thread did next to nothing but sleep, or only what a language's virtual machine has to do itself."""
    beside: Beside = NOTHING
    """What other threads waited for meanwhile."""

    @property
    def function(self) -> str:
        """What it was in besides the program, and what it waits for there, if it does."""
        return self.runtime.partition(":")[2]


@dataclass(slots=True)
class Tally:
    """What some samples add up to."""

    metrics: Metrics = field(default_factory=Metrics)
    threads: dict[ThreadLabel, Metrics] = field(default_factory=dict)
    called_back_ns: float = 0.0
    """Work that a library called this place for, as a sort does a comparison."""
    runtime: dict[str, Metrics] = field(default_factory=dict)
    """By kind of overhead and name of the runtime's, or the system's, function that ran innermost."""
    idlers: dict[str, float] = field(default_factory=dict)
    """By such a function: for how long threads slept in it that do nothing for the program: see `SampleRoute`."""
    prepares: dict[str, float] = field(default_factory=dict)
    """Core time unused while the program's own code imported or had compiled something, by what that was."""
    in_region_ns: float = 0.0
    """Work on behalf of a parallel region, task or thread that begins at this place."""
    within_region_ns: float = 0.0
    """The same where that begins at this place or above it."""
    launched_ns: float = 0.0
    """Work of a main thread that is not the process's first one."""
    beside: Beside = field(default_factory=Beside)
    """Waiting of others for the interpreter's lock that was beside this."""

    @classmethod
    def of(cls, rows: Iterable[SampleRoute]) -> Tally:
        """The sum of many, faster than by `add`."""
        out = cls()
        threads: dict[ThreadLabel, list[Metrics]] = defaultdict(list)
        runtime: dict[str, list[Metrics]] = defaultdict(list)
        for row in rows:
            threads[row.thread].append(row.metrics)
            if row.runtime:
                runtime[row.runtime].append(row.metrics)
            out._add_rare(row)
        out.threads = {thread: total(parts) for thread, parts in threads.items()}
        out.runtime = {name: total(parts) for name, parts in runtime.items()}
        out.metrics = total(out.threads.values())
        return out

    def copy(self) -> Tally:
        """Another one with the same values."""
        return replace(
            self,
            metrics=self.metrics.copy(),
            threads={thread: metrics.copy() for thread, metrics in self.threads.items()},
            runtime={name: metrics.copy() for name, metrics in self.runtime.items()},
            idlers=self.idlers.copy(),
            prepares=self.prepares.copy(),
            beside=replace(self.beside),
        )

    def add(self, row: SampleRoute) -> None:
        """Add samples of one thread."""
        self.metrics.add(row.metrics)
        add_to(self.threads, row.thread, row.metrics)
        if row.runtime:
            add_to(self.runtime, row.runtime, row.metrics)
        self._add_rare(row)

    def _add_rare(self, row: SampleRoute) -> None:
        """Add what few samples have."""
        if row.beside is not NOTHING:
            self.beside.add(row.beside)
        if row.route.is_launched:
            self.launched_ns += row.metrics.work_ns
        if row.is_idler and row.runtime:
            self.idlers[row.function] = self.idlers.get(row.function, 0.0) + row.metrics[WAIT]
        if what := row.route.prepares:
            unused_ns = row.metrics.idleness_ns + row.metrics.stall_ns
            self.prepares[what] = self.prepares.get(what, 0.0) + unused_ns

    def merge(self, other: Tally) -> None:
        """Add all of another one."""
        self.metrics.add(other.metrics)
        for thread, metrics in other.threads.items():
            add_to(self.threads, thread, metrics)
        for name, metrics in other.runtime.items():
            add_to(self.runtime, name, metrics)
        for function, wait_ns in other.idlers.items():
            self.idlers[function] = self.idlers.get(function, 0.0) + wait_ns
        for what, unused_ns in other.prepares.items():
            self.prepares[what] = self.prepares.get(what, 0.0) + unused_ns
        self.in_region_ns += other.in_region_ns
        self.within_region_ns += other.within_region_ns
        self.launched_ns += other.launched_ns
        self.beside.add(other.beside)
        self.called_back_ns += other.called_back_ns
