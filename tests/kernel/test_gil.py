# SPDX-License-Identifier: Apache-2.0
"""Threads that wait for CPython's global lock, and who has it, against what the program itself measured."""

from __future__ import annotations

from pathlib import Path

import pytest

import profiling
from parprof.causes import Kind, causes_of
from parprof.commands.spawn import Child
from parprof.kernel.engine import BpfKernel
from parprof.metrics import BLAME, WAIT, WORK, Metric
from parprof.model import PathSample
from parprof.session.session import Session

SCRIPT = profiling.ROOT / "tests/workloads/gil.py"
PYENV = Path.home() / ".pyenv/versions"
INTERPRETERS = {
    "debian": Path("/usr/bin/python3"),
    **{
        version: PYENV / version / "bin/python3"
        for version in ("3.9.18", "3.10.13", "3.11.7", "3.12.1", "3.13.0")
    },
}
SECONDS = "2"


def run(version: str, mode: str, output: Path, *, blame_locks: bool = True) -> tuple[list[PathSample], float]:
    """The rows of the program, and for how long its threads waited as it says itself."""
    interpreter = INTERPRETERS[version]
    if not interpreter.exists():
        pytest.skip(f"{interpreter} is not installed")
    with BpfKernel(["cpu-clock"], 997, waits=True) as kernel, profiling.output_in(output):
        session = Session(kernel, blame_locks=blame_locks)
        try:
            child = Child([str(interpreter), "-S", str(SCRIPT), mode, SECONDS])
            session.watch(child.pid, follow=True, stop=True)
            child.release()
            profiling.run_until(session, lambda: child.poll() is not None)
            session.finish()
            assert child.wait() == 0
            rows, _ = profiling.rows_of(session)
        finally:
            session.close()
    return rows, float(output.read_text())


def total(rows: list[PathSample], metric: Metric, *names: str) -> float:
    """Seconds, of paths with all of these functions in them."""
    return sum(row.metrics[metric] for row in rows if set(names) <= {frame.name for frame in row.path}) / 1e9


@pytest.mark.parametrize("version", INTERPRETERS)
def test_who_waits_for_the_gil_and_who_has_it(version: str, tmp_path: Path) -> None:
    rows, waited = run(version, "gil", tmp_path / "output")
    assert waited > 1
    assert total(rows, WAIT, "[waits: GIL]") == pytest.approx(waited, rel=0.1)
    assert total(rows, WAIT, "asker", "[waits: GIL]") > 0.8 * waited
    blame = total(rows, BLAME)
    assert total(rows, BLAME, "hog") > 0.95 * blame
    cause = causes_of(rows, 2, "none")[0]
    assert (cause.kind, cause.function) == (Kind.LOCK, "hog")
    assert "(the GIL), which it has" in cause.what
    # who has it, and no core, makes others wait without a sample; who is woken, and has no core, waits for that
    assert 0.1 * total(rows, WORK, "hog") < blame < 1.1 * waited


@pytest.mark.parametrize("version", ["debian", "3.13.0"])
def test_without_blame_the_kind_is_told_and_no_holder(version: str, tmp_path: Path) -> None:
    rows, waited = run(version, "gil", tmp_path / "output", blame_locks=False)
    assert total(rows, WAIT, "[waits: GIL]") == pytest.approx(waited, rel=0.1)
    assert total(rows, BLAME) == 0


@pytest.mark.parametrize("version", ["debian", "3.9.18", "3.13.0"])
def test_a_lock_of_threading_is_a_lock_of_unknown_holder(version: str, tmp_path: Path) -> None:
    rows, waited = run(version, "lock", tmp_path / "output")
    in_lock = total(rows, WAIT, "wanter", "[waits: lock]")
    assert 0.5 * waited < in_lock < 1.1 * waited
    blame = total(rows, BLAME)
    gil = total(rows, WAIT, "[waits: GIL]")
    assert blame < 1.1 * gil, "that for the GIL, and nothing for the lock"


@pytest.mark.parametrize("version", ["3.12.1", "3.13.0"])
def test_an_interpreter_with_a_lock_of_its_own_keeps_nobody_waiting(version: str, tmp_path: Path) -> None:
    rows, waited = run(version, "own", tmp_path / "output")
    assert total(rows, WAIT, "asker", "[waits: GIL]") > 0.8 * waited
    blame = total(rows, BLAME)
    assert blame > 0.1 * total(rows, WORK, "hog")
    assert total(rows, BLAME, "hog") > 0.9 * blame
    assert total(rows, BLAME, "apart") < 0.02 * blame
