# SPDX-License-Identifier: Apache-2.0
"""How n is kept over time, and whose turn it is to be looked at."""

from __future__ import annotations

import pytest

from parprof.facts.cores import CoresHeld, held_since, mean_cores, usual_cores
from parprof.service.watching import ProcessAccount
from parprof.session.cores import AllowedCores, Rounds


def test_each_number_has_its_time() -> None:
    cores = AllowedCores(4)
    cores.change(2, 1.0)
    cores.change(4, 1.5)
    assert (cores.first, cores.before, cores.now, cores.changes, cores.changed_s) == (4, 2, 4, 2, 1.5)
    assert cores.held_s(3.0) == pytest.approx({4: 2.5, 2: 0.5})


def test_what_held_does_not_grow_with_the_changes() -> None:
    cores = AllowedCores(2)
    for second in range(1, 10_000):
        cores.change(1 + second % 2, float(second))
    assert cores.held_s(10_000.0) == pytest.approx({1: 4_999.0, 2: 5_001.0})


def test_the_mean_goes_by_time_and_is_exact_where_there_is_one() -> None:
    assert mean_cores([CoresHeld(4, 4, 1.0), CoresHeld(2, 2, 3.0)]) == pytest.approx(2.5)
    for seconds in (0.1, 0.3, 1.7, 2.9):
        assert mean_cores([CoresHeld(8, 3, seconds), CoresHeld(4, 3, seconds / 7)]) == 3
    assert mean_cores([CoresHeld(8, 3, 0.0)]) == 3


def test_the_usual_n_is_what_held_for_longest() -> None:
    held = [CoresHeld(8, 3, 1.0), CoresHeld(4, 3, 1.0), CoresHeld(2, 2, 1.5)]
    assert usual_cores(held) == 3, "a pool of three threads makes 8 and 4 the same"


def test_an_interval_has_its_own() -> None:
    account = ProcessAccount(0.0)
    first = [CoresHeld(4, 4, 3.0)]
    assert account.take_held(first) == first
    assert mean_cores(account.take_held([CoresHeld(4, 4, 3.5), CoresHeld(2, 2, 0.5)])) == 3
    assert mean_cores(account.take_held([CoresHeld(4, 4, 3.5), CoresHeld(2, 2, 2.5)])) == 2
    assert held_since([CoresHeld(2, 2, 1.0)], {2: 5.0}) == [CoresHeld(2, 2, 0.0)], "its clock began anew"


def test_a_few_at_a_time_and_each_once_a_round() -> None:
    rounds = Rounds(10.0)
    rounds.note(range(5))
    seen = []
    for turn in range(20):
        due = rounds.due(100 + turn / 10)
        assert len(due) <= 2
        seen += due
    assert sorted(seen) == [0, 1, 2, 3, 4]
    rounds.note([3])
    assert rounds.due(105.0) == []
    assert rounds.due(110.0) == [3]
    assert rounds.due(120.0) == [], "it has not run since"


def test_a_round_of_many_takes_longer_and_leaves_nobody_out() -> None:
    rounds = Rounds(1.0)
    seen = set()
    for turn in range(100):
        rounds.note(range(100))
        seen.update(rounds.due(turn / 10))
    assert seen == set(range(100))


def test_never() -> None:
    rounds = Rounds(float("inf"))
    rounds.note([1])
    assert rounds.due(0.0) == []
    assert rounds.due(1e9) == []
