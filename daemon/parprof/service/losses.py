"""What could not be counted or watched, in words for users."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping

from parprof.errors import KernelUnsupported, PrivilegeError, ProbeAttachError, TargetError
from parprof.process.identity import inspect

UNDECIDED, SETTLING, CANDIDATES = "undecided", "settling", "candidates_full"
LOST_MEANWHILE = "lost_meanwhile"
"""In `Profile.extra` of who attaches: what the daemon lost in that time, of all processes that it watches; empty:
nothing. What is lost is counted by CPU, not by process: of one process it is known exactly where it is nothing."""
EXPECTED = frozenset({UNDECIDED, SETTLING, "path_incomplete", "activations"})
"""Reasons that tell of how things are where all is well: what the alert on lost samples leaves out, too."""
_OF_OTHERS = (UNDECIDED, SETTLING, CANDIDATES)
"""Losses of processes that are not watched."""
_BY_ERRNO = {
    errno.E2BIG: "full",
    errno.EMFILE: "descriptors",
    errno.ENFILE: "descriptors",
    errno.ENOMEM: "memory",
}
_BY_TYPE = (
    (PrivilegeError, "permission"),
    (ProbeAttachError, "probes"),
    (KernelUnsupported, "kernel"),
    (TargetError, "unreadable"),
)


class Losses:
    """Samples and events that were not counted, by reason.

    Samples of processes that nobody decided upon yet are ``undecided``: they are of processes that ended before
    that, or of the moment before they were watched. Those of the time when the daemon has just started, and meets
    all processes that run, are ``settling`` instead: they say nothing about how it does.
    """

    def __init__(self, lost: Callable[[], Mapping[str, int]]) -> None:
        """``lost`` counts what the kernel side lost, by reason."""
        self._lost = lost
        self._settled: int | None = None
        self._ours: dict[str, Callable[[], int]] = {}

    def also(self, reason: str, count: Callable[[], int]) -> None:
        """Take in what is lost on this side of the kernel: ``count`` says how much so far."""
        self._ours[reason] = count

    @property
    def is_settling(self) -> bool:
        """Whether `settle` is yet to be called."""
        return self._settled is None

    def settle(self) -> None:
        """The processes that ran when the daemon started have been decided upon."""
        if self._settled is None:
            self._settled = self._lost().get(UNDECIDED, 0)

    def counts(self) -> dict[str, int]:
        """Losses so far; reasons with none are left out. None of them ever falls."""
        out = dict(self._lost())
        undecided = out.pop(UNDECIDED, 0)
        settling = undecided if self._settled is None else min(self._settled, undecided)
        out.update({SETTLING: settling, UNDECIDED: undecided - settling})
        for reason, count in self._ours.items():
            out[reason] = out.get(reason, 0) + count()
        return {reason: count for reason, count in out.items() if count}

    def of_watched(self) -> dict[str, int]:
        """Those of `counts` that can be of a process that is watched."""
        return {reason: count for reason, count in self.counts().items() if reason not in _OF_OTHERS}


def unexpected(lost: Mapping[str, int]) -> int:
    """How much of what was lost, by reason, is worth to be looked into.

    >>> unexpected({"settling": 800, "stack_ring": 3})
    3
    """
    return sum(count for reason, count in lost.items() if reason not in EXPECTED)


def lost_between(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """What was lost between these counts, in words; empty if nothing was."""
    more = {reason: count - before.get(reason, 0) for reason, count in sorted(after.items())}
    return ", ".join(f"{count:,} {reason}" for reason, count in more.items() if count > 0)


def failure_reason(pid: int, error: Exception) -> str:
    """Why a process is not watched, in a word; empty if it is just gone, which is no failure."""
    if isinstance(error, TargetError):
        try:
            inspect(pid)
        except TargetError:
            return ""
    if isinstance(error, OSError):
        return _BY_ERRNO.get(error.errno or 0, "system")
    return next((word for kind, word in _BY_TYPE if isinstance(error, kind)), "other")
