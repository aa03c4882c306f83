"""The metrics of docs/metrics.md: names, meanings, labels, and where in a snapshot they come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter

from parprof.attribution import Effort
from parprof.attribution.concurrency import range_name, ranges
from parprof.metrics import Metric
from parprof.service.levels import FIRST_OF_LEVEL
from parprof.service.model import ProcessSnapshot, PushQueue, Snapshot

THREAD_STATES = ("working", "spinning", "blocked")

BRIEF = ("comm", "pid")
PROCESS = ("comm", "pid", "cgroup", "runtime")
INFO = (*PROCESS, "n_w_source", "uid", "pod_uid")
LEVEL_NAMES = tuple(range_name(*level) for level in ranges(FIRST_OF_LEVEL))
"""Of `parprof.service.levels.FIRST_OF_LEVEL`, as values of the label ``n_working``."""
LABEL_NAMES: tuple[tuple[str, ...], ...] = (BRIEF, PROCESS, INFO)


def series_name(prefix: str, metric: Metric) -> tuple[str, str]:
    """Name and type of a metric's series: ``parprof_work_seconds_total``, a counter.

    What does not add up is a gauge.
    """
    name = "_".join(filter(None, (prefix, metric.name, metric.unit.word)))
    return (f"{name}_total", "counter") if metric.additive else (name, "gauge")


_ProcessMetric = tuple[str, str, str, tuple[str, ...], Callable[[ProcessSnapshot], float]]
PROCESS_METRICS: tuple[_ProcessMetric, ...] = (
    ("parprof_cores", "gauge", "Cores that the process could use (n).", PROCESS, attrgetter("cores")),
    (
        "parprof_parallel_efficiency_ratio",
        "gauge",
        "Useful work / effort since the process was first watched. For a period take rates.",
        PROCESS,
        lambda p: Effort.of(p.totals).efficiency,
    ),
    (
        "parprof_sampling_frequency_hertz",
        "gauge",
        "Samples a second and CPU in the process.",
        BRIEF,
        attrgetter("frequency_hz"),
    ),
    (
        "parprof_folded_call_paths_total",
        "counter",
        "Call paths folded into their callers to bound memory.",
        BRIEF,
        attrgetter("folded"),
    ),
    (
        "parprofd_target_cost_ratio",
        "gauge",
        "Measured cost of probes and samples in the process / its CPU time.",
        BRIEF,
        attrgetter("cost_ratio"),
    ),
    ("parprof_process_info", "gauge", "Constant 1: what else is known of the process.", INFO, lambda p: 1),
)
GROUP_METRICS: tuple[_ProcessMetric, ...] = (
    ("parprof_processes", "gauge", "Processes of the group that are watched.", BRIEF, attrgetter("members")),
    *(one for one in PROCESS_METRICS if one[3] != INFO),
)
"""Where series are by group."""
GAUGES: tuple[tuple[str, str, Callable[[Snapshot], float]], ...] = (
    ("parprofd_processes", "Processes watched.", lambda s: len(s.processes)),
    (
        "parprofd_machine_cost_ratio",
        "Cost in all targets / the machine's CPU time.",
        attrgetter("cost_ratio"),
    ),
    ("parprofd_budget_ratio", "Cost in a target that the governor allows.", attrgetter("budget_ratio")),
    ("parprofd_frequency_hertz", "Samples a second and CPU, as configured.", attrgetter("frequency_hz")),
    (
        "parprofd_switches_followed",
        "1 while context switches are followed; 0: n_w is what runs on the CPUs at a sample.",
        lambda s: float(s.follows_switches),
    ),
    ("parprofd_detaching_links", "Links of probes that are still being taken away.", attrgetter("detaching")),
    (
        "parprofd_profiles_bytes",
        "Memory of the profiles of the last minutes, about.",
        attrgetter("kept_bytes"),
    ),
    ("parprofd_drain_seconds", "Duration of the last drain.", attrgetter("drain_seconds")),
    ("parprofd_snapshot_timestamp_seconds", "When all this was current, Unix time.", attrgetter("time_s")),
)
PUSH_GAUGES: tuple[tuple[str, str, Callable[[PushQueue], float]], ...] = (
    ("parprofd_push_queued_profiles", "Profiles that wait on the disk for a store.", attrgetter("profiles")),
    ("parprofd_push_queued_bytes", "Size of the profiles that wait.", attrgetter("size_bytes")),
    (
        "parprofd_push_failing",
        "1 while profiles cannot be sent to a store; the status page and the log say why.",
        lambda queue: float(bool(queue.problem)),
    ),
)
"""By backend."""
_Counts = Mapping[tuple[str, ...], float]
COUNTERS: tuple[tuple[str, str, tuple[str, ...], Callable[[Snapshot], _Counts]], ...] = (
    (
        "parprofd_lost_total",
        "Samples and events that could not be counted.",
        ("reason",),
        lambda s: {(reason,): count for reason, count in s.lost.items()},
    ),
    (
        "parprofd_probe_hits_total",
        "Hits of probes on runtimes.",
        ("runtime",),
        lambda s: {(runtime,): hits for runtime, hits in s.probe_hits.items()},
    ),
    (
        "parprofd_edge_hits_total",
        "The same hits by what they mean, of all runtimes together.",
        ("edge",),
        lambda s: {(edge,): hits for edge, hits in s.edge_hits.items()},
    ),
    (
        "parprofd_governor_transitions_total",
        "Decisions of the overhead governor: n_w source or sampling frequency before and after.",
        ("from", "to"),
        attrgetter("governor_transitions"),
    ),
    (
        "parprofd_attach_failures_total",
        "Runtimes that could not be probed.",
        ("runtime", "reason"),
        attrgetter("attach_failures"),
    ),
    (
        "parprofd_cost_seconds_total",
        "CPU time that the targets paid for being profiled.",
        ("kind",),
        lambda s: {(kind,): seconds for kind, seconds in s.cost_seconds.items()},
    ),
    (
        "parprofd_left_out_total",
        "Events left out to keep the cost of a target to its budget.",
        ("kind",),
        lambda s: {(kind,): count for kind, count in s.left_out.items()},
    ),
    (
        "parprofd_dropped_total",
        "What went from the recent profiles to make room.",
        ("kind",),
        lambda s: {(kind,): count for kind, count in s.dropped.items()},
    ),
    (
        "parprofd_invariant_violations_total",
        "Intervals in which a process was charged with more core time than there was; should stay 0.",
        (),
        lambda s: {(): s.impossible},
    ),
    (
        "parprofd_idleness_checks_total",
        "Comparisons of idleness by samples with that from each change of n_w, each over 20 s of a process.",
        (),
        lambda s: {(): s.checks},
    ),
    (
        "parprofd_idleness_disagreements_total",
        "Those in which the two parted by more than samples explain.",
        (),
        lambda s: {(): s.disagreements},
    ),
    ("parprofd_pushed_profiles_total", "Pushes of profiles.", ("backend", "outcome"), attrgetter("pushed")),
)
