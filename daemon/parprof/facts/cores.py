"""n over the time of a process: it changes with its affinity, its cpuset, its quota and the CPUs that are online."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class CoresHeld(NamedTuple):
    """For how long in all a process was allowed so many cores."""

    allowed: int
    """By affinity, cpuset, quota and the CPUs that are online."""
    cores: int
    """n with that: fewer where its pool of threads is smaller."""
    seconds: float


def mean_cores(held: Sequence[CoresHeld]) -> float:
    """n, the mean over all of the time.

    >>> mean_cores([CoresHeld(4, 4, 1.0), CoresHeld(2, 2, 3.0)])
    2.5
    """
    numbers = {one.cores for one in held if one.seconds > 0}
    if len(numbers) < 2:  # exactly n, which is compared with whole numbers
        return numbers.pop() if numbers else usual_cores(held)
    return sum(one.cores * one.seconds for one in held) / sum(one.seconds for one in held)


def usual_cores(held: Sequence[CoresHeld]) -> int:
    """The n that held for longest.

    >>> usual_cores([CoresHeld(4, 3, 1.0), CoresHeld(2, 2, 1.5), CoresHeld(3, 3, 1.0)])
    3
    """
    seconds: dict[int, float] = {}
    for one in held:
        seconds[one.cores] = seconds.get(one.cores, 0.0) + one.seconds
    return max(seconds, key=lambda cores: seconds[cores])


def held_since(held: Sequence[CoresHeld], before_s: Mapping[int, float]) -> list[CoresHeld]:
    """What has held since each number of allowed cores had held for ``before_s``."""
    return [one._replace(seconds=max(one.seconds - before_s.get(one.allowed, 0.0), 0.0)) for one in held]
