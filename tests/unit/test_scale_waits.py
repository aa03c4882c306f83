"""Work and span of threads that wait by the kernel's futex: Rust's and C++'s libraries do."""

from __future__ import annotations

from pathlib import Path

import pytest

from parprof.scale.record import Flag, SiteKind
from scale_programs import run, sites, speedup

N = 1000
THREADS = 4


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scale")


@pytest.mark.parametrize(
    ("form", "work", "span", "bound"),
    [
        # n, the longest of n to 4 n, n
        ("latch", 12, 6, 6),
        ("turns", 4, 4, 4),
        ("semaphores", 4, 4, 4),
        ("promises", 4, 4, 4),
        ("parks", 4, 4, 4),
        # each round waits for its longest
        ("rounds", 52, 40, 40),
        # who had the lock before is no order; it is held for 8 n, of which the first thread's, which did not wait for
        # it, are taken to be as long as the others'
        ("locked", 12, 3, 8),
        ("written", 12, 3, 8),
    ],
)
def test_the_span_of_threads_that_sleep(
    directory: Path, form: str, work: float, span: float, bound: float
) -> None:
    """The clock is the program's own. In units of n."""
    record = run(directory, 8, "span_waits", form, str(N), str(THREADS))
    assert round(record.work_s * 1e9) == work * N
    assert round(record.span_s * 1e9) == span * N
    assert round(record.bound_s * 1e9) == bound * N


def test_a_barrier_whose_last_has_not_the_longest_path(directory: Path) -> None:
    """Each round takes 10 of 17 units of work, whoever comes last: without that, some x3 to x7."""
    assert speedup(run(directory, 8, "span_waits", "uneven_rounds", "100", "8", clock="")) < 1.9


def test_a_lock_that_is_held_for_half_of_the_work(directory: Path) -> None:
    """The truth is x2; without the times for which it is held, x30 or more."""
    assert speedup(run(directory, 32, "span_waits", "half_locked", "100", "32", clock="")) < 16


@pytest.mark.parametrize("form", ["half_locked", "half_written"])
def test_locks_that_are_known_in_part_are_told(directory: Path, form: str) -> None:
    """That a note can say what the bound leaves out."""
    assert run(directory, 8, "span_waits", form, "100", "8", clock="").flags & Flag.FUTEX_LOCKS
    assert not run(directory, 8, "span_waits", "ring", "100", "8", clock="").flags & Flag.FUTEX_LOCKS


def test_writers_are_no_order(directory: Path) -> None:
    """Each goes on after its own code, not after all that who had the lock before had done by then: that was x1.4."""
    assert 1.6 < speedup(run(directory, 2, "span_waits", "half_written", "100", "2", clock=""))
    assert speedup(run(directory, 32, "span_waits", "half_written", "100", "32", clock="")) < 16


def test_who_is_called_holds_no_lock(directory: Path) -> None:
    """Its word looks like a lock's. It waits again without having given it back."""
    record = run(directory, 4, "span_waits", "bells", "1000", "4", clock="")
    work_s = {kind: sum(site.work_s for site in sites(record, kind)) for kind in SiteKind}
    assert work_s[SiteKind.CRITICAL] < 0.35 * record.work_s
    assert work_s[SiteKind.THREAD] > 0.6 * record.work_s
    assert not record.flags & Flag.FUTEX_LOCKS


@pytest.mark.parametrize("threads", [8, 64])
def test_a_semaphore_of_cpp_that_is_a_lock(directory: Path, threads: int) -> None:
    """The truth is x2; when who was woken went on after who woke it, x5 to x10 with 64 threads."""
    record = run(directory, threads, "span_waits", "half_in_semaphore", "100", str(threads), clock="")
    assert speedup(record) == pytest.approx(2, rel=0.15)


@pytest.mark.parametrize("threads", [8, 64])
def test_who_of_a_pool_took_a_task_from_a_channel_is_chance(directory: Path, threads: int) -> None:
    """As of the pool in Rust's book: with 64 threads that was x16 to x18."""
    record = run(directory, threads, "span_waits", "pool", "300", str(threads), clock="")
    assert record.flags & Flag.DEALT_OUT or threads == 8  # of few threads shares may be even by chance
    assert speedup(record) == pytest.approx(threads, rel=0.15)


@pytest.mark.parametrize("threads", [8, 32])
def test_tasks_that_are_for_one_thread_each(directory: Path, threads: int) -> None:
    """Thread i has i + 1 units, and all are through when they are told so."""
    record = run(directory, threads, "span_waits", "assigned", "300", str(threads), clock="")
    assert speedup(record) == pytest.approx((threads + 1) / 2, rel=0.08)


@pytest.mark.parametrize("threads", [2, 8])
@pytest.mark.parametrize("form", ["ring", "semaphore_ring"])
def test_threads_that_take_turns(directory: Path, form: str, threads: int) -> None:
    """They spin before they sleep, and who is woken may answer before the other waits: x1, nearly."""
    assert speedup(run(directory, threads, "span_waits", form, "100", str(threads), clock="")) < 1.1
