"""At which n_w a call path worked: elapsed time, sequential and concurrent CPU time, without a probe.

Malony (malony-1987 sec. 3.3 and 3.4) asks two times of each routine of a parallel program: elapsed time, "necessary for
calculating speedup", and CPU time, apart for sequential and for concurrent operation. He takes the state in which a
routine was entered, because his machine does not say when it changes. A sample says in which state it was taken:

- *sequential*: CPU time while n_w was 1; *concurrent*: while it was more.
- *elapsed*: each sample stands for ``period / n_w`` of the time that passed. Where n_w threads worked, each answers for
  its part of that time, so the elapsed times of functions (callees not included) sum up to the time in which anybody
  worked, and no routine has more of it than its CPU time. n_w counts up to n here, as more threads than cores do not
  run at once.

Between them lies a histogram of bounded size: CPU time by n_w, in buckets that are exact up to 7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from operator import add

from parprof.model import Levels
from parprof.values import dataclass

FIRST_OF_BUCKET = (0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256, 512, 1024)
"""The lowest n_w of each bucket. Bucket 0 has no CPU time; its place in `Levels` is that of the elapsed time."""

_EXACT_UP_TO = 7
_LAST = len(FIRST_OF_BUCKET) - 1


@dataclass(frozen=True, slots=True)
class Bucket:
    """CPU time at some n_w."""

    first: int
    last: int | None
    """The highest n_w; None: there is no highest."""
    work_ns: float

    @property
    def name(self) -> str:
        """For people, and in names of columns.

        >>> Bucket(8, 15, 0.0).name, Bucket(2, 2, 0.0).name, Bucket(2, None, 0.0).name
        ('8-15', '2', '2+')
        """
        return range_name(self.first, self.last)


def range_name(first: int, last: int | None) -> str:
    """A range of n_w for people: ``2``, ``8-15``, ``1024+``."""
    if last is None:
        return f"{first}+"
    return str(first) if first == last else f"{first}-{last}"


def ranges(firsts: Sequence[int]) -> list[tuple[int, int | None]]:
    """First and last of adjoining ranges of n_w; the last range has no end.

    >>> ranges((0, 1, 4))
    [(0, 0), (1, 3), (4, None)]
    """
    return [*((first, after - 1) for first, after in pairwise(firsts)), (firsts[-1], None)]


RANGES = ranges(FIRST_OF_BUCKET)
"""First and last n_w of each bucket."""


def bucket_of(n_working: int) -> int:
    """The number of the bucket of an n_w of 1 or more.

    >>> [bucket_of(n) for n in (1, 7, 8, 15, 16, 64, 5000)]
    [1, 7, 8, 8, 9, 11, 15]
    """
    if n_working <= _EXACT_UP_TO:
        return max(n_working, 1)
    return min(n_working.bit_length() + 4, _LAST)


@lru_cache(maxsize=4096)  # rows of few samples are many, and alike: they share one object
def levels_of(work_ns: float, n_working: float, cores: int) -> Levels:
    """The histogram of CPU time in which ``n_working`` threads worked, on up to ``cores``.

    A mean that is no whole number (`parprof.attribution.finephases`) is divided among its two neighbours such that
    they stand for as much elapsed time.

    >>> levels_of(3e6, 2, 4)
    (1500000.0, 0.0, 3000000.0)
    """
    if work_ns <= 0:
        return ()
    n_w = max(n_working, 1.0)
    out = [work_ns / min(n_w, max(cores, 1))] + [0.0] * bucket_of(math.ceil(n_w))
    low, high = math.floor(n_w), math.ceil(n_w)
    lower = 1.0 if low == high else (1 / n_w - 1 / high) / (1 / low - 1 / high)
    out[bucket_of(low)] += work_ns * lower
    out[bucket_of(high)] += work_ns * (1 - lower)
    return tuple(out)


def plus(one: Levels, other: Levels) -> Levels:
    """The sum of two histograms.

    >>> plus((3.0, 1.0, 4.0), (1.0, 1.0))
    (4.0, 2.0, 4.0)
    """
    if not one or not other:
        return one or other
    if len(one) < len(other):
        one, other = other, one
    return (*map(add, one, other), *one[len(other) :])


def elapsed_on(levels: Levels, cores: int, others: int) -> float:
    """The time that would have passed on another number of cores: each n_w keeps at most so many busy.

    ``cores``: of the machine that it was measured on. Of an n_w from 8 on only the range is known; there it is taken to
    be what the elapsed time says, or where all those cores were busy the first of its range that is not below them.

    >>> elapsed_on(levels_of(8e6, 2, 2), 2, 64), elapsed_on(levels_of(8e6, 16, 32), 32, 4)
    (4000000.0, 2000000.0)
    """
    known = levels[1 : _EXACT_UP_TO + 1]
    many = levels[_EXACT_UP_TO + 1 :]
    out = sum(work_ns / min(n_w, others) for n_w, work_ns in enumerate(known, 1))
    if not many:
        return out
    rest_ns = levels[0] - sum(work_ns / min(n_w, cores) for n_w, work_ns in enumerate(known, 1))
    mean = min(sum(many) / rest_ns, cores) if rest_ns > 0 else cores
    firsts = FIRST_OF_BUCKET[_EXACT_UP_TO + 1 :]
    return out + sum(
        work_ns / min(max(mean, first) if mean >= cores else mean, others)
        for first, work_ns in zip(firsts, many, strict=False)
    )


def trimmed(values: Sequence[float]) -> Levels:
    """The histogram that has these elements, of which the last may be 0.

    >>> trimmed([2.0, 2.0, 0.0])
    (2.0, 2.0)
    """
    used = len(values)
    while used and not values[used - 1]:
        used -= 1
    return tuple(values[:used])


@dataclass(frozen=True, slots=True)
class AtWork:
    """How a function, a process or a whole job worked. Nanoseconds."""

    elapsed_ns: float
    sequential_ns: float
    """CPU time while nobody else of the job worked."""
    concurrent_ns: float
    """CPU time while others did."""
    buckets: tuple[Bucket, ...]
    """All CPU time by n_w, up to the highest there was."""

    @classmethod
    def of(cls, levels: Levels) -> AtWork:
        """What a histogram says."""
        buckets = [Bucket(*RANGES[at], work_ns) for at, work_ns in enumerate(levels) if at]
        sequential_ns = levels[1] if len(levels) > 1 else 0.0
        return cls(levels[0] if levels else 0.0, sequential_ns, sum(levels[2:]), tuple(buckets))

    @property
    def work_ns(self) -> float:
        """All CPU time."""
        return self.sequential_ns + self.concurrent_ns

    def shares(self, groups: Sequence[tuple[int, int | None]]) -> list[float]:
        """How much of the CPU time is in each group of buckets, 0 to 1; all 0 where there is none."""
        out = [0.0] * len(groups)
        for bucket in self.buckets:
            for at, (first, last) in enumerate(groups):
                if first <= bucket.first and (last is None or bucket.first <= last):
                    out[at] += bucket.work_ns
                    break
        return [part / self.work_ns for part in out] if self.work_ns else out


def groups_up_to(cores: int, most: int) -> list[tuple[int, int | None]]:
    """At most ``most`` ranges of n_w, 3 or more, that show n_w from 1 to n; the last has what is beyond, too.

    Each n_w has its own, where they fit; else they get longer towards n. Their ends are those of buckets.

    >>> groups_up_to(4, 8)
    [(1, 1), (2, 2), (3, 3), (4, None)]
    >>> groups_up_to(64, 5)
    [(1, 1), (2, 3), (4, 15), (16, 63), (64, None)]
    """
    firsts = list(range(1, max(cores, 1) + 1))
    if cores > min(most, _EXACT_UP_TO + 1):
        powers = [1 << power for power in reversed(range(min(cores, FIRST_OF_BUCKET[-1]).bit_length()))]
        step = 1
        while len(firsts := sorted({1, 2, *powers[::step]})) > max(most, 3):
            step += 1
    return ranges(firsts)
