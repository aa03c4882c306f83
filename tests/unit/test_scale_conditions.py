"""Work and span of threads that meet by a mutex and conditions, and often need not wait."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from busy import busy_loops
from scale_programs import run, speedup


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scale")


@pytest.mark.parametrize("threads", [2, 8, 64])
@pytest.mark.parametrize("form", ["turns_inside", "turns", "turns_by_name"])
def test_turns(directory: Path, form: str, threads: int) -> None:
    """Who comes when it is its turn already does not wait, and yet one works at a time: that was x1.5 with two.

    The first time that a thread comes nothing says that it waits for anything: of 64 threads' turns those are a
    twentieth.
    """
    limit = 1.1 if threads == 64 else 1.06
    assert speedup(run(directory, threads, "span_conditions", form, "100", str(threads), clock="")) < limit


@pytest.mark.parametrize("form", ["buffer", "loud_buffer"])
def test_no_turns_two_sides_of_a_buffer(directory: Path, form: str) -> None:
    """Both work all the time: x2. Who was woken late is not behind all that was signalled meanwhile: that was x1.5."""
    assert 1.85 < speedup(run(directory, 2, "span_conditions", form, "100", "2", clock="")) < 2.05


@contextmanager
def one_busy_core() -> Iterator[None]:
    """What is started meanwhile has one core, and two processes beside it that take what they can get of that.

    Who is woken there has to wait for the core, and goes on when those who woke it wait themselves.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        with busy_loops(2):
            yield
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize("form", ["buffer", "loud_buffer"])
def test_who_was_told_and_waits_for_a_core_does_not_wait_for_others(directory: Path, form: str) -> None:
    """It was taken for one that waits, and the buffer, both sides of which told each other, for a barrier: x1.1."""
    with one_busy_core():
        record = run(directory, 2, "span_conditions", form, "100", "2", clock="")
    assert 1.85 < speedup(record) < 2.05


def test_no_turns_of_a_pool(directory: Path) -> None:
    """Seven of eight threads work, as much each."""
    assert 6.3 < speedup(run(directory, 8, "span_conditions", "pool", "100", "8", clock="")) < 7.2


def test_who_of_a_pool_took_a_task_is_chance(directory: Path) -> None:
    """One of four threads has most of the tasks, since the others were late: that was x1.2 to x1.5."""
    assert 3.7 < speedup(run(directory, 4, "span_conditions", "late_pool", "100", "5", clock="")) < 4.2


@pytest.mark.parametrize("workers", [2, 8, 63])
def test_who_of_a_pool_took_a_task_is_chance_where_all_are_called_for_each(
    directory: Path, workers: int
) -> None:
    """All but one are late for the first half of 800 tasks: that was x1.3, x1.8 and x4 to x34.

    Each task takes so long that the lock, which all those take that are called in vain, is no bound.
    """
    record = run(directory, workers, "span_conditions", "called_pool", "500", str(workers + 1), clock="")
    assert speedup(record) == pytest.approx(workers, rel=0.08)


@pytest.mark.parametrize("workers", [3, 8, 63])
def test_whose_task_it_is_is_no_chance_where_all_are_called_and_one_is_meant(
    directory: Path, workers: int
) -> None:
    """One of them has half of all tasks."""
    record = run(directory, workers, "span_conditions", "mailboxes", "200", str(workers + 1), clock="")
    assert speedup(record) == pytest.approx(2, rel=0.08)


def test_serial_code_between_the_tasks_of_a_pool(directory: Path) -> None:
    """Ten times 40 tasks, and then the work of two alone: the longest path has one task, and those two, ten times.

    But for tasks of threads that came late, and did not wait for the batch: without order there are the two alone.
    """
    record = run(directory, 8, "span_conditions", "late_batches", "200", "9", clock="")
    assert record.span_s > 10 * 2.5 * 200e-6
    assert 6 < speedup(record) < 8.3


@pytest.mark.parametrize("threads", [2, 8, 64])
def test_a_barrier_made_of_a_condition(directory: Path, threads: int) -> None:
    """All go on after the one that had most to do, who need not be the last to come: that was x2.8 and x26."""
    rounds = 20
    record = run(directory, threads, "span_conditions", "barrier", "100", str(threads), clock="")
    truth = (threads + 9) / 10
    # nothing says in its first round that it is one
    assert truth * 0.9 < speedup(record) < truth * rounds / (rounds - 1) * 1.12


@pytest.mark.parametrize("threads", [3, 8])
def test_no_barrier_where_one_tells_the_others(directory: Path, threads: int) -> None:
    """It does not wait for them."""
    record = run(directory, threads, "span_conditions", "announced", "200", str(threads), clock="")
    truth = threads * 20 / 21
    assert truth * 0.85 < speedup(record) < threads * 1.01
