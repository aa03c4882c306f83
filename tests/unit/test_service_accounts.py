"""What the daemon makes of an interval's samples."""

from __future__ import annotations

import pytest

from parprof.model import Count, SampleKey, ThreadState
from parprof.service.accounts import mean_n_working


def test_mean_n_w_is_that_of_the_time() -> None:
    """Half of the time 1 thread works, half of it 16 do, each of which is sampled: 8.5 on an average, not 15.1."""
    facts = {
        SampleKey(1, 7, 0, ThreadState.WORKING, 1, 0, 0): Count(100),
        SampleKey(1, 8, 0, ThreadState.WORKING, 16, 0, 0): Count(1600),
        SampleKey(1, 9, 0, ThreadState.SPINNING, 1, 0, 0): Count(50),
        SampleKey(1, 7, 1, ThreadState.WORKING, 3, 0, 0): Count(1000),
    }
    assert mean_n_working(facts, {}) == {1: pytest.approx(8.5)}


def test_mean_n_w_of_short_phases() -> None:
    facts = {SampleKey(2, 7, 0, ThreadState.WORKING, 1, 0, 0, fine=4): Count(10)}
    assert mean_n_working(facts, {2: 3.5}) == {2: pytest.approx(3.5)}
    assert mean_n_working(facts, {}) == {2: pytest.approx(1)}
    assert mean_n_working({}, {}) == {}
