"""The control groups that a process is in: what they allow it, and who else is there. Versions 1 and 2."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from parprof.errors import TargetError

CGROUP_ROOT = Path("/sys/fs/cgroup")
_MAX_DEPTH = 64
_MAX_MEMBERS = 1 << 16
_NO_LIMIT = 1 << 60
"""Version 1 writes no limit as a number of about 2^63."""


def membership_of(pid: int) -> str:
    """The text of ``/proc/PID/cgroup``; empty if it cannot be read."""
    return _read(Path(f"/proc/{pid}/cgroup"))


def cgroup_members(pid: int, root: Path = CGROUP_ROOT) -> list[int]:
    """The processes of a process's cgroup, and of all below that; itself among them.

    Raises:
        TargetError: it is in the root, as whoever was never put anywhere, or its cgroup cannot be read.
    """
    for _, mounts, path in _memberships(membership_of(pid), root):
        if not path.startswith("/") or path == "/" or ".." in PurePosixPath(path).parts:
            continue
        for mount in mounts:
            folder = mount.joinpath(*PurePosixPath(path).parts[1:])
            members: set[int] = set()
            for file in folder.rglob("cgroup.procs"):
                members.update(int(word) for word in _read(file).split())
                if len(members) > _MAX_MEMBERS:
                    raise TargetError(f"cgroup {path} has more than {_MAX_MEMBERS} processes")
            if pid in members:
                return sorted(members)
    raise TargetError(
        f"process {pid} is in no cgroup but the root's, or its cgroup cannot be read: "
        "give --scope tree to measure it with its children"
    )


class _Membership(NamedTuple):
    """A cgroup of a process, in one hierarchy."""

    version: int
    mounts: tuple[Path, ...]
    """Where the hierarchy may be mounted."""
    path: str
    """From there."""


def _memberships(text: str, root: Path, controller: str = "cpu") -> list[_Membership]:
    """Those that ``/proc/PID/cgroup`` tells of, where that is controlled; version 2 first."""
    found: list[_Membership] = []
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:  # version 2, alone or beside version 1
            found.append(_Membership(2, (root, root / "unified"), path))
        elif controller in controllers.split(","):
            mounts = dict.fromkeys((root / controllers, root / controller))  # once, where they are the same
            found.append(_Membership(1, tuple(mounts), path))
    return sorted(found, key=lambda one: -one.version)


@dataclass(frozen=True, slots=True, order=True)
class Quota:
    """A limit on the CPU time of a cgroup."""

    cores: int
    """For so many it is enough, rounded up."""
    folder: Path
    """Of the cgroup that has it."""


@dataclass(frozen=True, slots=True)
class Throttled:
    """How often a quota has stopped threads since its cgroup was made."""

    times: int = 0
    seconds: float = 0.0
    """Of all CPUs together."""


def throttled(folder: Path) -> Throttled | None:
    """What the kernel counts for a cgroup with a quota; None: it does not say, or the cgroup is gone."""
    words = (line.split() for line in _read(folder / "cpu.stat").splitlines())
    stat = {pair[0]: pair[1] for pair in words if len(pair) == 2}
    with suppress(ValueError, KeyError):
        if "throttled_usec" in stat:  # version 2
            return Throttled(int(stat["nr_throttled"]), int(stat["throttled_usec"]) / 1e6)
        return Throttled(int(stat["nr_throttled"]), int(stat["throttled_time"]) / 1e9)
    return None


def cgroup_quota(membership: str, root: Path = CGROUP_ROOT) -> Quota | None:
    """The least CPU quota on the way from a cgroup to the root; None = no limit.

    ``membership`` is the text of ``/proc/PID/cgroup``; what cannot be read sets no limit.
    """
    limits: list[Quota] = []
    for version, mounts, path in _memberships(membership, root):
        limits += _quotas(mounts, path, _quota_v2 if version == 2 else _quota_v1)
    return min(limits, default=None)


def memory_limit(membership: str, root: Path = CGROUP_ROOT) -> int | None:
    """The least memory limit on the way from a cgroup to the root, bytes; None = no limit, or none that is known."""
    limits: list[int] = []
    for version, mounts, path in _memberships(membership, root, "memory"):
        name = "memory.max" if version == 2 else "memory.limit_in_bytes"
        for folder in _way_up(mounts, path):
            with suppress(ValueError):
                limits.append(int(_read(folder / name)))
    return min((limit for limit in limits if 0 < limit < _NO_LIMIT), default=None)


def _way_up(mounts: Iterable[Path], path: str) -> Iterator[Path]:
    """The folders from a cgroup to the root, wherever that is mounted."""
    parts = PurePosixPath(path).parts[1:]
    if ".." in parts:  # outside of our cgroup namespace
        parts = ()
    for mount in mounts:
        for depth in range(min(len(parts), _MAX_DEPTH), -1, -1):
            yield mount.joinpath(*parts[:depth])


def _quotas(mounts: Iterable[Path], path: str, quota: Callable[[Path], float | None]) -> Iterator[Quota]:
    for folder in _way_up(mounts, path):
        cores = quota(folder)
        if cores is not None:
            yield Quota(max(1, math.ceil(cores - 1e-9)), folder)


def _quota_v2(directory: Path) -> float | None:
    return _ratio(_read(directory / "cpu.max").split())


def _quota_v1(directory: Path) -> float | None:
    return _ratio([_read(directory / f"cpu.cfs_{what}_us").strip() for what in ("quota", "period")])


def _ratio(texts: list[str]) -> float | None:
    """Quota over period; None for ``max``, -1 and whatever is not understood."""
    with suppress(ValueError, OverflowError):
        quota, period = (int(text) for text in texts)
        if quota > 0 and period > 0:
            return quota / period
    return None


def _read(path: Path) -> str:
    with suppress(OSError):
        with open(path, errors="replace") as file:
            return file.read(1 << 16)
    return ""
