# SPDX-License-Identifier: Apache-2.0
"""Samples of threads that only waited, before it was known that they did: nobody beside them worked with another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from parprof.facts.drain import Drain
from parprof.facts.intervals import CountedInterval
from parprof.facts.late_spins import with_late_spins
from parprof.facts.measurement import Measurement
from parprof.facts.scopes import ScopeTimes
from parprof.kernel.stacks import StackTable
from parprof.model import NO_EVENT, Count, Facts, SampleKey, ThreadState, add_facts

WORK, WAIT, SERIAL = 1, 2, 3
"""Stacks."""
MAIN, OTHER, THIRD = 10, 11, 12
MS = 10**6


def sample(tid: int, stack: int, n_working: int, image: int = 1) -> SampleKey:
    return SampleKey(image, tid, 0, ThreadState.WORKING, n_working, stack, 0)


def measurement(
    *parts: Mapping[SampleKey, int], levels: tuple[int, ...] = (0, 0, 100 * MS), **more: Any
) -> Measurement:
    intervals, whole = [], Facts()
    for number, part in enumerate(parts):
        facts = {key: Count(samples, 1000 * samples) for key, samples in part.items()}
        intervals.append(CountedInterval(number * 50 * MS, (number + 1) * 50 * MS, (), facts))
        add_facts(whole, {key: Count(count.samples, count.total) for key, count in facts.items()})
    drain = Drain(whole, StackTable(), {}, {}, ("cpu-clock",), 1000, more.get("by_cores", {}))
    working = sum(n * ns for n, ns in enumerate(levels))
    scopes = (ScopeTimes(levels, working, False, (1,)),)
    kernel: Any = None
    return Measurement(drain, {}, kernel, 1, 0.0, 0.1, 0.0, {}, scopes=scopes, intervals=tuple(intervals))


def judged(measured: Measurement) -> dict[tuple[int, int, ThreadState, int], int]:
    """Samples by thread, stack, state and n_w."""
    out: dict[tuple[int, int, ThreadState, int], int] = {}
    for key, count in with_late_spins(measured, lambda key: key.user == WAIT).drain.facts.items():
        at = key.tid, key.user, key.state, key.n_working
        out[at] = out.get(at, 0) + count.samples
    return out


W, S = ThreadState.WORKING, ThreadState.SPINNING


def test_who_works_beside_one_that_waits_works_alone() -> None:
    serial = {sample(MAIN, SERIAL, 2): 50, sample(OTHER, WAIT, 2): 50}
    parallel = {sample(MAIN, WORK, 2): 50, sample(OTHER, WORK, 2): 50}
    measured = measurement(serial, parallel)
    assert judged(measured) == {
        (MAIN, SERIAL, W, 1): 50, (OTHER, WAIT, S, 1): 50, (MAIN, WORK, W, 2): 50, (OTHER, WORK, W, 2): 50,
    }  # fmt: skip
    (times,) = with_late_spins(measured, lambda key: key.user == WAIT).scopes
    assert times.level_ns == (0, 50 * MS, 50 * MS) and times.working_ns == 150 * MS


def test_within_an_interval_as_many_samples_as_waited() -> None:
    """The one that waits at times works beside all that the other does, as far as it works."""
    mixed = {sample(MAIN, SERIAL, 2): 30, sample(OTHER, WAIT, 2): 20, sample(OTHER, WORK, 2): 10}
    assert judged(measurement(mixed)) == {
        (MAIN, SERIAL, W, 1): 20, (MAIN, SERIAL, W, 2): 10, (OTHER, WAIT, S, 1): 20, (OTHER, WORK, W, 2): 10,
    }  # fmt: skip


def test_nobody_works_where_all_wait() -> None:
    both = {sample(MAIN, WAIT, 2): 40, sample(OTHER, WAIT, 2): 40}
    measured = measurement(both)
    assert judged(measured) == {(MAIN, WAIT, S, 0): 40, (OTHER, WAIT, S, 0): 40}
    (times,) = with_late_spins(measured, lambda key: key.user == WAIT).scopes
    assert times.level_ns == (100 * MS,) and times.working_ns == 0


def test_of_many_threads_all_but_one_wait() -> None:
    facts = {sample(MAIN, SERIAL, 3): 9, sample(OTHER, WAIT, 3): 9, sample(THIRD, WAIT, 3): 9}
    out = judged(measurement(facts, levels=(0, 0, 0, 100 * MS)))
    assert out == {(MAIN, SERIAL, W, 1): 9, (OTHER, WAIT, S, 1): 9, (THIRD, WAIT, S, 1): 9}


def test_single_samples_are_right_in_sum() -> None:
    """Half of the time: not each sample rounded by itself."""
    facts = {sample(MAIN, stack, 2): 1 for stack in range(100, 140)}
    facts |= {sample(OTHER, WAIT, 2): 20, sample(OTHER, WORK, 2): 20}
    out = judged(measurement(facts))
    assert sum(samples for (tid, _, _, n), samples in out.items() if tid == MAIN and n == 1) == 20
    assert sum(out.values()) == 80


def test_what_is_of_no_sample_or_of_another_job_stays() -> None:
    asleep = SampleKey(1, OTHER, NO_EVENT, ThreadState.BLOCKED, 0, WAIT, 0)
    other = sample(7, SERIAL, 2, image=2)
    measured = measurement({sample(MAIN, SERIAL, 2): 5, sample(OTHER, WAIT, 2): 5, asleep: 3, other: 4})
    found = with_late_spins(measured, lambda key: key.user == WAIT).drain.facts
    assert found[asleep] == Count(3, 3000) and found[other] == Count(4, 4000)
    assert measured.drain.facts[sample(MAIN, SERIAL, 2)] == Count(5, 5000), (
        "what was measured does not change"
    )


@pytest.mark.parametrize("why", ["nothing waits", "n changed", "not by interval"])
def test_it_stays_as_it_is(why: str) -> None:
    part = {sample(MAIN, SERIAL, 2): 5, sample(OTHER, WORK if why == "nothing waits" else WAIT, 2): 5}
    by_cores = {sample(MAIN, SERIAL, 2): {2: Count(5)}} if why == "n changed" else {}
    measured = measurement(part, by_cores=by_cores)
    if why == "not by interval":
        measured = replace(measured, intervals=())
    assert with_late_spins(measured, lambda key: key.user == WAIT) is measured
