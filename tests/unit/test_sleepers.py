# SPDX-License-Identifier: Apache-2.0
"""Very many threads that only slept are one: parprof.facts.sleepers."""

from __future__ import annotations

from typing import Any, cast

from parprof.facts.drain import Drain
from parprof.facts.intervals import CountedInterval
from parprof.facts.measurement import Measurement
from parprof.facts.sleepers import MOST, together
from parprof.kernel.stacks import StackTable
from parprof.model import NO_EVENT, SEVERAL_THREADS, Count, Facts, SampleKey, ThreadState

MAIN, WORKER = 1, 2


def slept(tid: int, image: int = 5, user: int = 7) -> SampleKey:
    return SampleKey(image, tid, NO_EVENT, ThreadState.BLOCKED, 0, user, 9)


def worked(tid: int) -> SampleKey:
    return SampleKey(5, tid, 0, ThreadState.WORKING, 1, 8, 0)


def measurement(threads: int) -> Measurement:
    """So many threads that sleep in two places; one of them works, too, and the main thread."""
    facts: Facts = {worked(MAIN): Count(9, 9), worked(WORKER): Count(5, 5)}
    for tid in range(WORKER, WORKER + threads):
        facts[slept(tid)] = Count(1, 1000 + tid)
        facts[slept(tid, user=11)] = Count(2, 10)
    names = {(5, tid): "pool" for tid in range(MAIN, WORKER + threads)}
    by_cores = {key: {1: count} for key, count in facts.items()}
    drain = Drain(facts, StackTable(), {}, names, ("cpu-clock",), 999, by_cores)
    intervals = CountedInterval(0, 10, (), dict(facts), dict(by_cores)), CountedInterval(10, 20)
    return Measurement(drain, {}, cast(Any, None), 5, 0.0, 1.0, 0.0, {}, intervals=intervals)


def test_a_few_stay_as_they_are() -> None:
    measured = measurement(MOST)
    assert together(measured) == (measured, 0)


def test_who_worked_stays_a_thread_of_its_own() -> None:
    measured = measurement(MOST + 2)
    found, threads = together(measured)
    assert threads == MOST + 1
    assert {key.tid for key in found.drain.facts} == {MAIN, WORKER, SEVERAL_THREADS}
    assert found.drain.facts[slept(WORKER)] == measured.drain.facts[slept(WORKER)]
    assert found.drain.facts[worked(MAIN)] == Count(9, 9)
    assert found.drain.thread_names[5, SEVERAL_THREADS] == f"{MOST + 1:,} threads asleep"


def test_nothing_is_lost_and_the_measurement_stays_as_it_was() -> None:
    measured = measurement(1000)
    before = sum(count.total for count in measured.drain.facts.values())
    found, _ = together(measured)
    for facts in (found.drain.facts, found.intervals[0].facts):
        assert sum(count.total for count in facts.values()) == before
        assert facts[slept(SEVERAL_THREADS)] == Count(
            999, sum(1000 + tid for tid in range(WORKER + 1, WORKER + 1000))
        )
        assert facts[slept(SEVERAL_THREADS, user=11)] == Count(1998, 9990)
    for by_cores in (found.drain.by_cores, found.intervals[0].by_cores):
        assert by_cores[slept(SEVERAL_THREADS)][1] == found.drain.facts[slept(SEVERAL_THREADS)]
    assert sum(count.total for count in measured.drain.facts.values()) == before
    assert together(found)[0].drain.facts == found.drain.facts
