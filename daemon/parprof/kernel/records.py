"""What crosses the line between the programs and Python, as Python sees it; values are those of ``bpf/wire*.h``."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from parprof.model import ThreadState
from parprof.plans import ClosureChain, MemoryPlan
from parprof.values import dataclass

FOLLOW_CHILDREN, STOP_AT_EXEC, HAS_RUNTIME, STOP_AT_LOAD = 1, 2, 4, 8
FROM_LEAVES, FROM_MEMORY, CHECK_MEMORY, CACTUS, BLAME_LOCKS, LETS_GO = 16, 32, 64, 128, 256, 512
LOADS_ONCE, CREATORS_UNPROBED = 1024, 2048
MAX_RUNTIME_RANGES, MAX_USER_RANGES, MAX_WAIT_RANGES, MAX_LIBC_RANGES = 6, 4, 16, 2
MAX_SPIN_RANGES, MAX_UNPROBED_RANGES = 16, 2
RECORD_EXEC, RECORD_FORK, RECORD_EXIT, RECORD_LEARNED, RECORD_LOAD_MAP, RECORD_REPLACED = 2, 3, 4, 5, 6, 8
RECORD_STALE_MAP, RECORD_SEEN, RECORD_CUT, RECORD_GLIMPSE, RECORD_ABSENT_ROWS = 9, 12, 13, 18, 19
COMMAND_RECOUNT, COMMAND_PROBE, COMMAND_SETTLE = 1, 2, 3
COMMAND_LEAVE, COMMAND_ALLOW, COMMAND_FREEZE, COMMAND_WAITS = 4, 5, 6, 7
COMMAND_TRACE, COMMAND_PLACE = 8, 9
GUESSED_ASLEEP, NO_RUNTIME = 2, 3


class Cost(IntEnum):
    """What a process pays for: ``enum cost_kind``."""

    PROBE = 0
    """Work edges."""
    LOCK = 1
    """Edges that tell who holds a lock."""
    CREATE = 2
    """Creation of threads."""
    WALK = 3
    """Walks of creators' stacks."""
    SWITCH = 4
    """Context switches and wake-ups."""
    SAMPLE = 5
    TIMER = 6
    """The interrupts of samples: no part of the budget, for the rate alone decides."""
    WAIT = 7
    """Where threads wait."""
    CALL = 8
    """Calls that are counted exactly."""
    TRANSFER = 9
    """Bytes of system calls, counted and sampled."""
    ALLOCATION = 10
    """Bytes that are allocated."""


COST_NAMES = {
    Cost.PROBE: "probes",
    Cost.LOCK: "locks",
    Cost.CREATE: "thread creation",
    Cost.WALK: "creators' stacks",
    Cost.SWITCH: "context switches",
    Cost.SAMPLE: "samples",
    Cost.TIMER: "timer",
    Cost.WAIT: "waits",
    Cost.CALL: "calls",
    Cost.TRANSFER: "bytes",
    Cost.ALLOCATION: "allocations",
}
"""As in reports."""


class ControlRecord(NamedTuple):
    """A rare event of a watched process. ``kind`` is one of the RECORD_* constants.

    Thousands of these a second come from a build; a tuple is made in a quarter of the time of a frozen dataclass.
    """

    kind: int
    pid: int
    tid: int
    image: int
    parent_pid: int
    stopped: bool
    address: int
    time_ns: int
    comm: str


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One sample with its instant (CLOCK_MONOTONIC), for tests and self-checks."""

    image: int
    tid: int
    time_ns: int
    ip: int
    n_working: int
    state: ThreadState
    unsure: bool


class ProcessState(NamedTuple):
    """What the kernel knows of one process now."""

    image: int
    n_working: int
    """Now; with `ticks` as it was when switches were last followed."""
    n_unknown: int
    members: int
    members_max: int
    probe_hits: int
    spent_ns: tuple[int, ...]
    """What the process paid for being profiled so far, by `Cost`. Nanoseconds of CPU time."""
    ready_ns: int
    """Time that its working threads waited for a CPU, while switches were followed."""
    ticks: bool
    """Switches are not followed: n_w is what runs on the CPUs at a sample."""
    thin: int
    """One sample in 2**thin is taken."""
    threads_created: int = 0
    last_image: int = 0
    """The one before the last exec; 0: there was none."""
    last_ready_ns: int = 0
    """What its working threads had waited for a CPU in all."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What events take from the target beside our programs, nanoseconds."""

    entry_ns: int = 1000
    """The trap of a probe whose instruction the kernel emulates."""
    dear_ns: int = 3000
    """That of one which it executes out of line."""
    return_ns: int = 900
    """That of a return probe."""
    interrupt_ns: int = 2000
    """A sample's timer interrupt."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of its CPU time a process may pay for being profiled."""

    ratio: float = 0.01
    burst_ns: int = 20_000_000
    """What it may pay at once: so much is saved up where less is needed."""


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """What the programs need to know of one process. Ranges are addresses in it, [start, end)."""

    flags: int = 0
    runtime_ranges: tuple[tuple[int, int], ...] = ()
    user_ranges: tuple[tuple[int, int], ...] = ()
    wait_ranges: tuple[tuple[int, int], ...] = ()
    """The runtimes' code in which threads wait; none: all of it may."""
    code_spans: tuple[tuple[int, int], ...] = ()
    """Spans in which all of its code is, and little else: that of the executable, that of the libraries."""
    spin_ranges: tuple[tuple[int, int], ...] = ()
    """Code of any file in which threads only wait for each other."""
    libc_ranges: tuple[tuple[int, int], ...] = ()
    """The C library, in whose stubs threads wait that the runtimes' code sent there."""
    unprobed_ranges: tuple[tuple[int, int], ...] = ()
    """Runtimes without probes, beside others that are probed: their threads are judged by what they run."""
    memory: MemoryPlan | None = None
    closures: ClosureChain | None = None
