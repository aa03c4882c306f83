"""`parprof record --trace` and `attach --trace` on programs of known truth, asked in Perfetto's own trace processor.
Needs root."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from browser import CHROMIUM
from parprof.exporters import pprof
from parprof.model import TRACE_MINIMUM
from reruns import MadeForAll
from trace_processor import TraceProcessor, trace_processor
from truth import Truth

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "tests/workloads/build"
REPEATS = 8
UNIT_S = 0.01
pytestmark = pytest.mark.beside
in_perfetto = pytest.mark.skipif(
    not CHROMIUM, reason="the trace processor runs in a browser: apt install chromium"
)


def record(folder: Path, program: list[str], *options: str) -> tuple[Path, str]:
    trace = folder / "out.pftrace"
    arguments = ["record", "--no-report", "-F", "999", "-o", str(folder / "out.pb.gz"), "--trace", str(trace)]
    done = subprocess.run(
        [sys.executable, "-m", "parprof", *arguments, *options, "--", *program],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT / "daemon"), "PARPROF_TRUTH": str(folder / "log")},
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return trace, done.stderr


@dataclass
class Traced:
    truth: Truth
    perfetto: TraceProcessor


@pytest.fixture(scope="module")
def all_traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeForAll[Traced]]:
    """One program, recorded and loaded."""
    with ExitStack() as loaded:

        def trace_it() -> Traced:
            loaded.close()
            folder = tmp_path_factory.mktemp("traced")
            phases = "serial,skewed,critical,tasks"
            program = [str(BUILD / "omp_truth.gomp"), phases, "--repeat", str(REPEATS), "--threads", "2"]
            trace, _ = record(folder, program)
            profile = folder / "browser"
            profile.mkdir()
            perfetto = loaded.enter_context(trace_processor(trace.read_bytes(), profile))
            return Traced(Truth.read(folder / "log"), perfetto)

        yield MadeForAll(trace_it)


@pytest.fixture
def traced(request: pytest.FixtureRequest, all_traced: MadeForAll[Traced]) -> Traced:
    return all_traced.take(request.node.name)


STATES = (
    "select thread.tid, slice.name, slice.ts, slice.dur from slice join thread_track t on slice.track_id = t.id "
    "join thread using (utid) where t.name = 'state' order by slice.ts"
)


@in_perfetto
def test_perfetto_finds_nothing_wrong_with_it(traced: Traced) -> None:
    problems = traced.perfetto.query("select name, value from stats where value > 0 and severity != 'info'")
    assert not problems
    assert traced.perfetto.query("select count(*) from slice where dur < 0") == [(0,)]


@in_perfetto
def test_regions_tasks_and_locks_are_as_many_as_there_were(traced: Traced) -> None:
    """Two threads: a skewed, a critical and a task region in each of the rounds, with five tasks."""
    found = dict(traced.perfetto.query("select name, count(*) from slice group by name"))
    for phase in ("skewed", "critical", "tasks"):
        assert found[f"region phase_{phase}._omp_fn.0"] == REPEATS
        assert found[f"work phase_{phase}._omp_fn.0"] == 2 * REPEATS
    assert found["work phase_tasks._omp_fn.1"] == 5 * REPEATS
    assert found["create task phase_tasks._omp_fn.1"] == 5 * REPEATS
    # a thread that finds the lock free does not wait: the slow path alone is probed
    assert 3 * REPEATS <= found["wait GOMP_critical_start"] <= 6 * REPEATS


@in_perfetto
def test_tasks_lie_within_the_region_and_on_the_thread_that_ran_them(traced: Traced) -> None:
    rows = traced.perfetto.query(
        "select thread.tid, slice.ts, slice.dur from slice join thread_track t on slice.track_id = t.id "
        "join thread using (utid) where slice.name = 'work phase_tasks._omp_fn.1' order by slice.ts"
    )
    truth = [one for one in traced.truth.intervals if one.function == "task_work"]
    for tid, ts, dur in rows:
        inside = [one for one in truth if one.tid == tid and ts <= one.enter_ns and one.exit_ns <= ts + dur]
        assert len(inside) == 1  # times are those of the log: CLOCK_MONOTONIC


@in_perfetto
def test_n_w_over_time_is_the_program_s_own(traced: Traced) -> None:
    """For how long the counter was 1 and 2, and what it was at each moment of the log that is not near an edge."""
    steps = traced.perfetto.query(
        "select ts, value from counter join track on counter.track_id = track.id where track.name = 'n_w' order by ts"
    )
    truth = traced.truth
    judged = wrong = 0
    for (since, value), (until, _) in pairwise(steps):
        middle = (since + until) // 2
        if not truth.start_ns < middle < truth.end_ns or truth.near_edge(middle, 100_000):
            continue
        judged += until - since
        wrong += (until - since) * (value != truth.working_at(middle))
    assert judged > 0.5 * (truth.end_ns - truth.start_ns)
    assert wrong < 0.03 * judged


def check_states(rows: list[tuple[Any, ...]], truth: Truth) -> None:
    """Each thread is in one state after the other, and at work where its log says that it is."""
    for tid in truth.threads:
        states = [(ts, ts + dur, name) for thread, name, ts, dur in rows if thread == tid]
        assert all(one[1] == other[0] for one, other in pairwise(states)), "no gaps, no overlap"
        inside = at_work = 0
        for interval in (one for one in truth.intervals if one.tid == tid):
            for begin, end, name in states:
                shared = min(end, interval.exit_ns) - max(begin, interval.enter_ns)
                if shared > 0:
                    inside += shared
                    at_work += shared * (name in ("working", "ready, no CPU"))
        assert at_work > 0.97 * inside > 0


@in_perfetto
def test_states_are_those_of_the_log(traced: Traced) -> None:
    """A thread in a work function works, or is ready to; while it waits for the lock it does neither."""
    rows = traced.perfetto.query(STATES)
    assert {name for _, name, _, _ in rows} >= {"working", "spinning"}
    check_states(rows, traced.truth)


def test_states_say_what_threads_wait_for(tmp_path: Path) -> None:
    trace, _ = record(tmp_path, [str(BUILD / "waits"), "kinds"])
    text = trace.read_bytes()
    for kind in ("lock", "condition", "barrier", "thread"):
        assert f"waiting: {kind}".encode() in text, kind


@in_perfetto
def test_samples_make_slices_as_long_as_the_calls(traced: Traced) -> None:
    found = dict(
        traced.perfetto.query(
            "select slice.name, sum(slice.dur) from slice join thread_track t on slice.track_id = t.id "
            "where t.name = 'samples' group by 1"
        )
    )
    for function in ("serial_work", "skewed_long", "critical_work"):
        calls = [one for one in traced.truth.intervals if one.function == function]
        used, took = sum(one.cpu_ns for one in calls), sum(one.wall_ns for one in calls)
        assert 0.85 * used < found[function] < 1.15 * took, function  # samples are of threads that have a CPU


@in_perfetto
def test_a_running_program(tmp_path: Path) -> None:
    """From the first change of each thread on, states and n_w are those of its log; it runs on until it is ended."""
    trace = tmp_path / "out.pftrace"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "daemon"), "PARPROF_TRUTH": str(tmp_path / "log")}
    command = [str(BUILD / "omp_truth.gomp"), "serial,skewed,critical", "--forever", "--threads", "2"]
    with subprocess.Popen(command, env=environment) as target:
        done = subprocess.run(
            [sys.executable, "-m", "parprof", "attach", str(target.pid), "-d", "1", "--no-report", "-o",
             str(tmp_path / "out.pb.gz"), "--trace", str(trace), "--budget", "100"],
            capture_output=True, text=True, timeout=60, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "with the machine to itself" in done.stderr
        time.sleep(1)
        assert target.poll() is None, "it was not left alone"
        target.terminate()
        assert target.wait(60) == 0
    truth = Truth.read(tmp_path / "log")
    (tmp_path / "browser").mkdir()
    with trace_processor(trace.read_bytes(), tmp_path / "browser") as perfetto:
        assert not perfetto.query("select name from stats where value > 0 and severity != 'info'")
        ((first, last),) = perfetto.query("select min(ts), max(ts + dur) from slice where dur > 0")
        assert 0.7e9 < last - first < 3e9
        rows = perfetto.query(STATES)
        check_states(rows, truth)
        ((regions,),) = perfetto.query(
            "select count(*) from slice where name = 'region phase_skewed._omp_fn.0'"
        )
        within = [
            one
            for one in truth.intervals
            if one.function == "skewed_long" and first < one.enter_ns and one.exit_ns < last
        ]
        assert abs(regions - len(within)) <= 1


def test_a_trace_of_a_span_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "parprof", "attach", str(os.getpid()), "--span", "--trace", "out"],
        capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT / "daemon")},
    )  # fmt: skip
    assert done.returncode == 2 and "--trace without it" in done.stderr


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    burners = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in burners:
            one.kill()
            one.wait()


@pytest.mark.alone  # it is beside them
@pytest.mark.parametrize(
    ("program", "phases", "units"),
    [("omp_truth.gomp", "serial,balanced,critical", 2 + 3 + 6.5), ("pthread_truth", "skewed,lock", 6 + 9.5)],
)
def test_the_minimum_time_is_that_without_the_others(
    program: str, phases: str, units: float, tmp_path: Path
) -> None:
    """Whoever is beside: what remains is the longest chain of work that the phases' threads leave each other."""
    with busy_cores(4):  # two for each core: of one, a program that sleeps at times gets most
        _, said = record(
            tmp_path, [str(BUILD / program), phases, "--repeat", "3", "--threads", "2"], "--cores", "2"
        )
    found = re.search(r"with the machine to itself ([\d.]+) s of ([\d.]+) s would remain", said)
    assert found
    minimum_s, elapsed_s = map(float, found.groups())
    alone_s = 3 * units * UNIT_S
    assert elapsed_s > 1.4 * alone_s, "nobody was beside it"
    assert 0.97 * alone_s < minimum_s < 1.15 * alone_s
    extra = pprof.read(str(tmp_path / "out.pb.gz")).extra
    assert float(extra[TRACE_MINIMUM]) == pytest.approx(minimum_s, abs=0.001)


def test_the_bounds_of_time_and_size_are_kept_and_said(tmp_path: Path) -> None:
    naps = "import time\nfor _ in range(6000): time.sleep(1e-6)"
    trace, said = record(
        tmp_path, [sys.executable, "-S", "-c", naps], "--trace-limit", "1", "--budget", "100"
    )
    assert "cut short there by its bound of 1 MiB of" in said
    assert (1 << 18) < trace.stat().st_size < (1 << 20) + (1 << 12)
    nap = "import time; time.sleep(0.8)"
    trace, said = record(tmp_path, [sys.executable, "-S", "-c", nap], "--trace-seconds", "0.3")
    assert "cut short there by its bound of 0.3 s" in said
    assert trace.stat().st_size > 100
