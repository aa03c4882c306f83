# SPDX-License-Identifier: Apache-2.0
"""When it is decided about processes that have been seen, and what becomes of those for which there is no room."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from control_standin import until
from parprof.service import selection
from parprof.service.selection import Candidates, Rules, Selection


class Clock:
    now_s = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(selection, "_now", lambda: clock.now_s)
    return clock


def started(command: list[str]) -> subprocess.Popen[bytes]:
    """A process that has its program's name: in the midst of exec it still has ours, and may be looked at then."""
    child = subprocess.Popen(command)
    comm = Path(f"/proc/{child.pid}/comm")
    until(lambda: comm.read_text() == f"{command[0]}\n")
    return child


@pytest.fixture
def pids() -> Iterator[list[int]]:
    """Real processes: the first four are wanted, the last one is not."""
    programs = [["sleep", "60"]] * 4 + [["tail", "-f", "/dev/null"]]
    children = [started(command) for command in programs]
    yield [child.pid for child in children]
    for child in children:
        child.kill()
        child.wait()


SLEEPERS = Selection(listed=True, allow=Rules(comm=("sleep",)))


def test_where_there_is_no_room_those_who_are_not_wanted_are_decided_upon(
    clock: Clock, pids: list[int]
) -> None:
    """And the others have their turn, in order, when there is room again."""
    candidates = Candidates(SLEEPERS, max_processes=1)
    one, two, three, _, unwanted = pids
    for pid in (one, two, three, unwanted):
        candidates.add(pid)
    assert candidates.due(clock.now_s, 0) == [], "they have yet to live a little"
    clock.now_s += 1
    assert candidates.due(clock.now_s, 0) == [(one, True), (unwanted, False)]
    clock.now_s += 1
    assert candidates.due(clock.now_s, 1) == []
    assert len(candidates) == 2
    clock.now_s += 1
    assert candidates.due(clock.now_s, 0) == [(two, True)]
    clock.now_s += 1
    assert candidates.due(clock.now_s, 1) == []
    candidates.selection = Selection(listed=True)
    clock.now_s += 1
    assert candidates.due(clock.now_s, 0) == [(three, False)], "nobody wants it any more"
    assert len(candidates) == 0


def test_who_is_asked_for_needs_no_room(clock: Clock, pids: list[int]) -> None:
    """Somebody attaches to a program whose files have to be looked into first."""
    candidates = Candidates(SLEEPERS, max_processes=1)
    for pid in pids[:3]:
        candidates.add(pid)
    clock.now_s += 1
    assert candidates.due(clock.now_s, 1) == []
    candidates.add(pids[1])  # again, when it was asked for
    clock.now_s += 1
    assert candidates.due(clock.now_s, 1, asked={pids[1]}) == [(pids[1], True)]
    candidates.add(pids[4])
    clock.now_s += 1
    assert candidates.due(clock.now_s, 1, asked={pids[4]}) == [(pids[4], False)], (
        "the selection does not want it"
    )


def test_those_who_have_ended_make_room_in_the_list(
    clock: Clock, pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_MAX_CANDIDATES", 2)
    candidates = Candidates(SLEEPERS, max_processes=0)
    child = started(["sleep", "60"])
    for pid in (pids[0], child.pid):
        candidates.add(pid)
    clock.now_s += 1
    assert candidates.due(clock.now_s, 0) == [] and len(candidates) == 2
    candidates.add(pids[2])
    assert candidates.refused == 1
    child.kill()
    child.wait()
    clock.now_s += 5
    candidates.add(pids[2])
    assert candidates.refused == 1 and len(candidates) == 2
