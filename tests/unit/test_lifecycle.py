# SPDX-License-Identifier: Apache-2.0
"""The life of targets: which state follows which, and what each end asks of the kernel, without one."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.errors import TargetError
from parprof.session.lifecycle import ENDINGS, LIVING, STEPS, End, IllegalStep, Life, Lives, State

SETTLE_S = 0.2
OVER = {State.GONE, State.ENDED, State.FORGOTTEN}


class Programs:
    """Stands in for the kernel: which image it counts under each PID."""

    def __init__(self) -> None:
        self.images: dict[int, int] = {}
        self.unwatched: list[tuple[int, bool]] = []
        self.fails = False

    def unwatch(self, pid: int, has_threads: bool = True) -> None:
        if self.fails:
            raise TargetError("no")
        self.unwatched.append((pid, has_threads))
        self.images.pop(pid, None)


class Poller:
    """Stands in for epoll: refuses what that refuses."""

    def __init__(self) -> None:
        self.fds: set[int] = set()

    def register(self, fd: int, eventmask: int, /) -> None:
        assert fd >= 0 and fd not in self.fds
        self.fds.add(fd)

    def unregister(self, fd: int, /) -> None:
        self.fds.remove(fd)


class Target:
    """Stands in for a target."""

    numbers = itertools.count(1)

    def __init__(self, programs: Programs, pid: int, *, pidfd: int | None = None) -> None:
        self.programs = programs
        self.pid = pid
        self.image = next(self.numbers)
        self.pidfd = 1000 + self.image if pidfd is None else pidfd
        self.life = Life(f"process {pid}")
        self.gone = self.pidfd < 0
        self.closed = self.forgotten = 0
        programs.images[pid] = self.image

    def is_gone(self) -> bool:
        return self.gone

    def observe(self) -> bool:
        return self.programs.images.get(self.pid, self.image) == self.image

    def close(self) -> None:
        self.closed += 1
        self.pidfd = -1

    def forget(self) -> None:
        self.forgotten += 1


class World:
    """The lives of a session, and what they did."""

    def __init__(self) -> None:
        self.programs = Programs()
        self.poller = Poller()
        self.learned: list[Target] = []
        self.lives: Lives[Target] = Lives(self.programs, self.poller, SETTLE_S, self.learned.append)

    def target(self, pid: int = 7, state: State = State.SETTLED) -> Target:
        target = Target(self.programs, pid, pidfd=-1 if state is State.GONE else None)
        self.lives.begin(target, State.YOUNG if state is State.LINGERING else state, 0.0)
        if state is State.LINGERING:
            self.lives.linger(target)
        assert target.life.state is state
        return target


@pytest.fixture
def world() -> World:
    return World()


def test_every_state_can_be_reached_and_left_for_good() -> None:
    assert STEPS.keys() == set(State)
    reached = {State.NEW}
    for _ in State:
        reached |= {after for before in reached for after in STEPS[before]}
    assert reached == set(State)
    for before, after in STEPS.items():
        assert before not in after
        assert before in OVER or State.ENDED in after
    assert not STEPS[State.FORGOTTEN]
    assert ENDINGS.keys() == set(End)


@pytest.mark.parametrize("before", State)
@pytest.mark.parametrize("after", State)
def test_what_is_not_in_the_table_is_an_error(before: State, after: State) -> None:
    life = Life("process 1")
    life.state = before
    if after in STEPS[before]:
        assert life.enter(after) and life.state is after
        assert life.is_over == (after in OVER)
    else:
        with pytest.raises(IllegalStep, match=f"process 1: {before.value} is not followed by {after.value}"):
            life.enter(after)
        assert life.state is before


def test_for_users_it_is_logged_and_not_taken(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = world.target()
    world.lives.end(target, End.LEFT)
    monkeypatch.setattr(Life, "strict", False)
    with caplog.at_level(logging.ERROR):
        world.lives.end(target, End.EXITED)
    assert "ended is not followed by ended" in caplog.text
    assert target.life.reason is End.LEFT and target.closed == 1
    assert world.programs.unwatched == [(7, True)] and not world.learned


@pytest.mark.parametrize("state", sorted(LIVING | {State.GONE}, key=lambda state: state.value))
@pytest.mark.parametrize("reason", End)
def test_an_end_is_the_same_from_every_state(world: World, state: State, reason: End) -> None:
    target = world.target(state=state)
    world.lives.end(target, reason)
    expected = {
        End.EXITED: [(7, False)], End.REPLACED: [], End.LEFT: [(7, True)], End.FAILED: [(7, True)]
    }  # fmt: skip
    assert world.programs.unwatched == expected[reason]
    assert world.learned == ([target] if reason in (End.EXITED, End.REPLACED) else [])
    assert target.life.state is State.ENDED and target.life.reason is reason
    assert (target.closed, target.forgotten) == (1, 0)
    assert not world.poller.fds and world.lives.newest(7) is None and not world.lives.unended()
    assert world.lives.by_image == {target.image: target}, "its samples are still to be dealt with"
    assert world.lives.forget_ended() == [target]
    assert not world.lives.by_image and target.forgotten == 1
    assert world.lives.forget_ended() == []


def test_one_that_could_not_begin_was_never_known(world: World) -> None:
    target = Target(world.programs, 7)
    world.lives.end(target, End.FAILED)
    world.lives.forget(target)
    assert not world.programs.unwatched and not world.lives.by_image and target.closed == 1


def test_the_entry_of_who_has_the_pid_now_stays(world: World) -> None:
    target = world.target()
    world.programs.images[7] = 99
    world.lives.end(target, End.EXITED)
    assert not world.programs.unwatched and world.learned == [target]


def test_an_end_is_complete_though_the_kernel_fails(world: World) -> None:
    target = world.target()
    world.programs.fails = True
    world.lives.end(target, End.EXITED)
    assert target.closed == 1 and not world.poller.fds and world.lives.newest(7) is None


@pytest.mark.parametrize("gone", [False, True])
def test_a_pid_that_comes_again_is_another_process(world: World, gone: bool) -> None:
    first = world.target()
    first.gone = gone
    world.lives.make_room(7)
    second = world.target()
    assert first.life.reason is (End.EXITED if gone else End.REPLACED)
    assert world.programs.unwatched == ([(7, False)] if gone else [])
    assert world.lives.live(7) is second and world.poller.fds == {second.pidfd}
    world.lives.make_room(8)
    assert world.lives.living() == [second]


def test_the_next_image_of_a_process_is_not_ended_with_the_one_before(world: World) -> None:
    first = world.target()
    world.lives.end(first, End.REPLACED)
    second = world.target()
    assert world.lives.live(7) is second and world.lives.by_image.keys() == {first.image, second.image}
    assert world.lives.forget_ended() == [first]
    assert world.lives.by_image == {second.image: second}


def test_descriptors_tell_of_the_end_of_those_that_are_settled_or_linger(world: World) -> None:
    young, lingering = world.target(1, State.YOUNG), world.target(2, State.LINGERING)
    settled, gone = world.target(3, State.SETTLED), world.target(4, State.GONE)
    assert world.poller.fds == {lingering.pidfd, settled.pidfd}
    assert world.lives.told_by([settled.pidfd, young.pidfd, 5]) == [settled]
    assert world.lives.unheard() == [young, gone]
    assert world.lives.living() == [young, lingering, settled]
    assert world.lives.live(4) is None and world.lives.newest(4) is gone


def test_one_that_is_gone_waits_for_its_record(world: World) -> None:
    """Its samples, and the image that it became since, may come behind it."""
    target = world.target(state=State.GONE)
    assert world.lives.forget_ended() == [] and world.lives.by_image
    world.lives.end(target, End.EXITED)
    assert world.lives.forget_ended() == [target]


def test_the_young_settle_in_time(world: World) -> None:
    first, lingering = world.target(1, State.YOUNG), world.target(2, State.LINGERING)
    over = world.target(3, State.YOUNG)
    last = Target(world.programs, 4)
    world.lives.begin(last, State.YOUNG, 0.1)
    world.lives.end(over, End.EXITED)
    assert world.lives.settle_due(SETTLE_S - 0.01) == []
    assert world.lives.settle_due(SETTLE_S) == [first, lingering], "not the one that is over"
    assert world.poller.fds == {first.pidfd, lingering.pidfd}
    assert first.life.state is lingering.life.state is State.SETTLED and last.life.state is State.YOUNG
    assert world.lives.settle_due(SETTLE_S + 0.1) == [last]


_pids = st.integers(1, 3)
_steps = st.lists(
    st.tuples(st.sampled_from(["begin", "linger", "settle", "gone", "end", "forget"]), _pids, st.randoms()),
    max_size=40,
)


@given(_steps)
def test_whatever_happens_nothing_is_left(steps: list[tuple[str, int, Any]]) -> None:
    """Any sequence of legal steps: what is listened to lives, what ended is closed once, PIDs are one's alone."""
    world, now, made = World(), 0.0, []
    lives = world.lives
    for name, pid, random in steps:
        now += 0.1
        target = lives.newest(pid)
        if name == "begin":
            lives.make_room(pid)
            made.append(world.target(pid, random.choice([State.YOUNG, State.SETTLED, State.GONE])))
        elif name == "settle":
            lives.settle_due(now)
        elif name == "forget":
            lives.forget_ended()
        elif target is None:
            continue
        elif name == "linger" and target.life.state is State.YOUNG:
            lives.linger(target)
        elif name == "gone" and target.life.state in LIVING:
            lives.note_gone(target)
        elif name == "end":
            lives.end(target, random.choice(list(End)))
        heard = {t.pidfd for t in lives.unended() if t not in lives.unheard()}
        assert world.poller.fds == heard
        for one in lives.living():
            assert not one.closed and lives.live(one.pid) is one
    for target in lives.unended():
        lives.end(target, End.LEFT)
    lives.forget_ended()
    assert not world.poller.fds and not lives.by_image
    for target in made:
        assert (target.closed, target.forgotten) == (1, 1) and target.life.state is State.FORGOTTEN
