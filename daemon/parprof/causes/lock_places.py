"""Where a lock is that a site loses time for: the function that takes it, which need not be the one that waits."""

from __future__ import annotations

from parprof.attribution.effort import lost_ns
from parprof.causes.evidence import Place
from parprof.causes.sites import LossSite, mostly_in
from parprof.causes.spinning import where_spun
from parprof.causes.tallies import Tally
from parprof.causes.waiting import is_lock, lets_go
from parprof.metrics import WAIT

_MOST_OF_LOCK = 0.8
"""Of all waiting for locks at a site: a function with so much of it is the one to name."""
_LOCK_SHARE = 0.02
"""Of the work at a site: as much for locks is where to look."""


def where_locked(site: LossSite) -> Place:
    """The function that takes the lock, where that is clear: at or below a site, or beside it, where what runs at the
    site merely happens to be alone. What works below a function that takes the lock is where it is held: the site."""
    around = site.place
    while around.parent is not None and locks_ns(around.all) < _LOCK_SHARE * site.tally.metrics.work_ns:
        around = around.parent
    if around.parent is None:
        return where_spun(site)
    taker = mostly_in(around, lambda tally: locks_ns(tally, is_taken=True), _MOST_OF_LOCK)
    if taker is None:
        return site.place
    holders = {place.function.procedure for place in site.place.chain()}
    return site.place if taker.function.procedure in holders else taker


def where_held(site: LossSite) -> Place:
    """The function below a site that takes the lock, where what is lost is lost in there."""
    taker = where_locked(site)
    is_below = any(place is site.place for place in taker.chain())
    return taker if is_below and lost_ns(taker.all.metrics) >= _MOST_OF_LOCK * site.lost_ns else site.place


def locks_ns(tally: Tally, *, is_taken: bool = False) -> float:
    """How long threads slept for locks, or spent on them. ``is_taken``: on getting them alone."""
    functions = ((name.partition(":")[2], metrics) for name, metrics in tally.runtime.items())
    return sum(
        metrics[WAIT] + metrics.spin_ns + metrics.overhead_ns
        for function, metrics in functions
        if is_lock(function) and not (is_taken and lets_go(function))
    )
