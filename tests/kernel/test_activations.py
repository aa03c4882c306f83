"""Calls that samples tell apart, on programs whose calls are known: tests/workloads/call_patterns.c."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import profiling
from parprof.commands.spawn import Child
from parprof.kernel import bpf
from parprof.kernel.engine import BpfKernel
from parprof.metrics import ACTIVATIONS
from parprof.model import ACTIVATION, PathSample
from parprof.session.session import Session

pytestmark = pytest.mark.beside

Paths = dict[tuple[str, ...], Counter[str]]


@contextmanager
def recorded(what: str, *, activations: bool = True, frequency_hz: int = 999) -> Iterator[Session]:
    with BpfKernel(["cpu-clock"], frequency_hz, activations=activations) as kernel:
        session = Session(kernel)
        try:
            child = Child([str(profiling.BUILD / "call_patterns"), what])
            session.watch(child.pid, follow=True, stop=True)
            child.release()
            profiling.run_until(session, lambda: child.poll() is not None)
            session.finish()
            assert child.wait() == 0
            yield session
        finally:
            session.close()


def by_path(rows: list[PathSample]) -> Paths:
    """What each call path has itself, and its CPU time with all below it."""
    found: Paths = {}
    for row in rows:
        names = tuple(frame.name for frame in row.path if not frame.is_loop)
        if "[waits" in names[-1]:
            continue
        for end in range(1, len(names) + 1):
            found.setdefault(names[:end], Counter())["cpu_ns"] += int(row.metrics.cpu_ns)
        found[names]["samples"] += row.metrics.samples
        found[names]["calls"] += int(row.metrics[ACTIVATIONS])
    return found


def test_figure_1_of_froyd_2005() -> None:
    """Both arcs get half of the time each, and the cost per call differs by 2: what gprof gets wrong."""
    with recorded("figure1", frequency_hz=3989) as session:
        rows, maker = profiling.rows_of(session)
        assert session.kernel.lost().get("activations", 0) == 0
        assert session.kernel.statistics()["not_compared"] <= 3
    paths = by_path(rows)
    long, short = paths["main", "a", "c"], paths["main", "b", "c"]
    assert (long["calls"], short["calls"]) == (2, 4)
    assert paths["main",]["calls"] == paths["main", "a"]["calls"] == paths["main", "b"]["calls"] == 1
    share = long["cpu_ns"] / (long["cpu_ns"] + short["cpu_ns"])
    assert share == pytest.approx(0.5, rel=0.05)
    per_call = long["cpu_ns"] / long["calls"], short["cpu_ns"] / short["calls"]
    assert per_call[0] / per_call[1] == pytest.approx(2, rel=0.05)
    assert sum(row.metrics.samples for row in rows) == maker.samples


def test_few_long_calls_and_many_short_ones() -> None:
    with recorded("few_many") as session:
        rows, _ = profiling.rows_of(session)
    paths = by_path(rows)
    few, many = paths["main", "few", "step"], paths["main", "many", "step"]
    assert few["cpu_ns"] / many["cpu_ns"] == pytest.approx(1, rel=0.2), "samples alone do not tell"
    assert few["calls"] == 3
    assert 10 * few["calls"] < many["calls"] <= 3001, "a lower bound"


def test_recursions_of_different_depths_and_more_frames_than_are_compared() -> None:
    with recorded("recursion") as session:
        rows, _ = profiling.rows_of(session)
    calls = {path: counted["calls"] for path, counted in by_path(rows).items()}
    levels = [calls["main", "recursion", *["deep"] * level] for level in (1, 2, 40, 41, 42, 200, 301)]
    assert levels[:4] == [46, 46, 46, 46]
    assert levels[4:] == [23, 23, 23]
    assert calls["main", "recursion"] == calls["main",] == 1


def test_threads_do_not_share_what_they_do() -> None:
    """Stacks of threads that came one after the other lie at the same address."""
    with recorded("threads") as session:
        rows, _ = profiling.rows_of(session)
    assert sum(row.metrics[ACTIVATIONS] for row in rows if row.path[-1].name == "c") == 13


def test_nothing_is_compared_unless_it_is_asked_for() -> None:
    with recorded("figure1", activations=False) as session:
        rows, _ = profiling.rows_of(session)
        assert not any(key.event == ACTIVATION for key in session.facts)
        assert "on_activations" not in session.kernel._object.loaded_programs()
        assert session.kernel._object.definitions["last_stacks"]["max_entries"] == 1
    assert not any(row.metrics[ACTIVATIONS] for row in rows)


def test_frames_are_looked_at_only_where_a_thread_is_in_other_calls_than_before() -> None:
    with BpfKernel(["cpu-clock"], 999, activations=True) as kernel:
        session = Session(kernel)
        program = subprocess.Popen([str(profiling.BUILD / "stacks"), "recursion", "10", "60"])
        try:
            session.watch(program.pid)
            profiling.run_while_it_works(session, program.pid, 0.3)
            before = kernel.statistics()
            bpf.map_delete(kernel._object.maps["unwinders"], (3).to_bytes(4, "little"))  # what looks at them
            profiling.run_while_it_works(session, program.pid, 0.3)
            after = kernel.statistics()
        finally:
            program.kill()
            program.wait()
            session.close()
    samples = after["samples"] - before["samples"]
    assert samples > 100
    assert after["not_compared"] - before["not_compared"] < samples / 4


def has_become(session: Session, pid: int, comm: str) -> bool:
    target = session.live(pid)
    return target is not None and target.process.comm == comm


def compared_images(kernel: BpfKernel) -> set[int]:
    """Whose threads' last stacks the programs keep."""
    size = kernel._object.definitions["last_stacks"]["value_size"]
    entries = bpf.map_read_all(kernel._object.maps["last_stacks"], 4, size, chunk=256)
    return {int.from_bytes(raw[:4], "little") for _, raw in entries} - {0}


def test_under_the_daemon_who_is_not_attached_to_is_not_compared_and_nobody_with_what_was_before() -> None:
    with BpfKernel(["cpu-clock"], 999, activations=True, system_wide=True) as kernel:
        session = Session(kernel)
        assert "on_activations" not in kernel._object.loaded_programs(), "nobody attaches yet"
        child = Child([str(profiling.BUILD / "call_patterns"), "few_many"])
        busy = subprocess.Popen(["sh", "-c", "while :; do :; done"])
        try:
            other = session.watch(busy.pid)
            session.watch(child.pid, follow=True, stop=True)
            child.release()
            profiling.run_until(session, lambda: has_become(session, child.pid, "call_patterns"))
            mine = session.live(child.pid)
            assert mine is not None
            for _ in range(2):  # somebody attaches, and another one after him
                kernel.load_comparing()
                kernel.forget_last_stacks()
                session.find_waits(mine, True)
                profiling.run_while_it_works(session, mine.pid, 0.3)
                session.find_waits(mine, True)  # as when an interval ends
                profiling.run_while_it_works(session, mine.pid, 0.1)
                assert compared_images(kernel) == {mine.image}
                session.find_waits(mine, False)
                os.kill(mine.pid, signal.SIGSTOP)  # it has not much to do
                session.drain()
                rows, _ = profiling.rows_of(session)
                facts = session.take().facts
                assert {key.image for key in facts if key.event == ACTIVATION} == {mine.image}
                assert {key.image for key in facts if key.event == 0} == {mine.image, other.image}
                paths = by_path([row for row in rows if row.origin.image == mine.image])
                assert paths["main",]["calls"] == 1, (
                    "it began before: as far as this attach knows it was called"
                )
                assert sum(counted["calls"] for counted in paths.values()) >= 3
                os.kill(mine.pid, signal.SIGCONT)
            kernel.forget_last_stacks()
            assert not compared_images(kernel)
            profiling.run_while_it_works(session, mine.pid, 0.1)
            session.drain()
            assert not any(key.event == ACTIVATION for key in session.facts)
            assert not compared_images(kernel)
        finally:
            session.close()
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            busy.kill()
            busy.wait()
