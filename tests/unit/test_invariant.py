# SPDX-License-Identifier: Apache-2.0
"""More core time than there was cannot be charged."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from parprof.attribution.idleness import attribute
from parprof.attribution.invariant import CoreTime
from parprof.metrics import Metrics
from parprof.model import ThreadState

BUSY = CoreTime(1.5, 0.4, 0.1, 2, 1.0, 0.002, 2)


def test_what_was_seen_in_the_field() -> None:
    """work 1.37, run delay 1.58, idleness 1.17 of 3.72 s: overstated, and so told; the true 0.41 is not."""
    wrong = CoreTime(1.37, 1.17, 1.58, 2, 1.86, 0.002, 2)
    assert not wrong.is_possible
    assert "2 x 1.86 s" in wrong.violation() and "idleness 1.17 s" in wrong.violation()
    assert replace(wrong, idleness_s=0.41).is_possible


def test_threads_beyond_the_cores_may_wait_for_long() -> None:
    crowded = CoreTime(2.0, 0.0, 6.0, 2, 1.0, 0.002, 8)
    assert crowded.is_possible
    assert not replace(crowded, most_working=2).is_possible


def test_a_few_samples_prove_nothing() -> None:
    assert CoreTime(0.03, 0.03, 0.0, 2, 0.02, 0.01, 1).is_possible
    assert BUSY.is_possible


@given(st.lists(st.integers(0, 4), min_size=1, max_size=400), st.integers(1, 8))
def test_samples_of_a_right_n_w_never_break_it(working: list[int], cores: int) -> None:
    """Each instant has so many working threads, all of them sampled: charges add up to n at the most."""
    total = Metrics()
    for n_working in working:
        for _ in range(min(n_working, cores)):
            total.add(attribute(1, 1e6, n_working, cores, ThreadState.WORKING))
    times = CoreTime(
        total.work_ns / 1e9, total.idleness_ns / 1e9, 0.0, cores, len(working) * 1e-3, 1e-3, max(working)
    )
    assert times.charged_s <= times.available_s * (1 + 1e-9)
    assert times.is_possible
