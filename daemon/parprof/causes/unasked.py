"""Servers that are asked for less at a time than their threads could do.

Some of the threads that serve have a request, the others wait for one. That nobody asks for more is neither imbalance
nor serial code. A thread that has something to do all the time is asked for more than it can do: others should have had
some of that.
"""

from __future__ import annotations

from parprof.attribution.waiting import WaitKind
from parprof.causes.diagnosis import Diagnosis, Kind, Setting
from parprof.causes.sites import LossSite, knows_threads, workers
from parprof.causes.tallies import Tally
from parprof.causes.tickers import ThreadLabel
from parprof.metrics import WAIT

_FOR_REQUESTS = WaitKind.REQUESTS.frame_name
_SERVES = 0.9
"""Of the sleep at a place: so much of it is for requests where a server waits for these."""
_WAITS_TOO = 0.1
"""Of its time: who works waits for requests itself for so long, or it has enough of them."""
_EXPLAINS = 0.6
"""Of the idleness at a place."""


def few_requests(site: LossSite, setting: Setting) -> Diagnosis | None:
    """Others wait for requests where those that work here do, too, for a good part of their time."""
    idle_ns = site.tally.metrics.idleness_ns
    whole = site.place.root.all
    if not idle_ns or not knows_threads(site.tally) or not _asked_ns(whole):
        return None
    busy = {label: whole.threads[label].work_ns for label in workers(site.tally)}
    for place in site.place.root.walk():
        waited = _waited_for_requests(place.own)
        others_ns = sum(waited.values()) - max(waited.values(), default=0.0)
        if others_ns < _EXPLAINS * idle_ns:
            continue
        if all(_waits_enough(waited.get(label, 0.0), work_ns) for label, work_ns in busy.items()):
            return Diagnosis(
                Kind.STARVED,
                "it is asked for less at a time than its threads could do: the others wait for requests meanwhile",
                "no loss, if all are answered in time; more of them at a time (connections, requests under way) would "
                "use the other cores",
                is_likely=False,
            )
    return None


def _waits_enough(waited_ns: float, work_ns: float) -> bool:
    return waited_ns > 0 and waited_ns >= _WAITS_TOO * (waited_ns + work_ns)


def _waited_for_requests(tally: Tally) -> dict[ThreadLabel, float]:
    """For how long each thread waited where all wait for requests; empty where they do not."""
    asked_ns = _asked_ns(tally)
    if not asked_ns or asked_ns < _SERVES * tally.metrics[WAIT]:
        return {}
    return {label: metrics[WAIT] for label, metrics in tally.threads.items() if metrics[WAIT]}


def _asked_ns(tally: Tally) -> float:
    """For how long threads waited for requests."""
    return sum(metrics[WAIT] for name, metrics in tally.runtime.items() if name.endswith(_FOR_REQUESTS))
