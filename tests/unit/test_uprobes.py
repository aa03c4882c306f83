"""Which mechanism places uprobes, on stand-ins for kernels of several ages."""

from __future__ import annotations

import errno
import os

import pytest

from parprof.errors import ProbeAttachError
from parprof.kernel import bpf, multilinks
from parprof.kernel.uprobes import Prober, Site

PAIRED, ALONE = Site("/lib/a.so", 64, 1, returns=True), Site("/lib/a.so", 128, 4)
MOVING = Site("/lib/c.so", 64, 7, moves=True)
ONE, ALL = 4711, 0


class StandIn:
    """A kernel that makes links of these attach types, and perf events."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *attach_types: int, is_right: bool = False) -> None:
        self.made: list[tuple[str, int]] = []
        """(mechanism of the link, PID)"""
        self._able = attach_types
        monkeypatch.setattr(bpf, "link_uprobe_multi", self._link_multi)
        monkeypatch.setattr(multilinks, "serve_all_threads", self._serve_all_threads)
        monkeypatch.setattr(multilinks, "have_sessions", self._have_sessions)
        self.asked_for_sessions = 0
        self.loaded: set[int] = set()
        self._is_right, self.tried = is_right, 0
        monkeypatch.setattr(Prober, "_attach_single", self._attach_single)
        monkeypatch.setattr(Prober, "_attach_traced", self._attach_traced)
        self.has_tracefs = True
        self.prober = Prober(self)  # type: ignore[arg-type]

    def program(self, name: str, attach_type: int) -> int:
        self.loaded.add(attach_type)
        return attach_type

    def _link_multi(
        self, program: int, path: str, *_: object, attach_type: int, pid: int, **__: object
    ) -> int:
        if attach_type not in self._able:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self.made.append(("session" if attach_type == bpf.ATTACH_UPROBE_SESSION else "multi", pid))
        return os.open(os.devnull, os.O_RDONLY)

    def _serve_all_threads(self) -> bool:
        self.tried += 1
        return self._is_right

    def _have_sessions(self) -> bool:
        self.asked_for_sessions += 1
        return bpf.ATTACH_UPROBE_SESSION in self._able

    def _attach_single(self, name: str, sites: list[Site], pid: int, out: list[int]) -> None:
        self.made.append(("single", pid))

    def _attach_traced(self, name: str, sites: list[Site], pid: int, out: list[int]) -> None:
        if not self.has_tracefs:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        self.made.append(("traced", pid))

    def attach(self, sites: list[Site], pid: int) -> set[str]:
        """The kinds of links that this makes for the PID."""
        self.made.clear()
        self.prober.attach(sites, pid).close()
        return {mechanism for mechanism, owner in self.made if owner == pid}


@pytest.fixture
def linux_6_13(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return StandIn(monkeypatch, bpf.ATTACH_UPROBE_SESSION, bpf.ATTACH_UPROBE_MULTI)


@pytest.fixture
def linux_6_6(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return StandIn(monkeypatch, bpf.ATTACH_UPROBE_MULTI)


@pytest.fixture
def linux_6_12(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return StandIn(monkeypatch, bpf.ATTACH_UPROBE_MULTI, is_right=True)


@pytest.fixture
def linux_5_15(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return StandIn(monkeypatch)


@pytest.mark.parametrize("sites", [[PAIRED], [ALONE], [PAIRED, ALONE]])
def test_a_multi_link_serves_no_single_process_without_session_links(
    linux_6_6: StandIn, sites: list[Site]
) -> None:
    assert linux_6_6.attach(sites, ONE) == {"traced"}
    assert linux_6_6.attach(sites, ALL) == {"multi"}
    assert linux_6_6.attach(sites, ONE) == {"traced"}
    assert linux_6_6.prober.mechanism == "traced"


@pytest.mark.parametrize("sites", [[PAIRED], [ALONE], [PAIRED, ALONE]])
def test_it_does_where_that_is_mended(linux_6_12: StandIn, sites: list[Site]) -> None:
    for pid in (ONE, ALL, ONE):
        assert linux_6_12.attach(sites, pid) == {"multi"}
    assert linux_6_12.prober.mechanism == "multi"
    assert linux_6_12.tried == 1


@pytest.mark.parametrize("sites", [[PAIRED], [ALONE]])
def test_all_processes_first_teaches_nothing_wrong(linux_6_6: StandIn, sites: list[Site]) -> None:
    assert linux_6_6.attach(sites, ALL) == {"multi"}
    assert linux_6_6.attach([ALONE], ONE) == {"traced"}


def test_session_links_where_there_are_any(linux_6_13: StandIn) -> None:
    """For entries alone too: the programs for one kind of link suffice."""
    assert linux_6_13.attach([PAIRED, ALONE], ONE) == {"session"}
    assert linux_6_13.attach([ALONE], ONE) == {"session"}
    assert linux_6_13.attach([ALONE], ALL) == {"session"}
    assert linux_6_13.prober.mechanism == "session"
    assert linux_6_13.loaded == {bpf.ATTACH_UPROBE_SESSION}


def test_no_session_link_where_calls_move_between_threads(linux_6_13: StandIn) -> None:
    """In a child that inherits the trap it would set a return probe, which kills what is stolen."""
    assert linux_6_13.attach([MOVING], ONE) == {"multi"}
    assert linux_6_13.attach([MOVING, ALONE], ONE) == {"session", "multi"}


@pytest.mark.parametrize("age", ["linux_6_13", "linux_6_6"])
def test_it_is_asked_once_whether_there_are_session_links(age: str, request: pytest.FixtureRequest) -> None:
    kernel: StandIn = request.getfixturevalue(age)
    kernel.prober.attach([ALONE], ONE).close()
    kernel.prober.attach([PAIRED], ALL).close()
    assert kernel.asked_for_sessions == 1


def test_events_of_tracefs_where_there_are_no_links(linux_5_15: StandIn) -> None:
    assert linux_5_15.attach([ALONE], ALL) == {"traced"}
    assert linux_5_15.attach([PAIRED], ONE) == {"traced"}


def test_perf_events_where_there_is_nothing_else(linux_5_15: StandIn) -> None:
    linux_5_15.has_tracefs = False
    assert linux_5_15.attach([ALONE], ALL) == {"single"}
    assert linux_5_15.attach([PAIRED], ONE) == {"single"}


def test_perf_events_for_one_process_where_there_is_no_tracefs(linux_6_6: StandIn) -> None:
    linux_6_6.has_tracefs = False
    assert linux_6_6.attach([PAIRED], ONE) == {"single"}
    assert linux_6_6.attach([PAIRED], ALL) == {"multi"}


@pytest.mark.parametrize("mechanism", ["session", "multi", "traced", "single"])
def test_a_mechanism_can_be_forced(linux_6_13: StandIn, linux_5_15: StandIn, mechanism: str) -> None:
    for kernel in (linux_6_13, linux_5_15):
        kernel.prober._mechanisms = [mechanism]
        assert kernel.prober.mechanism == mechanism
    if mechanism in ("session", "multi"):
        with pytest.raises(ProbeAttachError, match=r"/lib/a\.so: Invalid argument"):
            linux_5_15.attach([PAIRED], ONE)


def test_a_forced_multi_link_is_made_without_session_links(linux_6_6: StandIn) -> None:
    linux_6_6.prober._mechanisms = ["multi"]
    assert linux_6_6.attach([PAIRED], ONE) == {"multi"}
