"""Samples of a thread as slices: a function lasts for as long as it is in each of the samples that follow."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from parprof.timeline.slices import Slice

MAX_DEPTH = 64
"""Frames that are shown of a call path: the outermost, and ``[deeper]``."""
DEEPER = "[deeper]"


class Stay(NamedTuple):
    """Where a thread was for some time: a sample, which stands for a period, or a wait."""

    begin_ns: int
    end_ns: int
    path: tuple[str, ...]
    """Names, root first."""


def until_the_next(stays: Sequence[Stay], runs: Sequence[tuple[int, int]], most_ns: float) -> list[Stay]:
    """The same, where a sample lasts until the next that comes late, if the thread kept its CPU all the while.

    A timer is late where the machine is: its hypervisor gave the CPU to another, or a handler took it. The thread
    ran on, and as far as anybody knows in the same calls. Not for more than ``most_ns``.

    ``stays`` of one thread and ``runs``, the times at which it had a CPU (CLOCK_MONOTONIC), are in the order of time.

    >>> [stay.end_ns for stay in until_the_next([Stay(0, 10, ("f",)), Stay(30, 40, ("f",))], [(0, 50)], 100)]
    [30, 40]
    """
    begins = [begin_ns for begin_ns, _ in runs]
    kept: list[Stay] = []
    for stay, following in pairwise(stays):
        if stay.end_ns < following.begin_ns <= stay.begin_ns + most_ns:
            run = bisect_right(begins, stay.begin_ns) - 1
            if run >= 0 and runs[run][1] >= following.begin_ns:
                stay = stay._replace(end_ns=following.begin_ns)
        kept.append(stay)
    return [*kept, *stays[-1:]]


def call_slices(stays: Iterable[Stay], gap_ns: float) -> list[Slice]:
    """The slices of one thread, in the order of time; the outer before the inner.

    Each lasts until the next stay begins, or to its own end where that is more than ``gap_ns`` earlier.

    >>> for one in call_slices([Stay(0, 10, ("main", "f")), Stay(11, 21, ("main", "g"))], 5): print(*one)
    0 21 main
    0 11 f
    11 21 g
    """
    done: list[tuple[int, int, Slice]] = []
    """Each with what it is sorted by: when it begins, and how deep it is."""
    open_path: list[tuple[int, str]] = []
    until_ns = 0

    def close(depth: int, now_ns: int) -> None:
        while len(open_path) > depth:
            began_ns, name = open_path.pop()
            if now_ns > began_ns:
                done.append((began_ns, len(open_path), Slice(began_ns, now_ns, name)))

    for begin_ns, end_ns, path in stays:
        shown = path if len(path) <= MAX_DEPTH else (*path[:MAX_DEPTH], DEEPER)
        if begin_ns > until_ns + gap_ns:
            close(0, until_ns)
        shared = _shared([name for _, name in open_path], shown)
        close(shared, begin_ns)
        open_path += [(begin_ns, name) for name in shown[shared:]]
        until_ns = end_ns
    close(0, until_ns)
    return [one for _, _, one in sorted(done)]


def _shared(before: Sequence[str], after: Sequence[str]) -> int:
    """How many of the outermost names are the same."""
    count = 0
    for one, other in zip(before, after, strict=False):
        if one != other:
            break
        count += 1
    return count
