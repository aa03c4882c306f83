"""What is known of a program's routines and their input."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace

from parprof.values import dataclass

BLOCKS, NANOSECONDS = "blocks", "ns"
_TRUST = ("proc", "bpf", "tool")


@dataclass(slots=True)
class Point:
    """Activations of a routine that had one size of input; sums are over them. Costs are in the profile's unit."""

    trms: int
    rms: int
    calls: int = 0
    trms_sum: int = 0
    rms_sum: int = 0
    induced: int = 0
    external: int = 0
    cost_sum: int = 0
    cost_max: int = 0
    self_cost: int = 0
    """Of ``cost_sum``: without what was called."""
    time_sum_ns: int = 0
    time_max_ns: int = 0
    unfinished: int = 0
    inner_cost: int = 0
    """Of ``cost_sum``: of activations within others of the same routine, which have it in theirs."""

    def add(self, other: Point) -> None:
        """Count another's activations in."""
        self.calls += other.calls
        self.trms_sum += other.trms_sum
        self.rms_sum += other.rms_sum
        self.induced += other.induced
        self.external += other.external
        self.cost_sum += other.cost_sum
        self.cost_max = max(self.cost_max, other.cost_max)
        self.self_cost += other.self_cost
        self.time_sum_ns += other.time_sum_ns
        self.time_max_ns = max(self.time_max_ns, other.time_max_ns)
        self.unfinished += other.unfinished
        self.inner_cost += other.inner_cost

    @property
    def cost_mean(self) -> float:
        """The mean cost of an activation."""
        return self.cost_sum / self.calls

    @property
    def outer_cost(self) -> int:
        """The cost of all, each counted once."""
        return max(0, self.cost_sum - self.inner_cost)


@dataclass(frozen=True, slots=True)
class RoutineName:
    """What tells routines apart: clones and copies of one have one name."""

    name: str
    module: str = ""
    file: str = ""
    line: int = 0
    callers: tuple[str, ...] = ()
    """The routines that led to it, outermost first, where contexts were asked for."""
    thread: int | None = None
    """The number of the thread, where those are told apart; None: of all threads together."""


@dataclass(slots=True)
class Routine:
    """One routine's activations, by size of input, of all threads together."""

    identity: RoutineName
    points: dict[tuple[int, int], Point] = field(default_factory=dict)
    """By trms and rms."""
    by_thread: dict[int, int] = field(default_factory=dict)
    """Calls by thread slot."""

    def add(self, point: Point) -> None:
        """Count activations in."""
        own = self.points.setdefault((point.trms, point.rms), Point(point.trms, point.rms))
        own.add(point)

    def add_all(self, other: Routine) -> None:
        """Count another's activations in."""
        for point in other.points.values():
            self.add(point)
        for thread, calls in other.by_thread.items():
            self.by_thread[thread] = self.by_thread.get(thread, 0) + calls

    def by_trms(self) -> list[Point]:
        """A point for each trms, in order."""
        return _merged(self.points.values(), by_rms=False)

    def by_rms(self) -> list[Point]:
        """A point for each rms, in order."""
        return _merged(self.points.values(), by_rms=True)

    def total(self) -> Point:
        """All activations together."""
        out = Point(0, 0)
        for point in self.points.values():
            out.add(point)
        return out

    @property
    def profile_richness(self) -> float:
        """How many more points trms gives than rms, relative to those of rms (coppa-2013 section 6)."""
        n_rms = len({rms for _, rms in self.points})
        return (len({trms for trms, _ in self.points}) - n_rms) / n_rms if n_rms else 0.0

    @property
    def input_volume(self) -> float:
        """1 - sum of rms / sum of trms: the share of its input that rms does not see (section 6)."""
        total = self.total()
        return 1 - total.rms_sum / total.trms_sum if total.trms_sum else 0.0


def _merged(points: Iterable[Point], *, by_rms: bool) -> list[Point]:
    out: dict[int, Point] = {}
    for point in points:
        size = point.rms if by_rms else point.trms
        own = out.setdefault(size, Point(0 if by_rms else size, size if by_rms else 0))
        own.add(point)
    return [out[size] for size in sorted(out)]


def total(one: int | None, other: int | None) -> int | None:
    """The sum of two counts, unknown (None) where one is."""
    return None if one is None or other is None else one + other


@dataclass(slots=True)
class InputProfile:
    """What one or more runs showed."""

    command: str
    tool: str
    """``valgrind`` or ``tsan``; ``both`` where runs of both were added up."""
    cost_unit: str
    routines: dict[RoutineName, Routine] = field(default_factory=dict)
    first: int = 0
    """Reads that were first accesses, each counted once for its thread."""
    induced: int = 0
    external: int = 0
    threads: int = 0
    processes: int = 0
    runs: int = 1
    seen_read_bytes: int = 0
    all_read_bytes: int | None = 0
    """What system calls brought in all; None: unknown."""
    counted_by: str = "tool"
    """Who says so: ``bpf``; ``proc``, which leaves out what sockets brought; ``tool``, which all passes through."""
    seen_sent_bytes: int = 0
    """That system calls took: the kernel's reads count as the thread's (procedure kernelRead of figure 12)."""
    all_sent_bytes: int | None = 0
    notes: list[str] = field(default_factory=list)
    """What the reader must know, a sentence each."""

    def routine(self, identity: RoutineName) -> Routine:
        """The routine of that name, made if need be."""
        found = self.routines.get(identity)
        if found is None:
            found = self.routines[identity] = Routine(identity)
        return found

    def note(self, sentence: str) -> None:
        """Say it once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def add(self, other: InputProfile) -> None:
        """Add another run's activations to these."""
        if other.cost_unit != self.cost_unit:
            raise ValueError(f"costs in {other.cost_unit} cannot be added to costs in {self.cost_unit}")
        for identity, routine in other.routines.items():
            self.routine(identity).add_all(routine)
        self.tool = self.tool if self.tool == other.tool else "both"
        self.first += other.first
        self.induced += other.induced
        self.external += other.external
        self.threads += other.threads
        self.processes += other.processes
        self.runs += other.runs
        self.seen_read_bytes += other.seen_read_bytes
        self.seen_sent_bytes += other.seen_sent_bytes
        self.counted_by = min(self.counted_by, other.counted_by, key=_TRUST.index)
        self.all_read_bytes = total(self.all_read_bytes, other.all_read_bytes)
        self.all_sent_bytes = total(self.all_sent_bytes, other.all_sent_bytes)
        for sentence in other.notes:
            self.note(sentence)

    def merged(self) -> InputProfile:
        """The same with the activations of all contexts and threads of a routine together."""
        out = replace(self, routines={}, notes=[*self.notes])
        for identity, routine in self.routines.items():
            own = out.routine(replace(identity, callers=(), thread=None))
            own.add_all(routine)
        return out

    @property
    def input_volume(self) -> float:
        """1 - sum of rms / sum of trms over all activations (section 6)."""
        rms = trms = 0
        for routine in self.routines.values():
            total = routine.total()
            rms += total.rms_sum
            trms += total.trms_sum
        return 1 - rms / trms if trms else 0.0

    @property
    def total_self_cost(self) -> int:
        """The cost of all routines, each block counted once."""
        return sum(point.self_cost for routine in self.routines.values() for point in routine.points.values())
