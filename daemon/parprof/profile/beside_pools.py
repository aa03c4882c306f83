"""n_w beside pools of threads that spin while they have no work, in phases too short for samples to tell.

That a thread spins, or works again, is known as of its last sample: up to a period late, at both ends of its work. So
some of the idleness of a short serial phase is charged to the parallel one behind it, right in sum, but at the wrong
place. Of a pool whose callers take part more is known: its threads work while a caller is in there, and not else. Where
one thread alone calls it, and nobody else works, n_w is 1 in all that this thread does elsewhere. What idleness that
adds there is taken from what was charged in the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from parprof.logical.paths import LogicalPaths
from parprof.model import Count, SampleKey, ThreadState
from parprof.values import dataclass

_OTHERS = 0.02
"""Of the samples at work: with more of other threads than the caller and the pool's nothing is known."""


@dataclass(slots=True)
class _Caller:
    """Samples at work of a process whose pool has one caller."""

    inside: list[SampleKey] = field(default_factory=list)
    """In the pool: its threads', and the caller's."""
    outside: list[SampleKey] = field(default_factory=list)


def n_working_beside_pools(
    facts: Mapping[SampleKey, Count],
    paths: Callable[[SampleKey], LogicalPaths | None],
    cores: Callable[[SampleKey], int],
) -> dict[SampleKey, float]:
    """n_w of samples, where it is told by this. ``paths``: of a key's process; ``cores``: n, 0 where it has changed."""
    working = {key: count for key, count in facts.items() if _is_at_work(key)}
    places: dict[SampleKey, tuple[str, bool]] = {}
    for key in working:
        known = paths(key)
        places[key] = known.in_pool(key.user, key.context) if known is not None else ("", False)
    images = {key.image for key, (pool, is_its_own) in places.items() if pool and is_its_own}
    out: dict[SampleKey, float] = {}
    for image in images:
        found = _caller(image, working, places)
        if found is not None and all(cores(key) > 1 for key in (*found.inside, *found.outside)):
            out.update(_n_working(found, working, cores))
    return out


def _is_at_work(key: SampleKey) -> bool:
    return key.event == 0 and key.state is ThreadState.WORKING and not key.fine and key.n_working > 0


def _caller(
    image: int, working: Mapping[SampleKey, Count], places: Mapping[SampleKey, tuple[str, bool]]
) -> _Caller | None:
    """Of a process with such a pool; None: several threads call it, or others work, too."""
    callers = {
        key.tid
        for key, (pool, is_its_own) in places.items()
        if key.image == image and pool and not is_its_own
    }
    if len(callers) != 1:
        return None
    found, others = _Caller(), 0
    for key, count in working.items():
        pool, is_its_own = places[key]
        if key.image != image or not (is_its_own or key.tid in callers):
            others += count.samples
        else:
            (found.inside if pool else found.outside).append(key)
    whole = sum(count.samples for count in working.values())
    return found if found.outside and others <= _OTHERS * whole else None


def _n_working(
    found: _Caller, working: Mapping[SampleKey, Count], cores: Callable[[SampleKey], int]
) -> dict[SampleKey, float]:
    def idle(key: SampleKey) -> float:
        """Idle cores for each thread at work."""
        n = cores(key)
        return n / min(key.n_working, n) - 1

    samples = {key: working[key].samples for key in (*found.inside, *found.outside)}
    there = sum(idle(key) * samples[key] for key in found.inside)
    missing = sum((cores(key) - 1 - idle(key)) * samples[key] for key in found.outside)
    if not missing:
        return {}
    moved = min(missing, there)
    out = {key: cores(key) / (1 + idle(key) * (1 - moved / there)) for key in found.inside if there}
    for key in found.outside:
        more = (cores(key) - 1 - idle(key)) * moved / missing
        out[key] = cores(key) / (1 + idle(key) + more)
    return out
