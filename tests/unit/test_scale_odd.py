"""What programs do that the library must bear: exceptions, longjmp, threadprivate variables, limits, forks, execs."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

from compiled import compile_once
from parprof.instruments.span import compile_command
from parprof.scale.record import Flag, SpanRecord
from scale_programs import WORKLOADS, has_clang, library, records_of, variables

N = 100
COMPILERS = (
    "g++",
    pytest.param("clang++", marks=pytest.mark.skipif(not has_clang(), reason="needs clang and libomp-dev")),
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scale-odd")


@cache
def program(directory: Path, compiler: str, has_hooks: bool) -> Path:
    output = directory / f"span_odd.{compiler}{'.hooks' if has_hooks else ''}"
    source = str(WORKLOADS / "span_odd.cpp")
    command = [compiler, "-std=c++17", "-O2", "-g", "-fopenmp", "-Wall", "-Wextra", "-Werror", source]
    command += [str(library()), "-o", str(output)]
    compile_once(compile_command(command) if has_hooks else command, library())
    return output


def run(directory: Path, compiler: str, form: str, has_hooks: bool = False) -> list[SpanRecord]:
    """The records of its processes."""
    records = directory / f"records-{os.urandom(6).hex()}"
    records.mkdir()
    subprocess.run(
        [program(directory, compiler, has_hooks), form, str(N)],
        env=variables(records, 8),
        check=True,
        timeout=120,
    )
    return records_of(records)


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


@pytest.mark.parametrize("has_hooks", [False, True])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_exceptions_through_frames_and_tasks(directory: Path, compiler: str, has_hooks: bool) -> None:
    (record,) = run(directory, compiler, "throws", has_hooks)
    assert ns(record.work_s) == (21 * 4 + 20 + 1) * N
    # the last task begins when all are made, the thread's own four n are shorter than its five; then one n
    assert ns(record.span_s) == (5 + 1) * N
    assert record.tasks == 20 and record.flags & Flag.CLOSED
    if has_hooks:
        total = sum(ns(call.on_work.local_work_s) for call in record.calls)
        assert total == ns(record.work_s)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_threadprivate_variables_keep_their_values(directory: Path, compiler: str) -> None:
    (record,) = run(directory, compiler, "keeps")
    assert ns(record.work_s) == (8 + 1 + 1 + 8) * N
    assert ns(record.span_s) == 4 * N


@pytest.mark.parametrize("compiler", COMPILERS)
def test_more_threads_than_there_may_be(
    directory: Path, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_THREAD_LIMIT", "4")
    (record,) = run(directory, compiler, "limited")
    assert record.widest_team == 4
    assert ns(record.work_s) == 4 * 2 * N and ns(record.span_s) == 2 * N


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_fork_has_a_record_of_its_own(directory: Path, compiler: str) -> None:
    child, parent = sorted(
        run(directory, compiler, "forks"), key=lambda record: not record.flags & Flag.FORKED
    )
    assert child.flags & Flag.FORKED and not parent.flags & Flag.FORKED
    assert ns(parent.work_s) == (1 + 8) * N and ns(parent.span_s) == 2 * N
    assert ns(child.work_s) == 8 * 2 * N and ns(child.span_s) == 2 * N


@pytest.mark.parametrize("compiler", COMPILERS)
def test_what_came_before_an_exec_is_whole(directory: Path, compiler: str) -> None:
    """The serial code up to it, too; and it is no program that was killed."""
    (record,) = (one for one in run(directory, compiler, "replaced") if one.regions)
    assert record.flags & Flag.REPLACED and record.flags & Flag.CLOSED and not record.flags & Flag.INSIDE
    assert ns(record.work_s) == (8 + 2) * N and ns(record.span_s) == 3 * N


@pytest.mark.parametrize("compiler", COMPILERS)
def test_an_exec_that_fails_changes_nothing(directory: Path, compiler: str) -> None:
    (record,) = run(directory, compiler, "stays")
    assert record.flags & Flag.CLOSED and not record.flags & (Flag.REPLACED | Flag.INSIDE)
    assert ns(record.work_s) == (8 + 2 + 8) * N and ns(record.span_s) == 4 * N


@pytest.mark.parametrize("has_hooks", [False, True])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_jumps_out_of_functions_in_regions_and_tasks(directory: Path, compiler: str, has_hooks: bool) -> None:
    (record,) = run(directory, compiler, "jumps", has_hooks)
    assert ns(record.work_s) == (8 + 8 + 20) * 5 * N
    assert ns(record.span_s) == 3 * 5 * N
    assert ns(record.bound_s) == (1 + 8 + 20 / 8) * 5 * N


@pytest.mark.parametrize("compiler", COMPILERS)
def test_sums_of_tasks_are_right(directory: Path, compiler: str) -> None:
    """The runtime finds the reductions of a region in what it takes for its body's data: gcc's programs crashed."""
    (record,) = run(directory, compiler, "reduces")
    assert ns(record.work_s) == (20 + 8 + 8) * N
    assert ns(record.span_s) == 3 * N
