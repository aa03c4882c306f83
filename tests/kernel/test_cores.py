# SPDX-License-Identifier: Apache-2.0
"""n while a program runs: idleness goes by the cores that it could use at that time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from parprof.facts.cores import mean_cores
from parprof.facts.reading import decode
from parprof.facts.replay import RememberingNamer
from parprof.facts.writing import encode
from parprof.kernel.engine import BpfKernel
from parprof.model import Profile
from parprof.process.identity import allowance
from parprof.profile.assemble import make_profile
from parprof.profile.naming import FileNamer
from parprof.session.session import Session
from parprof.session.target import Target
from parprof.symbols.symbolizer import Symbolizer
from quota import NoQuota
from quota import quota as quota_of

CPU1 = Path("/sys/devices/system/cpu/cpu1/online")
SLACK_S = 1.5
"""A change is seen within a second, or a little more on a busy machine."""
ONE_WORKS = """
import threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
end = time.monotonic() + 60
while time.monotonic() < end: pass
"""
"""Two threads, one of which works and one sleeps: with two cores, as much idleness as work."""

pytestmark = pytest.mark.skipif(
    allowance(os.getpid()).cores < 2, reason="with one core there is nothing to take away"
)


@pytest.fixture(scope="module")
def kernel() -> Iterator[BpfKernel]:
    with BpfKernel(["cpu-clock"], 199) as kernel:
        yield kernel


@pytest.fixture
def watched(kernel: BpfKernel) -> Iterator[tuple[Session, Target]]:
    session = Session(kernel)
    process = subprocess.Popen([sys.executable, "-S", "-c", ONE_WORKS])
    try:
        time.sleep(0.3)
        yield session, session.watch(process.pid)
    finally:
        process.kill()
        process.wait()
        session.finish()
        session.close()


def work_in(session: Session, seconds: float) -> float:
    """Seconds of work in so many seconds."""
    before, end = session.samples(), time.monotonic() + seconds
    while time.monotonic() < end:
        session.step()
    session.drain()
    return (session.samples() - before) / session.kernel.frequency_hz


def finish(session: Session, target: Target) -> Profile:
    """The profile, which facts that were saved make again."""
    session.finish()
    measured = session.measurement(target)
    with Symbolizer() as symbolizer, FileNamer(symbolizer) as namer:
        names = RememberingNamer(namer)
        profile = make_profile(measured, names)
    assert make_profile(*decode(encode(measured, names))) == profile
    return profile


def bind(pid: int, cpus: set[int]) -> None:
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cpus)


@contextmanager
def quota(pid: int, cores: float) -> Iterator[None]:
    """A CPU quota, where there can be one."""
    try:
        with quota_of(pid, cores):
            yield
    except NoQuota as error:
        pytest.skip(str(error))


def check(profile: Profile, target: Target, two_s: float, one_s: float) -> None:
    """So much of the work had two cores, so much had one."""
    total = profile.total()
    assert total.work_ns / 1e9 == pytest.approx(two_s + one_s, abs=0.1)
    assert total.idleness_ns / 1e9 == pytest.approx(two_s, abs=SLACK_S)
    held_s = {one.allowed: one.seconds for one in target.cores_held()}
    assert profile.process.cores == max(held_s, key=lambda cores: held_s[cores])
    assert profile.extra["invariant_violations"] == "0"


def test_n_follows_affinity(watched: tuple[Session, Target]) -> None:
    session, target = watched
    two_s = work_in(session, 2)
    bound_s = target.watched_s()
    bind(target.pid, {0})
    one_s = work_in(session, 3)
    profile = finish(session, target)
    (text,) = (note for note in profile.notes if "n changed" in note)
    assert text.startswith(f"process {target.pid}: n changed from 2 to 1 after ")
    assert bound_s - 0.1 < float(text.split()[-2]) < bound_s + SLACK_S
    check(profile, target, two_s, one_s)


def test_n_comes_back(watched: tuple[Session, Target]) -> None:
    """The core time that there was is that of each n for its time: more than that is not charged."""
    session, target = watched
    bind(target.pid, {0})
    session.drain()
    work_in(session, 3)
    bind(target.pid, {0, 1})
    two_s = work_in(session, 2)
    profile = finish(session, target)
    assert "n changed 2 times, the last time from 1 to 2" in " ".join(profile.notes)
    assert profile.total().idleness_ns / 1e9 == pytest.approx(two_s, abs=SLACK_S)
    held_s = {one.allowed: one.seconds for one in target.cores_held()}
    assert held_s.keys() == {1, 2}
    assert mean_cores(target.cores_held()) == pytest.approx(
        (held_s[1] + 2 * held_s[2]) / target.watched_s(), rel=0.01
    )
    assert profile.extra["invariant_violations"] == "0"


def test_n_follows_a_quota(watched: tuple[Session, Target]) -> None:
    session, target = watched
    two_s = work_in(session, 2)
    with quota(target.pid, 1.0):
        one_s = work_in(session, 3)
        check(finish(session, target), target, two_s, one_s)


@pytest.mark.skipif(not CPU1.exists(), reason="CPU 1 cannot be taken offline here")
def test_n_follows_a_cpu_that_goes(watched: tuple[Session, Target]) -> None:
    session, target = watched
    assert target.cores == 2
    try:
        CPU1.write_text("0")
        work_in(session, SLACK_S)
        assert target.cores == 1
    finally:
        CPU1.write_text("1")
    work_in(session, SLACK_S)
    assert target.cores == 2
