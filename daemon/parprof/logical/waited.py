"""Who waited while the threads of a pool worked, or took part: see `parprof.runtimes.pools.Pool`."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest

from parprof.logical.callers import Before
from parprof.logical.join import Shares

MOST_CALLERS = 64
"""Among whom the work of a pool in one part of the time is shared: those that waited for longest, or did most of it."""


class Waited:
    """Shares work among the callers that waited for it at the time, or took part, in whole numbers that add up.

    What rounding takes from one of the same callers he gets later.
    """

    def __init__(self) -> None:
        self._shares: dict[tuple[str, int, frozenset[Before]], tuple[tuple[Before, ...], Shares]] = {}

    def split(
        self, pool: str, stream: int, waited_ns: Mapping[Before, int], amount: int
    ) -> list[tuple[Before | None, int]]:
        """Who gets how much of an amount of work; None, all of it: nobody waited.

        ``waited_ns``: for how long each did while that was done, or how many samples of it he had (whatever has that
        proportion); ``stream``: each is rounded by itself.
        """
        if len(waited_ns) > MOST_CALLERS:
            waited_ns = dict(nlargest(MOST_CALLERS, waited_ns.items(), key=lambda one: one[1]))
        some = {before: ns for before, ns in waited_ns.items() if ns > 0}
        if not some:
            return [(None, amount)]
        key = pool, stream, frozenset(some)
        known = self._shares.get(key)
        if known is None:
            callers = tuple(some)
            known = self._shares[key] = callers, Shares(list(some.values()))
        callers, shares = known
        shares.reweigh([some[before] for before in callers])
        split = zip(callers, shares.split(amount), strict=True)
        return [(before, share) for before, share in split if share]
