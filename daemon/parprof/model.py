"""The nouns that cross layers. Plain data, no behaviour beyond arithmetic.

Clocks: every ``*_ns`` that is a point in time is CLOCK_MONOTONIC; every duration is a difference of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from parprof.metrics import Metrics


class ThreadState(IntEnum):
    """What a thread did at a sample (DESIGN.md section 2). Values are those of ``bpf/wire.h``."""

    WORKING = 0
    SPINNING = 1


class FactKey(NamedTuple):
    """What samples are counted under; see `Fact`."""

    image: int
    tid: int
    event: int
    state: ThreadState
    n_working: int
    user: int
    kernel: int
    epoch: int
    context: int
    waiters: int
    fine: int = 0


@dataclass(frozen=True, slots=True)
class Fact:
    """Samples that the kernel counted under one key between two drains.

    ``user`` and ``kernel`` are stack ids, 0 = none (`Kernel.stack` gives the frames). ``count`` is a number of
    samples, ``total`` the sum of their periods in the event's own unit (meaningless for clock events, where a
    sample stands for 1/frequency seconds). ``image`` names one process image: one exec of one process, never
    reused.
    """

    image: int
    tid: int
    event: int
    state: ThreadState
    n_working: int
    unsure: bool
    user: int
    kernel: int
    count: int
    total: int
    epoch: int = 0
    """Which load map the addresses belong to: counts the changes that ld.so reported."""
    context: int = 0
    """The call path that created the piece of work (`Kernel.context`); 0: the stack is whole by itself."""
    waiters: int = 0
    """Threads that wait for a lock which this one holds."""
    fine: int = 0
    """Size of a team whose barriers come too often for ``n_working`` to be read in time: it is too low. Else 0."""

    @property
    def key(self) -> FactKey:
        """What these samples are counted under."""
        return FactKey(
            self.image, self.tid, self.event, self.state, self.n_working, self.user, self.kernel, self.epoch,
            self.context, self.waiters, self.fine,
        )  # fmt: skip


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


Path = tuple[Frame, ...]
"""A call path, root first."""


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


@dataclass(slots=True)
class PathSample:
    """The metrics of one call path of one thread. ``path`` is the logical one."""

    path: Path
    metrics: Metrics
    origin: Origin = Origin()
    physical: Path = ()
    """The physical call path; empty where it is the same."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """The process a profile is about."""

    pid: int = 0
    comm: str = ""
    command: str = ""
    runtime: str = "none"
    cores: int = 1
    n_w_source: str = "scheduler"


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

    def total(self) -> Metrics:
        """The sum over all samples."""
        out = Metrics()
        for sample in self.samples:
            out.add(sample.metrics)
        return out
