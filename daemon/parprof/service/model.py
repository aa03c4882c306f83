"""What the daemon knows at one time, as immutable data: the loop makes it, everyone else reads it.

Threads other than the loop's see nothing else of the daemon but this and `Service`.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import field
from typing import Protocol

from parprof.metrics import Metrics
from parprof.model import Profile
from parprof.values import dataclass


@dataclass(frozen=True, slots=True)
class FunctionUse:
    """Cumulative metrics of one function of a process, its callees not included."""

    name: str
    module: str
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Labels:
    """Where a process belongs; empty where that is not known. Made by the process's user: hostile text."""

    comm: str = ""
    uid: int = 0
    cgroup: str = ""
    container: str = ""
    """Container id, as the runtime put it into the cgroup's name."""
    unit: str = ""
    """systemd unit; none for containers, whose units are their runtimes'."""
    pod: str = ""
    """Kubernetes pod uid."""
    pod_name: str = ""
    """Where the kubelet's directories tell it; see `parprof.service.labels.PodNames`."""
    namespace: str = ""
    """Of the pod, as far as its name is known."""

    @property
    def group(self) -> GroupKey:
        """What it has in common with other processes: see `GroupKey`."""
        return GroupKey(self.comm, self.unit, self.container, self.namespace, self.pod_name or self.pod)


@dataclass(frozen=True, slots=True)
class GroupKey:
    """What people add up processes by; empty where that is not known. Hostile text."""

    comm: str = ""
    unit: str = ""
    container: str = ""
    namespace: str = ""
    pod: str = ""
    """The pod's name, else its uid."""


@dataclass(frozen=True, slots=True)
class Recent:
    """One point of a process's history. ``clock_s``: CLOCK_MONOTONIC, the end of the interval."""

    clock_s: float
    n_working: float
    """Mean over the interval's samples of working threads; 0 without any."""
    efficiency: float
    """Useful work / effort in the interval, 0 to 1."""


@dataclass(frozen=True, slots=True)
class ProcessSnapshot:
    """One watched process. Metrics are cumulative since it was first watched, children not included."""

    pid: int
    labels: Labels
    command: str
    runtime: str
    n_w_source: str
    cores: int
    started_s: float
    """When the daemon began to watch it, CLOCK_REALTIME."""
    threads: Mapping[str, int]
    """Number of threads by state: working, spinning, blocked; the mean of the last interval, rounded."""
    n_working: int
    totals: Metrics
    functions: tuple[FunctionUse, ...]
    """The costliest ones by idleness, work and overhead; the rest is what is missing to ``totals``."""
    cost_ratio: float
    """Cost of probes and samples in the process, as a share of its CPU time."""
    frequency_hz: int
    history: tuple[Recent, ...] = ()
    notes: tuple[str, ...] = ()
    folded: int = 0
    """Call paths that were folded into their callers to bound memory."""
    levels_s: tuple[float, ...] = ()
    """For how long n_w was at each level since it was first watched: see `parprof.service.levels`."""
    group: GroupKey | None = None
    """Where processes are told by groups: the one that it is in."""
    members: int = 1
    """More or fewer where this is a group of processes."""
    is_parallel: bool = True
    """Whether it has, or had, a second thread. Else it is serial by design: cores beside it are not its waste."""
    begun_s: float = 0.0
    """As ``started_s``, CLOCK_MONOTONIC."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """Processes that have the same key, ended ones too. All is cumulative: see `parprof.service.groups`."""

    key: GroupKey
    """Its texts are label values."""
    totals: Metrics
    functions: tuple[FunctionUse, ...] = ()
    levels_s: tuple[float, ...] = ()
    folded: int = 0
    is_parallel: bool = True
    """Whether one of them has, or had, a second thread."""


@dataclass(frozen=True, slots=True)
class MachinePoint:
    """All processes together, ended ones too, as of a time (CLOCK_MONOTONIC): cumulative, seconds of core time."""

    clock_s: float
    useful_s: float
    effort_s: float
    """Work and what was really idle."""
    unused_s: float
    idle_s: float
    cost_s: float
    lost: int


@dataclass(frozen=True, slots=True)
class MachineSpan:
    """What was between two such points: shares, cores, and losses a second."""

    begin_s: float
    end_s: float
    efficiency: float | None
    """None: nobody worked."""
    unused_cores: float
    idle_cores: float
    cost_cores: float
    lost: float


@dataclass(frozen=True, slots=True)
class PushQueue:
    """What waits on the disk for one store."""

    profiles: int
    size_bytes: int
    problem: str = ""
    """Why the last one could not be sent, one line; empty while pushing works."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the daemon knows. Counters are cumulative since it started."""

    time_s: float
    """When all this was current, CLOCK_REALTIME: to be shown. That clock jumps when it is set, and after a suspend."""
    started_s: float
    """When the daemon started, CLOCK_REALTIME."""
    processes: tuple[ProcessSnapshot, ...]
    frequency_hz: int
    samples: int
    lost: Mapping[str, int]
    probe_hits: Mapping[str, int]
    """By runtime."""
    attach_failures: Mapping[tuple[str, str], int]
    """By (runtime, reason)."""
    governor_transitions: Mapping[tuple[str, str], int]
    """By (from, to) of n_w sources and sampling frequencies."""
    budget_ratio: float
    cost_ratio: float
    """Cost in all targets together, as a share of the machine's CPU time."""
    drain_seconds: float
    """How long the last drain took."""
    cores: int = 0
    """CPUs of the machine."""
    idle_s: float = 0.0
    """Core time in which the machine's CPUs had nothing to do, by the kernel's account."""
    ended: Metrics = field(default_factory=Metrics)
    """What the processes that are gone had."""
    pushed: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Pushed profiles by (backend, outcome): sent, retried, dropped."""
    push_queues: Mapping[str, PushQueue] = field(default_factory=dict)
    """By backend."""
    cost_seconds: Mapping[str, float] = field(default_factory=dict)
    """What the targets have paid, by kind of event: `parprof.kernel.records.COST_NAMES`."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Events that were left out to keep to the budget, by kind: `parprof.kernel.counters.LEFT_OUT`."""
    impossible: int = 0
    """Intervals in which a process was charged with more core time than there was."""
    checks: int = 0
    """How often exact totals of idleness were held against sampled ones, over some 20 s of a process."""
    disagreements: int = 0
    """How often the two parted by more than samples explain."""
    follows_switches: bool = True
    """Whether context switches are followed; if not, n_w is what runs on the CPUs at a sample."""
    detaching: int = 0
    """Links of probes that are still being taken away."""
    levels_s: tuple[float, ...] = ()
    """For how long n_w was at each level, summed up over all processes, ended ones too."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """What went from the recent profiles to make room: intervals, and call paths in them."""
    kept_bytes: int = 0
    """Memory that the recent profiles take, about."""
    edge_hits: Mapping[str, int] = field(default_factory=dict)
    """The same hits by kind of edge, of all runtimes together: the kernel does not tell which runtime's."""
    short_lived_s: Mapping[GroupKey, float] = field(default_factory=dict)
    """CPU time of processes that ended before it was decided about them, by what their parents belong to."""
    groups: tuple[GroupSnapshot, ...] | None = None
    """Where processes are told by groups in metrics; None: each by itself."""
    notes: tuple[str, ...] = ()
    protection: tuple[str, ...] = ()
    """What the daemon has given up, and what it could not, a sentence each."""
    past: tuple[MachinePoint, ...] = ()
    """The machine in the last quarter of an hour; empty for whom it is not meant."""
    clock_s: float = 0.0
    """As ``time_s``, CLOCK_MONOTONIC: how long something took is reckoned by this one."""
    begun_s: float = 0.0
    """As ``started_s``, CLOCK_MONOTONIC."""

    @property
    def watched_s(self) -> float:
        """For how long the daemon watches, time asleep left out; more than 0."""
        return max(self.clock_s - self.begun_s, 1e-9)

    def watched_process_s(self, process: ProcessSnapshot) -> float:
        """For how long it watches that process; more than 0."""
        return max(self.clock_s - process.begun_s, 1e-9)

    def total(self) -> Metrics:
        """Of all processes, ended ones too."""
        total = Metrics()
        total.add(self.ended)
        for process in self.processes:
            total.add(process.totals)
        return total


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """A recent profile that the daemon still has."""

    pid: int
    comm: str
    uid: int
    start_s: float
    duration_s: float
    samples: int


class Service(Protocol):
    """What HTTP, the control socket and the pushers may ask of the daemon. All methods are thread-safe."""

    def snapshot(self) -> Snapshot:
        """The newest snapshot; never waits."""

    def refresh(self) -> Future[None]:
        """Make a new snapshot, unless the newest is of the last moments."""

    def profiles(self) -> tuple[ProfileEntry, ...]:
        """What `profile` can give right now, newest first."""

    def profile(self, pid: int, seconds: float) -> Future[Profile]:
        """The profile of the last ``seconds`` of a process, as far as the daemon still has them.

        It is made of whole intervals, those that come nearest to these seconds: see `cut`.

        The future fails with TargetError where the process is not watched.
        """

    def history(self, pid: int, seconds: float, only: tuple[int, int] | None = None) -> Future[Profile]:
        """The same with its intervals, and which these are: see `parprof.service.recent.KEPT`.

        ``only``: the first and the last of the intervals that it is to be of. The future fails with TargetError where
        they are not kept any more.
        """

    def watch(self, pid: int) -> Future[bool]:
        """Begin to watch a process that the daemon's selection leaves out; fails with TargetError.

        The answer is whether it is watched now. If not, its files are being looked into: it will be, and who asks again
        is told when.
        """

    def unwatch(self, pid: int) -> Future[None]:
        """Stop to watch a process; fails with TargetError."""

    def find_waits(self, pid: int, wanted: bool) -> Future[None]:
        """Find out from now on where the threads of a process wait, and how often what is called; or do so no more."""

    def sample_at(self, frequency_hz: int) -> Future[None]:
        """Sample at this rate, if it is higher than the usual one, until further notice; 0: at the usual one."""

    def losses(self) -> Future[dict[str, int]]:
        """What was lost of all processes that are watched, by reason, until now; `snapshot` can be of before."""

    def cut(self, pid: int) -> Future[float]:
        """End the interval that is under way: profiles of this process that are asked for later can begin here.

        The answer is when that was, CLOCK_MONOTONIC: it comes when all of the interval is charged, which can take long.
        """

    def is_healthy(self) -> str:
        """Empty while the loop turns, else what is wrong, one line."""

    def is_ready(self) -> str:
        """Empty once programs and events are in place, else what is missing, one line."""
