# SPDX-License-Identifier: Apache-2.0
"""Intervals of those that nobody attaches to, while intervals of another process are short."""

from __future__ import annotations

import pytest

from parprof.facts.scopes import ScopeTimes
from parprof.metrics import WORK, Metrics
from parprof.model import Frame, Origin, PathSample, ProcessInfo, Profile
from parprof.profile.accounting import JobTime
from parprof.service.model import Labels
from parprof.service.open_intervals import Kept, OpenIntervals

MAIN, A, B = ((Frame(name),) for name in ("main", "a", "b"))
ORIGIN = Origin(7, image=9)


def kept(ended_s: float, seconds: float, rows: dict[tuple[Frame, ...], float], **more: int) -> Kept:
    samples = [
        PathSample(path, Metrics.of({WORK: work_s * 1e9}), ORIGIN, levels=(1.0,))
        for path, work_s in rows.items()
    ]
    profile = Profile(
        ProcessInfo(7), seconds, more.get("hz", 99), samples, start_time_s=1000 + ended_s - seconds,
        target_cost_percent=more.get("cost", 0),
    )  # fmt: skip
    return Kept(profile, more.get("image", 9), Labels("x"), ended_s)


def work_s(one: Kept) -> dict[tuple[Frame, ...], float]:
    return {row.path: row.metrics[WORK] / 1e9 for row in one.profile.samples}


def test_parts_become_one_interval_when_it_is_over() -> None:
    """Of which nothing was sampled in the second in between."""
    intervals = OpenIntervals()
    assert intervals.add(kept(11, 1, {MAIN: 1, A: 2}, cost=3), is_over=False) == []
    assert intervals.add(kept(13, 1, {A: 3, B: 4}, cost=1), is_over=False) == [] and len(intervals) == 1
    assert intervals.end_all_but([9]) == []
    (found,) = intervals.add(kept(15, 2, {B: 5}, cost=1), is_over=True)
    assert work_s(found) == {MAIN: 1, A: 5, B: 9} and len(intervals) == 0
    profile = found.profile
    assert (found.ended_s, profile.duration_s, profile.start_time_s) == (15, 5, 1010)
    assert profile.target_cost_percent == pytest.approx((3 * 3 + 7 + 5) / 15)
    assert [row.levels for row in profile.samples] == [(1.0,), (2.0,), (2.0,)]


def test_another_rate_begins_another_interval() -> None:
    intervals = OpenIntervals()
    intervals.add(kept(11, 1, {A: 1}), is_over=False)
    (first,) = intervals.add(kept(12, 1, {A: 2}, hz=499), is_over=False)
    assert (work_s(first), first.profile.frequency_hz) == ({A: 1}, 99)
    (second,) = intervals.end_all_but()
    assert (work_s(second), second.profile.frequency_hz) == ({A: 2}, 499)


def test_of_a_process_that_somebody_attaches_to_each_part_is_an_interval() -> None:
    intervals = OpenIntervals()
    intervals.add(kept(11, 1, {A: 1}), is_over=False)
    job = JobTime.of(ScopeTimes((0, 10**9), 10**9, True, (9,)), 2, 0, {}, 99, ticked=False)
    plain = kept(12, 1, {A: 2})
    attached = Kept(plain.profile, 9, plain.labels, 12, job)
    assert [work_s(one) for one in intervals.add(attached, is_over=False)] == [{A: 1}, {A: 2}]
    assert len(intervals) == 0


def test_what_has_ended_is_over() -> None:
    intervals = OpenIntervals()
    intervals.add(kept(11, 1, {A: 1}, image=1), is_over=False)
    intervals.add(kept(11, 1, {A: 2}, image=2), is_over=False)
    assert [work_s(one) for one in intervals.end_all_but({2})] == [{A: 1}]
    assert [work_s(one) for one in intervals.end_all_but()] == [{A: 2}]
