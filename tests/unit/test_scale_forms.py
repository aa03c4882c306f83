"""Work and span of programs whose speed-up is a formula. The clock is the programs' own, so results are exact."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

import scale_programs
from parprof.scale.record import Flag, SiteKind, SpanRecord
from scale_programs import COMPILERS, sites, speedup

N = 4096
"""Iterations of the triangle: the work is in units of N^2."""


class Run(Protocol):
    """A form, run with so many threads."""

    def __call__(
        self, threads: int, name: str, *arguments: str, code: int = 0, is_serial: bool = False
    ) -> SpanRecord: ...


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scale")


@pytest.fixture(params=COMPILERS)
def run(request: pytest.FixtureRequest, directory: Path) -> Run:
    return partial(scale_programs.run, directory, compiler=request.param)


def ns(seconds: float) -> int:
    """The test's clock makes a cycle a nanosecond."""
    return round(seconds * 1e9)


@pytest.mark.parametrize("threads", [2, 8, 64])
def test_a_static_triangular_loop(run: Run, threads: int) -> None:
    """s(N) = 1.575 / (0.05 + [1 - (1 - 1/N)^2] / 2 + 1/N + 0.025)."""
    record = run(threads, "span_forms", "triangle", str(N))
    expected = 1.575 / (0.05 + (1 - (1 - 1 / threads) ** 2) / 2 + 1 / threads + 0.025)
    assert speedup(record) == pytest.approx(expected, rel=0.005)
    (single,) = sites(record, SiteKind.SINGLE)
    assert ns(single.span_s) == N * N // 40
    (before, *_) = sites(record, SiteKind.SERIAL)
    assert ns(before.span_s) == ns(before.work_s) == N * N // 20
    triangles = 2 * (N * (N - 1) // 2)
    assert ns(record.work_s) == N * N // 20 + triangles + N * (N // 2) + N * N // 40


@pytest.mark.parametrize("threads", [2, 8, 64])
def test_a_dynamic_loop_takes_its_longest_chunk_or_its_even_share(run: Run, threads: int) -> None:
    n = 512
    record = run(threads, "span_forms", "large_chunk", str(n))
    work = (n - 1) * 1000 + 1000 * n // 16
    assert ns(record.work_s) == work
    assert ns(record.bound_s) == pytest.approx(max(work / threads, 1000 * n // 16), abs=2)
    (loop,) = sites(record, SiteKind.LOOP)
    assert loop.count == n


def test_who_tests_a_lock_again_and_again_waits(run: Run) -> None:
    """That is no work: all but what follows the last test."""
    n = 10_000
    assert ns(run(2, "span_forms", "tests", str(n)).work_s) == 100 * n + 1


@pytest.mark.parametrize("threads", [2, 8, 64])
def test_who_comes_late_to_a_dynamic_loop_takes_less_of_it(run: Run, threads: int) -> None:
    """As after a single nowait of 100 n: the loop of 720 n does not begin after it, but beside it."""
    n = 1000
    record = run(threads, "span_forms", "nowait", str(n))
    assert ns(record.work_s) == 820 * n
    assert ns(record.bound_s) == pytest.approx(max(820 * n / threads, 100 * n), abs=threads)


def test_a_guided_loop(run: Run) -> None:
    """Whoever takes the first chunks, no chunk is longer than its share when all share evenly."""
    record = run(8, "span_forms", "guided", "4000")
    assert ns(record.work_s) == 4_000_000
    assert ns(record.bound_s) == pytest.approx(4_000_000 / 8, rel=0.01)


@pytest.mark.parametrize("threads", [2, 8, 64])
def test_a_critical_section_bounds_the_loop(run: Run, threads: int) -> None:
    record = run(threads, "span_forms", "critical", "640")
    assert speedup(record) == pytest.approx(min(threads, 4), rel=0.005)
    (lock,) = sites(record, SiteKind.LOCK)
    assert ns(lock.hold_s) == 640_000 and lock.count == 640
    (section,) = sites(record, SiteKind.CRITICAL)
    assert section.count == 640
    assert (section.critical_s > 0) == (threads > 4)


@pytest.mark.parametrize("threads", [2, 8, 64])
def test_a_wavefront_of_dependences(run: Run, threads: int) -> None:
    """n x n cells; the longest chain has 2n - 1."""
    n = 20
    record = run(threads, "span_forms", "wavefront", str(n))
    assert ns(record.work_s) == n * n * 100_000
    assert ns(record.span_s) == (2 * n - 1) * 100_000
    assert ns(record.bound_s) == max(n * n * 100_000 // threads, (2 * n - 1) * 100_000)
    assert sum(one.span_count for one in sites(record, SiteKind.TASK)) == 2 * n - 1


@pytest.mark.parametrize("threads", [2, 8, 64])
def test_a_pipeline_of_tasks(run: Run, threads: int) -> None:
    """n items through 4 stages: n + 3 steps."""
    n = 50
    record = run(threads, "span_forms", "pipeline", str(n))
    assert ns(record.work_s) == n * 4 * 10_000
    assert ns(record.span_s) == (n + 3) * 10_000
    assert sum(one.span_count for one in sites(record, SiteKind.TASK)) == n + 3


@pytest.mark.parametrize("threads", [2, 8, 64])
def test_tasks_wait_for_the_code_before_them(run: Run, threads: int) -> None:
    """Three stages: n by one thread, then 16 n by all, of which no task is shared out."""
    record = run(threads, "span_forms", "stages", str(N))
    assert ns(record.work_s) == 51 * N
    assert ns(record.span_s) == 6 * N
    assert ns(record.bound_s) == 3 * (N + max(N, 16 * N // threads))


def test_tasks_beside_other_code_do_not_wait_for_it(run: Run) -> None:
    """Two threads: n, 16 n in tasks, and 4 n by each."""
    record = run(2, "span_forms", "no_stages", str(N))
    assert ns(record.bound_s) == (N + 16 * N + 8 * N) // 2


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_fibonacci_spawns_what_it_must(run: Run, threads: int) -> None:
    """The paper's example: fib(20) makes 10,945 spawns; its longest path is one leaf."""
    record = run(threads, "span_forms", "fib", "20")
    assert record.tasks == 10_945
    (task,) = sites(record, SiteKind.TASK)
    assert task.count == 10_945
    assert ns(record.work_s) == 10_946 * 10
    assert ns(record.span_s) == 10


def test_a_base_case_of_matrix_multiplication_is_on_the_critical_path_twice_for_each_level(
    run: Run,
) -> None:
    levels = 3
    record = run(4, "span_forms", "multiply", str(2**levels))
    tasks = sites(record, SiteKind.TASK)  # as many as the compiler unrolled the loop to
    assert sum(task.count for task in tasks) == sum(8**level for level in range(1, levels + 1))
    assert ns(record.span_s) == 2**levels * 1000
    assert sum(task.span_count for task in tasks) == sum(2**level for level in range(1, levels + 1))
    assert ns(record.work_s) == 8**levels * 1000


def test_quicksort_is_bounded_by_its_partition(run: Run) -> None:
    """The first partitions are serial: of 200,000 elements the longest path is a few times that."""
    alone = run(1, "span_forms", "quicksort", "200000")
    together = run(4, "span_forms", "quicksort", "200000")
    assert together.work_s == pytest.approx(alone.work_s, rel=1e-9)
    assert together.span_s == pytest.approx(alone.span_s, rel=1e-9)
    assert 2 < together.work_s / together.span_s < 12


def test_sections_are_chunks(run: Run) -> None:
    record = run(2, "span_forms", "sections", "1000")
    assert ns(record.bound_s) == 3000
    assert ns(run(8, "span_forms", "sections", "1000").bound_s) == 3000


def test_a_taskloop_waits_for_its_longest_task(run: Run) -> None:
    record = run(16, "span_forms", "taskloop", "16")
    assert ns(record.work_s) == 15 * 1000 + 5000 + 7
    assert ns(record.span_s) == 5007


@pytest.mark.parametrize(("threads", "tasks", "is_alone"), [(2, 128, False), (2, 129, True), (1, 129, False)])
def test_a_large_taskloop_is_one_threads_with_libgomp(
    directory: Path, threads: int, tasks: int, is_alone: bool
) -> None:
    """A note says so: the bound is for another number of tasks."""
    record = scale_programs.run(directory, threads, "span_forms", "taskloop", str(tasks))
    assert bool(record.flags & Flag.TASKLOOP_ALONE) == is_alone
    assert ns(record.span_s) == 5007
    if is_alone:  # and the burdened bound has it all in one thread, where the other gives half of it to each
        assert ns(record.scheduled_s) == ns(record.work_s)


@pytest.mark.parametrize("threads", [2, 8])
def test_the_burdened_bound_of_even_shares_is_the_bound(run: Run, threads: int) -> None:
    """The test's clock stands still in the runtime."""
    record = run(threads, "span_forms", "triangle", str(N))
    serial_s = sum(site.bound_s for site in sites(record, SiteKind.SERIAL))
    assert ns(record.scheduled_s + serial_s) == ns(record.bound_s)


def test_nested_regions(run: Run) -> None:
    """Two members: n, then 40 n of the longest of four, then the second's n."""
    record = run(8, "span_forms", "nested", "100")
    assert ns(record.work_s) == 2 * 100 + 2 * 1000 * (1 + 2 + 3 + 4) + 100
    assert ns(record.span_s) == 100 + 4000 + 100


def test_a_team_that_is_larger_than_the_cores(run: Run) -> None:
    """The program asks for two threads, and four in each; there is one core."""
    record = run(1, "span_forms", "nested", "100")
    assert ns(record.bound_s) == ns(record.work_s) > ns(record.span_s)


def test_ordered_regions_are_one_after_the_other(run: Run) -> None:
    record = run(8, "span_forms", "ordered", "40")
    assert ns(record.work_s) == 40 * 1500
    assert ns(record.bound_s) == 40 * 500


def test_the_program_believes_in_as_many_processors(run: Run) -> None:
    record = run(64, "span_forms", "procs", "10")
    assert record.flags & Flag.CLOSED and record.regions == 0
    assert speedup(record) == 1


def test_exit_from_a_task_leaves_what_was_before_it(run: Run) -> None:
    record = run(4, "span_forms", "exits", "1000", code=3)
    assert record.flags & Flag.INSIDE
    assert ns(record.work_s) >= 1000 + 64_000
    (serial,) = (site for site in sites(record, SiteKind.SERIAL) if site.work_s > 5e-7)
    assert ns(serial.work_s) == 1000


@pytest.mark.parametrize(
    ("form", "size", "span"),
    [
        ("quicksort", 200_000, None),
        ("wavefront", 20, 39 * 100_000),
        ("fib", 20, 10),
        ("taskloop", 16, 5007),
    ],
)
def test_a_serial_run_has_the_span_of_a_parallel_one(
    run: Run, form: str, size: int, span: int | None
) -> None:
    """The paper's mode: one thread stands for any number."""
    serial = run(1, "span_forms", form, str(size), is_serial=True)
    assert serial.widest_team == 1
    parallel = run(16, "span_forms", form, str(size))
    assert ns(serial.work_s) == ns(parallel.work_s)
    assert ns(serial.span_s) == (span or ns(parallel.span_s))


def test_a_serial_run_deals_out_chunks(directory: Path) -> None:
    """Its span is the longest, as if each had a thread. LLVM's runtime has but one chunk for a single thread."""
    serial = scale_programs.run(directory, 1, "span_forms", "large_chunk", "512", is_serial=True)
    assert ns(serial.span_s) == 512 * 1000 // 16
    alone = scale_programs.run(directory, 1, "span_forms", "large_chunk", "512")
    assert ns(alone.span_s) == ns(alone.work_s) == ns(serial.work_s)


NARROW = """
extern void parprof_span_work(unsigned long);
int main(void)
{
#pragma omp parallel num_threads(2)
#pragma omp parallel num_threads(2)
	parprof_span_work(1000);
#pragma omp parallel num_threads(3)
	parprof_span_work(1000);
#pragma omp parallel
	parprof_span_work(1000);
}
"""


@pytest.mark.parametrize("compiler", COMPILERS)
def test_teams_that_are_smaller_than_the_machine(tmp_path: Path, compiler: str) -> None:
    """Two teams of two in a team of two have equal shares on four cores, whatever else there is."""
    record = scale_programs.run_linked(NARROW, compiler, tmp_path, 8, OMP_MAX_ACTIVE_LEVELS="2")
    regions = [one for one in record.sites if one.kind == SiteKind.REGION and one.work_s]
    assert sorted((one.at_once, ns(one.work_s)) for one in regions) == [(3, 3000), (4, 4000), (8, 8000)]
    assert ns(record.bound_s) == 3000
    assert not any(one.uneven_s for one in regions)
    assert record.widest_team == 8


LIMITED = """
extern void parprof_span_work(unsigned long);
int main(void)
{
#pragma omp parallel num_threads(4)
#pragma omp parallel num_threads(8)
	parprof_span_work(1000);
}
"""


@pytest.mark.parametrize("compiler", COMPILERS)
def test_nested_regions_that_ask_for_more_threads_than_there_may_be(tmp_path: Path, compiler: str) -> None:
    """Six at most: whichever inner team gets the two that are left, the others do not have as many."""
    record = scale_programs.run_linked(
        LIMITED, compiler, tmp_path, 64, OMP_MAX_ACTIVE_LEVELS="2", OMP_THREAD_LIMIT="6"
    )
    assert record.widest_team == 6
    assert {one.at_once for one in record.sites if one.kind == SiteKind.REGION and one.work_s} == {6}
    assert ns(record.span_s) == 1000 and ns(record.work_s) >= 6000
    assert ns(record.bound_s) == max(1000, ns(record.work_s) // 6), (
        "six times as fast, but for the part of a nanosecond"
    )


TEAMS = """
extern void parprof_span_work(unsigned long);
int main(void)
{
#pragma omp teams num_teams(2)
#pragma omp distribute parallel for
	for (int i = 0; i < 16; i++)
		parprof_span_work(1000);
}
"""


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_team_of_teams_has_the_cores_that_are_asked_for(tmp_path: Path, compiler: str) -> None:
    """LLVM's runtime would share out the machine's own."""
    record = scale_programs.run_linked(TEAMS, compiler, tmp_path, 8)
    assert ns(record.work_s) == 16_000
    assert ns(record.bound_s) == 2000  # libgomp has one team after the other


OFFLOADS = """
static int results[4];
int main(void)
{
#pragma omp parallel num_threads(2)
#pragma omp single
	for (int i = 0; i < 4; i++) {
#pragma omp target %s map(tofrom : results[i:1])
		results[i] += i;
	}
	return results[3] != 3;
}
"""


@pytest.mark.parametrize(("clause", "is_told"), [("nowait", True), ("", False)])
def test_what_is_offloaded_as_tasks_is_told(tmp_path: Path, clause: str, is_told: bool) -> None:
    """The runtime makes these tasks itself; without nowait it is the caller's code."""
    program, records = tmp_path / "offloads", tmp_path / "records"
    records.mkdir()
    command = ["gcc", "-O1", "-fopenmp", "-foffload=disable", "-x", "c", "-", "-o", str(program)]
    subprocess.run(command, input=(OFFLOADS % clause).encode(), check=True, timeout=120)
    subprocess.run([str(program)], env=scale_programs.variables(records, 2, "rseq"), check=True, timeout=60)
    (record,) = scale_programs.records_of(records)
    assert record.regions == 1
    assert bool(record.flags & Flag.OFFLOADED) == is_told
