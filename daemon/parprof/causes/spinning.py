"""Locks that a program makes itself, for which its threads spin: in a loop of its own code, not in a runtime's."""

from __future__ import annotations

from parprof.causes.barriers import is_barrier
from parprof.causes.evidence import Place
from parprof.causes.sites import LossSite, mostly_in
from parprof.causes.tallies import Tally
from parprof.causes.waiting import is_arrival, is_lock

_ONLY_SPINS = 0.1
"""Of its spinning: a function that works for less than this is a lock's own; else it spins where it needs the lock."""
_MOST = 0.8
"""Of what is spun at a site: a function with so much of it is the one to name."""


def own_spin_ns(tally: Tally) -> float:
    """For how long threads spun, but not in functions of others that are known to wait."""
    foreign = (metrics.spin_ns for name, metrics in tally.runtime.items() if _waits(name.partition(":")[2]))
    return max(tally.metrics.spin_ns - sum(foreign), 0.0)


def _waits(function: str) -> bool:
    return is_lock(function) or is_arrival(function) or is_barrier(function)


def spinner(site: LossSite) -> Place | None:
    """The function in which most of what is spun at a site is, wherever that calls it from."""
    place = mostly_in(site.place, own_spin_ns, _MOST)
    return None if place is None else place.function


def where_spun(site: LossSite) -> Place:
    """The function that needs the lock, at or below a site: the one that spins, or, if it does nothing else, who calls
    that."""
    place = spinner(site)
    if place is None:
        return site.place
    if place.all.metrics.work_ns < _ONLY_SPINS * place.all.metrics.spin_ns and place.parent is not None:
        place = place.parent.function
    return place if any(one is site.place for one in place.chain()) else site.place
