# SPDX-License-Identifier: Apache-2.0
"""A build: many processes, each over soon. None waits for us, and none of their samples is lost."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

import profiling
from parprof.commands.spawn import Child
from parprof.files.libc import is_loader
from parprof.kernel.engine import BpfKernel
from parprof.model import PathSample
from parprof.session.session import Session
from parprof.session.target import Target

pytestmark = pytest.mark.beside

BRIEF = str(profiling.BUILD / "brief")
RUNS = 40
STOPS = 2
"""Of one program: at exec, and when ld.so has mapped its libraries."""


@pytest.fixture
def session() -> Iterator[Session]:
    with BpfKernel(["cpu-clock"], 499) as kernel:
        session = Session(kernel)
        try:
            yield session
        finally:
            session.close()


def run(session: Session, *command: str) -> None:
    """Record a command to its end."""
    child = Child(list(command))
    session.watch(child.pid, follow=True, stop=True)
    child.release()
    profiling.run_until(session, lambda: child.poll() is not None)
    session.finish()
    assert child.poll() == 0


def names_of(row: PathSample) -> list[str]:
    return [frame.name for frame in row.path]


def stops(session: Session) -> int:
    return session.kernel.statistics()["stops"]


def shell(times: int, command: str) -> tuple[str, ...]:
    return "sh", "-c", f"for i in $(seq {times}); do {command}; done"


def test_a_program_is_stopped_twice(session: Session) -> None:
    """ld.so tells of its first libraries before it maps them, too: nothing is to be seen then."""
    run(session, BRIEF, "1")
    assert stops(session) == STOPS
    target = list(session.targets.values())[-1]  # the first one is who became it
    assert target.has_started


@pytest.mark.parametrize("once", [False, True])
def test_the_loader_says_when_to_stop(session: Session, once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it tells once, as musl's does, that is the time: glibc's, taken for such a one, has mapped nothing by then."""
    seen: list[bool] = []
    resume = Target.resume

    def note(target: Target, started_libraries: bool) -> None:
        if started_libraries and target.load_map is not None:
            seen.append(any(dso.name.startswith("libc.so") for dso in target.load_map.dsos()))
        resume(target, started_libraries)

    monkeypatch.setattr(Target, "resume", note)
    monkeypatch.setattr("parprof.session.target.tells_once", lambda name: once and is_loader(name))
    run(session, BRIEF, "1")
    assert stops(session) == STOPS
    assert seen == [not once]


def test_musls_loader_tells_of_them_once(session: Session, tmp_path: Path) -> None:
    if not shutil.which("musl-gcc"):
        pytest.skip("needs musl-gcc")
    source, program = tmp_path / "plain.c", tmp_path / "plain"
    source.write_text("int main(void) { return 0; }\n")
    subprocess.run(["musl-gcc", "-o", program, source], check=True)
    run(session, str(program))
    assert stops(session) == STOPS
    target = list(session.targets.values())[-1]  # the first one is who became it
    assert target.has_started


def test_a_program_that_is_known_to_be_plain_is_not_stopped(session: Session) -> None:
    run(session, *shell(RUNS, f"{BRIEF} 20"))
    assert (
        STOPS < stops(session) <= 6 * STOPS
    )  # the shell, seq and the first run; some more if they come at once


def test_its_samples_have_their_call_paths(session: Session) -> None:
    run(session, *shell(RUNS, f"{BRIEF} 20"))
    rows, maker = profiling.rows_of(session)
    ours = [row for row in rows if row.origin.comm == "brief"]
    burnt = [row for row in ours if "burn" in names_of(row)]
    assert len({row.origin.image for row in ours}) >= RUNS - 2  # 20 ms have nearly always a sample at 499 Hz
    assert sum(row.metrics.samples for row in burnt) > 0.9 * sum(row.metrics.samples for row in ours)
    for row in burnt:
        names = names_of(row)
        assert names.index("main") < names.index("outer") < names.index("burn")
    assert maker.cut_short < 0.1 * maker.samples  # ld.so at its start: its outermost function has no rule


def test_one_that_creates_threads_is_not_stopped_either(session: Session) -> None:
    """Who creates them is known all the same."""
    session.kernel.await_programs()
    run(session, *shell(RUNS, f"{BRIEF} 20 thread"))
    assert stops(session) <= 6 * STOPS
    rows, _ = profiling.rows_of(session)
    burnt = [(names_of(row), row.metrics.samples) for row in rows if "burn" in names_of(row)]
    rooted = sum(samples for names, samples in burnt if names[:3] == ["main", "outer", "burn"])
    assert rooted >= 0.9 * sum(samples for _, samples in burnt), burnt


def test_a_program_that_becomes_another_is_two(session: Session) -> None:
    run(session, *shell(20, f"{BRIEF} 10 then {BRIEF} 10"))
    rows, _ = profiling.rows_of(session)
    images = {row.origin.image for row in rows if "burn" in names_of(row)}
    assert len(images) >= 36
    assert stops(session) <= 6 * STOPS


def test_one_that_lives_on_is_looked_at(session: Session) -> None:
    run(session, *shell(10, f"{BRIEF} 1"))
    before = stops(session)
    child = Child(["sh", "-c", f"{BRIEF} 1; exec {BRIEF} 600"])
    session.watch(child.pid, follow=True, stop=True)
    child.release()
    profiling.run_until(session, lambda: child.poll() is not None)
    long = max(
        session.targets.values(), key=lambda target: (target.process.comm == "brief", target.watched_s())
    )
    assert stops(session) - before <= 2 * STOPS
    assert not long.is_young and "brief 600" in long.process.command


def test_a_library_that_comes_by_environment_is_seen(session: Session) -> None:
    """The plain program turns out to have a runtime after all."""
    libraries = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    gomp = next(line.split()[-1] for line in libraries.splitlines() if "libgomp.so.1" in line)
    run(session, "sh", "-c", f"{BRIEF} 5; {BRIEF} 5; LD_PRELOAD={gomp} {BRIEF} 500")
    assert any(target.plan.runtime == "libgomp" for target in session.targets.values())


def states_of(group: int) -> list[str]:
    """The states of the processes of a group."""
    out = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group:
                out.append(fields[0])
    return out


def test_nothing_stays_stopped_when_the_profiler_fails() -> None:
    """An error of ours in the middle of a build: its processes go on."""
    with BpfKernel(["cpu-clock"], 499) as kernel:
        session = Session(kernel)
        child = Child(
            [
                "sh",
                "-c",
                f"setsid sh -c 'echo $$ >&2; for i in 1 2 3 4 5 6; do {BRIEF} 5 thread & done; wait'",
            ]
        )
        try:
            session.watch(child.pid, follow=True, stop=True)
            child.release()
            limit = time.monotonic() + 20
            while stops(session) < 5 and time.monotonic() < limit:
                session.step(0.001)
            group = max(target.pid for target in session.targets.values())
            group = os.getpgid(group)
            time.sleep(0.05)  # nobody answers: those that exec now are stopped
        finally:
            session.close()
        limit = time.monotonic() + 10
        while "T" in states_of(group) and time.monotonic() < limit:
            time.sleep(0.01)
        assert "T" not in states_of(group)
        limit = time.monotonic() + 20
        while child.poll() is None and time.monotonic() < limit:
            time.sleep(0.01)
        assert child.poll() == 0
        child.send(signal.SIGKILL)


def test_a_process_that_was_dealt_with_is_free_at_once() -> None:
    """The daemon meets hundreds of thousands: Python looks for cycles too seldom for what each of them has."""
    with BpfKernel(["cpu-clock"], 499) as kernel:
        session = Session(kernel)
        gc.collect()
        gc.disable()
        try:
            left = weakref.ref(dealt_with(session))
            assert left() is None, gc.get_referrers(left())
        finally:
            gc.enable()
            session.close()


def dealt_with(session: Session) -> Target:
    child = Child([BRIEF, "20"])
    target = session.watch(child.pid, follow=True, stop=True)
    child.release()
    profiling.run_until(session, lambda: child.poll() is not None and target.ended)
    session.drain()
    assert target.scope.workers() or not target.clock_samples
    session.take()
    assert target in session.drop_ended()
    return target
