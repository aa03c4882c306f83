"""What call paths are charged with: the table of all metrics, and the values that one call path has of them.

This is the one place that names them all. A new metric is an entry in `METRICS`, and the code that measures it
(``metrics[STALL] = ...``): files, reports, pages, series and the control protocol take it from the table, and show
it as its entry says.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import Enum, Flag, auto
from types import MappingProxyType
from typing import TypeVar

from parprof.units import COUNT, NANOSECONDS, Unit
from parprof.values import dataclass

_Key = TypeVar("_Key")
_NO_EVENTS: Mapping[str, int] = MappingProxyType({})


class Shown(Flag):
    """Where a metric is seen. Files, JSON, sorting, diff, merge and the control protocol have every metric."""

    EFFORT = auto()
    """Reports and pages show it as a share of effort, which has a form of its own everywhere."""
    COLUMN = auto()
    """A column of the tables for people: report, HTML report, status page."""
    GRAPH = auto()
    """Frames of flame graphs can be as wide as it."""
    TOP = auto()
    """``parprof top``: a column where there is room, and an order."""
    PROCESS = auto()
    """Series of Prometheus for each process and for the machine."""
    FUNCTION = auto()
    """Series of Prometheus for functions."""
    EVERYWHERE = COLUMN | GRAPH | TOP | PROCESS | FUNCTION


class Whole(Enum):
    """What a metric is a part of, so that it can be given in percent."""

    EFFORT = auto()
    CPU_TIME = auto()
    ITSELF = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One entry of the table. There is one object for each, so the object itself is what values are stored under."""

    name: str
    """A word of a-z and _: column of pprof files, choice of ``--sort``, part of all longer names."""
    unit: Unit
    meaning: str
    """For the help text of Prometheus; no full stop at the end."""
    title: str = ""
    """For readers of graphs; the name by default."""
    heading: str = ""
    """For narrow columns; at most 5 characters, the start of the name by default."""
    combine: Callable[[float, float], float] = operator.add
    """Makes one value of two, when call paths, intervals or files are put together: their sum, or ``max``, ``min``."""
    shown: Shown = Shown.EVERYWHERE
    whole: Whole = Whole.ITSELF
    optional: bool = True
    """MetricColumns, choices and series are only there where some value is not 0. False: always."""
    fact: str = ""
    """A sentence at the head of a report, where ``{value}`` stands for the total; by default the meaning."""
    additive: bool = field(init=False)
    """Whether the values of parts sum up to that of the whole. Only then are there shares, rates and counters."""

    def __post_init__(self) -> None:
        """Fill in what has a default."""
        object.__setattr__(self, "title", self.title or self.name)
        object.__setattr__(self, "heading", self.heading or self.name[:5])
        object.__setattr__(self, "additive", self.combine is operator.add)

    @property
    def key(self) -> str:
        """The name with the unit that values have in Python: ``work_ns``."""
        return f"{self.name}_{self.unit.suffix}" if self.unit.suffix else self.name

    @property
    def report_key(self) -> str:
        """The name with the unit that readers see, in JSON and the control protocol: ``work_s``."""
        return f"{self.name}_{self.unit.shown}" if self.unit.shown else self.name

    @property
    def sample_type(self) -> tuple[str, str]:
        """Type and unit of its column in pprof files."""
        return self.name, self.unit.name

    def has(self, place: Shown) -> bool:
        """Whether it is seen there."""
        return bool(self.shown & place)


SAMPLES = Metric(
    "samples",
    COUNT,
    "Samples taken",
    shown=Shown(0),
    optional=False,
)
WORK = Metric(
    "work",
    NANOSECONDS,
    "CPU time of threads in user work, runtime overhead included",
    shown=Shown.EFFORT | Shown.TOP | Shown.PROCESS | Shown.FUNCTION,
    whole=Whole.EFFORT,
    optional=False,
)
"""Includes `OVERHEAD`: tallent-2009 sec. 2.2 partitions work into useful work and overhead."""
IDLENESS = Metric(
    "idleness",
    NANOSECONDS,
    "Core time that stood idle while this worked, its share of it",
    heading="idle",
    shown=Shown.EFFORT | Shown.TOP | Shown.PROCESS | Shown.FUNCTION,
    whole=Whole.EFFORT,
    optional=False,
)
OVERHEAD = Metric(
    "overhead",
    NANOSECONDS,
    "The part of work in the parallel runtime and in synchronization",
    heading="ovhd",
    shown=Shown.EFFORT | Shown.TOP | Shown.PROCESS | Shown.FUNCTION,
    whole=Whole.EFFORT,
    optional=False,
)
SPIN = Metric(
    "spin",
    NANOSECONDS,
    "CPU time in the runtime's wait loops, neither work nor idleness",
    whole=Whole.CPU_TIME,
    optional=False,
)
BLAME = Metric(
    "blame",
    NANOSECONDS,
    "Time that other threads waited for locks which this held, no part of effort",
    title="blame for locks",
    whole=Whole.EFFORT,
    fact="other threads waited {value} for locks; charged to those who held them",
)
PROFILING = Metric(
    "profiling",
    NANOSECONDS,
    "CPU time in the profiler's own handlers, found at samples; neither work nor spin",
    shown=Shown.GRAPH | Shown.PROCESS,
    whole=Whole.CPU_TIME,
)


STALL = Metric(
    "stall",
    NANOSECONDS,
    "Core time in which nobody worked, charged to where the last one went to sleep",
    shown=Shown.COLUMN | Shown.GRAPH | Shown.TOP,
    whole=Whole.EFFORT,
    fact="for {value} of core time nobody worked",
)
"""n x the time with n_w = 0. Part of effort: it is lost as idleness is, only with nobody there to be charged."""
OUTSIDE = Metric(
    "outside",
    NANOSECONDS,
    "Core time in which nobody worked because there was nothing to do: requests, events or keys were waited for",
    shown=Shown.COLUMN | Shown.GRAPH,
)
"""As `STALL`, but no part of effort: see `parprof.attribution.waiting.WaitKind.is_outside`."""
WAIT = Metric(
    "wait",
    NANOSECONDS,
    "Time of threads asleep, whoever else worked",
    shown=Shown.COLUMN | Shown.GRAPH,
    fact="threads slept for {value} in all, wherever others worked",
)
READY = Metric(
    "ready",
    NANOSECONDS,
    "Time of working threads that had no CPU",
    shown=Shown.GRAPH | Shown.PROCESS,
    fact="working threads had no CPU for {value}",
)


STOLEN = Metric(
    "stolen",
    NANOSECONDS,
    "Core time that others had while threads wanted it, and others of the program waited for these",
    shown=Shown.GRAPH | Shown.PROCESS,
    fact="others had {value} of core time that threads wanted: the machine was busy, or a quota was used up",
)
"""Would be idleness or stall, but is not the code's fault; no part of effort."""


UNUSED = Metric(
    "unused",
    NANOSECONDS,
    "Core time that was idle on the whole machine while this worked, its share of it by idleness",
    title="cores really idle",
    heading="free",
    shown=Shown.PROCESS | Shown.TOP,
)
"""What the daemon makes of idleness: of all processes together it is no more than the machine's CPUs were idle. Those
that never had a second thread are serial by design, and have none."""


ACTIVATIONS = Metric(
    "activations",
    COUNT,
    "Calls that samples tell apart: at least so many were made of the function itself",
    title="calls at least",
    heading="calls",
    shown=Shown.GRAPH,
)
"""New call edges (froyd-2005 sec. 2.4): frames of a sample that were not there at the thread's previous one. What
a call path has itself is a lower bound of the calls of its last function; what it has with all below it is activity."""


class MetricTable:
    """All metrics there are, in the order of the columns of files."""

    def __init__(self, *metrics: Metric) -> None:
        """Hold these."""
        self._metrics = metrics

    def __iter__(self) -> Iterator[Metric]:
        """In order."""
        return iter(self._metrics)

    def add(self, metric: Metric) -> None:
        """Append a metric.

        Raises:
            ValueError: there is one of that name.
        """
        if metric.name in self.by_name():
            raise ValueError(f"there is a metric {metric.name!r} already")
        self._metrics += (metric,)

    def remove(self, metric: Metric) -> None:
        """Take one away again."""
        self._metrics = tuple(one for one in self._metrics if one is not metric)

    def by_name(self) -> dict[str, Metric]:
        """By name, in the order that choices are offered in: idleness first, times before counts."""
        order = sorted(self, key=lambda one: (one is not IDLENESS, one.unit is not NANOSECONDS))
        return {metric.name: metric for metric in order}

    def at(self, place: Shown) -> tuple[Metric, ...]:
        """Those that are seen there."""
        return tuple(metric for metric in self if metric.has(place))


METRICS = MetricTable(
    SAMPLES,
    WORK,
    IDLENESS,
    OVERHEAD,
    SPIN,
    BLAME,
    PROFILING,
    STALL,
    OUTSIDE,
    WAIT,
    READY,
    STOLEN,
    UNUSED,
    ACTIVATIONS,
)


class _Term:
    """Gives a metric a name of its own in `Metrics`: for the formulas in `parprof.attribution`, and where they are
    told in words. A metric that is only counted and shown needs none."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def __get__(self, metrics: Metrics, owner: type[Metrics]) -> float:
        return metrics.values.get(self._metric, 0.0)

    def __set__(self, metrics: Metrics, value: float) -> None:
        metrics[self._metric] = value


class Metrics:
    """What one call path is charged with: values by metric, each in the metric's own unit; 0 is not stored.

    Few metrics are not 0 in any one row, so a row takes no more memory and time when the table grows. Events are
    never changed in place, so copies share them.
    """

    __slots__ = ("events", "values")

    work_ns = _Term(WORK)
    idleness_ns = _Term(IDLENESS)
    overhead_ns = _Term(OVERHEAD)
    spin_ns = _Term(SPIN)
    blame_ns = _Term(BLAME)
    profiling_ns = _Term(PROFILING)
    stall_ns = _Term(STALL)
    ready_ns = _Term(READY)

    def __init__(self, *amounts: float, events: Mapping[str, int] | None = None, **named: float) -> None:
        """Values in the order of the table, or named by `Metric.key`: ``Metrics(samples=3, work_ns=2e6)``.

        ``events``: counts of hardware and software events by name.
        """
        self.values: dict[Metric, float] = {}
        self.events: Mapping[str, int] = events or _NO_EVENTS
        if amounts:
            self.values.update((one, value) for one, value in zip(METRICS, amounts, strict=False) if value)
        if named:
            known = {metric.key: metric for metric in METRICS}
            self.values.update((known[key], value) for key, value in named.items() if value)

    @classmethod
    def of(cls, values: Mapping[Metric, float], events: Mapping[str, int] | None = None) -> Metrics:
        """Values by metric."""
        out = cls.__new__(cls)
        out.values = {metric: value for metric, value in values.items() if value}
        out.events = events or _NO_EVENTS
        return out

    def __getitem__(self, metric: Metric) -> float:
        """The value of any metric."""
        return self.values.get(metric, 0)

    def __setitem__(self, metric: Metric, value: float) -> None:
        """Charge with this value."""
        if value:
            self.values[metric] = value
        else:
            self.values.pop(metric, None)

    def __bool__(self) -> bool:
        """Whether there is anything but events."""
        return bool(self.values)

    def __eq__(self, other: object) -> bool:
        """Whether all values and events are the same."""
        if not isinstance(other, Metrics):
            return NotImplemented
        return self.values == other.values and self.events == other.events

    __hash__ = None  # type: ignore[assignment]  # they change

    def __repr__(self) -> str:
        """As it would be written."""
        parts = [f"{metric.key}={value!r}" for metric, value in self.values.items()]
        parts += [f"events={dict(self.events)!r}"] if self.events else []
        return f"Metrics({', '.join(parts)})"

    def copy(self) -> Metrics:
        """Another one with the same values."""
        out = Metrics.__new__(Metrics)
        out.values = self.values.copy()
        out.events = self.events
        return out

    def add(self, other: Metrics) -> None:
        """Put ``other`` to this, each metric in its own way: most are summed up."""
        values = self.values
        for metric, value in other.values.items():
            if metric not in values:
                values[metric] = value
            elif metric.additive:
                values[metric] += value
            else:
                values[metric] = metric.combine(values[metric], value)
        if other.events:
            events = dict(self.events)
            for name, count in other.events.items():
                events[name] = events.get(name, 0) + count
            self.events = events

    @property
    def samples(self) -> int:
        """A count."""
        return int(self.values.get(SAMPLES, 0))

    @property
    def effort_ns(self) -> float:
        """Useful work + overhead + idleness (tallent-2009 sec. 2.1, total effort), and stall."""
        values = self.values
        return values.get(WORK, 0.0) + values.get(IDLENESS, 0.0) + values.get(STALL, 0.0)

    @property
    def cpu_ns(self) -> float:
        """The CPU time that samples stand for, our handlers' included."""
        values = self.values
        return values.get(WORK, 0.0) + values.get(SPIN, 0.0) + values.get(PROFILING, 0.0)

    def whole_of(self, metric: Metric) -> float:
        """What a metric's share is a share of, with these as the total."""
        if metric.whole is Whole.EFFORT:
            return self.effort_ns
        return self.cpu_ns if metric.whole is Whole.CPU_TIME else self[metric]


def total(parts: Iterable[Metrics]) -> Metrics:
    """The sum of many, faster than by `Metrics.add`."""
    out = Metrics()
    values = out.values
    for part in parts:
        for metric, value in part.values.items():
            if metric not in values:
                values[metric] = value
            elif metric.additive:
                values[metric] += value
            else:
                values[metric] = metric.combine(values[metric], value)
        if part.events:
            out.add(Metrics(events=part.events))
    return out


class MetricColumns:
    """The metrics of many rows, by metric: to sum up some of the rows takes a fraction of the time of `total`."""

    def __init__(self, rows: Sequence[Metrics]) -> None:
        """Of these rows, which do not change any more."""
        present = {metric: None for row in rows for metric in row.values}
        self._columns = [
            (metric, [row.values.get(metric, 0) for row in rows]) for metric in present if metric.additive
        ]
        others = [metric for metric in present if not metric.additive]
        self._odd = {
            number: Metrics.of({metric: row[metric] for metric in others}, row.events)
            for number, row in enumerate(rows)
            if row.events or (others and any(row[metric] for metric in others))
        }
        """Of each row what cannot be summed up column by column."""

    def total(self, numbers: Sequence[int]) -> Metrics:
        """The sum of the rows with these numbers."""
        out = Metrics.of({metric: sum(map(column.__getitem__, numbers)) for metric, column in self._columns})
        if self._odd:
            out.add(total(self._odd[number] for number in numbers if number in self._odd))
        return out


def add_column(metric: Metric, sums: Iterable[dict[Metric, float]], column: Iterable[float]) -> None:
    """Add a column of one metric's values: one to each of ``sums``, which are `Metrics.values` of rows."""
    add = metric.combine
    for values, value in zip(sums, column, strict=True):
        if value:
            values[metric] = add(values[metric], value) if metric in values else value


def add_to(sums: dict[_Key, Metrics], key: _Key, metrics: Metrics) -> None:
    """Add to what is summed up under a key."""
    known = sums.get(key)
    if known is None:
        sums[key] = metrics.copy()
    else:
        known.add(metrics)
