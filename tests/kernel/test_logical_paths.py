"""Logical call paths of real programs, from the probes to the rows: what the program's author would call its stacks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import profiling
from compiled import compile_once
from parprof.model import Frame, PathSample
from parprof.profile.rows import RowMaker
from parprof.runtimes import agents
from parprof.session.sources import Source
from parprof.symbols.kernel import KERNEL

pytestmark = pytest.mark.beside

COMPLETE = 0.995
PHASES = "balanced,skewed,barrier,dynamic,nested,tasks,taskwait"


def rows_of(run: profiling.Run) -> tuple[list[PathSample], RowMaker]:
    return profiling.rows_of(run.session)


def names(path: tuple[Frame, ...]) -> list[str]:
    return [frame.name for frame in path]


def user_part(path: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Up to where the kernel begins, which follows a runtime's leaf, and without the marks of the profiler."""
    kernel = next((index for index, frame in enumerate(path) if frame.module == KERNEL), len(path))
    return tuple(frame for frame in path[:kernel] if not frame.name.startswith("["))


def working(rows: list[PathSample]) -> list[PathSample]:
    return [row for row in rows if row.metrics.work_ns > 0]


def owned(frame: Frame) -> bool:
    return any(agent.owns(frame.name, frame.module) for agent in agents())


@pytest.mark.parametrize(
    "program",
    ["omp_truth.gomp", "omp_truth.omp", "omp_truth.gomp.static", "omp_truth.gomp.nofp", "omp_truth.omp.nofp"],
)
def test_openmp_paths_are_whole_and_without_the_runtime(program: str, tmp_path: Path) -> None:
    # 999 samples a second take the whole budget on a slow machine, and none is left for walks to creators
    run = profiling.record(program, [PHASES, "--repeat", "3"], tmp_path / "log", budget=profiling.UNLIMITED)
    rows, maker = rows_of(run)
    counts: Counter[bool] = Counter()
    for row in working(rows):
        path = row.path
        counts[not path[0].name.startswith("[")] += row.metrics.samples
        inside = [frame for frame in user_part(path)[:-1] if owned(frame)]
        assert not inside, names(path)
    assert counts.total() > 1000
    assert counts[True] / counts.total() >= COMPLETE, counts
    samples = sum(row.metrics.samples for row in rows)
    assert samples == maker.samples
    assert maker.unknown + maker.incomplete <= 0.005 * samples + 2


@pytest.mark.parametrize("program", ["omp_truth.gomp", "omp_truth.omp"])
def test_workers_hang_where_their_work_was_created(program: str, tmp_path: Path) -> None:
    run = profiling.record(program, ["nested,tasks,taskwait", "--repeat", "3"], tmp_path / "log")
    rows, _ = rows_of(run)
    creator = {"nested_work": "phase_nested", "task_work": "phase_tasks", "taskwait_child": "phase_taskwait"}
    found: Counter[str] = Counter()
    for row in working(rows):
        if row.origin.thread == run.target.process.comm and row.path[0].name == "main" and not row.physical:
            continue
        for leaf, phase in creator.items():
            if leaf in names(row.path):
                assert phase in names(row.path)[: names(row.path).index(leaf)], names(row.path)
                found[leaf] += row.metrics.samples
    assert found.keys() == creator.keys()


def test_physical_and_logical_totals_are_equal(tmp_path: Path) -> None:
    run = profiling.record("omp_truth.gomp", [PHASES], tmp_path / "log")
    rows, maker = rows_of(run)
    assert sum(row.metrics.samples for row in rows) == maker.samples == run.session.samples()
    physical = [row for row in rows if row.physical]
    assert physical, "no path of a worker differs from its stack"
    assert any("gomp" in frame.module for row in physical for frame in row.physical)
    workers = [row for row in physical if names(row.path)[0] == "main"]
    assert workers and all(names(row.physical)[0] != "main" or row.path != row.physical for row in workers)


def test_threads_are_rooted_where_they_were_created(tmp_path: Path) -> None:
    run = profiling.record("pthread_truth", ["balanced,skewed,barrier", "--repeat", "3"], tmp_path / "log")
    rows, _ = rows_of(run)
    counts: Counter[bool] = Counter()
    for row in working(rows):
        path = names(row.path)
        if "balanced_work" in path:
            assert path.index("phase_balanced") < path.index("balanced_work")
        # main, the loader before it, and what exit calls behind it
        rooted = path[0] in ("main", "truth_write") or row.path[0].module.startswith("ld-")
        counts[rooted or path[0].startswith("_")] += row.metrics.samples
    assert counts.total() > 300
    assert counts[True] / counts.total() >= COMPLETE


THREADS_THAT_COME_AND_GO = """
#include <pthread.h>
#include <time.h>
static void *nothing(void *p) { return p; }
__attribute__((noinline)) void create_threads(void)
{
    pthread_t thread;
    if (!pthread_create(&thread, 0, nothing, 0))
        pthread_join(thread, 0);
    __asm__ volatile("");
}
int main(void)
{
    struct timespec t;
    for (long end = 0; !end || t.tv_sec < end; clock_gettime(CLOCK_MONOTONIC, &t), end = end ? end : t.tv_sec + 3)
        create_threads();
    return 0;
}
"""


def test_the_start_and_the_end_of_threads_are_their_creators(tmp_path: Path) -> None:
    """Between clone's system call and its return no FDE holds; in exit there is no user stack any more."""
    program = tmp_path / "come_and_go"
    compile_once(["gcc", "-O2", "-pthread", "-x", "c", "-", "-o", program], text=THREADS_THAT_COME_AND_GO)
    (tmp_path / "log").write_text("parprof-truth 1\nend 0\n")  # it keeps none
    run = profiling.record(program, [], tmp_path / "log", frequency_hz=1999, source=Source.EXACT)
    rows, _ = rows_of(run)
    rooted, ended = Counter[bool](), Counter[bool]()
    for row in rows:
        path = names(row.path)
        rooted[path[0] == "main" or row.path[0].module.startswith("ld-")] += row.metrics.samples
        if "[no user stack]" in path:
            ended[path[:2] == ["main", "create_threads"]] += row.metrics.samples
    assert rooted.total() > 1000 and ended.total() > 20, (rooted, ended)
    assert rooted[True] >= COMPLETE * rooted.total(), rooted
    assert ended[True] >= 0.9 * ended.total() - 1, ended


def test_a_stripped_program_has_its_paths_too(tmp_path: Path) -> None:
    run = profiling.record("omp_truth.gomp.stripped", ["balanced,skewed", "--repeat", "6"], tmp_path / "log")
    rows, maker = rows_of(run)
    whole = sum(row.metrics.samples for row in working(rows) if not row.path[0].name.startswith("["))
    total = sum(row.metrics.samples for row in working(rows))
    assert total > 300
    # the first run of each body is not probed yet: those samples are joined with the others of the same body
    assert whole / total >= 0.9, (whole, total, maker.unknown, maker.joined)


def test_a_stripped_program_with_its_runtime_inside(tmp_path: Path) -> None:
    """No probe tells of a region: call paths of its threads begin where these were created, in the program's first.

    Judged where code of the program's own file runs: the loader before main and the C library after it are dearer on
    a busy machine, with caches that others have filled, and are rightly below no main.
    """
    program = "omp_truth.gomp.inside.stripped"
    run = profiling.record(program, ["balanced", "--repeat", "9"], tmp_path / "log")
    rows, _ = rows_of(run)
    rooted = Counter[bool]()
    for row in working(rows):
        inner = user_part(row.path)[-1:]
        if inner and inner[0].module == program:
            rooted[row.path[0].name == "main"] += row.metrics.samples
    created = sum(row.metrics.samples for row in working(rows) if row.physical)
    assert rooted.total() > 300 and created > 100
    assert rooted[True] >= COMPLETE * rooted.total(), rooted
