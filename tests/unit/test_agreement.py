# SPDX-License-Identifier: Apache-2.0
"""Exact totals of idleness against sampled ones: parprof.service.agreement."""

from __future__ import annotations

import random

import pytest

from parprof.attribution.agreement import TwoWays
from parprof.service.agreement import WINDOW_SECONDS, IdlenessChecks

HZ, CORES = 99, 4
S = 10**9


def interval(
    checks: IdlenessChecks, share: float, seconds: float = 10.0, cores: float = CORES, ready: float = 0.0
) -> None:
    """``share``: of the idleness that samples see. Half of the time one thread works, a quarter two, a quarter none."""
    levels = [round(seconds * S * part) for part in (0.25, 0.5, 0.25)]
    counted_s = seconds * (0.5 * (cores - 1) + 0.25 * (cores - 2))
    checks.add(7, levels, share * counted_s, ready, cores, 1 / HZ)


def test_what_samples_explain_is_no_disagreement() -> None:
    """Samples of a Poisson process, which is worse than a regular clock: one in twenty may part, and fewer do."""
    chance, checks = random.Random(1), IdlenessChecks()
    for _ in range(400):
        counts = [
            sum(chance.random() < 0.1 for _ in range(round(10 * HZ * 10 * part))) for part in (0.5, 0.25)
        ]
        sampled_s = (counts[0] * 3 + 2 * counts[1] * 1) / HZ
        checks.add(7, [round(2.5 * S), 5 * S, round(2.5 * S)], sampled_s, 0.0, CORES, 1 / HZ)
    assert checks.made == 200 and checks.failed <= 5


@pytest.mark.parametrize("share", [0.8, 1.25])
def test_a_fifth_more_or_less_is_one(share: float) -> None:
    checks = IdlenessChecks()
    interval(checks, share)
    assert (checks.made, checks.failed, checks.note(7)) == (0, 0, "")
    interval(checks, share)
    assert (checks.made, checks.failed) == (1, 1)
    assert checks.note(7).startswith(
        f"idleness is {share * 40:.2f} s by samples, 40.00 s from each change of n_w"
    )
    for _ in range(2):
        interval(checks, 1.0)
    assert (checks.made, checks.failed, checks.note(7)) == (2, 1, "")


def test_time_without_a_cpu_is_none_that_samples_could_see() -> None:
    checks = IdlenessChecks()
    interval(checks, 0.8, WINDOW_SECONDS, ready=2.0)
    assert (checks.made, checks.failed) == (1, 0)
    interval(checks, 1.25, WINDOW_SECONDS, ready=2.0)
    assert (checks.made, checks.failed) == (2, 1)


def test_only_whole_windows_with_one_n_are_compared() -> None:
    checks = IdlenessChecks()
    interval(checks, 0.1)
    interval(checks, 0.1, cores=3)
    checks.skip(7)
    interval(checks, 0.1, cores=3)
    assert checks.made == 0
    interval(checks, 0.1, cores=3)
    assert (checks.made, checks.failed) == (1, 1)
    checks.keep(())
    assert checks.note(7) == ""


def test_a_few_samples_say_nothing() -> None:
    assert TwoWays(0.0, 0.02, 0.0, 0.01).agree and TwoWays(0.02, 0.0, 0.0, 0.01).agree
    assert not TwoWays(0.2, 0.0, 0.0, 0.01).agree


def test_on_one_core_there_is_no_idleness() -> None:
    checks = IdlenessChecks()
    checks.add(7, [5 * S, 20 * S], 0.0, 0.0, 1, 1 / HZ)
    assert (checks.made, checks.failed) == (1, 0)
