# SPDX-License-Identifier: Apache-2.0
"""Idleness and effort against the formulas of tallent-2009."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.attribution import Effort, Verdict, attribute, finephases, percent, verdict
from parprof.attribution.effort import HIGH_IDLENESS_PERCENT, HIGH_OVERHEAD_PERCENT
from parprof.metrics import Metrics
from parprof.model import ThreadState

WORKING, SPINNING = ThreadState.WORKING, ThreadState.SPINNING
_cores = st.integers(1, 256)
_facts = st.lists(st.tuples(st.integers(0, 10**4), st.integers(1, 256)), max_size=20)


def test_the_example_of_the_paper() -> None:
    """Sec. 2.1: three threads work on four cores; each sample is 1 of work and 1/3 of idleness."""
    metrics = attribute(1, 3000.0, 3, 4, WORKING)
    assert metrics == Metrics(samples=1, work_ns=3000.0, idleness_ns=1000.0)


def test_spinning_is_neither_work_nor_idleness() -> None:
    assert attribute(5, 100.0, 2, 4, SPINNING) == Metrics(samples=5, spin_ns=500.0)


def test_overhead_is_part_of_work() -> None:
    metrics = attribute(5, 100.0, 1, 2, WORKING, overhead=True)
    assert (metrics.work_ns, metrics.overhead_ns, metrics.idleness_ns) == (500.0, 500.0, 500.0)


@pytest.mark.parametrize(("n_working", "cores", "idleness"), [(0, 4, 3), (9, 4, 0), (1, 0, 0), (-3, 2, 1)])
def test_n_w_is_clamped(n_working: int, cores: int, idleness: float) -> None:
    assert attribute(1, 1.0, n_working, cores, WORKING).idleness_ns == idleness


_fine = st.tuples(st.sampled_from([WORKING, SPINNING]), st.integers(0, 70), st.integers(1, 10**4))


@given(st.lists(_fine, min_size=1, max_size=9), st.integers(1, 64))
def test_idleness_in_fine_phases(samples: list[tuple[ThreadState, int, int]], team: int) -> None:
    """GIVEN what was read and what spun THEN idleness is the lower of the two."""
    read = sum(attribute(count, 1.0, n, team, state).idleness_ns for state, n, count in samples)
    spun = sum(count for state, _, count in samples if state is SPINNING)
    n_w = finephases.mean_n_working(samples, team)
    if all(state is SPINNING for state, _, _ in samples):
        assert n_w == 0
        return
    assert 1 <= n_w <= team
    idleness = sum(attribute(count, 1.0, n_w, team, state).idleness_ns for state, _, count in samples)
    assert idleness == pytest.approx(min(spun, read), rel=1e-6, abs=1e-6)


@given(_facts, _cores)
def test_effort_is_all_cores_shared_among_those_that_work(facts: list[tuple[int, int]], n: int) -> None:
    period = 1e6
    charged = sum(attribute(count, period, n_w, n, WORKING).effort_ns for count, n_w in facts)
    assert charged == pytest.approx(sum(count * period * n / min(n_w, n) for count, n_w in facts))


@given(st.floats(0, 1e12), st.floats(0, 1e12), st.floats(0, 1))
def test_split_of_effort(work: float, idleness: float, share: float) -> None:
    effort = Effort.of(Metrics(1, work, idleness, work * share))
    assert 0 <= effort.efficiency <= 1
    if work + idleness > 1e-300:
        assert sum(effort.percentages()) == pytest.approx(100)
        assert effort.total_ns == pytest.approx(work + idleness)


def test_nothing_of_nothing() -> None:
    assert percent(0, 0) == 0
    assert Effort.of(Metrics()).efficiency == 0
    assert verdict(Metrics()) is Verdict.UNKNOWN
    assert verdict(Metrics(samples=3, spin_ns=9)) is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("idleness", "overhead", "expected", "word"),
    [
        (HIGH_IDLENESS_PERCENT - 0.1, HIGH_OVERHEAD_PERCENT - 0.1, Verdict.PARALLEL, "serial performance"),
        (HIGH_IDLENESS_PERCENT - 0.1, HIGH_OVERHEAD_PERCENT, Verdict.COARSEN, "coarsen"),
        (HIGH_IDLENESS_PERCENT, HIGH_OVERHEAD_PERCENT - 0.1, Verdict.REFINE, "refine"),
        (HIGH_IDLENESS_PERCENT, HIGH_OVERHEAD_PERCENT, Verdict.SWITCH, "switch"),
    ],
)
def test_table_1(idleness: float, overhead: float, expected: Verdict, word: str) -> None:
    judged = verdict(Metrics(1, 100 - idleness, idleness, overhead))
    assert judged is expected
    assert word in judged.advice
