# SPDX-License-Identifier: Apache-2.0
"""The daemon's seconds at each n_w, from the programs' histograms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from parprof.facts.scopes import ScopeTimes
from parprof.kernel.scopes import ScopeState
from parprof.service.levels import FIRST_OF_LEVEL, NONE, LevelClock, by_level_s

S = 10**9
NOW_NS = 16 + 4 * S


@dataclass
class Member:
    image: int
    scope: Job
    ended: bool = False


@dataclass
class Job:
    number: int
    levels: tuple[int, ...] = (0,) * 128
    members: dict[int, Member] = field(default_factory=dict)

    away: tuple[int, int] = (0, 0)

    def state(self) -> ScopeState | None:
        working_ns = sum(n * took for n, took in enumerate(self.levels))
        return ScopeState(1, 0, working_ns, self.levels, *self.away)

    def counted_until(self, now_ns: int, state: ScopeState) -> ScopeState:
        return state if all(member.ended for member in self.members.values()) else state.until(now_ns)

    def process(self, image: int) -> Any:
        member = self.members[image] = Member(image, self)
        return member

    def work(self, n_working: int, seconds: int) -> None:
        levels = list(self.levels)
        levels[n_working] += seconds * S
        self.levels = tuple(levels)


def test_levels_have_all_of_the_time() -> None:
    seconds = by_level_s([S] * 128)
    assert seconds == (1, 1, 2, 4, 8, 16, 32, 64)
    assert len(seconds) == len(FIRST_OF_LEVEL)


def test_each_second_counts_once() -> None:
    clock, job = LevelClock(lambda: NOW_NS), Job(7)
    process = job.process(7)
    job.work(1, 3)
    assert clock.advance([process])[7][:3] == (0, 3, 0)
    job.work(1, 1)
    job.work(3, 2)
    assert clock.advance([process])[7][:3] == (0, 1, 2)
    assert clock.advance([process])[7] == NONE
    assert clock.total_s[:3] == (0, 4, 2)


def test_processes_of_one_job_count_once_and_the_first_that_lives_has_it() -> None:
    clock, job = LevelClock(lambda: NOW_NS), Job(7)
    parent, child = job.process(7), job.process(8)
    job.work(2, 5)
    assert clock.advance([child, parent]) == {7: (0, 0, 5, 0, 0, 0, 0, 0)}
    parent.ended = True
    job.work(2, 1)
    assert clock.advance([child, parent]) == {8: (0, 0, 1, 0, 0, 0, 0, 0)}
    assert clock.total_s[2] == 6


def test_the_time_of_those_that_are_gone_stays_in_the_sum() -> None:
    clock, one, other = LevelClock(lambda: NOW_NS), Job(1), Job(2)
    first, second = one.process(1), other.process(2)
    one.work(1, 5)
    other.work(0, 2)
    clock.advance([first, second])
    clock.advance([second])
    assert clock.total_s[:2] == (2, 5)


def test_a_job_of_its_own_has_exact_times() -> None:
    clock, job = LevelClock(lambda: NOW_NS), Job(7)
    process = job.process(7)
    assert clock.times(process, exact=True) is None, "nobody has looked yet"
    job.work(1, 3)
    job.away = (S, 0)
    clock.advance([process])
    assert clock.times(process, exact=True) == ScopeTimes((0, 3 * S), 3 * S, True, (7,), S, 0)
    job.work(0, 1)
    job.work(2, 2)
    job.away = (S, 4)
    clock.advance([process])
    assert clock.times(process, exact=False) == ScopeTimes((S, 0, 2 * S), 4 * S, False, (7,), 0, 4)
    job.process(8)  # it has become another program meanwhile
    assert clock.times(process, exact=True) is None


def test_time_goes_on_until_now_unless_all_have_ended() -> None:
    job = Job(1)
    process = job.process(1)
    job.state = lambda: ScopeState(1, 16, 0, job.levels)  # type: ignore[method-assign]
    assert LevelClock(lambda: NOW_NS).advance([process])[1][1] == 4
    process.ended = True
    assert LevelClock(lambda: NOW_NS).advance([process])[1] == NONE
