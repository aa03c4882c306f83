# SPDX-License-Identifier: Apache-2.0
"""95 % intervals hold what they promise."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.attribution import attribute
from parprof.attribution.interval import (
    are_told_apart,
    metric_interval,
    period_ns,
    rank_intervals,
    share_interval,
    step_of,
)
from parprof.causes.cause import interval_percent
from parprof.metrics import IDLENESS, METRICS, STALL, WORK, Metrics
from parprof.model import ThreadState

_values = st.lists(st.floats(0, 1e6), min_size=1, max_size=30).map(lambda found: sorted(found, reverse=True))


@given(st.floats(0, 1), st.integers(1, 10**6), st.floats(0, 64), st.floats(0, 64))
def test_an_interval_has_the_share_in_it(share: float, whole: int, step: float, rest: float) -> None:
    low, high = share_interval(share * whole, whole, step, rest)
    assert 0 <= low <= share * (1 + 1e-9) and share <= high * (1 + 1e-9) + 1e-12 and high <= 1


def test_nothing_is_nothing() -> None:
    assert share_interval(0.0, 0.0, 1.0, 1.0) == (0.0, 0.0)
    assert metric_interval(WORK, Metrics(), Metrics(), 4) == (0.0, 0.0)


def test_what_was_never_seen_is_less_than_three_samples() -> None:
    low, high = share_interval(0.0, 1000.0, 1.0, 1.0)
    assert (low, high) == (0.0, 0.003)


def test_four_times_the_samples_halve_the_error() -> None:
    few = share_interval(20.0, 100.0, 1.0, 1.0)
    many = share_interval(80.0, 400.0, 1.0, 1.0)
    assert many[1] - 0.2 == pytest.approx((few[1] - 0.2) / 2)


def test_true_shares_are_inside_as_often_as_promised() -> None:
    """GIVEN a program of known shares, sampled 400 times at random THEN 19 of 20 intervals hold them, at least."""
    dice = random.Random(7)
    inside = {"idleness": 0, "work": 0}
    rounds = 400
    for _ in range(rounds):
        serial, total = Metrics(), Metrics()
        for _ in range(400):  # alone for 0.25 of the samples, else 4 work at once on 4 cores
            alone = dice.random() < 0.25
            metrics = attribute(1, 1e6, 1 if alone else 4, 4, ThreadState.WORKING)
            total.add(metrics)
            if alone:
                serial.add(metrics)
        true_effort = 0.25 * 4 + 0.75
        for metric, truth in ((IDLENESS, 0.25 * 3 / true_effort), (WORK, 0.25 / true_effort)):
            low, high = metric_interval(metric, serial, total, 4)
            inside[metric.name] += low <= truth <= high
    assert inside["idleness"] >= 0.95 * rounds and inside["work"] >= 0.95 * rounds


def test_causes_have_the_same_formula() -> None:
    total = Metrics(samples=1000, work_ns=1e9, idleness_ns=1e9)
    part = Metrics(samples=100, work_ns=1e8, idleness_ns=1e8)
    low, high = share_interval(1e8, 2e9, 2e6, 2e6)
    assert interval_percent(part, total, 2) == (100 * low, 100 * high)


def test_measured_metrics_have_no_error_of_sampling() -> None:
    assert step_of(STALL, 1e6, 4) == 0
    assert step_of(IDLENESS, 1e6, 4) == 3e6
    assert all(step_of(metric, 1e6, 1) >= 0 for metric in METRICS)
    assert period_ns(Metrics(samples=10, work_ns=8e6, spin_ns=2e6)) == 1e6


@given(_values, st.floats(0, 100))
def test_places_are_those_of_rows_that_cannot_be_told_apart(values: list[float], step: float) -> None:
    for at, (first, last) in enumerate(rank_intervals(values, step), 1):
        assert 1 <= first <= at <= last <= len(values)
        for other, value in enumerate(values, 1):
            if value != values[at - 1] and abs(value - values[at - 1]) > 1e-3:
                slack = 1 + 1e-9
                if not first <= other <= last:
                    assert are_told_apart(values[at - 1], value, step / slack)
                else:
                    assert not are_told_apart(values[at - 1], value, step * slack + 1e-9)
