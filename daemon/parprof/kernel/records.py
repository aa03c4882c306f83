"""What crosses the line between the programs and Python, as Python sees it; values are those of ``bpf/wire.h``."""

from __future__ import annotations

from dataclasses import dataclass

from parprof.model import ThreadState
from parprof.runtimes.memory import ClosureChain, MemoryPlan

FOLLOW_CHILDREN, STOP_AT_EXEC, HAS_RUNTIME, STOP_AT_LOAD = 1, 2, 4, 8
FROM_LEAVES, FROM_MEMORY, CHECK_MEMORY, CACTUS, BLAME_LOCKS = 16, 32, 64, 128, 256
MAX_RUNTIME_RANGES, MAX_USER_RANGES = 6, 4
RECORD_EXEC, RECORD_FORK, RECORD_EXIT, RECORD_LEARNED, RECORD_LOAD_MAP, RECORD_REPLACED = 2, 3, 4, 5, 6, 8
RECORD_STALE_MAP, RECORD_SEEN = 9, 12


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """A rare event of a watched process. ``kind`` is one of the RECORD_* constants."""

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


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What the kernel knows of one process now."""

    image: int
    n_working: int
    n_unknown: int
    members: int
    members_max: int
    probe_hits: int


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """What the programs need to know of one process. Ranges are addresses in it, [start, end)."""

    flags: int = 0
    runtime_ranges: tuple[tuple[int, int], ...] = ()
    user_ranges: tuple[tuple[int, int], ...] = ()
    libc_range: tuple[int, int] = (0, 0)
    memory: MemoryPlan | None = None
    closures: ClosureChain | None = None
