"""Which processes are watched: by user, cgroup, container, name or PID; and when it is decided."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path

from parprof.kernel.detacher import DETACH_WORKER
from parprof.process.identity import parent_of
from parprof.service.labels import read_labels
from parprof.service.model import Labels
from parprof.untrusted import visible
from parprof.values import dataclass

SETTLE_SECONDS = 0.5
"""A process that ends sooner after its first sample is not worth reading its files: its samples are counted as
undecided."""
_WORKERS = (b"\0-P\0-m\0parprof.", b"\0-I\0-S\0" + os.fsencode(DETACH_WORKER) + b"\0")
"""In the command lines of children of ours: see `parprof.workers.client.start_child`, `parprof.kernel.detacher`."""
_WATCHES_PER_SECOND = 25
_MAX_CANDIDATES = 8192
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Rules:
    """A process matches if it matches any entry of any list. See `parprof.service.config.schema.Match`."""

    comm: tuple[str, ...] = ()
    uid: tuple[int, ...] = ()
    cgroup: tuple[str, ...] = ()
    container: tuple[str, ...] = ()
    pid: tuple[int, ...] = ()

    def match(self, pid: int, labels: Labels) -> bool:
        """Whether a process matches."""
        return (
            pid in self.pid
            or labels.uid in self.uid
            or any(fnmatchcase(labels.comm, pattern) for pattern in self.comm)
            or any(_in_cgroup(labels.cgroup, pattern) for pattern in self.cgroup)
            or any(labels.container.startswith(prefix) for prefix in self.container if prefix)
        )


def _in_cgroup(cgroup: str, pattern: str) -> bool:
    """Whether a cgroup matches a pattern or lies below one that does.

    >>> _in_cgroup("/system.slice/a.service/b", "/system.slice/*.service")
    True
    """
    parts = cgroup.split("/")
    return any(fnmatchcase("/".join(parts[:count]) or "/", pattern) for count in range(1, len(parts) + 1))


def is_ours(pid: int) -> bool:
    """Whether a process is the daemon or one of the children that work for it: nobody can mend their idleness."""
    own = os.getpid()
    try:
        if pid == own or parent_of(pid) != own:
            return pid == own
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return any(worker in command for worker in _WORKERS)
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Selection:
    """All processes, or with ``listed`` those that match ``allow``; never those that match ``deny``."""

    listed: bool = False
    allow: Rules = Rules()
    deny: Rules = Rules()

    def wants(self, pid: int, labels: Labels) -> bool:
        """Whether a process is to be watched."""
        if is_ours(pid) or self.deny.match(pid, labels):
            return False
        return not self.listed or self.allow.match(pid, labels)


class Candidates:
    """Processes that have been seen and are decided upon when they have lived a little."""

    def __init__(self, selection: Selection, max_processes: int) -> None:
        """At most ``max_processes`` are watched at a time; further ones wait until there is room.

        Those that are asked for need none, and who is not wanted does not wait.
        """
        self.selection = selection
        self.max_processes = max_processes
        self._due: dict[int, float] = {}
        self._waiting: dict[int, None] = {}
        """Those that are wanted and have found no room, in order."""
        self._allowed_s = 0.0
        self._looked_s = 0.0
        """When those that wait and have ended were left out last."""
        self.refused = 0
        """Processes that found no room in the list."""

    def __len__(self) -> int:
        """Number of processes that are yet to be decided upon."""
        return len(self._due) + len(self._waiting)

    def add(self, pid: int) -> None:
        """A process was seen for the first time, or is to be decided upon anew."""
        self._waiting.pop(pid, None)
        if len(self) >= _MAX_CANDIDATES:
            self._leave_out_ended()
        if len(self) >= _MAX_CANDIDATES:
            self.refused += 1
            return
        self._due.setdefault(pid, _now() + SETTLE_SECONDS)

    def _leave_out_ended(self) -> None:
        now_s = _now()
        if now_s - self._looked_s >= _LOOK_SECONDS:
            self._looked_s = now_s
            self._waiting = {pid: None for pid in self._waiting if _comm(pid) is not None}

    def wants(self, pid: int, comm: str) -> bool:
        """Whether the selection wants a process."""
        return self.selection.wants(pid, read_labels(pid, comm))

    def wait_seconds(self, longest: float) -> float:
        """How long to wait for the next decision that is due."""
        if not self._due:
            return longest
        first = min(next(iter(self._due.values())), _now() + longest)
        return max(max(first, self._allowed_s) - _now(), 0.01)

    def due(self, now_s: float, watched: int, asked: Collection[int] = ()) -> list[tuple[int, bool]]:
        """Whom to decide upon now, and how; those that have ended meanwhile are left out.

        ``watched``: how many are watched now; ``asked``: those that somebody has asked for.
        """
        out: list[tuple[int, bool]] = []
        while now_s >= self._allowed_s:
            has_room = watched + sum(wanted for _, wanted in out) < self.max_processes
            pid = self._next(now_s, has_room=has_room)
            if pid is None:
                break
            comm = _comm(pid)
            if comm is None:
                continue
            wanted = self.wants(pid, comm)
            if wanted and not has_room and pid not in asked:
                self._waiting[pid] = None
                continue
            out.append((pid, wanted))
            if wanted:
                self._allowed_s = max(self._allowed_s, now_s - 1.0) + 1.0 / _WATCHES_PER_SECOND
        return out

    def _next(self, now_s: float, *, has_room: bool) -> int | None:
        """Who is to be decided upon: the first of those that have waited for the longest."""
        if has_room and self._waiting:
            pid = next(iter(self._waiting))
            del self._waiting[pid]
            return pid
        pid, due_s = next(iter(self._due.items()), (0, math.inf))
        if due_s > now_s:
            return None
        del self._due[pid]
        return pid


def _now() -> float:
    return time.monotonic()


def _comm(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return visible(file.read(64).rstrip(b"\n"))
    except OSError:
        return None
