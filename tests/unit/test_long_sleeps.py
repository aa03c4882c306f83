# SPDX-License-Identifier: Apache-2.0
"""Who sleeps for long while nobody follows context switches: parprof.session.long_sleeps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from parprof.kernel.counts import together
from parprof.kernel.stacks import STACK_ENDS, RawStack, StackTable
from parprof.kernel.unended import LastSeen
from parprof.model import ThreadState
from parprof.session import long_sleeps
from parprof.session.asleep import Asleep
from parprof.session.long_sleeps import LongSleeps, Turns

IMAGE, SCOPE, MS = 5, 7, 1_000_000
UNSEEN_NS = 500 * MS
"""Since when nobody follows switches."""


class Machine:
    """A process, what the kernel counts of its threads, and what its programs know of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 1000.0
        self.threads: dict[int, Turns] = {}
        self.known: dict[int, LastSeen] = {}
        self.queued: set[int] = set()
        """These wait for a CPU."""
        self.read: list[int] = []
        mapped = SimpleNamespace(maps=SimpleNamespace(epoch=0))
        scope, process = SimpleNamespace(number=SCOPE), SimpleNamespace(pid=1)
        self.target = SimpleNamespace(image=IMAGE, scope=scope, mapped=mapped, process=process, language=None)
        monkeypatch.setattr(long_sleeps, "_threads_of", lambda target: list(self.threads))
        monkeypatch.setattr(
            long_sleeps,
            "time",
            SimpleNamespace(monotonic_ns=lambda: round(self.now_ms * MS), thread_time_ns=lambda: 0),
        )
        self.sleeps = LongSleeps(
            lambda dso: None,
            StackTable(),
            lambda tid, image: self.known.get(tid, LastSeen()),
            finder=self._find,
            turns=self._turns,
        )

    def _find(self, target: Any, tid: int, tables: Any) -> Asleep | None:
        if tid in self.queued:
            return None
        user = RawStack(tid.to_bytes(8, "little"), STACK_ENDS.index("complete"), b"", 0, 0)
        return Asleep(target, tid, user, (), number=tid)

    def _turns(self, pid: int, tid: int) -> Turns | None:
        self.read.append(tid)
        return self.threads.get(tid)

    def naps(self, tid: int, ms: float) -> None:
        """A thread has napped for so long, ten times in a millisecond; it was awake for half of that."""
        was = self.threads.get(tid, Turns(0, 0, 0))
        self.threads[tid] = Turns(was.ran_ns + round(ms * MS / 2), 0, was.number + round(10 * ms))

    def look(self, at_ms: float, unseen_ns: int = UNSEEN_NS, glimpse_ns: int = 0) -> None:
        self.now_ms = at_ms
        self.sleeps.look([cast(Any, self.target)], unseen_ns, glimpse_ns)

    def told_ms(self, state: ThreadState, end_ms: float = 9000) -> dict[int, float]:
        """By thread."""
        facts = together(self.sleeps.facts(0, round(end_ms * MS)))
        assert all(key.user for key in facts)
        return {key.tid: count.total / MS for key, count in facts.items() if key.state is state}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def sleep_once(machine: Machine, beside: bool) -> None:
    """Thread 1 naps, sleeps from 1,240 to 1,760 ms, and naps again; thread 2 naps, or there is none."""
    for ms in range(1000, 2100, 100):
        awake_ms = {1200: 100, 1300: 40, 1800: 40}.get(ms, 0 if 1300 < ms < 1800 else 100)
        machine.naps(1, awake_ms)
        if beside:
            machine.naps(2, 100)
        machine.look(ms)


def test_a_long_sleep_among_naps_has_its_length(machine: Machine) -> None:
    """By the naps before and after it."""
    sleep_once(machine, beside=True)
    assert machine.told_ms(ThreadState.BLOCKED) == {1: pytest.approx(520)}
    assert machine.told_ms(ThreadState.STALLED) == {}


def test_while_all_sleep_nobody_works(machine: Machine) -> None:
    sleep_once(machine, beside=False)
    facts = together(machine.sleeps.facts(0, 9000 * MS))
    assert {key.state: count.total / MS for key, count in facts.items()} == {
        ThreadState.BLOCKED: pytest.approx(520),
        ThreadState.STALLED: pytest.approx(520),
    }
    assert machine.sleeps.stall_ns == pytest.approx(520 * MS)


def test_samples_tell_when_it_fell_asleep_and_woke_up(machine: Machine) -> None:
    for ms in (1000, 1100):
        machine.naps(1, 100)
        machine.look(ms)
    machine.naps(1, 90)  # more than it had time for
    machine.known[1] = LastSeen(shown_ns=1150 * MS)
    machine.look(1200)
    machine.look(1300)
    machine.naps(1, 90)
    machine.known[1] = LastSeen(shown_ns=1390 * MS, gap_ns=(1150 * MS, 1320 * MS))
    machine.look(1400)
    assert machine.told_ms(ThreadState.BLOCKED) == {1: 310 - 170}


def test_who_waits_for_a_cpu_does_not_sleep(machine: Machine) -> None:
    machine.queued = {1}
    sleep_once(machine, beside=True)
    assert machine.told_ms(ThreadState.BLOCKED) == {}


def test_what_the_programs_will_tell_is_not_told_twice(machine: Machine) -> None:
    """It fell asleep while switches were followed; they tell of it when it wakes up in a glimpse, or at the end."""
    machine.naps(1, 1)
    machine.known[1] = LastSeen(since_ns=400 * MS)
    for ms in (1000, 1100, 1200):
        machine.look(ms)
    machine.look(1250, unseen_ns=0)
    machine.naps(1, 50)
    machine.look(1300, unseen_ns=0)
    assert machine.told_ms(ThreadState.BLOCKED) == {}


def test_what_began_before_is_told_where_nobody_sees_its_end(machine: Machine) -> None:
    machine.naps(1, 1)
    machine.known[1] = LastSeen(since_ns=400 * MS)
    for ms in (1000, 1100, 1200):
        machine.look(ms)
    del machine.threads[1]
    machine.look(1300)
    assert machine.told_ms(ThreadState.BLOCKED) == {1: 1250 - 400}


def test_of_a_sleep_that_began_in_a_glimpse_the_rest_is_told(machine: Machine) -> None:
    machine.naps(1, 1)
    machine.look(1000)
    machine.known[1] = LastSeen(since_ns=1010 * MS, in_glimpse=True)
    for ms in (1100, 1200, 1300):
        machine.look(ms, unseen_ns=1030 * MS)
    assert machine.told_ms(ThreadState.BLOCKED, end_ms=1500) == {1: 1500 - 1030}


def test_a_glimpse_in_which_all_sleep_has_seen_nothing(machine: Machine) -> None:
    """It began at 1,110 ms: the thread slept since 1,050, of which nobody was told."""
    machine.naps(1, 100)
    machine.look(1000)
    machine.naps(1, 50)
    machine.look(1100)
    for ms in (1150, 1200):
        machine.look(ms, unseen_ns=0, glimpse_ns=1110 * MS)
    assert machine.sleeps.all_asleep_since_ns == 1110 * MS
    for ms in (1250, 1300):
        machine.look(ms, unseen_ns=1110 * MS, glimpse_ns=1110 * MS)
    assert machine.sleeps.all_asleep_since_ns == 0
    facts = together(machine.sleeps.facts(0, 1500 * MS))
    took_ms = [count.total / MS for count in facts.values()]
    assert took_ms == [1500 - 1062.5] * 2, "it ran for 25 ms at least, and it is not known how often it naps"
    assert {key.state for key in facts} == {ThreadState.BLOCKED, ThreadState.STALLED}


def test_ten_thousand_threads_cost_no_more_than_a_few(machine: Machine) -> None:
    """And each has its turn."""
    for tid in range(1, 10_001):
        machine.threads[tid] = Turns(1, 0, 1)
    for ms in range(1000, 1000 + 400 * 100, 100):
        before = len(machine.read)
        machine.look(ms)
        assert len(machine.read) - before <= 64
    assert len(set(machine.read)) == 10_000
