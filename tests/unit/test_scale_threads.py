"""Work and span of programs of POSIX threads. The clock is the programs' own, so results are exact."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from parprof.scale.record import Flag, SiteKind
from scale_programs import library, records_of, run, sites, variables

N = 1000


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scale")


@pytest.mark.parametrize(
    ("form", "work", "span", "bound"),
    [
        ("triangle", 12.5, 6, 6),
        # each round waits for its longest
        ("rounds", 54.5, 42, 42),
        # a lock is no bound of the longest path, but of the time
        ("locked", 10.5, 4, 6),
        ("nested", 10.5, 4, 6),
        ("spins", 10.5, 4, 6),
        ("timed", 10.5, 4, 6),
        ("tries", 6.504, 3.001, 3.001),
        # readers share it, among the eight cores
        ("reads", 10.5, 4, 6.5),
        ("turns", 6.5, 6, 6),
        ("leaves", 12.5, 6, 6),
        ("ends", 11.5, 5, 5),
        # what the others are taken to have shared out is no longer than the longest, whoever was through first
        ("late", 11.5, 5, 5),
        ("joins", 6.5, 4, 4),
        # whoever comes first does it, and those that come later go on after it, too
        ("once", 22.5, 16, 16),
        ("idles", 2.5, 2.5, 2.5),
        # who is woken late goes on with what woke it: 10 n and n beside 10 n
        ("slow", 23.5, 13, 13),
        # a condition's waiters of before are no part of a later computation
        ("again", 6.9, 6.4, 6.4),
    ],
)
def test_the_span_of_threads(directory: Path, form: str, work: float, span: float, bound: float) -> None:
    """Before and after the four threads, n; beside them, n / 2. In units of n."""
    record = run(directory, 8, "span_threads", form, str(N))
    assert round(record.work_s * 1e9) == work * N
    assert round(record.span_s * 1e9) == span * N
    assert round(record.bound_s * 1e9) == bound * N
    # the test's clock stands still in the runtime; code of the first thread alone is in the phase of the threads, too
    serial_s = sum(site.bound_s for site in sites(record, SiteKind.SERIAL))
    assert round((record.scheduled_s + serial_s) * 1e9) == bound * N
    assert record.flags & Flag.CLOSED and not record.flags & Flag.INSIDE
    threads = sites(record, SiteKind.THREAD)
    assert [thread.count for thread in threads] == [4] * len(threads) and len(threads) == 1 + (
        form == "again"
    )
    # the first thread and those that it made, whatever it was asked for
    assert record.widest_team == 5


@pytest.mark.parametrize(
    ("form", "uneven", "chained"),
    [
        ("triangle", 4 - 10.5 / 8, 0),
        # none of them works for longer than n
        ("turns", 4 - 4.5 / 8, 3),
        ("chains", 4 - 4.5 / 8, 3),
        # each has 13 n to do
        ("rounds", 40 - 52.5 / 8, 27),
    ],
)
def test_threads_that_wait_for_each_other(directory: Path, form: str, uneven: float, chained: float) -> None:
    """What makes a path longer than any thread's own work is not that their shares are uneven. In units of n."""
    record = run(directory, 8, "span_threads", form, str(N))
    threads = sites(record, SiteKind.THREAD)
    assert sum(one.uneven_s for one in threads) * 1e9 == pytest.approx(uneven * N, abs=1)
    assert sum(one.chained_s for one in threads) * 1e9 == pytest.approx(chained * N, abs=1)
    assert max(one.at_once for one in threads) == 5


def test_fewer_cores_than_threads(directory: Path) -> None:
    """On two cores the phase takes at least half its work: (10 + 0.5) / 2."""
    record = run(directory, 2, "span_threads", "triangle", str(N))
    assert round(record.bound_s * 1e9) == 2 * N + 10.5 * N / 2


POOL = """
#include <pthread.h>
#include <unistd.h>

extern void parprof_span_work(unsigned long units);
static pthread_t worker;
static long processors;

static void *work(void *nothing)
{
	parprof_span_work(1000);
	return nothing;
}

__attribute__((constructor)) static void start(void)
{
	processors = sysconf(_SC_NPROCESSORS_ONLN);
	pthread_create(&worker, NULL, work, NULL);
}

long finish(void)
{
	pthread_join(worker, NULL);
	return processors;
}
"""
PROGRAM = """
extern long finish(void);
extern void parprof_span_work(unsigned long units);

int main(void)
{
	parprof_span_work(400);
	return finish() != 8;
}
"""


def test_threads_that_a_library_makes_when_it_is_loaded(tmp_path: Path) -> None:
    """OpenBLAS does, where a program is linked with it: that is before our library is told that it is loaded."""
    pool, program, records = tmp_path / "libpool.so", tmp_path / "program", tmp_path / "records"
    records.mkdir()
    compiler = ["gcc", "-x", "c", "-", "-x", "none"]
    command = [*compiler, "-shared", "-fPIC", "-o", str(pool)]
    subprocess.run(command, input=POOL.encode(), check=True, timeout=120)
    command = [*compiler, str(pool), str(library()), f"-Wl,-rpath,{tmp_path}", "-o", str(program)]
    subprocess.run(command, input=PROGRAM.encode(), check=True, timeout=120)
    subprocess.run([str(program)], env=variables(records, 8), check=True, timeout=60)
    (record,) = records_of(records)
    (thread,) = sites(record, SiteKind.THREAD)
    assert (thread.count, round(thread.work_s * 1e9)) == (1, 1000)
    assert (round(record.work_s * 1e9), round(record.span_s * 1e9)) == (1400, 1000)


@pytest.mark.parametrize(
    ("form", "work", "span", "bound"),
    [
        ("stays", 11.5, 5, 5),
        # the lock is held for 4 * 2 n; who has n, 2 n, n of his own, or 4 n, 2 n, n
        ("locks", 23.5, 8, 9),
        ("follows", 11.5, 5, 5),
        ("ends", 11.5, 5, 5),
    ],
)
def test_threads_that_run_on_at_the_end(
    directory: Path, form: str, work: float, span: float, bound: float
) -> None:
    """Nobody joins them, and what they did since they last waited is not booked anywhere."""
    n = 2_000_000
    record = run(directory, 8, "span_left", form, str(n))
    assert round(record.work_s * 1e9) == work * n
    assert round(record.span_s * 1e9) == span * n
    assert round(record.bound_s * 1e9) == bound * n
    assert record.flags & Flag.CLOSED and not record.flags & Flag.INSIDE
    (thread,) = sites(record, SiteKind.THREAD)
    assert thread.count == 4
