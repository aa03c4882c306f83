"""What Prometheus sees of the daemon: a collector over `Service.snapshot`, and the page that it makes.

docs/metrics.md says what each metric means and how they add up.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Collection, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric as PrometheusMetric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from parprof import __version__
from parprof.metrics import METRICS, UNUSED, Metric, Metrics, Shown
from parprof.service.levels import FIRST_OF_LEVEL
from parprof.service.metrics.children import ChildrenCollector
from parprof.service.metrics.exposition import NO_LABELS, Family, LabelSet, render
from parprof.service.metrics.series import (
    NONE,
    REST,
    Amounts,
    BoundedCounters,
    FunctionKey,
    FunctionLedger,
    HighWater,
    amounts_of,
    function_metrics,
    label,
    module_label,
    plus,
)
from parprof.service.metrics.tables import (
    BRIEF,
    COUNTERS,
    GAUGES,
    GROUP_METRICS,
    LABEL_NAMES,
    LEVEL_NAMES,
    PROCESS,
    PROCESS_METRICS,
    PUSH_GAUGES,
    THREAD_STATES,
    series_name,
)
from parprof.service.model import (
    FunctionUse,
    GroupKey,
    GroupSnapshot,
    Labels,
    ProcessSnapshot,
    Service,
    Snapshot,
)

MAX_FUNCTIONS = 1000
"""Functions of a process that get series of their own, at most; snapshots hold far fewer."""

MAX_PROCESSES = 500
"""Processes that get series of their own: those with most effort."""


class ServiceCollector(Collector):
    """Makes metric families of the newest snapshot. Remembers what it showed, so that no counter falls."""

    def __init__(
        self, service: Service, *, max_functions: int = MAX_FUNCTIONS, max_processes: int = MAX_PROCESSES
    ) -> None:
        """Collect from ``service``. One collector serves all scrapers."""
        self._service = service
        self._max_functions = max_functions
        self._max_processes = max_processes
        self._lock = threading.Lock()
        self._ledgers: dict[tuple[int, float] | GroupKey, FunctionLedger] = {}
        self._highest: HighWater[str] = HighWater()
        self._bounded = {name: BoundedCounters(len(labels)) for name, _, labels, _ in COUNTERS}

    def collect(self) -> Iterator[PrometheusMetric]:
        """All families, for a prometheus_client registry."""
        return (family.metric() for family in self.families(self._service.snapshot()))

    def families(self, snapshot: Snapshot) -> list[Family]:
        """All families of a snapshot."""
        with self._lock:
            if snapshot.groups is None:
                shown = _costliest(snapshot.processes, self._max_processes)
                hidden = len(snapshot.processes) - len(shown)
            else:
                shown, hidden = grouped(snapshot.processes, snapshot.groups), 0
            return [
                *_results(shown, by_group=snapshot.groups is not None),
                *_levels(snapshot, shown),
                _short_lived(snapshot),
                *self._functions(snapshot, shown),
                *self._machine(snapshot),
                *self._daemon(snapshot, hidden),
            ]

    def _functions(self, snapshot: Snapshot, shown: list[ProcessSnapshot]) -> Iterator[Family]:
        """The costliest functions of each process, and the rest of it."""
        alive = {_identity(process) for process in (*snapshot.processes, *shown)}
        self._ledgers = {key: ledger for key, ledger in self._ledgers.items() if key in alive}
        counted = function_metrics()
        rows: dict[Metric, list[tuple[LabelSet, float]]] = {
            metric: [] for metric in METRICS.at(Shown.FUNCTION)
        }
        for process in shown:
            ledger = self._ledgers.setdefault(_identity(process), FunctionLedger())
            own = _labels(process, BRIEF)
            functions = _top(process.functions, self._max_functions, counted)
            columns = [
                (column, rows[metric])
                for column, metric in enumerate(counted)
                if not metric.optional or process.totals[metric]
            ]
            for key, amounts in ledger.split(amounts_of(process.totals, counted), functions).items():
                labels = _of_function(own, key)
                for column, series in columns:
                    series.append((labels, amounts[column] if column < len(amounts) else 0.0))
            for metric in rows.keys() - set(counted):
                rows[metric] += _gauges(process, metric, own, functions.keys())
        for metric, series in rows.items():
            name, kind = series_name("parprof_function", metric)
            yield Family(name, kind, f"By function, callees not included: {metric.meaning}.", series)

    def _machine(self, snapshot: Snapshot) -> Iterator[Family]:
        """All processes together: those too that are gone, or have no series."""
        total = Metrics()
        total.add(snapshot.ended)
        for process in snapshot.processes:
            total.add(process.totals)
        for metric in METRICS.at(Shown.PROCESS):
            name, kind = series_name("parprof_node", metric)
            value = metric.unit.amount(total[metric])
            if metric.additive:
                value = self._highest(name, value)
            yield _single(name, kind, f"All processes, ended ones too: {metric.meaning}.", value)
        text = "Core time in which the machine's CPUs had nothing to do, whatever was watched."
        yield _single("parprof_node_idle_seconds_total", "counter", text, snapshot.idle_s)
        yield _single("parprof_node_cores", "gauge", "CPUs of the machine.", snapshot.cores)

    def _daemon(self, snapshot: Snapshot, hidden: int) -> Iterator[Family]:
        """The daemon itself."""
        samples = self._highest("samples", snapshot.samples)
        yield _single("parprofd_samples_total", "counter", "Samples counted.", samples)
        for name, text, labels, counts in COUNTERS:
            series = self._bounded[name].series(counts(snapshot))
            rows = [(LabelSet(labels, values), count) for values, count in series.items()]
            yield Family(name, "counter", text, rows)
        healthy, ready = int(not self._service.is_healthy()), int(not self._service.is_ready())
        for name, text, value in (
            *((name, text, get(snapshot)) for name, text, get in GAUGES),
            ("parprofd_hidden_processes", "Processes watched that have no series.", hidden),
            ("parprofd_healthy", "1 while the daemon's loop turns.", healthy),
            ("parprofd_ready", "1 once programs and events are in place.", ready),
        ):
            yield _single(name, "gauge", text, value)
        for name, text, measure in PUSH_GAUGES:
            queues = snapshot.push_queues.items()
            rows = [(LabelSet(("backend",), (backend,)), measure(queue)) for backend, queue in queues]
            yield Family(name, "gauge", text, rows)
        versions = LabelSet(("version", "python"), (__version__, platform.python_version()))
        yield Family("parprofd_build_info", "gauge", "Constant 1: versions.", [(versions, 1)])


_OF_FUNCTIONS = "parprof_function_"


class MetricsPage:
    """The page that Prometheus scrapes. The part that grows is made once for each snapshot and format."""

    def __init__(self, service: Service, *more: Collector) -> None:
        """Show ``service``, the daemon's process, and what ``more`` collect."""
        self._service = service
        self._collector = ServiceCollector(service)
        self._lock = threading.Lock()
        self._made: dict[tuple[bool, bool], tuple[Snapshot, bytes]] = {}
        self._rest = CollectorRegistry()
        for collector in (ProcessCollector(registry=None), ChildrenCollector(), *more):
            self._rest.register(collector)

    def render(self, accept: str = "", with_functions: bool = True) -> tuple[str, tuple[bytes, bytes]]:
        """The content type, OpenMetrics where the Accept header asks for it, and the page in two parts.

        The first, large one is shared by all who ask for the same snapshot. ``with_functions``: with the metrics of
        functions, whose names are their users' business.
        """
        openmetrics = "application/openmetrics-text" in accept
        with self._lock:
            newest = self._service.snapshot()
            snapshot, page = self._made.get((openmetrics, with_functions), (None, b""))
            if snapshot is not newest:
                families = self._collector.families(newest)
                if not with_functions:
                    families = [one for one in families if not one.name.startswith(_OF_FUNCTIONS)]
                page = render(families, openmetrics).encode()
                self._made[openmetrics, with_functions] = (newest, page)
        if openmetrics:
            kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
            return kind, (page, bytes(generate_openmetrics(self._rest)))  # type: ignore[no-untyped-call]
        return "text/plain; version=0.0.4; charset=utf-8", (page, generate_latest(self._rest))


def grouped(processes: Iterable[ProcessSnapshot], groups: Iterable[GroupSnapshot]) -> list[ProcessSnapshot]:
    """Each group as if it were one process, with the PID 0.

    What adds up is that of all processes that it ever had. Threads are those of the processes that live; of cores,
    cost and frequency it has the highest.
    """
    members: dict[GroupKey | None, list[ProcessSnapshot]] = {}
    for process in processes:
        members.setdefault(process.group, []).append(process)
    out = []
    for group in groups:
        live, key = members.get(group.key, []), group.key
        threads = {state: sum(one.threads.get(state, 0) for one in live) for state in THREAD_STATES}
        labels = Labels(
            key.comm, container=key.container, unit=key.unit, pod_name=key.pod, namespace=key.namespace
        )
        out.append(
            ProcessSnapshot(
                pid=0,
                labels=labels,
                command="",
                runtime="",
                n_w_source="",
                cores=max((one.cores for one in live), default=0),
                started_s=0.0,
                threads=threads,
                n_working=threads["working"],
                totals=group.totals,
                functions=group.functions,
                cost_ratio=max((one.cost_ratio for one in live), default=0.0),
                frequency_hz=max((one.frequency_hz for one in live), default=0),
                folded=group.folded,
                levels_s=group.levels_s,
                group=key,
                members=len(live),
                is_parallel=group.is_parallel,
            )
        )
    return out


def _results(shown: list[ProcessSnapshot], by_group: bool) -> Iterator[Family]:
    """Each process by itself, or each group."""
    labels = {names: [_labels(process, names) for process in shown] for names in LABEL_NAMES}
    for metric in METRICS.at(Shown.PROCESS):
        name, kind = series_name("parprof", metric)
        values = [
            (own, metric.unit.amount(process.totals[metric]))
            for own, process in zip(labels[PROCESS], shown, strict=True)
            if metric is not UNUSED or process.is_parallel
        ]
        yield Family(name, kind, f"{metric.meaning}.", values)
    threads = [
        (own.plus("state", state), process.threads.get(state, 0))
        for own, process in zip(labels[PROCESS], shown, strict=True)
        for state in THREAD_STATES
    ]
    yield Family("parprof_threads", "gauge", "Threads by state.", [*threads])
    for name, kind, text, names, value in GROUP_METRICS if by_group else PROCESS_METRICS:
        yield Family(name, kind, text, list(zip(labels[names], map(value, shown), strict=True)))


def _levels(snapshot: Snapshot, shown: list[ProcessSnapshot]) -> Iterator[Family]:
    """For how long how many threads worked, by process and of all together."""
    rows = [
        (own.plus("n_working", name), seconds)
        for process, own in ((process, _labels(process, BRIEF)) for process in shown)
        for name, seconds in _named_levels(process.levels_s, process.cores)
    ]
    text = "Time in which so many threads of the process worked at once."
    yield Family("parprof_concurrency_seconds_total", "counter", text, rows)
    cores = max((process.cores for process in snapshot.processes), default=1)
    node = [
        (LabelSet(("n_working",), (name,)), seconds)
        for name, seconds in _named_levels(snapshot.levels_s, cores)
    ]
    text = "Time in which so many threads of a process worked at once, summed up over all processes."
    yield Family("parprof_node_concurrency_seconds_total", "counter", text, node)


def _short_lived(snapshot: Snapshot) -> Family:
    """What no process's series have."""
    text = "CPU time of processes that were too short to be watched, by what their parents belong to."
    rows = [(_of_group(key), seconds) for key, seconds in snapshot.short_lived_s.items()]
    return Family("parprof_short_processes_seconds_total", "counter", text, rows)


def _named_levels(levels_s: tuple[float, ...], cores: int) -> list[tuple[str, float]]:
    """Levels by name: those up to n from the start, those beyond once there is any time in them."""
    named = zip(LEVEL_NAMES, FIRST_OF_LEVEL, levels_s, strict=False)
    return [(name, seconds) for name, first, seconds in named if seconds or first <= cores]


def _single(name: str, kind: str, text: str, value: float) -> Family:
    return Family(name, kind, text, [(NO_LABELS, value)])


def _identity(process: ProcessSnapshot) -> tuple[int, float] | GroupKey:
    """What tells it from others, before and after."""
    return process.group if process.group and not process.pid else (process.pid, process.started_s)


def _of_group(key: GroupKey) -> LabelSet:
    """Its texts are label values already."""
    pairs = {"unit": key.unit, "container": key.container, "namespace": key.namespace, "pod": key.pod}
    pairs = {"comm": key.comm, **{name: value for name, value in pairs.items() if value}}
    return LabelSet(tuple(pairs), tuple(pairs.values()))


def _of_function(own: LabelSet, key: FunctionKey) -> LabelSet:
    return own.plus("function", key[0]).plus("module", key[1])


def _labels(process: ProcessSnapshot, names: tuple[str, ...]) -> LabelSet:
    """A process's values for these labels, and to what it belongs as far as that is known; of a group only that."""
    own = process.labels
    where = {"unit": own.unit, "container": own.container, "namespace": own.namespace, "pod": own.group.pod}
    where = {name: label(value) for name, value in where.items() if value}
    if not process.pid:
        return _of_group(process.group or GroupKey())
    values = {
        "comm": own.comm,
        "pid": str(process.pid),
        "cgroup": own.cgroup,
        "runtime": process.runtime,
        "n_w_source": process.n_w_source,
        "uid": str(own.uid),
        "pod_uid": own.pod,
    }
    return LabelSet((*names, *where), (*[label(values[name]) for name in names], *where.values()))


def _costliest(processes: Iterable[ProcessSnapshot], limit: int) -> list[ProcessSnapshot]:
    """Those with most effort and spin; of two with the same pid the newer one."""
    newest = {process.pid: process for process in sorted(processes, key=lambda p: p.started_s)}
    rows = list(newest.values())
    if len(rows) > limit:
        rows = sorted(rows, key=lambda p: p.totals.effort_ns + p.totals.spin_ns)[-limit:]
    return sorted(rows, key=lambda p: p.pid)


def _key(function: FunctionUse) -> FunctionKey:
    """What a function is called as label values."""
    return label(function.name) or "[unknown]", module_label(function.module)


def _top(
    functions: Iterable[FunctionUse], limit: int, which: tuple[Metric, ...]
) -> dict[FunctionKey, Amounts]:
    """The costliest functions, by effort and spin."""
    out: dict[FunctionKey, Amounts] = {}
    costs: dict[FunctionKey, float] = {}
    for function in functions:
        key = _key(function)
        if key != REST:
            out[key] = plus(out.get(key, NONE), amounts_of(function.metrics, which))
            cost = function.metrics.effort_ns + function.metrics.spin_ns
            costs[key] = costs.get(key, 0.0) + cost
    kept = sorted(out, key=lambda key: -costs[key])[:limit]
    return {key: out[key] for key in kept}


def _gauges(
    process: ProcessSnapshot, metric: Metric, own: LabelSet, shown: Collection[FunctionKey]
) -> Iterator[tuple[LabelSet, float]]:
    """A metric that does not add up, of functions that have series. The rest of a process has none of it."""
    values: dict[FunctionKey, float] = {}
    for function in process.functions:
        key, value = _key(function), function.metrics[metric]
        if key in shown and value:
            values[key] = metric.combine(values[key], value) if key in values else value
    for key, value in values.items():
        yield _of_function(own, key), metric.unit.amount(value)
