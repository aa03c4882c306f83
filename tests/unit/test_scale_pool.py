"""Work and span on a thread pool that says itself what happens: parprof_span.h. The clock is the programs' own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from parprof.__main__ import main
from parprof.instruments.toolchain import source_directory
from parprof.scale.record import Flag, SiteKind, SiteRecord
from scale_programs import COMPILERS, WORKLOADS, program, records_of, run, sites, variables

SERIAL = 150
"""What every form does before and after its region."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scale-pool")


@pytest.fixture(params=COMPILERS)
def compiler(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def tree(depth: int) -> tuple[int, int]:
    """Work and span."""
    return 10 * (2 ** (depth + 1) - 1) + 5 * (2**depth - 1), 10 * (depth + 1) + 5 * depth


def cilk_fib(k: int) -> tuple[int, int]:
    """The called one is beside the spawned one, and shorter."""
    return (1, 1) if k < 2 else (2 + cilk_fib(k - 1)[0] + cilk_fib(k - 2)[0], 2 + cilk_fib(k - 1)[1])


FORMS = (
    ("tree", 9, *tree(9), 0),
    ("triangle", 40, 40 * 41 // 2, 40, 0),
    # a lock is no bound of the longest path, but of the time
    ("locked", 50, 5 * 50, 5, 3 * 50),
    # who is not waited for is over with the region
    ("leaves", 100, 600, 400, 0),
    ("cilk", 12, *cilk_fib(12), 0),
    ("nested", 4, 2 * (tree(4)[0] + 7), tree(4)[1] + 7, 0),
)


@pytest.mark.parametrize("threads", [2, 8, 64])
@pytest.mark.parametrize(("form", "n", "work", "span", "hold"), FORMS)
def test_work_span_and_bound(
    directory: Path, compiler: str, form: str, n: int, work: int, span: int, hold: int, threads: int
) -> None:
    """Whichever of the pool's threads executes a task, and however many these are."""
    record = run(directory, threads, "span_pool", form, str(n), compiler=compiler)
    assert record.work_s == pytest.approx((work + SERIAL) / 1e9)
    assert record.span_s == pytest.approx((span + SERIAL) / 1e9)
    least = max(span, work // threads, hold)
    assert record.bound_s == pytest.approx((least + SERIAL) / 1e9, rel=0.01)
    assert record.widest_team == threads
    assert record.flags & Flag.CLOSED and not record.flags & Flag.INSIDE
    assert sum(site.work_s for site in record.sites) == pytest.approx(record.work_s)
    assert sum(site.span_s for site in record.sites) == pytest.approx(record.span_s)


def line_of(text: str) -> int:
    """The one line with this text."""
    lines = (WORKLOADS / "span_pool.c").read_text().splitlines()
    (at,) = (n for n, line in enumerate(lines, 1) if text in line)
    return at


def counts(found: list[SiteRecord]) -> list[int]:
    return sorted(site.count for site in found)


def test_tasks_are_of_the_line_that_spawns_them(directory: Path) -> None:
    record = run(directory, 8, "span_pool", "tree", "5")
    assert counts(sites(record, SiteKind.TASK)) == [31, 31]
    assert record.tasks == 62
    # beside it there is the queue's own lock, which the workers took before they had told anything
    (held,) = (
        site
        for site in sites(run(directory, 8, "span_pool", "locked", "30"), SiteKind.CRITICAL)
        if site.work_s > 0
    )
    assert (held.count, round(held.work_s * 1e9)) == (30, 90)


@pytest.mark.usefixtures("span_test_clock")
def test_the_report_names_these_lines(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--threads", "64", "--", str(program("span_pool", directory)), "triangle", "40"]
    assert main(["scale", "-q", *words]) == 0
    out = capfd.readouterr().out
    assert f"task at span_pool.c:{line_of('spawn(&group, work, i);')} in triangle" in out
    begun = line_of("/* all forms */")
    assert f"serial code after span_pool.c:{begun} in main" in out


@pytest.mark.parametrize("flags", [("-O2",), ("-O0",), ("-O2", "-no-pie", "-fno-pie")])
def test_however_it_is_linked_it_runs_alone_and_is_measured(
    directory: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    output, records = tmp_path / "pool", tmp_path / "records"
    records.mkdir()
    source = WORKLOADS / "span_pool.c"
    subprocess.run(
        ["gcc", *flags, f"-I{source_directory()}", str(source), "-pthread", "-o", str(output)], check=True
    )
    command = [str(output), "triangle", "10"]
    for env in (None, variables(records, 4)):
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        assert done.stdout == f"{55 + SERIAL}\n"
    (record,) = records_of(records)
    assert record.tasks == 10


def test_the_header_is_cs_and_cpps(tmp_path: Path) -> None:
    """By itself, without a warning."""
    for compiler, suffix, standard in (("gcc", "c", "-std=c99"), ("g++", "cc", "-std=c++11")):
        source = tmp_path / f"user.{suffix}"
        source.write_text('#include "parprof_span.h"\nint main(void) { parprof_pause(); return 0; }\n')
        flags = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{source_directory()}")
        subprocess.run([compiler, standard, *flags, str(source), "-o", str(tmp_path / suffix)], check=True)
        assert subprocess.run([tmp_path / suffix]).returncode == 0
