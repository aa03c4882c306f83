"""Threads that did nothing but sleep: where there are very many, they are one.

A program may have ten thousand threads that wait for something to do. Each would have a row of its own in each interval
of the measurement: more than of all that works.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from parprof.facts.intervals import CountedInterval
from parprof.facts.measurement import Measurement
from parprof.model import NO_EVENT, SEVERAL_THREADS, Count, Facts, SampleKey, ThreadState

MOST = 256
"""So many of one process stay threads of their own."""
_Thread = tuple[int, int]
"""Process image, thread id."""


def together(measured: Measurement) -> tuple[Measurement, int]:
    """The same measurement, with the sleepers of each process that has too many as one thread, `SEVERAL_THREADS`; and
    how many threads that are in all."""
    sleepers = _sleepers(measured.drain.facts)
    if not sleepers:
        return measured, 0
    merged = {(image, tid) for image, tids in sleepers.items() for tid in tids}
    names = {
        **measured.drain.thread_names,
        **{(image, SEVERAL_THREADS): f"{len(tids):,} threads asleep" for image, tids in sleepers.items()},
    }
    drain = replace(
        measured.drain,
        facts=_merged(measured.drain.facts, merged),
        by_cores=_merged_by_cores(measured.drain.by_cores, merged),
        thread_names=names,
    )
    intervals = tuple(_interval(one, merged) for one in measured.intervals)
    return replace(measured, drain=drain, intervals=intervals), len(merged)


def _sleepers(facts: Mapping[SampleKey, Count]) -> dict[int, set[int]]:
    """By image, those that only slept, where these are too many."""
    slept: defaultdict[int, set[int]] = defaultdict(set)
    others: defaultdict[int, set[int]] = defaultdict(set)
    for key in facts:
        only_slept = key.event == NO_EVENT and key.state is ThreadState.BLOCKED
        (slept if only_slept else others)[key.image].add(key.tid)
    found = {image: tids - others[image] for image, tids in slept.items()}
    return {image: tids for image, tids in found.items() if len(tids) > MOST}


def _interval(one: CountedInterval, merged: set[_Thread]) -> CountedInterval:
    return replace(one, facts=_merged(one.facts, merged), by_cores=_merged_by_cores(one.by_cores, merged))


def _merged(facts: Mapping[SampleKey, Count], merged: set[_Thread]) -> Facts:
    out: Facts = {}
    for key, count in facts.items():
        if (key.image, key.tid) in merged:
            out.setdefault(key._replace(tid=SEVERAL_THREADS), Count()).add(count)
        else:
            out[key] = count
    return out


def _merged_by_cores(
    by_cores: Mapping[SampleKey, Mapping[int, Count]], merged: set[_Thread]
) -> dict[SampleKey, dict[int, Count]]:
    out: dict[SampleKey, dict[int, Count]] = {}
    for key, divided in by_cores.items():
        if (key.image, key.tid) in merged:
            known = out.setdefault(key._replace(tid=SEVERAL_THREADS), {})
            for allowed, count in divided.items():
                known.setdefault(allowed, Count()).add(count)
        else:
            out[key] = dict(divided)
    return out
