# SPDX-License-Identifier: Apache-2.0
"""The cost line: what was paid, for what, and the budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parprof.cct.tree import CallingContextTree
from parprof.exporters.summary import facts
from parprof.profile.cost import cost_shares, merged_shares, percent_of_rest, spun_for_us_ns, with_spun
from profiles import heat


def cost_line(**extra: str) -> str:
    profile = replace(heat(), target_cost_percent=2.3, extra=extra)
    found = facts(profile, CallingContextTree(profile.samples))
    return next(fact.text for fact in found if fact.label == "cost")


def test_the_shares_of_kinds_add_up_to_that_of_all() -> None:
    """A short program that tasks hold up: what it paid is nearly all that it used."""
    paid = {"probes": 0.6e9, "samples": 0.2e9, "timer": 0.1e9}
    shares = cost_shares(paid, 1e9)
    assert sum(map(float, shares.values())) == pytest.approx(percent_of_rest(0.9e9, 1e9), abs=0.01)
    assert float(shares["cost_probes_percent"]) == pytest.approx(600, abs=0.01)


def test_kinds_dearest_first_and_the_budget() -> None:
    line = cost_line(
        cost_timer_percent="0.93", cost_probes_percent="1.37", cost_locks_percent="0.001", cost_budget_percent="1"
    )  # fmt: skip
    assert line.startswith("2.30 % of the target's CPU time (probes 1.37 %, timer 0.93 %, budget 1 %), ")


def test_older_files_and_hostile_ones_have_none() -> None:
    assert cost_line().startswith("2.30 % of the target's CPU time, ")
    assert cost_line(cost_x_percent="nan", cost_y_percent="1e9 %").startswith(
        "2.30 % of the target's CPU time, "
    )


@pytest.mark.parametrize(("paid", "cpu", "percent"), [(0, 0, 0), (1, 101, 1), (9, 10, 900), (5, 4, 12_500)])
def test_cost_is_held_against_the_program_s_own_time(paid: float, cpu: float, percent: float) -> None:
    """A program that ran ten times as long for our sake paid 900 %, not 90."""
    assert percent_of_rest(paid, cpu) == pytest.approx(percent)


@pytest.mark.parametrize(
    ("paid", "spun", "cores", "ours"),
    [(10, 100, 2, 10), (10, 100, 4, 30), (10, 5, 2, 5), (10, 100, 1, 0), (10, 0, 8, 0), (0, 100, 8, 0)],
)
def test_who_spins_for_one_that_was_held_up_pays_too(
    paid: float, spun: float, cores: int, ours: float
) -> None:
    assert spun_for_us_ns(paid, spun, cores) == ours


def test_the_shares_of_intervals_weigh_as_much_as_their_cpu_time() -> None:
    busy = with_spun({"probes": 2e6, "timer": 1e6, "locks": 0.0}, spin_ns=9e6, cores=3)
    assert busy == {"probes": 2e6, "timer": 1e6, "locks": 0.0, "threads spinning meanwhile": 6e6}
    first = {**cost_shares(busy, 1e9), "cost_budget_percent": "1", "commit": "x"}
    assert first.keys() == {
        "cost_probes_percent", "cost_timer_percent", "cost_threads_spinning_meanwhile_percent", "cost_budget_percent",
        "commit",
    }  # fmt: skip
    second = cost_shares({"timer": 1e6}, 3e9)
    found = merged_shares([(first, 1e9), (second, 3e9), ({"cost_timer_percent": "x"}, 0.0)])
    assert found.keys() == first.keys() - {"cost_budget_percent", "commit"}
    assert float(found["cost_timer_percent"]) == pytest.approx(0.05, abs=0.001)
    assert float(found["cost_probes_percent"]) == pytest.approx(0.05, abs=0.001)
    assert merged_shares([(second, 0.0)]) == {}
