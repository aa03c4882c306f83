"""Jobs, their cores and their times: parprof.session.scopes, parprof.facts.scopes, parprof.kernel.scopes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.facts.scopes import ScopeTimes
from parprof.kernel.scopes import ScopeState
from parprof.session.scopes import Scope

SECOND = 10**9


@dataclass
class Process:
    image: int
    clock_samples: int = 0
    pool: int = 0
    cores: int = 4
    cpus: frozenset[int] = frozenset(range(4))
    ended: bool = False
    n_w_source: str = "exact"
    spins_by_samples: bool = False
    pid: int = 0

    def __post_init__(self) -> None:
        self.pid = self.pid or self.image


@dataclass
class Table:
    """Stands in for the programs' table of scopes."""

    states: Mapping[int, ScopeState] = field(default_factory=dict)
    allowed: list[tuple[int, int]] = field(default_factory=list)

    def state(self, number: int) -> ScopeState | None:
        return self.states.get(number)

    def allow(self, number: int, cores: int) -> None:
        self.allowed.append((number, cores))


def job(*processes: Process, levels: tuple[int, ...] = ()) -> Scope:
    scope = Scope(Table({7: ScopeState(0, 1, 0, levels)}), 7)
    for process in processes:
        scope.add(process)
    return scope


def test_one_process_can_use_its_pool() -> None:
    alone = Process(1, 100, pool=3)
    assert job(alone).parallel_cores(alone, 4) == 3
    assert job(Process(1, 100)).parallel_cores(Process(1, 100), 4) == 4


def test_a_shell_that_waits_for_a_program_says_nothing_of_its_width() -> None:
    shell, program = Process(1, 1), Process(2, 1000, pool=2)
    scope = job(shell, program)
    assert len(scope.workers()) == 1
    assert scope.parallel_cores(program, 4) == scope.parallel_cores(shell, 4) == 2  # one n for the whole job


def test_a_pool_of_one_thread_left_the_other_cores_idle() -> None:
    alone = Process(1, 100, pool=1)
    assert job(alone, levels=(0, 5 * SECOND)).parallel_cores(alone, 4) == 4
    beside = job(alone, levels=(0, 5 * SECOND, SECOND))  # a thread that is in no pool worked, too
    assert beside.parallel_cores(alone, 4) == 2


def test_processes_beside_each_other_share_what_any_of_them_may_use() -> None:
    pinned = [Process(number, 100, cores=1, cpus=frozenset({number})) for number in range(3)]
    assert job(*pinned).parallel_cores(pinned[0], 1) == 3


def test_ranks_with_a_thread_each_could_use_as_many_as_worked_together() -> None:
    ranks = [Process(number, 100, pool=1) for number in range(3)]
    scope = job(*ranks, levels=(0, 5 * SECOND, SECOND, 2 * SECOND, 0))
    assert scope.parallel_cores(ranks[0], 4) == 3
    assert scope.parallel_cores(ranks[0], 2) == 3  # the three may use four CPUs together
    instant = job(*ranks, levels=(0, 5 * SECOND, SECOND, 1000, 0))
    assert instant.parallel_cores(ranks[0], 4) == 2


def test_the_programs_are_told_how_many_cores_there_are() -> None:
    table = Table()
    scope = Scope(table, 7)
    scope.add(Process(1, cores=1, cpus=frozenset({0})))
    scope.add(Process(2, cores=1, cpus=frozenset({1})))
    scope.note_cores()
    assert table.allowed == [(7, 1), (7, 2)]


def test_times_are_exact_where_all_that_work_are_counted_by_edges() -> None:
    levels = (SECOND, 2 * SECOND, 0, 0)
    exact = job(Process(1, 100), Process(2, 1, n_w_source="sampled"), levels=levels).times(False)
    assert exact.exact and exact.level_ns == levels[:2]
    assert not job(Process(1, 100, n_w_source="sampled"), levels=levels).times(False).exact
    assert not job(Process(1, 100, spins_by_samples=True), levels=levels).times(False).exact
    assert not job(Process(1, 100), levels=levels).times(True).exact


def test_time_after_the_end_counts_for_nothing() -> None:
    scope = job(Process(1, 100, ended=True), levels=(0, SECOND))
    scope.finish(2 * SECOND)
    assert scope.times(False).elapsed_ns == SECOND
    running = job(Process(1, 100), levels=(0, SECOND))
    running.finish(3 * SECOND)
    assert running.times(False).elapsed_ns > SECOND


@given(st.lists(st.integers(0, 10**12), max_size=20), st.integers(1, 16))
def test_the_terms_are_n_times_the_time(levels: list[int], cores: int) -> None:
    times = ScopeTimes(tuple(levels), sum(n * took for n, took in enumerate(levels)), True)
    whole = times.busy_ns(cores) + times.idleness_ns(cores) + cores * times.idle_ns
    assert whole == pytest.approx(cores * times.elapsed_ns)


def test_a_quota_is_for_all_of_them() -> None:
    limited = [Process(number, 100, cores=1) for number in range(2)]
    assert job(*limited).parallel_cores(limited[0], 1) == 1


def test_what_a_process_was_before_works_beside_nobody() -> None:
    """A shell that goes into a group with a quota and becomes the program there."""
    shell, program = Process(1, 10, cores=4, pid=7), Process(2, 90, cores=1, pid=7)
    assert job(shell, program).parallel_cores(program, 1) == 1
    assert job(shell, Process(2, 90, cores=1, pool=3, pid=7)).parallel_cores(shell, 4) == 3


def test_the_programs_are_told_when_a_process_becomes_one_that_is_allowed_less() -> None:
    table = Table()
    scope = Scope(table, 7)
    shell, program = Process(1, cores=4), Process(2, cores=1)
    scope.add(shell)
    shell.ended = True
    scope.add(program)
    scope.look_at(program)
    assert table.allowed == [(7, 4), (7, 1)]
    scope.look_at(program)
    assert table.allowed == [(7, 4), (7, 1)]


def test_new_samples_tell_anew_who_works() -> None:
    shell, program = Process(1, 100), Process(2, 100)
    scope = job(shell, program)
    assert len(scope.workers()) == 2
    program.clock_samples = 100_000
    scope.changed()
    assert len(scope.workers()) == 1


def test_who_was_dealt_with_is_in_none_of_its_lists() -> None:
    first, second = Process(1, 100, pool=3), Process(2, 50, pool=2)
    scope = job(first, second)
    assert scope.workers() == [first, second]
    scope.remove(first.image)
    assert scope.workers() == [second]
    scope.remove(second.image)
    assert scope.workers() == []
