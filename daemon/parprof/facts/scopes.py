"""The time of a scope, by how many of its threads worked: what all of its core time adds up to (DESIGN.md sec. 2)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from parprof.values import dataclass


@dataclass(frozen=True, slots=True)
class ScopeTimes:
    """One scope over the whole measurement. Nanoseconds of wall-clock time."""

    level_ns: tuple[int, ...]
    """How long n_w was 0, 1, 2, ...; time in which whoever would have worked was stopped is left out."""
    working_ns: int
    """The integral of n_w: work, and time in which working threads had no CPU."""
    exact: bool
    """Whether each change of n_w was seen as it happened, in all processes that matter."""
    images: tuple[int, ...] = ()
    """The process images of it."""
    idle_away_ns: int = 0
    """Cores that others had and threads of it waited for, times that time, while somebody worked."""
    stall_away_ns: int = 0
    """The same while nobody did."""

    @property
    def elapsed_ns(self) -> int:
        """From the first thread that worked to the last."""
        return sum(self.level_ns)

    @property
    def idle_ns(self) -> int:
        """For how long nobody worked.

        >>> ScopeTimes((5, 2, 1), 4, True).idle_ns
        5
        """
        return self.level_ns[0] if self.level_ns else 0

    def idleness_ns(self, cores: float) -> float:
        """Idle cores times the time in which somebody worked.

        >>> ScopeTimes((5, 2, 1), 4, True).idleness_ns(4)
        8.0
        """
        return float(sum(max(cores - n, 0) * ns for n, ns in enumerate(self.level_ns) if n))

    def busy_ns(self, cores: float) -> float:
        """Cores that could be busy with its working threads, times the time.

        >>> ScopeTimes((5, 2, 1), 4, True).busy_ns(1)
        3.0
        """
        return float(sum(min(cores, n) * ns for n, ns in enumerate(self.level_ns)))

    def joined(self, later: ScopeTimes) -> ScopeTimes:
        """The same scope's time and that behind it.

        >>> ScopeTimes((5, 2), 2, True, (1,)).joined(ScopeTimes((1, 0, 3), 6, False, (1,))).level_ns
        (6, 2, 3)
        """
        return ScopeTimes(
            tuple(map(sum, zip_longest(self.level_ns, later.level_ns, fillvalue=0))),
            self.working_ns + later.working_ns,
            self.exact and later.exact,
            tuple(dict.fromkeys(self.images + later.images)),
            self.idle_away_ns + later.idle_away_ns,
            self.stall_away_ns + later.stall_away_ns,
        )


def levels_that_were(level_ns: Sequence[int]) -> tuple[int, ...]:
    """Up to the highest n_w that there was.

    >>> levels_that_were((5, 0, 1, 0, 0))
    (5, 0, 1)
    """
    return tuple(level_ns[: max((at for at, took_ns in enumerate(level_ns, 1) if took_ns), default=0)])
