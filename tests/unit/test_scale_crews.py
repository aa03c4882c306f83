"""Threads that share work out themselves: who did how much is chance, unless the program chose it."""

from __future__ import annotations

from pathlib import Path

import pytest

from parprof.scale.record import Flag, SpanRecord
from scale_programs import run

N = 1_000_000
THREADS = 4
STEPS = 40


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scale")


def amounts(record: SpanRecord) -> tuple[float, float]:
    """Work and bound, in units of N."""
    return round(record.work_s * 1e9 / N, 2), round(record.bound_s * 1e9 / N, 2)


@pytest.mark.parametrize("form", ["dealt", "maker", "places"])
def test_threads_that_are_through_together_share_work_out_themselves(directory: Path, form: str) -> None:
    """One of four did 28 of 40 items: on four cores each would do 10. Before, beside and after them 1 each."""
    record = run(directory, 8, "span_crews", form, str(N))
    assert amounts(record) == (STEPS + 3, STEPS / THREADS + 3)
    assert record.flags & Flag.DEALT_OUT


def test_fewer_cores_than_threads(directory: Path) -> None:
    """Two cores do 20 items each."""
    assert amounts(run(directory, 2, "span_crews", "dealt", str(N))) == (STEPS + 3, STEPS / 2 + 3)


def test_a_lock_is_no_order(directory: Path) -> None:
    """But a bound, of the phase in which it is held: all but what is before and after."""
    record = run(directory, 8, "span_crews", "locked", str(N))
    assert amounts(record) == (STEPS + 3, STEPS + 2)
    assert round(record.span_s * 1e9 / N, 2) == STEPS / THREADS + 3


@pytest.mark.parametrize(
    ("form", "work", "bound"), [("chosen", 40, 28), ("ends_late", 60, 48), ("looks", 40, 40)]
)
def test_parts_that_are_the_program_s_choice(directory: Path, form: str, work: float, bound: float) -> None:
    """Who has less to do is through earlier; and what those wait for that sleep is not known."""
    record = run(directory, 8, "span_crews", form, str(N))
    assert amounts(record) == (work + 3, bound + 2)
    assert not record.flags & Flag.DEALT_OUT


def test_the_program_ends_before_all_are_joined(directory: Path) -> None:
    """Then it is not known."""
    record = run(directory, 8, "span_crews", "leaves", str(N))
    assert amounts(record) == (STEPS + 2, 28 + 1)


def test_so_little_work_says_nothing(directory: Path) -> None:
    """Less than a millisecond's: the threads may hardly have met."""
    record = run(directory, 8, "span_crews", "dealt", "1000")
    assert round(record.bound_s * 1e9) == (28 + 2) * 1000
