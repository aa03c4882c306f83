# SPDX-License-Identifier: Apache-2.0
"""Whose the time of processes is that were too short to decide upon: of invented processes, and of real ones."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from parprof.service.groups import KEPT_SECONDS, REST
from parprof.service.model import GroupKey
from parprof.service.short_lived import MAX_KEYS, Seen, ShortLived, look_at


class Machine:
    """Processes, as /proc would tell of them, and a clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.ticks = 0
        self.processes: dict[int, Seen] = {}
        self.next = 1
        self.start(0, "init")
        self.next = 1 << 22  # above any real process: the test's own is left out

    def start(self, parent: int, comm: str) -> int:
        pid, self.next, self.ticks = self.next, self.next + 1, self.ticks + 1
        self.processes[pid] = Seen(self.ticks, parent, 0.0, 0.0, comm)
        return pid

    def run(self, pid: int, seconds: float) -> None:
        self.processes[pid].own_s += seconds

    def end(self, pid: int) -> None:
        """It ends, and its parent waits for it; its children become those of the first process."""
        gone = self.processes.pop(pid)
        for other in self.processes.values():
            other.parent = 1 if other.parent == pid else other.parent
        self.processes[gone.parent].inherited_s += gone.own_s + gone.inherited_s

    def brief(self, parent: int, seconds: float) -> None:
        pid = self.start(parent, "brief")
        self.run(pid, seconds)
        self.end(pid)

    def ledger(self) -> ShortLived:
        def look(pid: int) -> Seen | None:
            return replace(self.processes[pid]) if pid in self.processes else None

        return ShortLived(
            look, lambda: list(self.processes), lambda pid, comm: GroupKey(comm, f"{comm}.service"),
            lambda: self.now_s,
        )  # fmt: skip


@pytest.fixture
def machine() -> Machine:
    return Machine()


def key(comm: str) -> GroupKey:
    return GroupKey(comm, f"{comm}.service")


def test_short_children_are_their_parents(machine: Machine) -> None:
    make, cron = machine.start(1, "make"), machine.start(1, "cron")
    machine.brief(make, 1000)  # before anybody looked
    ledger = machine.ledger()
    assert ledger.advance(3.0) == {}
    for _ in range(200):
        machine.brief(make, 0.05)
    machine.brief(cron, 2)
    machine.now_s += 10
    told = ledger.advance(3.0 + 12.0)
    assert told == {key("make"): pytest.approx(10), key("cron"): pytest.approx(2)}


def test_no_more_is_told_than_was_undecided(machine: Machine) -> None:
    """As the inherited time of a watched child, which is not known exactly, would have it."""
    shell = machine.start(1, "bash")
    ledger = machine.ledger()
    ledger.advance(0)
    long = machine.start(shell, "simulation")
    machine.run(long, 0.5)
    ledger.met(long)
    machine.run(long, 3599.5)
    ledger.sampled(long, 3560.0)
    machine.end(long)
    machine.now_s += 10
    told = ledger.advance(0.6)
    assert sum(told.values()) <= 0.6


def test_a_watched_child_is_not_its_parents(machine: Machine) -> None:
    """Though make gets its time from a shell between them that ends, too; but for what it had before it was watched."""
    make = machine.start(1, "make")
    ledger = machine.ledger()
    ledger.advance(0)
    for _ in range(10):
        shell = machine.start(make, "sh")
        compiler = machine.start(shell, "cc1")
        machine.run(compiler, 0.5)
        ledger.met(compiler)
        machine.run(compiler, 4)
        machine.now_s += 10
        ledger.advance(ledger._undecided_so_far_s + 0.5)
        machine.run(compiler, 1)
        ledger.sampled(compiler, 5)
        machine.end(compiler)
        machine.end(shell)
    machine.now_s += 10
    told = ledger.advance(ledger._undecided_so_far_s + 100)
    assert told == {key("cc1"): pytest.approx(5)}


def test_what_a_parent_told_of_is_not_told_again_when_it_ends(machine: Machine) -> None:
    shell = machine.start(1, "bash")
    make = machine.start(shell, "make")
    ledger, undecided_s = machine.ledger(), 0.0
    ledger.advance(0)
    for _ in range(5):
        machine.brief(make, 3)
        undecided_s += 3
        machine.now_s += 10
        ledger.advance(undecided_s)
    machine.end(make)
    machine.end(shell)
    machine.now_s += 10
    told = ledger.advance(undecided_s + 50)
    assert told == {key("make"): pytest.approx(15)}


def test_whatever_comes_and_goes(machine: Machine) -> None:
    """Nothing falls, and all together is at most what was undecided."""
    dice, ledger = random.Random(7), machine.ledger()
    undecided_s, before = 0.0, dict(ledger.advance(0))
    for _ in range(300):
        alive = list(machine.processes)
        for _ in range(dice.randrange(6)):
            parent = dice.choice(alive)
            what = dice.randrange(4)
            if what == 0:
                machine.brief(parent, dice.random())
            elif what == 1:
                child = machine.start(parent, dice.choice(["a", "b", "c"]))
                machine.run(child, dice.random())
                if dice.random() < 0.7:
                    ledger.met(child)
            elif what == 2 and parent != 1:
                machine.end(parent)
                alive.remove(parent)
            else:
                machine.run(parent, dice.random())
                ledger.sampled(parent, dice.random())
        undecided_s += dice.random()
        machine.now_s += 5
        told = dict(ledger.advance(undecided_s))
        assert all(told[one] >= seconds for one, seconds in before.items())
        assert sum(told.values()) <= undecided_s + 1e-6
        before = told
    assert sum(before.values()) > 0.3 * undecided_s
    assert len(ledger._seen) == len(machine.processes)


def test_keys_are_bounded(machine: Machine) -> None:
    ledger = machine.ledger()
    ledger.advance(0)
    for number in range(2 * MAX_KEYS):
        machine.brief(machine.start(1, f"parent{number}"), 1)
    machine.now_s += 10
    told = ledger.advance(2 * MAX_KEYS)
    assert len(told) == MAX_KEYS + 1 and told[REST] == pytest.approx(MAX_KEYS)
    machine.now_s += 2 * KEPT_SECONDS
    machine.brief(machine.start(1, "late"), 1)
    told = ledger.advance(3 * MAX_KEYS)
    assert len(told) <= 2 and told[key("late")] == pytest.approx(1)


def test_a_real_process() -> None:
    burn = "import time\nwhile time.process_time() < 0.03: pass"
    parent = f"import subprocess, sys\nfor _ in range(8): subprocess.run([sys.executable, '-c', {burn!r}])\ninput()"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE) as child:
        deadline = time.monotonic() + 60
        while (seen := look_at(child.pid)) is None or seen.inherited_s < 0.08:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert seen.parent == os.getpid() and seen.comm.startswith("python")
        child.communicate(b"\n")
    assert look_at(child.pid) is None
