# SPDX-License-Identifier: Apache-2.0
"""What the governor makes of what was paid."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.service.governor import FREQUENCIES_HZ, Governor, Usage
from parprof.session.sources import Source


def governor() -> Governor:
    return Governor(0.01, 99)


def samples(count: int, each_ns: float) -> Usage:
    """One core that is busy for a second."""
    return Usage(1.0, 1e9, count, 0, count * each_ns, count * each_ns)


def test_probes_are_tried_again_after_ever_longer_rests() -> None:
    one, now_s, rests = governor(), 0.0, []
    for _ in range(6):
        one.note_degraded(1, "exact", "memory", now_s)
        since_s = now_s
        while one.judge(1, Source.MEMORY, now_s) is Source.MEMORY:
            now_s += 10
        rests.append(now_s - since_s)
    assert rests == [60, 120, 240, 480, 960, 1920]
    assert one.transitions == {("exact", "memory"): 6, ("memory", "exact"): 6}


def test_what_never_had_probes_gets_none() -> None:
    one = governor()
    one.note_degraded(1, "memory", "sampled", 0.0)
    assert one.judge(1, Source.SAMPLED, 1e6) is Source.SAMPLED
    assert one.judge(1, Source.EXACT, 1e6) is Source.EXACT


def test_a_process_that_is_gone_is_forgotten() -> None:
    one = governor()
    one.note_degraded(1, "exact", "sampled", 0.0)
    one.forget(1)
    assert one.judge(1, Source.SAMPLED, 1e6) is Source.SAMPLED


def test_switches_are_followed_again_after_ever_longer_rests() -> None:
    one, now_s, rests = governor(), 1000.0, []
    assert not one.judge_switches(True, now_s)
    for _ in range(4):
        since_s, followed = now_s, False
        while not followed:
            followed = one.judge_switches(False, now_s)
            now_s += 10
        rests.append(now_s - since_s - 10)
        now_s += 10
        assert not one.judge_switches(True, now_s), "they are"
        now_s += 10
    assert rests == [60, 120, 240, 480]
    assert one.transitions == {("switches", "ticks"): 4, ("ticks", "switches"): 4}


def test_cost_is_what_was_paid() -> None:
    one = governor()
    assert one.cost_ratio(Usage(10.0, 1e9, 100, 1_000, 5e6, 1e6)) == pytest.approx(0.005)
    assert one.cost_ratio(Usage(10.0, 0.0, 0, 0)) == 0


@given(st.floats(0.001, 1.0), st.floats(100.0, 1e6), st.integers(1, 2_000))
def test_the_rate_fits_the_budget_or_is_the_lowest(budget: float, sample_ns: float, wanted_hz: int) -> None:
    one, at = Governor(budget, wanted_hz), wanted_hz
    for _ in range(10):
        at = one.judge_frequency(samples(at, sample_ns))
    cost = at * sample_ns / 1e9
    assert cost <= budget * 1.01 or at == min(FREQUENCIES_HZ[0], wanted_hz)
    assert at <= wanted_hz


def test_it_goes_back_up_with_room_alone() -> None:
    one = governor()
    assert one.judge_frequency(samples(99, 200_000.0)) == 49
    assert one.judge_frequency(samples(49, 150_000.0)) == 49, "99 Hz would be too dear"
    assert one.judge_frequency(samples(49, 20_000.0)) == 99
    assert one.transitions == {("99 Hz", "49 Hz"): 1, ("49 Hz", "99 Hz"): 1}


def test_a_rate_that_somebody_asks_for_comes_at_once_and_goes_with_him() -> None:
    one = Governor(0.01, 99)
    one.ask_for(499)
    assert one.frequency_hz == 499
    one.ask_for(999)
    assert one.frequency_hz == 999
    one.ask_for(499)
    assert one.frequency_hz == 499
    one.ask_for(0)
    assert one.frequency_hz == 99
    one.ask_for(49)
    assert one.frequency_hz == 99, "the usual one is more"
    one.ask_for(0)
    assert one.frequency_hz == 99


def test_a_rate_that_somebody_asks_for_stays_whatever_it_costs() -> None:
    one = Governor(0.01, 99)
    one.ask_for(499)
    assert one.judge_frequency(samples(499, 50_000.0)) == 499
    one.ask_for(19)
    assert one.judge_frequency(samples(99, 200_000.0)) == 49, "he asks for less than it is"
    one.ask_for(0)
    assert one.frequency_hz == 99
    assert one.judge_frequency(samples(99, 200_000.0)) == 49
    one.ask_for(499)
    one.ask_for(0)
    assert one.frequency_hz == 49, "what was found to be too dear before is so still"


def test_the_usual_rate_changes_while_another_one_is_asked_for() -> None:
    one = Governor(0.01, 99)
    one.ask_for(499)
    one.set_budget(0.01, 49)
    assert one.frequency_hz == 499
    one.ask_for(0)
    assert one.frequency_hz == 49
