"""Work and span of threads that hand on by semaphores of POSIX."""

from __future__ import annotations

from pathlib import Path

import pytest

from parprof.scale.record import SiteKind
from scale_programs import run, sites, speedup

N = 1000
THREADS = 4


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scale")


@pytest.mark.parametrize(
    ("form", "work", "span", "bound"),
    [
        ("turns", 12, 12, 12),
        # the item is there long before it is waited for: 3 n, and n for each who waits
        ("early", 4, 4, 4),
        # the first item, and then each takes the slower one's 2 n
        ("buffer", 120, 81, 81),
        # held for 4 * 3 * 2 n; who had it before is no order
        ("locked", 36, 9, 24),
        # two tokens: half of the time each, and that is less than one of eight cores' longest path
        ("two", 36, 9, 12),
        ("named", 2, 2, 2),
        ("handler", 4, 4, 4),
        # whoever is free takes the next task: 40 n on 8 cores, of which none has a path of more than one
        ("late_tasks", 40, 1, 5),
    ],
)
def test_the_span_of_semaphores(directory: Path, form: str, work: float, span: float, bound: float) -> None:
    """The clock is the program's own. In units of n."""
    threads = 2 if form in ("early", "buffer", "named") else THREADS
    record = run(directory, 8, "span_semaphores", form, str(N), str(threads))
    assert round(record.work_s * 1e9) == work * N
    assert round(record.span_s * 1e9) == span * N
    assert round(record.bound_s * 1e9) == bound * N


def test_tasks_that_make_the_next(directory: Path) -> None:
    """The first makes two, from then on each makes one: two chains, of which none is longer than all tasks."""
    record = run(directory, 8, "span_semaphores", "pool", str(N), str(THREADS))
    assert round(record.work_s * 1e9) == 8 * N
    assert 4 * N <= round(record.span_s * 1e9) <= 8 * N


def test_where_a_lock_is_taken(directory: Path) -> None:
    """After it has come back for the first time a semaphore is known to be a lock, and is a site."""
    record = run(directory, 8, "span_semaphores", "locked", str(N), str(THREADS))
    (lock,) = sites(record, SiteKind.CRITICAL)
    assert round(lock.bound_s * 1e9) == 24 * N
    assert lock.work_s * 1e9 > 12 * N
    assert not sites(run(directory, 8, "span_semaphores", "turns", str(N), str(THREADS)), SiteKind.CRITICAL)


@pytest.mark.parametrize("threads", [2, 8, 64])
def test_by_the_clock(directory: Path, threads: int) -> None:
    """One at a time; a lock held for half of the work; stages, of which the slowest takes three times the others."""
    ring = run(directory, threads, "span_semaphores", "ring", "100", str(threads), clock="")
    assert speedup(ring) < 1.05
    locked = run(directory, threads, "span_semaphores", "half_locked", "100", str(threads), clock="")
    assert 1.9 < speedup(locked) < 2.1
    stages = run(directory, threads, "span_semaphores", "stages", "20", str(threads), clock="")
    units = [3 if stage % 3 == 1 else 1 for stage in range(threads)]
    # what the first item needs for all stages, and then the slowest one's time for each; where there are many, one of
    # them is always a little slower than its formula
    truth = sum(units) * 200 / (3 * 199 + sum(units))
    assert truth * 0.85 < speedup(stages) < truth * 1.07
