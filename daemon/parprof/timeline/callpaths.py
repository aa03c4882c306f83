"""Samples of a thread as slices: a function lasts for as long as it is in each of the samples that follow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
