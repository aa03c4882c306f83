"""Who a process is, whether it can be profiled, and how many cores it may use.

A pid names different processes over time; pid and start time together name one. An exec changes neither.

psutil (7.2) knows most of this. It is used where that is asked rarely. The rest is asked for each process
that starts and, some of it, once a second for each that is watched, and read here. CPU time of one question
on a busy machine with 2 cores, ours and psutil's, in microseconds: all of `inspect` 110 and 192 (and psutil
reads a command line of any length, and takes a thread for a process); whether it is alive 22 and 26; the
cores that one thread may use 1 and 39; the number of threads (`parprof.service.watching`) 4 and 77; the
parent 26 and 91. To import it takes 31 ms and 2.6 MiB.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from parprof.errors import TargetError
from parprof.kernel.cpu_time import cpu_time_ns
from parprof.process.cgroups import CGROUP_ROOT, Quota, cgroup_quota, membership_of
from parprof.process.threads import thread_ids
from parprof.untrusted import visible
from parprof.values import dataclass

_PF_EXITING, _PF_KTHREAD = 0x00000004, 0x00200000
_MAX_COMMAND = 4096
_MAX_TASKS = 4096
_EXEC_SECONDS, _EXEC_STEP_SECONDS = 1.0, 0.001


@dataclass(frozen=True, slots=True)
class Process:
    """One process. ``start_ticks`` is its start in clock ticks after boot; texts are safe to show.

    ``command`` is the command line as one would type it, clipped; ``exe`` the program's path, empty where
    that is unknown.
    """

    pid: int
    start_ticks: int
    comm: str
    command: str
    exe: str


class _Stat(NamedTuple):
    comm: bytes
    state: str
    flags: int
    threads: int
    start_ticks: int

    @property
    def has_ended(self) -> bool:
        """A process whose first thread alone has ended looks like a zombie, but for its other threads."""
        return self.state in ("Z", "X", "x") and self.threads <= 1


def _stat(pid: int) -> _Stat | None:
    """What ``/proc/PID/stat`` says; None if there is no such thread."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            raw = file.read(4096)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return parse_stat(raw)


def parse_stat(raw: bytes) -> _Stat | None:
    """The fields of a ``/proc/PID/stat`` line; a comm may hold spaces and parentheses. None if damaged.

    >>> parse_stat(b"7 (a) R (b) S 1 7 7 0 -1 4194304 " + b"0 " * 12 + b"55 0").start_ticks
    55
    """
    head, closed, tail = raw.rpartition(b")")
    fields = tail.split()
    try:
        flags, threads, start = int(fields[6]), int(fields[17]), int(fields[19])
        return _Stat(head.partition(b"(")[2], fields[0].decode(), flags, threads, start)
    except (IndexError, ValueError):
        return None


def inspect(pid: int) -> Process:
    """The process with this pid.

    Raises:
        TargetError: there is none that can be profiled; the text says why and what to do.
    """
    stat = _stat(pid) if pid > 0 else None
    if stat is None:
        raise TargetError(f"there is no process {pid}: see 'ps -e' for those that run")
    leader = _thread_group(pid)
    if leader not in (0, pid):
        raise TargetError(f"PID {pid} is a thread of process {leader}: attach to {leader}")
    comm = visible(stat.comm)
    if stat.flags & _PF_KTHREAD:
        raise TargetError(f"process {pid} ({comm}) is a kernel thread: kernel threads have no user code")
    if stat.has_ended:
        raise TargetError(f"process {pid} ({comm}) has ended but its parent has not collected it")
    if stat.state == "Z":
        raise TargetError(f"the first thread of process {pid} ({comm}) has ended: its maps cannot be read")
    exe = ""
    with suppress(OSError):
        exe = visible(os.fsencode(os.readlink(f"/proc/{pid}/exe")))
    return Process(pid, stat.start_ticks, comm, _command(pid) or f"[{comm}]", exe)


def is_32_bit(pid: int) -> bool:
    """Whether a process runs a 32-bit program; False where that cannot be read.

    Its auxiliary vector tells, which is pairs of words: the first of each is a small number. In the middle of an exec
    there is none yet: whoever started the process has been told by then that the exec succeeded, and on a busy machine
    it may wait for a core there. We wait for it, at most ``_EXEC_SECONDS``.
    """
    end_s = time.monotonic() + _EXEC_SECONDS
    while (first := _begin_of_auxv(pid)) == bytes(8) and time.monotonic() < end_s:
        time.sleep(_EXEC_STEP_SECONDS)
    return len(first) == 8 and int.from_bytes(first, "little") >= 1 << 32


def _begin_of_auxv(pid: int) -> bytes:
    """Eight bytes, which are 0 while a program is being loaded; fewer if there is no such process."""
    with suppress(OSError), open(f"/proc/{pid}/auxv", "rb") as file:
        return file.read(8)
    return b""


def parent_of(pid: int) -> int:
    """The parent of a process; 0 if it is gone. For where records of the kernel were lost, else they tell."""
    import psutil  # rarely needed, and dear to load

    try:
        return psutil.Process(pid).ppid()
    except psutil.Error:
        return 0


def descendants(pid: int) -> list[int]:
    """The processes that it has forked and that live, with all that these have; parents first. None if it is gone."""
    import psutil  # rarely needed, and dear to load

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def is_alive(process: Process) -> bool:
    """Whether that very process still runs; a zombie does not."""
    stat = _stat(process.pid)
    return stat is not None and stat.start_ticks == process.start_ticks and not stat.has_ended


def _thread_group(pid: int) -> int:
    """The process that a thread belongs to; 0 if unknown."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"Tgid:"):
                return int(line[5:])
    return 0


def _command(pid: int) -> str:
    with suppress(OSError):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            raw = file.read(_MAX_COMMAND + 1)
        clipped = len(raw) > _MAX_COMMAND
        arguments = raw[:_MAX_COMMAND].rstrip(b"\0").split(b"\0") if raw.strip(b"\0") else []
        text = " ".join(shlex.quote(visible(argument)) for argument in arguments)
        return text + "..." if clipped else text
    return ""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a process may use of the machine."""

    cpus: frozenset[int]
    """Those that its threads may run on."""
    quota: Quota | None = None
    """The least of its cgroups' CPU quotas; None: there is no limit."""

    @property
    def cores(self) -> int:
        """How many it can use at once."""
        return len(self.cpus) if self.quota is None else max(1, min(len(self.cpus), self.quota.cores))


def allowance(pid: int, cgroup_root: Path = CGROUP_ROOT) -> Allowance:
    """What a process may use: CPU affinity, and CPU quotas of its cgroups.

    The affinity is that of all its threads together: a runtime that binds threads binds the first one too.

    Raises:
        TargetError: the process is gone.
    """
    cores: set[int] = set()
    tids = list[int]()
    try:
        for tid in thread_ids(pid, _MAX_TASKS):
            with suppress(ProcessLookupError):
                cores |= os.sched_getaffinity(tid)
                tids.append(tid)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise TargetError(f"process {pid} has ended") from error
    except PermissionError:
        cores = set(range(os.cpu_count() or 1))
    membership = _living_membership(tids or [pid])
    if not cores or membership is None:
        raise TargetError(f"process {pid} has ended")
    return Allowance(frozenset(cores), cgroup_quota(membership, cgroup_root))


def _living_membership(tids: Iterable[int]) -> str | None:
    """The control groups of the first of these threads that lives; None: none does.

    A thread that ends leaves its groups, with version 1 for the root's, where no quota is.
    """
    for tid in tids:
        membership = membership_of(tid)
        stat = _stat(tid)  # looked at last: it has not ended before
        if stat is not None and not stat.flags & _PF_EXITING:
            return membership
    return None


def used_cpu_s(pid: int) -> float:
    """CPU time that a process has used so far, in seconds; 0 if it is gone."""
    return (cpu_time_ns(pid) or 0) / 1e9


def open_pidfd(pid: int) -> int:
    """A descriptor that names this very process, whatever happens to its PID.

    Raises:
        TargetError: the process is gone.
    """
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        raise TargetError(f"no process {pid}: it has ended") from error
