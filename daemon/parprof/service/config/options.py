"""What the daemon's loop has to know of the configuration."""

from __future__ import annotations

from dataclasses import field

from parprof.service.groups import MAX_GROUPS
from parprof.service.selection import Selection
from parprof.values import dataclass


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """See docs/configuration.md for those that users can set."""

    events: tuple[str, ...] = ("cpu-clock",)
    """The first one is the clock; further ones are counted beside it."""
    frequency_hz: int = 99
    """Samples a second and core, unless the governor lowers that."""
    interval_seconds: float = 10.0
    """How often samples are charged, and thus how old metrics may be."""
    budget_ratio: float = 0.01
    """Cost in each process, and of samples in all together, as a share of the CPU time that they use."""
    selection: Selection = field(default_factory=Selection)
    """Which processes are watched."""
    max_processes: int = 1000
    """Watched at a time; further ones wait until there is room."""
    paths_per_process: int = 2000
    """Call paths that stay apart in one interval; the coldest are folded into their callers."""
    functions_per_process: int = 5
    """The costliest functions, which a snapshot has by name."""
    by_process: bool = True
    """Whether metrics have series for each process; else for each group: see `parprof.service.groups`."""
    max_groups: int = MAX_GROUPS
    """Groups with series of their own."""
    ring_bytes: int = 16 << 20
    """Memory for recent profiles. See `parprof.service.recent.RecentProfiles`."""
    loops: bool = False
    """Put loops among the frames of call paths. Takes some memory for each hot function."""
    arguments: bool = False
    """Show commands with their arguments."""
    kernel_depth: int = 3
    """How much of a kernel stack is in call paths: the system call or interrupt and its entry. What lies deeper makes
    many paths of one, and says nothing about the program."""
