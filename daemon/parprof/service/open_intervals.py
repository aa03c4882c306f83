"""Intervals that are not over although they were charged in between, as somebody attaches to another process.

What was charged then is put together, so that it takes no more of the memory for recent profiles than usual.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from parprof.attribution.concurrency import plus
from parprof.model import PathSample, Profile
from parprof.profile.accounting import JobTime, Spun
from parprof.profile.merge import Part, Relation, merged_head
from parprof.service.model import Labels
from parprof.values import dataclass


@dataclass(frozen=True, slots=True)
class Kept:
    """One interval of one process, as `parprof.service.recent.RecentProfiles.add` takes it."""

    profile: Profile
    image: int
    labels: Labels
    ended_s: float
    """CLOCK_MONOTONIC."""
    job_time: JobTime | None = None
    spun: Spun = ()

    def joined(self, later: Kept) -> Kept:
        """This and what came behind it as one. Rows of this are used for that."""
        first, then = self.profile, later.profile
        out = merged_head([Part.of(first), Part.of(then)], Relation.ONE_AFTER_ANOTHER)
        out.duration_s = later.ended_s - (self.ended_s - first.duration_s)  # nothing was sampled in between
        rows = {_identity(row): row for row in first.samples}
        for row in then.samples:
            known = rows.setdefault(_identity(row), row)
            if known is not row:
                known.metrics.add(row.metrics)
                known.levels = plus(known.levels, row.levels)
        out.samples = list(rows.values())
        return replace(later, profile=out)


def _identity(row: PathSample) -> tuple[int, int, int]:
    """Rows of one maker have their paths as the same objects, as a rule. Others stay apart, which does no harm."""
    return id(row.path), id(row.physical), id(row.origin)


class OpenIntervals:
    """At most one of each process image."""

    def __init__(self) -> None:
        """There is none yet."""
        self._open: dict[int, Kept] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._open)

    def add(self, one: Kept, *, is_over: bool) -> list[Kept]:
        """This was charged; ``is_over``: nothing more comes of its interval. Returns the intervals that are over now.

        What the rows of a process are completed with is kept apart, interval by interval.
        """
        known, out = self._open.pop(one.image, None), list[Kept]()
        if known is not None:
            if one.job_time is not None or known.profile.frequency_hz != one.profile.frequency_hz:
                out.append(known)
            else:
                one = known.joined(one)
        if is_over or one.job_time is not None:
            return [*out, one]
        self._open[one.image] = one
        return out

    def end_all_but(self, images: Collection[int] = ()) -> list[Kept]:
        """Nothing more comes of all others: their intervals."""
        over = [image for image in self._open if image not in images]
        return [self._open.pop(image) for image in over]
