"""For how long how many threads of each watched process worked, as counters: few levels, exact where n_w is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from operator import add

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


def _state_of(target: Target, now_ns: int) -> ScopeState | None:
    state = target.scope.state()
    if state is None or all(member.ended for member in target.scope.members.values()):
        return state
    return state.until(now_ns)


class LevelClock:
    """Reads the programs' histograms once an interval; says what has come since."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self._read: dict[int, tuple[float, ...]] = {}
        """By number of scope."""
        self._read_ns: dict[int, tuple[int, ...]] = {}
        self.since_ns: Mapping[int, tuple[int, ...]] = {}
        """What the last `advance` found, at each n_w instead of level."""
        self.total_s = NONE
        """Of all processes, those too that are gone."""

    def advance(self, targets: Iterable[Target]) -> Mapping[int, tuple[float, ...]]:
        """Seconds at each level since the last call, by process image.

        Processes that are one job have one histogram: the one that was met first and still lives gets it.
        """
        now_ns = time.monotonic_ns()
        first: dict[int, Target] = {}
        for target in sorted(targets, key=lambda one: (one.ended, one.image)):
            first.setdefault(target.scope.number, target)
        out: dict[int, tuple[float, ...]] = {}
        since_ns: dict[int, tuple[int, ...]] = {}
        read_ns: dict[int, tuple[int, ...]] = {}
        for number, target in first.items():
            state = _state_of(target, now_ns)
            if state is None:
                continue
            seconds = by_level_s(state.level_ns)
            before = self._read.get(number, NONE)
            since = tuple(max(now - then, 0.0) for now, then in zip(seconds, before, strict=True))
            self._read[number] = seconds
            earlier = self._read_ns.get(number, (0,) * len(state.level_ns))
            since_ns[target.image] = tuple(
                max(now - then, 0) for now, then in zip(state.level_ns, earlier, strict=True)
            )
            read_ns[number] = state.level_ns
            self.total_s = tuple(map(add, self.total_s, since))
            out[target.image] = since
        self.since_ns, self._read_ns = since_ns, read_ns
        self._read = {number: seconds for number, seconds in self._read.items() if number in first}
        return out
