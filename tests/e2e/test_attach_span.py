"""`parprof attach --span`: work and span of running programs whose phases have known shares."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from parprof.exporters import scale_pprof
from parprof.scale.model import Scale
from parprof.scale.record import SiteKind
from profiling import BUILD, cpu_seconds

pytestmark = pytest.mark.beside

PROGRAMS = (
    BUILD / "span_phases.gomp",
    pytest.param(
        BUILD / "span_phases.omp",
        marks=pytest.mark.skipif(
            not (BUILD / "span_phases.omp").exists(), reason="needs clang and libomp-dev"
        ),
    ),
)
COARSE_UNITS = 1_000_000


@contextmanager
def running(*command: object, threads: int = 2) -> Iterator[subprocess.Popen[bytes]]:
    """The program, which must not end before we are through."""
    child = subprocess.Popen(
        [str(word) for word in command], env={**os.environ, "OMP_NUM_THREADS": str(threads)}
    )
    try:
        time.sleep(0.2)
        yield child
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def attach(pid: int, output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "parprof", "attach", str(pid), "--span", "-o", str(output), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def measured(pid: int, output: Path, *options: str) -> Scale:
    done = attach(pid, output, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("scale: on ")
    return decoded(output)


def decoded(output: Path) -> Scale:
    found = scale_pprof.decode(gzip.decompress(output.read_bytes()))
    assert found is not None
    return found


@contextmanager
def measuring(pid: int, output: Path, threads: int = 2) -> Iterator[subprocess.Popen[str]]:
    """Until the end of the block, as with Ctrl-C. ``threads``: of the program."""
    command = [sys.executable, "-m", "parprof", "attach", str(pid), "--span", "-o", str(output)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ours:
        assert ours.stderr is not None
        assert "estimate: " in (said := ours.stderr.readline()), said
        yield ours
        ours.send_signal(signal.SIGINT)
        out, _ = ours.communicate(timeout=60)
    assert ours.returncode == 0 and out.startswith(f"scale: on {threads} cores")


def measured_meanwhile(pid: int, output: Path, cpu_s: float, threads: int) -> Scale:
    """While the program uses so much CPU time, however long it takes to get that."""
    with measuring(pid, output, threads) as ours:
        end_s = cpu_seconds(pid) + cpu_s
        while cpu_seconds(pid) < end_s:
            assert ours.poll() is None, "it measures until it is told to stop"
            time.sleep(0.02)
    return decoded(output)


@pytest.mark.alone
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_phase_takes_as_long_as_its_longest_share(program: Path, tmp_path: Path) -> None:
    """Two threads: work 1/2 + (1 + 2) + (1 + 1), span 1/2 + 2 + 1."""
    with running(program, "timed", 500) as child:  # many phases: the last is cut off
        main = measured(child.pid, tmp_path / "out.pb.gz", "-d", "1", "--budget", "100").main
    assert (main.threads, main.widest_team) == (2, 2)
    assert main.speedup == pytest.approx(5.5 / 3.5, rel=0.08)
    parallelism = {site.kind: site.work_s / site.span_s for site in main.sites}
    assert parallelism == {
        SiteKind.SERIAL: pytest.approx(1),
        SiteKind.PHASE: pytest.approx(3 / 2, rel=0.08),
        SiteKind.REGION: pytest.approx(2, rel=0.08),
    }
    share = {site.kind: site.share for site in main.sites}
    assert share[SiteKind.PHASE] == pytest.approx(2 / 3.5, rel=0.08)
    assert all("span_phases.c:" in site.label for site in main.sites)
    counts = [site.count for site in main.sites]
    assert max(counts) - min(counts) <= 2 < min(counts)


@pytest.mark.alone
def test_tasks_at_a_barrier_are_their_threads_shares(tmp_path: Path) -> None:
    with running(BUILD / "span_phases.gomp", "tasks", COARSE_UNITS) as child:
        main = measured(child.pid, tmp_path / "out.pb.gz", "-d", "1").main
    assert 1 < main.speedup <= 2.001  # who executes how many is the runtime's choice
    region = next(site for site in main.sites if site.kind == SiteKind.REGION)
    assert region.work_s > 0.9 * main.work_s > 0
    assert main.lost.runtime < 0.6  # where tasks at barriers did not count, nearly all


def test_regions_within_regions_are_told_of(tmp_path: Path) -> None:
    with running(BUILD / "span_phases.gomp", "nested", COARSE_UNITS) as child:
        found = measured(child.pid, tmp_path / "out.pb.gz", "-d", "0.5")
    assert any("regions began within others" in note for note in found.notes)


@pytest.mark.alone
@pytest.mark.parametrize("program", PROGRAMS)
def test_threads_of_regions_within_regions_work_too(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work 1 + 1 + 2 x 2 in three threads, of which the longest path has 3.

    What was begun before, or is not over in the end, is not followed: it is a large part of little CPU time.
    """
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # who spins has no work
    with running(program, "within", 4 * COARSE_UNITS) as child:
        found = measured_meanwhile(child.pid, tmp_path / "out.pb.gz", cpu_s=1.0, threads=3)
    assert found.main.speedup == pytest.approx(2, rel=0.08)
    assert found.main.lost.runtime < 0.2
    assert not any("meanwhile" in note for note in found.notes)


def test_of_regions_side_by_side_nothing_is_claimed(tmp_path: Path) -> None:
    with running(BUILD / "span_phases.gomp", "beside", 4 * COARSE_UNITS) as child:
        found = measured(child.pid, tmp_path / "out.pb.gz", "-d", "0.5")
    assert any("that other threads began meanwhile" in note for note in found.notes)


@pytest.mark.alone
def test_what_costs_more_than_the_budget_is_refused_with_the_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a share of what the program takes itself, of which who spins until another gets a core has much more."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    with running(BUILD / "span_phases.gomp", "coarse", 200) as child:
        done = attach(child.pid, tmp_path / "out.pb.gz", "-d", "5")
        assert done.returncode == 1
        assert "functions/s x " in done.stderr and "the budget is 1 %" in done.stderr
        assert not (tmp_path / "out.pb.gz").exists()


def test_a_process_without_a_runtime_is_refused(tmp_path: Path) -> None:
    with running("sleep", "100") as child:
        done = attach(child.pid, tmp_path / "out.pb.gz")
        assert done.returncode == 1
        assert "has no OpenMP runtime whose barriers are known" in done.stderr


def test_a_stripped_program_is_refused_with_a_remedy(tmp_path: Path) -> None:
    program = tmp_path / "stripped"
    subprocess.run(["strip", "-s", str(BUILD / "span_phases.gomp"), "-o", str(program)], check=True)
    with running(program, "coarse", COARSE_UNITS) as child:
        done = attach(child.pid, tmp_path / "out.pb.gz")
        assert done.returncode == 1
        assert "the bodies of its regions have no symbols" in done.stderr


def test_ctrl_c_ends_it_with_the_answer(tmp_path: Path) -> None:
    with running(BUILD / "span_phases.gomp", "coarse", COARSE_UNITS) as child:
        with measuring(child.pid, tmp_path / "o"):
            time.sleep(0.5)
