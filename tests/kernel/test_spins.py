"""Threads that wait without sleeping, in the program's own code, do not work: n_w against the program's own log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import profiling
from parprof.model import ThreadState
from parprof.probes import plan, spin_book
from parprof.probes.wait_functions import SpinRules, WaitFunctions
from parprof.session import spins
from reruns import MadeForAll

LIMIT = 0.06
"""A thread's state is that of its last sample: it is out of date for half a period on average, of phases of 40 and
50 ms, and for longer where threads have to wait for a CPU."""


@contextmanager
def using(book: spin_book.SpinBook) -> Iterator[spin_book.SpinBook]:
    """What sessions know of loops, and write down."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "SPINS", book)
        patch.setattr(spins.SpinFinder.__init__, "__defaults__", (book,))
        yield book


@pytest.fixture
def book(tmp_path: Path) -> Iterator[spin_book.SpinBook]:
    """Nothing is known of any file yet."""
    with using(spin_book.SpinBook(base=tmp_path / "cache")) as book:
        yield book


class Found(NamedTuple):
    """A program in which the loop was found while it ran, and what is known since then."""

    run: profiling.Run
    book: spin_book.SpinBook


@pytest.fixture(scope="module")
def all_find(tmp_path_factory: pytest.TempPathFactory) -> MadeForAll[Found]:
    def find() -> Found:
        folder = tmp_path_factory.mktemp("found")
        with using(spin_book.SpinBook(base=folder / "cache")) as book:
            return Found(profiling.record("spins_truth", ["flag", "--repeat", "6"], folder / "log"), book)

    return MadeForAll(find)


@pytest.fixture
def found(request: pytest.FixtureRequest, all_find: MadeForAll[Found]) -> Iterator[Found]:
    """Its book is in use."""
    one = all_find.take(request.node.name)
    with using(one.book):
        yield one


LOOPS = ("pause", "yield", "take")


@pytest.fixture(scope="module")
def all_known(tmp_path_factory: pytest.TempPathFactory) -> MadeForAll[spin_book.SpinBook]:
    """What is known after a program was run in which each of these loops was to be found."""

    def look() -> spin_book.SpinBook:
        folder = tmp_path_factory.mktemp("known")
        with using(spin_book.SpinBook(base=folder / "cache")) as book:
            profiling.record_each([("spins_truth", how, "--repeat", "3") for how in LOOPS], folder)
        return book

    return MadeForAll(look)


@pytest.mark.parametrize("how", LOOPS)
def test_a_thread_that_spins_does_not_work(
    how: str, all_known: MadeForAll[spin_book.SpinBook], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with using(all_known.take(request.node.name)):
        check_that_spinning_is_no_work(how, tmp_path)


def test_a_thread_that_waits_for_a_flag_does_not_work(found: Found, tmp_path: Path) -> None:
    check_that_spinning_is_no_work("flag", tmp_path)


def check_that_spinning_is_no_work(how: str, tmp_path: Path) -> None:
    found = []
    for attempt in range(4):
        run = profiling.record("spins_truth", [how], tmp_path / f"log{attempt}")
        found.append(profiling.compare(run.session.trace, run.truth))
        spun = sum(record.state is ThreadState.SPINNING for record in run.session.trace)
        if found[-1].wrong_share <= LIMIT and spun > 150:  # who yields has only the cores that others leave
            break
    best = min(found, key=lambda agreement: agreement.wrong_share)
    assert best.judged > 300
    assert best.wrong_share <= LIMIT, best.cases
    assert spun > 150, "half of a run is serial"
    assert run.target.source == "scheduler"


def spun(run: profiling.Run) -> int:
    return sum(record.state is ThreadState.SPINNING for record in run.session.trace)


def test_functions_that_the_user_names_wait(book: spin_book.SpinBook, tmp_path: Path) -> None:
    """A loop that stores and calls is none that the machine code tells of."""
    before = profiling.record("spins_truth", ["call"], tmp_path / "before")
    assert spun(before) < 10, "the main thread's wait for the worker"
    found = []
    for attempt in range(4):
        named = WaitFunctions("wait_for_work|poll_.*")
        rules = SpinRules(functions=named)
        run = profiling.record("spins_truth", ["call"], tmp_path / f"log{attempt}", spin_rules=rules)
        found.append(profiling.compare(run.session.trace, run.truth))
        assert spun(run) > 150, "half of a run is serial"
        assert named.notes() == []
        (remark,) = [text for text in run.target.remarks() if "--wait-function" in text]
        assert "poll_round (spins_truth)" in remark and "wait_for_work (spins_truth)" in remark
        if found[-1].wrong_share <= LIMIT:
            break
    best = min(found, key=lambda agreement: agreement.wrong_share)
    assert best.judged > 300 and best.wrong_share <= LIMIT, best.cases


def test_the_function_of_a_loop_is_named(found: Found) -> None:
    (remark,) = [text for text in found.run.target.remarks() if text.startswith("loops in ")]
    assert "until_flag (spins_truth)" in remark


def test_loops_in_which_nobody_is_found_change_nothing(found: Found, tmp_path: Path) -> None:
    """They are known of many files, the C library's spin lock of most machines' sooner or later."""
    assert found.run.target.spins_by_samples
    run = profiling.record("spins_truth", ["sleep"], tmp_path / "log")
    assert run.target.plan.spinning and not run.target.spins_by_samples
    assert not [text for text in run.target.remarks() if text.startswith("loops in ")]
    assert run.target.scope.times(ticked=False).exact, "the account can be checked"


def test_loops_count_as_work_where_the_user_says_so(found: Found, tmp_path: Path) -> None:
    run = profiling.record("spins_truth", ["flag"], tmp_path / "log", spin_rules=SpinRules(loops=False))
    assert spun(run) == 0 and not run.target.plan.spinning


def test_the_loop_is_found_while_the_program_runs(found: Found) -> None:
    run, book = found
    first_ns = run.session.trace[0].time_ns
    late = [record for record in run.session.trace if record.time_ns > first_ns + 1_500_000_000]
    assert any(record.state is ThreadState.SPINNING for record in late)
    assert len(book.loops(next(dso for dso in run.target.load_map.dsos() if dso.name == "spins_truth"))) >= 1
