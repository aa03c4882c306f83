"""The nouns that cross layers. Plain data, no behaviour beyond arithmetic.

Clocks: every ``*_ns`` that is a point in time is CLOCK_MONOTONIC; every duration is a difference of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import IntEnum
from itertools import zip_longest
from typing import NamedTuple

from parprof.metrics import Metrics
from parprof.values import dataclass


class ThreadState(IntEnum):
    """What a thread did at a sample (DESIGN.md section 2). Values are those of ``bpf/wire.h``."""

    WORKING = 0
    SPINNING = 1
    BLOCKED = 2
    """A wait that is over, no sample: see `NO_EVENT`."""
    STALLED = 3
    """Nor is this: nobody worked since this thread went to sleep, until somebody woke up."""


NO_EVENT = 255
"""The event of rows that no perf event made. Their `Count.total` are nanoseconds of wall-clock time, exact;
`Count.samples` is how many such waits there were."""

ACTIVATION = 254
"""The event of rows that say how often a function was called at least: so many activations of the innermost frame of
``user`` were told apart by samples (`Count.samples`)."""


(
    AWAITS_UNKNOWN,
    AWAITS_GIL,
    AWAITS_TIME,
    AWAITS_ANSWER,
    AWAITS_PIPE,
    AWAITS_DEADLOCK,
    AWAITS_LOCKED,
    AWAITS_THAW,
    AWAITS_CHILD,
    AWAITS_FILE,
) = range(10)
"""What a wait is for (``enum awaited``): what the functions of the kernel tell; the lock of a Python interpreter;
nothing but time; somebody's answer, on a connection that the waiter has made; pipes of other processes. From outside
alone, of threads that sleep (`parprof.session.asleep`): a mutex whose owner waits for this thread; anything, by one
that has a mutex which others wait for. Then again from the programs: the end of a freeze; that of another process, by
a file that tells of it."""

SEVERAL_THREADS = 0
"""In place of a thread's id: nobody knows which, or those that only slept, put together (`parprof.facts.sleepers`)."""


class SampleKey(NamedTuple):
    """What samples are counted under: the fields of ``struct sample_key`` (bpf/wire.h) by their names there.

    Further fields of that are the drain's own business: ``phase``, ``unsure``, which `Count` has, and
    ``fresh``, of which rows of their own are made: see `ACTIVATION`.
    """

    image: int
    """One process image: one exec of one process. Never given out twice."""
    tid: int
    event: int
    """Index of the perf event; 0 is the clock, `NO_EVENT` and `ACTIVATION` none."""
    state: ThreadState
    n_working: int
    """Threads of the image's scope in user work, this one included; not clamped to cores."""
    user: int
    """Id of the user stack, 0 = none."""
    kernel: int
    """Id of the kernel stack, 0 = none: the sample hit user mode."""
    epoch: int = 0
    """Which load map the addresses belong to: counts the changes that ld.so reported."""
    context: int = 0
    """The call path that created the piece of work; 0: the stack is whole by itself."""
    waiters: int = 0
    """Threads that wait for a lock which this one holds."""
    fine: int = 0
    """Size of a team whose barriers come too often for ``n_working`` to be read in time: it is too low. Else 0."""
    away: int = 0
    """Cores that the scope's runnable threads waited for, and that others had."""
    awaits: int = 0
    """Of a wait or a stall: `AWAITS_UNKNOWN` and the others."""
    glimpse: int = 0
    """Of a wait or a stall: not 0 where it was seen in a glimpse (`parprof.kernel.glimpses`), and its `Count.total`
    stands for the time around that, too."""


@dataclass(slots=True)
class Count:
    """How many samples were counted under one key."""

    samples: int = 0
    total: int = 0
    """The sum of their periods in the event's own unit. Each sample of the clock stands for 1/frequency seconds,
    whatever this says; only of ``cycles`` it is a count."""
    unsure: int = 0
    """So many of the samples have an n_w, or a state, that is partly a guess."""

    def add(self, other: Count) -> None:
        """Add ``other`` in place."""
        self.samples += other.samples
        self.total += other.total
        self.unsure += other.unsure


Facts = dict[SampleKey, Count]
"""What the kernel counted."""


def add_facts(facts: Facts, more: Mapping[SampleKey, Count]) -> None:
    """Add ``more`` to ``facts``, which may keep its counts as their own."""
    for key, count in more.items():
        known = facts.get(key)
        if known is None:
            facts[key] = count
        else:
            known.add(count)


@dataclass(frozen=True, slots=True)
class Frame:
    """One level of a call path as its reader sees it.

    ``line`` is the line that was executing (leaf) or calling (others), 0 when unknown; ``start_line`` is where
    the function begins. ``address`` is the ELF virtual address inside ``module``, 0 for synthetic frames.
    ``inlined`` frames share the address of the frame that follows them towards the root. A loop (``is_loop``)
    is a scope within the function, or other loop, next towards the root, and counts as inlined into it: it has
    the same line, and begins at ``start_line``.
    """

    name: str
    file: str = ""
    line: int = 0
    start_line: int = 0
    module: str = ""
    build_id: str = ""
    address: int = 0
    inlined: bool = False
    is_loop: bool = False
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        """Hash once: frames are hashed far more often than they are made."""
        names = self.name, self.file, self.line, self.start_line, self.module, self.build_id
        object.__setattr__(self, "_hash", hash((names, self.address, self.inlined, self.is_loop)))

    def __hash__(self) -> int:
        return self._hash


Frames = tuple[Frame, ...]
"""The frames at one address, the innermost inlined function or loop first."""
StackRow = tuple[int, bool, Frames]
"""A physical frame: address, whether it is a return address, and its frames."""
StackMerge = Callable[[list[StackRow], bool], tuple[list[Frame], bool]]
"""(rows leaf first, whether the stack is whole) -> frames leaf first, those of an interpreted language among them, and
whether the outermost one is known now."""
Path = tuple[Frame, ...]
"""A call path, root first."""


class CallerStep(NamedTuple):
    """From a frame to its caller's."""

    word: int
    """What stands for the frame: its address, or what a language has instead."""
    pc: int
    sp: int
    rbp: int | None


class Origin(NamedTuple):
    """Whom samples belong to: with the call paths, what they are counted under."""

    pid: int = 0
    comm: str = ""
    thread: str = ""
    runtime: str = ""
    overhead: str = ""
    """Category of overhead (sync, schedule, create, other) when the leaf is runtime code, else empty."""
    image: int = 0
    """The process image (see `Fact`); 0 in what was read from a file."""
    labels: tuple[tuple[str, str], ...] = ()
    """What users called it (`parprof merge --label`): names and values, by name."""
    tid: int = 0
    """The thread, so that those of one name can be told apart; 0 where that is not kept, as in the daemon."""


Levels = tuple[float, ...]
"""At which n_w there was work, as `parprof.attribution.concurrency` reads it: first the elapsed time, then CPU time by
bucket of n_w, up to the last that has any. Nanoseconds. Empty: no work, or not known, as in files of before."""


@dataclass(slots=True)
class PathSample:
    """The metrics of one call path of one thread. ``path`` is the logical one."""

    path: Path
    metrics: Metrics
    origin: Origin = Origin()
    physical: Path = ()
    """The physical call path; empty where it is the same."""
    levels: Levels = ()


NOBODY: Path = (Frame("[nobody works]"),)
"""Stall that belongs to no call path: nobody slept whose step could have begun it, nor was anyone seen to spin."""

OTHERS: Path = (Frame("[others had the cores]"),)
"""Cores that others had while none of the threads that could work had one: there is no sample to charge with it."""

NOT_LOOKED_AT: Path = (Frame("[asleep, not looked where]", module="[kernel]"),)
"""Below this: threads that slept before we came, or where there was no time to walk their stacks."""

SCOPE = "scope"
"""What was measured as one job, among `Profile.extra`: process, tree or cgroup. Not there where nobody chose."""

TRACE_ELAPSED, TRACE_MINIMUM = "trace_elapsed_s", "trace_minimum_time_s"
"""What an execution trace says, among `Profile.extra`: seconds; see `parprof.timeline.minimum`."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """The process a profile is about."""

    pid: int = 0
    comm: str = ""
    command: str = ""
    runtime: str = "none"
    cores: int = 1
    n_w_source: str = "scheduler"
    others: int = 0
    """How many more processes of the same program are told as this one: see `parprof.profile.programs`."""

    @property
    def number(self) -> str:
        """Its PID, or how many processes are told as it.

        >>> ProcessInfo(7, "cc1").number, ProcessInfo(7, "cc1", others=1999).number
        ('7', '2,000 processes')
        """
        return f"{1 + self.others:,} processes" if self.others else str(self.pid)

    @property
    def program(self) -> str:
        """What was run, by its path or name."""
        return next(iter(self.command.split()), self.comm)

    def as_json(self) -> dict[str, str | int]:
        """As reports that are plain data begin with it."""
        return {
            "pid": self.pid,
            "comm": self.comm,
            "command": self.command,
            "runtime": self.runtime,
            "cores": self.cores,
            "n_w_source": self.n_w_source,
        }


@dataclass(frozen=True, slots=True)
class Accounting:
    """What all core time of a scope adds up to (DESIGN.md sec. 2). Seconds of core time, unless another is named."""

    cores: float
    """n; the mean where that changed."""
    elapsed_s: float
    """Wall-clock time from the first thread that worked to the end, less that in which all who could were stopped."""
    work_s: float
    """Sampled; time in our own handlers is part of it."""
    ready_s: float
    """Working threads had no CPU, though there were no more of them than cores."""
    stolen_s: float
    """Cores that others had while threads wanted them that wait for each other, or that others waited for."""
    idleness_s: float
    """Sampled."""
    stall_s: float
    """n x the time in which nobody worked, that without anything to do included."""
    counted_idleness_s: float | None
    """``idleness_s`` and what was stolen meanwhile by another way: from each change of n_w; None where some were not
    seen."""
    level_s: tuple[float, ...] = ()
    """For how long (wall-clock time) n_w was 0, 1, 2, ..."""

    @property
    def available_s(self) -> float:
        """n x time."""
        return self.cores * self.elapsed_s

    @property
    def withheld_s(self) -> float:
        """What its threads wanted and were not given: others had the cores, or a quota was used up."""
        return self.ready_s + self.stolen_s

    @property
    def accounted(self) -> float:
        """How much of n x time is told where it went: near 1.

        >>> Accounting(2, 5.0, 6.0, 0.25, 0.25, 2.5, 1.0, None).accounted
        1.0
        """
        if not self.available_s:
            return 0.0
        return (self.work_s + self.withheld_s + self.idleness_s + self.stall_s) / self.available_s

    @property
    def unsampled_s(self) -> float:
        """Where each change of n_w was seen: core time in which threads worked, or cores were idle, between samples.

        A thread that wakes up for microseconds is rarely met by the sampling timer: the processor is then mostly in the
        scheduler, where interrupts wait.

        >>> round(Accounting(2, 5.0, 5.5, 0.25, 0.25, 2.0, 1.0, 2.5).unsampled_s, 3)
        1.0
        """
        if self.counted_idleness_s is None:
            return 0.0
        return max(self.available_s * (1.0 - self.accounted), 0.0)


@dataclass(frozen=True, slots=True)
class Interval:
    """A part of a measurement's time, and what of a profile's rows is of it."""

    begin_s: float
    """Since profiling began."""
    end_s: float
    level_s: tuple[float, ...] = ()
    """For how long of it n_w of the job was 0, 1, 2, ..."""
    rows: Mapping[int, Metrics] = field(default_factory=dict)
    """By number of the row in `Profile.samples`: what of it was then. All intervals together have all of it."""

    def joined(self, later: Interval) -> Interval:
        """This one and the one behind it as one."""
        rows = {row: metrics.copy() for row, metrics in self.rows.items()}
        for row, metrics in later.rows.items():
            if row in rows:
                rows[row].add(metrics)
            else:
                rows[row] = metrics
        levels = map(sum, zip_longest(self.level_s, later.level_s, fillvalue=0.0))
        return Interval(self.begin_s, later.end_s, tuple(levels), rows)


@dataclass(slots=True)
class Profile:
    """Everything a report needs; what a profile file holds."""

    process: ProcessInfo
    duration_s: float
    frequency_hz: int
    samples: list[PathSample]
    event: str = "cpu-clock"
    lost: dict[str, int] = field(default_factory=dict)
    target_cost_percent: float = 0.0
    daemon_cost_percent: float = 0.0
    notes: list[str] = field(default_factory=list)
    """Sentences the reader must know: fallbacks, truncation, guessed n_w."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Further ``key: value`` comments of the file."""
    start_time_s: float = 0.0
    """When profiling began, seconds since the epoch (CLOCK_REALTIME)."""
    accounting: Accounting | None = None
    """None: not known."""
    processes: list[ProcessInfo] = field(default_factory=list)
    """Those that were measured together, where they are several."""
    intervals: list[Interval] = field(default_factory=list)
    """What was when, in order. Empty where that is not known: in files of before, and what was merged."""

    @property
    def elapsed_s(self) -> float:
        """How long the program took, as far as that is known, else the measurement."""
        return self.accounting.elapsed_s if self.accounting else self.duration_s

    @property
    def available_ns(self) -> float:
        """n x time: what all cores had."""
        cores = self.accounting.cores if self.accounting else self.process.cores
        return cores * self.elapsed_s * 1e9

    def by_process(self) -> list[tuple[ProcessInfo, Metrics]]:
        """Each process that was measured, as it was first (an exec may change it), with the sum over its samples."""
        first: dict[int, ProcessInfo] = {}
        for process in self.processes or [self.process]:
            first.setdefault(process.pid, process)
        sums = {pid: Metrics() for pid in first}
        for sample in self.samples:
            if sample.origin.pid in sums:
                sums[sample.origin.pid].add(sample.metrics)
        return [(process, sums[pid]) for pid, process in first.items()]

    def total(self) -> Metrics:
        """The sum over all samples."""
        out = Metrics()
        for sample in self.samples:
            out.add(sample.metrics)
        return out
