"""For how long how many threads of each watched process worked, as counters: few levels, exact where n_w is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import add

from parprof.facts.scopes import ScopeTimes, levels_that_were
from parprof.kernel.scopes import ScopeState
from parprof.session.target import Target

FIRST_OF_LEVEL = (0, 1, 2, 4, 8, 16, 32, 64)
"""The lowest n_w of each level; the last is for as many and more."""

NONE = (0.0,) * len(FIRST_OF_LEVEL)


def by_level_s(level_ns: Sequence[int]) -> tuple[float, ...]:
    """Seconds at each level of time at each n_w.

    >>> by_level_s((10**9, 0, 2 * 10**9, 10**9))[:4]
    (1.0, 0.0, 3.0, 0.0)
    """
    ends = (*FIRST_OF_LEVEL[1:], None)
    return tuple(sum(level_ns[first:end]) / 1e9 for first, end in zip(FIRST_OF_LEVEL, ends, strict=True))


class LevelClock:
    """Reads the programs' histograms once an interval; says what has come since."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Nothing was read yet. ``clock``: CLOCK_MONOTONIC, nanoseconds."""
        self._clock = clock
        self.read_ns = 0
        """Until when the last `advance` counted, CLOCK_MONOTONIC."""
        self._states: dict[int, ScopeState] = {}
        """As they were read last, by number of scope."""
        self._states_before: dict[int, ScopeState] = {}
        self.since_ns: Mapping[int, tuple[int, ...]] = {}
        """What the last `advance` found, at each n_w instead of level."""
        self.total_s = NONE
        """Of all processes, those too that are gone."""

    def advance(self, targets: Iterable[Target]) -> Mapping[int, tuple[float, ...]]:
        """Seconds at each level since the last call, by process image, until now: `read_ns`.

        Processes that are one job have one histogram: the one that was met first and still lives gets it.
        """
        first: dict[int, Target] = {}
        for target in sorted(targets, key=lambda one: (one.ended, one.image)):
            first.setdefault(target.scope.number, target)
        out: dict[int, tuple[float, ...]] = {}
        since_ns: dict[int, tuple[int, ...]] = {}
        states = {number: state for number, state in self._states.items() if number in first}
        read = [(number, target, target.scope.state()) for number, target in first.items()]
        self.read_ns = self._clock()  # when all are read: none has counted beyond that, so all count up to it
        for number, target, state in read:
            if state is None:
                continue
            state = target.scope.counted_until(self.read_ns, state)
            since_ns[target.image] = _grown(state, self._states.get(number))
            states[number] = state
            out[target.image] = by_level_s(since_ns[target.image])
            self.total_s = tuple(map(add, self.total_s, out[target.image]))
        self.since_ns, self._states_before, self._states = since_ns, self._states, states
        return out

    def times(self, target: Target, *, exact: bool) -> ScopeTimes | None:
        """What the last `advance` found of a process that is a job of its own; None: it is not, or nothing is known.

        ``exact``: see `ScopeTimes.exact`.
        """
        level_ns = self.since_ns.get(target.image)
        if level_ns is None or len(target.scope.members) > 1:
            return None
        now = self._states[target.scope.number]
        then = self._states_before.get(target.scope.number) or ScopeState(0, 0, 0, ())
        return ScopeTimes(
            levels_that_were(level_ns),
            max(now.working_ns - then.working_ns, 0),
            exact,
            (target.image,),
            max(now.idle_away_ns - then.idle_away_ns, 0),
            max(now.stall_away_ns - then.stall_away_ns, 0),
        )


def _grown(now: ScopeState, then: ScopeState | None) -> tuple[int, ...]:
    """For how much longer than before n_w was 0, 1, 2, ..."""
    if then is None:
        return now.level_ns
    return tuple(max(after - before, 0) for after, before in zip(now.level_ns, then.level_ns, strict=True))
