"""n_w, as the kernel keeps it, against the programs' own log: wrong in at most 1 % of working samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import profiling

PHASES = [
    "serial",
    "balanced",
    "skewed",
    "barrier",
    "dynamic",
    "critical",
    "lock",
    "tasks",
    "nested",
    "oversubscribed",
]
LIMIT = 0.01
BUSY_LIMIT = 0.1
PHASE_LIMIT = 0.03
"""For one phase of a few hundred samples, where a single preemption in the wrong place is 1 %."""


def agree(make: Callable[[], profiling.Run], minimum: int, limit: float = LIMIT) -> profiling.Run:
    run = profiling.agree(make, minimum, limit, BUSY_LIMIT)
    counted = sum(count.samples for count in run.session.facts.values())
    assert counted == run.statistics["samples"], "samples were counted in the kernel that no drain returned"
    return run


@pytest.mark.parametrize("program", ["omp_truth.gomp", "omp_truth.omp"])
@pytest.mark.parametrize("phase", PHASES)
def test_openmp_phase(program: str, phase: str, tmp_path: Path) -> None:
    run = agree(
        lambda: profiling.record(program, [phase, "--repeat", "5"], tmp_path / "log"), 60, PHASE_LIMIT
    )
    assert run.target.n_w_source == "exact"


@pytest.mark.parametrize("program", ["omp_truth.gomp", "omp_truth.omp", "pthread_truth"])
def test_all_phases_together(program: str, tmp_path: Path) -> None:
    agree(lambda: profiling.record(program, ["all", "--repeat", "4"], tmp_path / "log"), 1500)


@pytest.mark.parametrize("policy", ["active", "passive"])
@pytest.mark.parametrize("program", ["omp_truth.gomp", "omp_truth.omp"])
def test_wait_policies(program: str, policy: str, tmp_path: Path) -> None:
    agree(lambda: profiling.record(program, ["all"], tmp_path / "log", OMP_WAIT_POLICY=policy), 200, 0.02)


@pytest.mark.parametrize(
    "program", ["omp_truth.gomp.stripped", "omp_truth.gomp.static", "omp_truth.gomp.inside"]
)
def test_without_symbols_and_static(program: str, tmp_path: Path) -> None:
    # a stripped program's bodies are probed from their second run on; before that a sample catches them
    limit = 0.03 if "stripped" in program else LIMIT
    run = agree(lambda: profiling.record(program, ["all", "--repeat", "3"], tmp_path / "log"), 200, limit)
    assert run.target.plan.runtime == "libgomp" and run.target.n_w_source == "exact"


@pytest.mark.parametrize(
    "phase", ["serial", "balanced", "skewed", "barrier", "lock", "cond", "io", "oversubscribed"]
)
def test_pthreads(phase: str, tmp_path: Path) -> None:
    run = agree(
        lambda: profiling.record("pthread_truth", [phase, "--repeat", "5"], tmp_path / "log"), 60, PHASE_LIMIT
    )
    assert run.target.n_w_source == "scheduler"


@pytest.mark.parametrize("program", ["omp_truth.gomp", "omp_truth.omp", "omp_truth.gomp.stripped"])
@pytest.mark.parametrize("after_s", [0.30, 0.43])
def test_attach_in_the_middle(program: str, after_s: float, tmp_path: Path) -> None:
    # the first regions after the attach are guessed
    phases = ["skewed,serial,barrier,balanced", "--unit-ms", "40"]
    run = agree(lambda: profiling.attach(program, phases, tmp_path / "log", after_s, 3), 300, 0.03)
    settled = profiling.compare(run.session.trace, run.truth, since_ns=run.session.started_ns + 10**9)
    assert settled.wrong_share <= (BUSY_LIMIT if profiling.was_busy(run) else 0.015), (
        f"{settled.wrong} of {settled.judged} wrong: {settled.cases}"
    )
