# SPDX-License-Identifier: Apache-2.0
"""What the governor makes of what was counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.service.governor import FREQUENCIES_HZ, Governor, Prices, Usage
from parprof.sources import Source

PRICES = Prices(sample_ns=4_000.0, probe_ns=1_000.0)
CHEAP = Usage(10.0, 20e9, 1_980, 1_000)
DEAR = Usage(10.0, 20e9, 1_980, 1_000_000)
"""Probes for 5 % of the CPU time."""


def governor() -> Governor:
    return Governor(0.01, 99)


@pytest.mark.parametrize(("holds", "source"), [(True, Source.MEMORY), (False, Source.SAMPLED)])
def test_probes_over_budget_are_given_up(holds: bool, source: Source) -> None:
    one = governor()
    assert one.judge(1, Source.EXACT, holds, CHEAP, PRICES, 0.0) is Source.EXACT
    assert one.judge(1, Source.EXACT, holds, DEAR, PRICES, 10.0) is source
    assert one.transitions == {("exact", str(source)): 1}


@pytest.mark.parametrize("by_itself", [True, False])
def test_they_are_tried_again_after_ever_longer_rests(by_itself: bool) -> None:
    """Whether the governor took the probes away, or the session, which is faster."""
    one, now_s, rests = governor(), 0.0, []
    source = Source.EXACT
    for _ in range(6):
        if by_itself:
            source = one.judge(1, source, True, DEAR, PRICES, now_s)
        else:
            one.note_degraded(1, "exact", "memory", now_s)
            source = Source.MEMORY
        assert source is Source.MEMORY
        since_s = now_s
        while source is Source.MEMORY:
            now_s += 10
            source = one.judge(1, source, True, CHEAP, PRICES, now_s)
        rests.append(now_s - since_s)
    assert rests == [60, 120, 240, 480, 960, 1920]


def test_what_never_had_probes_gets_none() -> None:
    one = governor()
    one.note_degraded(1, "memory", "sampled", 0.0)
    assert one.judge(1, Source.SAMPLED, False, CHEAP, PRICES, 1e6) is Source.SAMPLED


def test_a_process_that_is_gone_is_forgotten() -> None:
    one = governor()
    one.judge(1, Source.EXACT, True, DEAR, PRICES, 0.0)
    one.forget(1)
    assert one.judge(1, Source.MEMORY, True, CHEAP, PRICES, 1e6) is Source.MEMORY


def test_cost_counts_all_that_was_sampled() -> None:
    one = governor()
    usage = Usage(10.0, 1e9, 100, 1_000, other_samples=900)
    assert one.cost_ratio(usage, PRICES) == pytest.approx((1_000 * 4e3 + 1_000 * 1e3) / 1e9)
    assert one.cost_ratio(Usage(10.0, 0.0, 0, 0), PRICES) == 0


@given(st.floats(0.001, 1.0), st.floats(100.0, 1e6), st.integers(1, 2_000))
def test_the_rate_fits_the_budget_or_is_the_lowest(budget: float, sample_ns: float, wanted_hz: int) -> None:
    one, at = Governor(budget, wanted_hz), wanted_hz
    for _ in range(10):  # one core that is busy all the time
        at = one.judge_frequency(Usage(1.0, 1e9, at, 0), Prices(sample_ns, 1.0))
    cost = at * sample_ns / 1e9
    assert cost <= budget * 1.01 or at == min(FREQUENCIES_HZ[0], wanted_hz)
    assert at <= wanted_hz


def test_it_goes_back_up_with_room_alone() -> None:
    one = governor()
    assert one.judge_frequency(Usage(1.0, 1e9, 99, 0), Prices(200_000.0, 1.0)) == 49
    assert one.judge_frequency(Usage(1.0, 1e9, 49, 0), Prices(150_000.0, 1.0)) == 49, (
        "99 Hz would be too dear"
    )
    assert one.judge_frequency(Usage(1.0, 1e9, 49, 0), Prices(20_000.0, 1.0)) == 99
    assert one.transitions == {("99 Hz", "49 Hz"): 1, ("49 Hz", "99 Hz"): 1}
