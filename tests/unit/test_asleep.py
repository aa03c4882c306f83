# SPDX-License-Identifier: Apache-2.0
"""Where threads sleep that nobody saw go to sleep, while waits that go on are cut in two: parprof.session.asleep."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from parprof.attribution.waiting import WaitKind, wait_kind
from parprof.kernel.scopes import ScopeState, wait_key
from parprof.kernel.stacks import STACK_ENDS, RawStack, StackTable
from parprof.model import AWAITS_DEADLOCK, AWAITS_LOCKED, AWAITS_UNKNOWN, Count, Facts, Frame, ThreadState
from parprof.process.identity import used_cpu_s
from parprof.profile.naming import FileNamer
from parprof.session import asleep
from parprof.session.asleep import Asleep, Meanwhile
from parprof.symbols.kernel import KernelSymbolizer

IMAGE, SCOPE = 5, 7


def blocked(tid: int, user: int = 0) -> Any:
    return wait_key(ThreadState.BLOCKED, IMAGE, tid, user, 0, 0, 0)


class Machine:
    """A process of which it is told how long n_w was how high; and who is looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.levels: tuple[int, ...] = (0, 0)
        self.end = "complete"
        self.looked: list[int] = []
        self.holders: dict[int, int] = {}
        scope = SimpleNamespace(number=SCOPE, state=lambda: ScopeState(0, 0, 0, self.levels))
        mapped = SimpleNamespace(maps=SimpleNamespace(epoch=0))
        process = SimpleNamespace(pid=1)
        self.target = SimpleNamespace(image=IMAGE, scope=scope, mapped=mapped, process=process, language=None)
        monkeypatch.setattr(asleep, "look_at", self._look_at)
        self.meanwhile = Meanwhile(cast(Any, self.target), lambda dso: None)
        self.stacks = StackTable()

    def _look_at(self, target: Any, tid: int, tables: Any) -> Asleep:
        self.looked.append(tid)
        user = RawStack(tid.to_bytes(8, "little"), STACK_ENDS.index(self.end), b"", 0, 0)
        return Asleep(target, tid, user, (), number=tid, holder=self.holders.get(tid, 0))

    def cut(self, unended: Facts, knows_stalls: bool = True) -> Facts:
        return self.meanwhile.placed(unended, 0, self.stacks, knows_stalls=knows_stalls)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_who_has_not_woken_up_is_looked_at_once(machine: Machine) -> None:
    for _ in range(3):
        facts = machine.cut({blocked(1): Count(1, 10), blocked(2): Count(1, 10)})
        assert all(key.user in machine.stacks for key in facts) and len(facts) == 2
    assert sorted(machine.looked) == [1, 2]
    machine.cut({blocked(1): Count(1, 10)})  # the other one has woken up, and sleeps where that was seen
    machine.cut({blocked(1): Count(1, 10), blocked(2): Count(1, 10)})
    assert sorted(machine.looked) == [1, 2, 2]


def test_a_walk_that_lacked_a_table_is_done_again(machine: Machine) -> None:
    machine.end = "no_table"
    machine.cut({blocked(1): Count(1, 10)})
    machine.end = "complete"
    machine.cut({blocked(1): Count(1, 10)})
    machine.cut({blocked(1): Count(1, 10)})
    assert machine.looked == [1, 1]


def stalls(facts: Facts) -> int:
    return sum(count.total for key, count in facts.items() if key.state is ThreadState.STALLED)


def test_a_stall_is_of_the_time_since_the_last_cut(machine: Machine) -> None:
    machine.levels = 1000, 500
    assert stalls(machine.cut({blocked(1): Count(1, 10)})) == 0  # it only begins
    machine.levels = 1300, 500
    assert stalls(machine.cut({blocked(1): Count(1, 300)})) == 300
    machine.levels = 1400, 501
    assert stalls(machine.cut({blocked(1): Count(1, 101)})) == 0  # somebody has worked: that was seen
    machine.levels = 1600, 501
    assert stalls(machine.cut({blocked(1): Count(1, 200)}, knows_stalls=False)) == 0
    machine.levels = 1700, 501
    known = wait_key(ThreadState.STALLED, IMAGE, 1, 99, 0, 0, 0)
    assert stalls(machine.cut({blocked(1): Count(1, 100), known: Count(1, 100)})) == 100  # not twice


@pytest.mark.parametrize(
    ("holders", "blamed", "awaits"),
    [
        ({}, {1}, AWAITS_UNKNOWN),  # the main thread, where nothing tells
        ({1: 2, 2: 3, 3: 2}, {2, 3}, AWAITS_DEADLOCK),
        ({1: 3}, {3}, AWAITS_LOCKED),
        ({1: 4, 2: 4, 3: 2}, {4}, AWAITS_LOCKED),
        ({1: 9}, {1}, AWAITS_UNKNOWN),  # of a thread that is not asleep, or gone
    ],
)
def test_who_has_the_mutexes_that_others_wait_for_is_to_blame(
    machine: Machine, holders: dict[int, int], blamed: set[int], awaits: int
) -> None:
    machine.holders = holders
    machine.cut({})
    machine.levels = 1001, 0
    facts = machine.cut({blocked(tid): Count(1, 10) for tid in (1, 2, 3, 4)})
    stalled = {
        key.tid: (key.awaits, count.total) for key, count in facts.items() if key.state is ThreadState.STALLED
    }
    assert set(stalled) == blamed and {told for told, _ in stalled.values()} == {awaits}
    assert sum(took_ns for _, took_ns in stalled.values()) == 1001


SLEEPS = {
    "import time; time.sleep(600)": WaitKind.SLEEP,
    "import os; os.read(os.pipe()[0], 1)": WaitKind.PIPE,
    "import select; select.poll().poll()": WaitKind.REQUESTS,
    "import select; select.select([], [], [])": WaitKind.REQUESTS,
    "import select; select.epoll().poll()": WaitKind.REQUESTS,
    "import socket; s = socket.socket(); s.listen(); s.accept()": WaitKind.REQUESTS,
    "import socket; s = socket.socket(1); s.bind('\\0parprof-test-asleep'); s.listen(); s.accept()": WaitKind.REQUESTS,
    "import socket; s, t = socket.socketpair(); s.recv(1)": WaitKind.NETWORK,
    "import threading as t; a = t.Lock(); a.acquire(); a.acquire()": WaitKind.LOCK,
    "import os; os.fork() or os.execlp('sleep', 'sleep', '10'); os.wait()": WaitKind.CHILD,
}  # fmt: skip


@pytest.fixture(params=list(SLEEPS), ids=[f"{index}" for index in range(len(SLEEPS))])
def sleeper(request: pytest.FixtureRequest) -> Iterator[tuple[int, WaitKind]]:
    """A program that sleeps in the kernel, and for what."""
    with subprocess.Popen(["/usr/bin/python3", "-S", "-c", request.param]) as process:
        try:
            until, has_slept = time.monotonic() + 20, False
            while time.monotonic() < until and not has_slept:  # not for what it reads as it begins
                used_s = used_cpu_s(process.pid)
                time.sleep(0.3)
                has_slept = (
                    0 < used_s == used_cpu_s(process.pid)
                    and psutil.Process(process.pid).status() == "sleeping"
                )
            yield process.pid, SLEEPS[request.param]
        finally:
            process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="others may not be allowed to see where it sleeps")
def test_what_it_waits_for_is_known_without_the_kernels_stack(sleeper: tuple[int, WaitKind]) -> None:
    pid, kind = sleeper
    folder = f"/proc/{pid}/task/{pid}"
    words = Path(folder, "syscall").read_text().split()
    names = [function.name for function, _ in asleep._kernel_place(folder, words[0])]
    assert wait_kind(names) is kind, names
    whole = [function.name for function, _ in asleep._kernel_frames(folder)]
    assert not whole or wait_kind(whole) is kind, whole


def test_functions_of_the_kernel_are_known_by_what_proc_says(tmp_path: Path) -> None:
    (tmp_path / "stack").write_text(
        "[<0>] futex_wait+0x7f/0x110\n[<0>] nfs_wait+0x1/0x2 [nfs]\n[<0>] 0xffffffffc0000000\nno line\n\n"
    )
    assert list(asleep._kernel_frames(str(tmp_path))) == [
        (Frame("futex_wait", module="[kernel]"), 0x7F), (Frame("nfs_wait", module="[nfs]"), 1)
    ]  # fmt: skip
    assert list(asleep._kernel_frames(str(tmp_path / "none"))) == []


def test_their_names_are_not_looked_for(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over all of the kernel's names takes 0.1 s: as much as half of an attach to a program that sleeps."""
    functions = (Frame("futex_wait", module="[kernel]"), 0x7F), (Frame("nfs_wait", module="[nfs]"), 1)

    def look_at(target: Any, tid: int, tables: Any) -> Asleep:
        return Asleep(target, tid, RawStack(b"", 0, b"", 0, 0), functions)

    monkeypatch.setattr(asleep, "look_at", look_at)
    (key,) = machine.cut({blocked(1): Count(1, 10)})
    places = machine.stacks.get(key.kernel).frames
    assert [is_return for _, is_return in places] == [False, True]
    monkeypatch.setattr(KernelSymbolizer, "_scan", lambda *_: pytest.fail("they are known"))
    namer = FileNamer(cast(Any, None), loops=False)
    found = namer.name_kernel(places, machine.stacks.told)
    assert [found[place] for place in places] == [(function,) for function, _ in functions]


def test_what_stands_for_too_many_functions() -> None:
    stacks = StackTable()
    places = [stacks.stand_in(Frame(f"f{number}")) for number in range(5000)]
    known = [place for place in places if place]
    assert len(set(known)) == len(known) == len(stacks.told) == 4096
    assert stacks.stand_in(Frame("f7")) == places[7]
    assert min(known) >= 1 << 63 and max(known) + (1 << 24) < 0xFFFF << 48, "no addresses of the kernel"
