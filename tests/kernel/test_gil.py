# SPDX-License-Identifier: Apache-2.0
"""Threads that wait for CPython's global lock, and who has it, against what the program itself measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import profiling
from parprof.causes.diagnosis import Kind
from parprof.causes.ranking import causes_of
from parprof.commands.spawn import Child
from parprof.kernel.engine import BpfKernel
from parprof.metrics import BLAME, WAIT, WORK, Metric
from parprof.model import PathSample
from parprof.session.session import Session

pytestmark = pytest.mark.beside

SCRIPT = profiling.ROOT / "tests/workloads/gil.py"
PYENV = Path.home() / ".pyenv/versions"
INTERPRETERS = {
    "debian": Path("/usr/bin/python3"),
    **{
        version: PYENV / version / "bin/python3"
        for version in ("3.9.18", "3.10.13", "3.11.7", "3.12.1", "3.13.0")
    },
}
SECONDS = "1"
"""Of CPU time, of the one that computes."""


Mode = tuple[str, str]
"""An interpreter, and what the program is to do."""
Found = tuple[list[PathSample], float, float]
"""The rows of the program, and for how many seconds its threads waited as it says itself: at least, at most."""

BLAMED = [
    *((version, "gil") for version in INTERPRETERS),
    *((version, "lock") for version in ("debian", "3.9.18", "3.13.0")),
    *((version, "own") for version in ("3.12.1", "3.13.0")),
]
"""Those in which it is asked who has a lock."""


def run_each(modes: Iterable[Mode], output: Path, *, blame_locks: bool = True) -> dict[Mode, Found]:
    """One after the other under one session."""
    waited: dict[Mode, tuple[float, float]] = {}
    images: dict[Mode, int] = {}
    with BpfKernel(["cpu-clock"], 997, waits=True, budget=profiling.UNLIMITED) as kernel:
        session = Session(kernel, blame_locks=blame_locks)
        try:
            for version, mode in modes:
                output.unlink(missing_ok=True)
                with profiling.output_in(output):
                    child = Child([str(INTERPRETERS[version]), "-S", str(SCRIPT), mode, SECONDS])
                target = session.watch(child.pid, follow=True, stop=True)
                child.release()
                profiling.run_until(session, lambda child=child: child.poll() is not None)  # type: ignore[misc]
                session.drain()
                assert child.wait() == 0
                images[version, mode] = [one for one in session.targets.values() if one.pid == target.pid][
                    -1
                ].image
                least, most = map(float, output.read_text().split())
                waited[version, mode] = least, most
            session.finish()
            rows, _ = profiling.rows_of(session)
        finally:
            session.close()
    return {
        mode: ([row for row in rows if row.origin.image == image], *waited[mode])
        for mode, image in images.items()
    }


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> dict[Mode, Found]:
    """Of `BLAMED`, each judged once."""
    there = [(version, mode) for version, mode in BLAMED if INTERPRETERS[version].exists()]
    return run_each(there, tmp_path_factory.mktemp("gil") / "output")


Run = Callable[[str, str], Found]


@pytest.fixture
def run(common: dict[Mode, Found], tmp_path: Path) -> Run:
    """A common run that nobody has judged yet, or else one of its own."""

    def take(version: str, mode: str) -> Found:
        skip_without(version)
        wanted = (version, mode)
        return common.pop(wanted, None) or run_each([wanted], tmp_path / "output")[wanted]

    return take


def skip_without(version: str) -> None:
    if not INTERPRETERS[version].exists():
        pytest.skip(f"{INTERPRETERS[version]} is not installed")


def total(rows: list[PathSample], metric: Metric, *names: str) -> float:
    """Seconds, of paths with all of these functions in them."""
    return sum(row.metrics[metric] for row in rows if set(names) <= {frame.name for frame in row.path}) / 1e9


def asked(rows: list[PathSample]) -> float:
    """Seconds in which those that ask waited for the GIL, but for what they read about themselves at first.

    On a busy machine the others wait, too: for one that asked, got it, and lost its core meanwhile.
    """
    wait = "[waits: GIL]"
    return total(rows, WAIT, "asker", wait) - total(rows, WAIT, "asker", "without_core_s", wait)


@pytest.mark.parametrize("version", INTERPRETERS)
def test_who_waits_for_the_gil_and_who_has_it(version: str, run: Run) -> None:
    rows, waited, _ = run(version, "gil")
    assert waited > 1
    assert asked(rows) == pytest.approx(waited, rel=0.1)
    blame = total(rows, BLAME)
    assert total(rows, BLAME, "hog") > 0.95 * blame
    cause = causes_of(rows, 2, "none")[0]
    assert (cause.kind, cause.function) == (Kind.LOCK, "hog")
    assert "(the GIL), which it has" in cause.what
    # who has it, and no core, makes others wait without a sample; who is woken, and has no core, waits for that
    assert 0.1 * total(rows, WORK, "hog") < blame < 1.1 * waited


@pytest.mark.parametrize("version", ["debian", "3.13.0"])
def test_without_blame_the_kind_is_told_and_no_holder(version: str, tmp_path: Path) -> None:
    skip_without(version)
    mode = (version, "gil")
    rows, waited, _ = run_each([mode], tmp_path / "output", blame_locks=False)[mode]
    assert asked(rows) == pytest.approx(waited, rel=0.1)
    assert total(rows, BLAME) == 0


@pytest.mark.parametrize("version", ["debian", "3.9.18", "3.13.0"])
def test_a_lock_of_threading_is_a_lock_of_unknown_holder(version: str, run: Run) -> None:
    rows, least, most = run(version, "lock")
    in_lock = total(rows, WAIT, "wanter", "[waits: lock]")
    assert 0.5 * least < in_lock < 1.1 * most
    blame = total(rows, BLAME)
    gil = total(rows, WAIT, "[waits: GIL]")
    assert blame < 1.1 * gil, "that for the GIL, and nothing for the lock"


@pytest.mark.parametrize("version", ["3.12.1", "3.13.0"])
def test_an_interpreter_with_a_lock_of_its_own_keeps_nobody_waiting(version: str, run: Run) -> None:
    rows, waited, _ = run(version, "own")
    assert total(rows, WAIT, "asker", "[waits: GIL]") > 0.8 * waited
    blame = total(rows, BLAME)
    assert blame > 0.1 * total(rows, WORK, "hog")
    assert total(rows, BLAME, "hog") > 0.9 * blame
    assert total(rows, BLAME, "apart") < 0.02 * blame
