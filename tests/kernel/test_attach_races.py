# SPDX-License-Identifier: Apache-2.0
"""A process that ends while we attach to it: one clear error, nothing left behind, the others go on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import parprof.session.arrivals
import parprof.session.target
import profiling
from parprof.errors import TargetError
from parprof.process.loadmap import LoadMap
from parprof.session.session import Session
from parprof.session.target import Target

pytestmark = pytest.mark.beside

SPIN = [sys.executable, "-S", "-c", "while True: sum(range(1000))"]


@pytest.fixture
def session() -> Iterator[Session]:
    with profiling.traced_session(499) as session:
        yield session


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([str(profiling.BUILD / "omp_truth.gomp.nofp"), "all", "--forever"],
                               stdout=subprocess.PIPE)  # fmt: skip
    try:
        assert process.stdout is not None and process.stdout.readline().startswith(b"ready")
        yield process
    finally:
        process.kill()
        process.communicate()


def kill_before(
    call: Callable[..., Any], victim: subprocess.Popen[bytes], number: int = 1
) -> Callable[..., Any]:
    """The call, but the process is killed and collected just before it is made for the ``number``-th time."""
    calls = 0

    def killing(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            victim.kill()
            victim.wait()
        return call(*arguments, **named)

    return killing


def check_clean(session: Session, pid: int) -> None:
    """Nothing of the process is left, and another one can be profiled."""
    assert session.live(pid) is None
    assert session.kernel.process_state(pid) is None
    other = subprocess.Popen(SPIN)
    try:
        session.watch(other.pid)  # it may still be in exec, and become another image
        profiling.run_until(
            session, lambda: any(session.targets[key.image].pid == other.pid for key in session.facts)
        )
        session.finish()
    finally:
        other.kill()
        other.wait()
    assert session.kernel.store.used_words == 0


@pytest.mark.parametrize("where", ["check", "descriptor", "second check", "maps"])
def test_it_ends_before_it_is_watched(
    where: str, session: Session, victim: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name, number = {
        "check": (parprof.session.arrivals, "inspect", 1),
        "descriptor": (parprof.session.target, "open_pidfd", 1),
        "second check": (parprof.session.arrivals, "inspect", 2),
        "maps": (Target, "prepare", 1),
    }[where]
    monkeypatch.setattr(module, name, kill_before(getattr(module, name), victim, number))
    with pytest.raises(TargetError) as caught:
        session.watch(victim.pid)
    assert str(victim.pid) in str(caught.value) and "\n" not in str(caught.value)
    assert not session.targets
    monkeypatch.undo()
    check_clean(session, victim.pid)


@pytest.mark.parametrize("where", ["watched", "probes", "maps again", "threads"])
def test_it_ends_while_it_is_attached_to(
    where: str, session: Session, victim: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, number = {
        "watched": (session.kernel, "watch", 1),
        "probes": (session.kernel, "attach_probes", 1),
        "maps again": (LoadMap, "read", 2),
        "threads": (Target, "seed_threads", 1),
    }[where]
    monkeypatch.setattr(owner, name, kill_before(getattr(owner, name), victim, number))
    target = session.watch(victim.pid)
    profiling.run_until(session, lambda: target.ended, 10)
    monkeypatch.undo()
    check_clean(session, victim.pid)
