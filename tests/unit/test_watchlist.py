# SPDX-License-Identifier: Apache-2.0
"""Who is watched: by selection, on request, and what becomes of both. Kernel, session and accounts are stand-ins."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from parprof.errors import KernelUnsupported, TargetError
from parprof.service import watchlist
from parprof.service.watchlist import Watchlist

WANTED, OTHER, BROKEN = 10, 20, 30


@dataclass
class Surroundings:
    """What a watchlist acts on, with what it did."""

    live: dict[int, Any] = field(default_factory=dict)
    due: list[tuple[int, bool]] = field(default_factory=list)
    denied: list[int] = field(default_factory=list)
    unwatched: list[int] = field(default_factory=list)
    waits: list[tuple[int, bool]] = field(default_factory=list)
    met: list[int] = field(default_factory=list)
    later: list[int] = field(default_factory=list)
    forgotten: list[set[int] | None] = field(default_factory=list)
    compared: list[set[int]] = field(default_factory=list)
    """Images whose threads' last stacks were kept."""
    can_compare: bool = True
    is_unknown: bool = False
    """Its files cannot be read yet."""
    selection: set[int] = field(default_factory=lambda: {WANTED, BROKEN})

    def watch(self, pid: int) -> bool:
        if pid == BROKEN:
            raise TargetError("it cannot be read")
        if not self.is_unknown:
            self.live[pid] = SimpleNamespace(
                pid=pid, ended=False, image=pid, process=SimpleNamespace(comm="x")
            )
        return not self.is_unknown

    def take_due(self, now_s: float, watched: int, asked: set[int]) -> list[tuple[int, bool]]:
        due, self.due = self.due, []
        return due

    def unwatch(self, target: Any) -> None:
        del self.live[target.pid]
        self.unwatched.append(target.pid)

    def load_comparing(self) -> None:
        if not self.can_compare:
            raise KernelUnsupported("the verifier is tired")

    def list(self) -> Watchlist:
        kernel: Any = SimpleNamespace(
            verdicts=SimpleNamespace(
                deny=self.denied.append, forget=lambda pids=None: self.forgotten.append(pids and {*pids})
            ),
            load_comparing=self.load_comparing, forget_last_stacks=lambda but: self.compared.append({*but}),
        )  # fmt: skip
        session: Any = SimpleNamespace(
            live=self.live.get, unwatch=self.unwatch, targets=self.live,
            find_waits=lambda target, wanted, now_ns=0: self.waits.append((target.pid, wanted)),
        )  # fmt: skip
        watching: Any = SimpleNamespace(
            watch=self.watch, count=lambda: len(self.live), knows=lambda _: False, attached={}
        )
        watching.attached_images = lambda: set(watching.attached)
        candidates: Any = SimpleNamespace(
            due=self.take_due, add=self.later.append, wants=lambda pid, comm: pid in self.selection
        )
        return Watchlist(kernel, session, watching, candidates, SimpleNamespace(met=self.met.append))  # type: ignore[arg-type]


@pytest.fixture
def around() -> Surroundings:
    return Surroundings()


def test_what_the_selection_takes_is_watched_and_the_rest_denied(around: Surroundings) -> None:
    around.due = [(WANTED, True), (OTHER, False)]
    around.list().consider()
    assert set(around.live) == {WANTED} and around.denied == [OTHER]
    assert around.met == [WANTED, OTHER], "both were decided upon"


def test_one_failure_is_counted_and_stops_nobody(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchlist, "failure_reason", lambda pid, error: "unreadable")
    around.due = [(BROKEN, True), (WANTED, True)]
    watched = around.list()
    watched.consider()
    assert set(around.live) == {WANTED} and around.denied == [BROKEN]
    assert watched.failures == {("none", "unreadable"): 1}
    watched.consider()
    assert not around.forgotten, "it is tried again after a while, not at once"
    monkeypatch.setattr(watchlist, "RETRY_SECONDS", 0.0)
    watched.consider()
    watched.consider()
    assert around.forgotten == [{BROKEN}], "once"


def test_what_is_asked_for_is_watched_whatever_the_selection_says(around: Surroundings) -> None:
    watched = around.list()
    watched.begin(OTHER)
    watched.drop_become_others()
    watched.drop_unwanted()
    assert set(around.live) == {OTHER} and not around.unwatched
    watched.end(OTHER)
    assert around.unwatched == [OTHER] and around.denied == [OTHER]
    with pytest.raises(TargetError, match="process 20 is not watched"):
        watched.end(OTHER)


def test_who_asked_takes_nothing_from_the_selection(around: Surroundings) -> None:
    watched = around.list()
    watched.begin(WANTED)
    watched.end(WANTED)
    assert set(around.live) == {WANTED}


def test_a_request_that_fails_leaves_nothing(around: Surroundings) -> None:
    watched = around.list()
    around.selection.clear()
    with pytest.raises(TargetError, match="cannot be read"):
        watched.begin(BROKEN)
    around.due = [(BROKEN, False)]
    watched.consider()
    assert around.denied == [BROKEN] and not watched.failures, "nobody asks for it any more"


def test_files_that_are_not_known_yet_are_waited_for(around: Surroundings) -> None:
    around.is_unknown = True
    around.due = [(WANTED, True)]
    watched = around.list()
    watched.find_waits(WANTED, True)
    watched.consider()
    assert around.later == [WANTED] and not around.waits
    around.is_unknown, around.due = False, [(WANTED, True)]
    watched.consider()
    assert around.waits == [(WANTED, True)], "as it was asked"


def test_waits_are_cut_for_those_who_asked(around: Surroundings) -> None:
    watched = around.list()
    watched.begin(WANTED)
    watched.cut_waits(5)
    assert not around.waits
    watched.find_waits(WANTED, True)
    watched.find_waits(OTHER, True)  # which is not watched yet
    watched.cut_waits(5)
    assert around.waits == [(WANTED, True)] * 2
    watched.forget([WANTED])
    watched.cut_waits(5)
    assert around.waits == [(WANTED, True)] * 2, "another process may have its number"


def test_calls_are_told_apart_from_when_an_attach_begins_until_nobody_attaches(around: Surroundings) -> None:
    """What threads did before its interval, or in another attach, is not what their samples are compared with."""
    watched = around.list()
    watched.begin(WANTED)
    watched.begin(OTHER)
    for pid in (WANTED, OTHER):
        watched.find_waits(pid, True)
        watched.cut_waits(5)
        watched.begin_calls(pid)
    assert around.compared == [set(), {WANTED}]
    watched.find_waits(WANTED, True)  # one more attaches to it: the calls of the first one go on
    watched.begin_calls(WANTED)
    assert len(around.compared) == 2
    watched.find_waits(WANTED, False)
    watched.find_waits(OTHER, False)
    assert around.compared[2:] == [{OTHER}, set()]
    watched.begin_calls(OTHER)  # it was given up before its interval began
    assert len(around.compared) == 4


def test_where_calls_cannot_be_told_apart_waits_are_found_all_the_same(
    around: Surroundings, caplog: pytest.LogCaptureFixture
) -> None:
    around.can_compare = False
    watched = around.list()
    watched.begin(WANTED)
    for _ in range(2):
        watched.find_waits(WANTED, True)
        watched.find_waits(WANTED, False)
    assert around.waits == [(WANTED, True), (WANTED, False)] * 2
    said = [record.getMessage() for record in caplog.records if record.name == watchlist.__name__]
    assert said == ["calls are not told apart: the verifier is tired"], "once"


def test_another_selection(around: Surroundings) -> None:
    watched = around.list()
    around.due = [(WANTED, True)]
    watched.consider()
    around.selection.clear()
    watched.drop_unwanted()
    assert around.unwatched == [WANTED] and around.forgotten == [None]
