"""Strands whose begin is not measured, but taken from others like it: their sums are right all the same."""

from __future__ import annotations

import os
import statistics
import subprocess
from pathlib import Path

import pytest

import scale_programs
from busy import busy_loops
from parprof.scale.record import SiteKind, SpanRecord
from scale_programs import COMPILERS, records_of, sites, variables, with_hooks

NAME = "span_pauses"
ATTEMPTS, RIGHT = 4, 0.05
"""Whoever works on the core's other thread makes a part of a run slower; it may do so in one after the other."""


def off(part: float, whole: float) -> float:
    return abs(part / whole - 1)


def regions(directory: Path, compiler: str, form: str) -> tuple[float, float, float]:
    """Work of the regions with a piece each, of the serial pieces, and of the regions with all of them at once."""
    record = scale_programs.run(
        directory, 1, NAME, form, "200", "50", "1000", clock="rseq", compiler=compiler
    )
    pieces, whole = (
        next(site for site in sites(record, SiteKind.REGION) if site.count == count)
        for count in (10_000, 200)
    )
    after = [site.work_s for site in sites(record, SiteKind.SERIAL) if site.origin == pieces.address]
    return pieces.work_s, sum(after), whole.work_s


@pytest.mark.parametrize("compiler", COMPILERS)
def test_regions_with_one_thread(tmp_path: Path, compiler: str) -> None:
    found = []
    for _ in range(ATTEMPTS):
        pieces, serial, whole = regions(tmp_path, compiler, "regions")
        found.append(max(off(pieces, whole), off(serial, whole)))
        if found[-1] < RIGHT:
            return
    pytest.fail(f"off by {found}")


@pytest.mark.parametrize("compiler", COMPILERS)
def test_regions_of_a_thread_whose_other_code_is_not_followed(tmp_path: Path, compiler: str) -> None:
    """What such a thread executes between its regions is no pause that takes as long each time."""
    found = []
    for _ in range(ATTEMPTS):
        pieces, _, whole = regions(tmp_path, compiler, "thread")
        found.append(off(pieces, whole))
        if found[-1] < RIGHT:
            return
    pytest.fail(f"off by {found}")


@pytest.mark.parametrize("compiler", COMPILERS)
def test_tasks_of_two_sites_in_a_team_of_one_thread(tmp_path: Path, compiler: str) -> None:
    """What making and ending a task takes is another time for each site."""
    found = []
    for _ in range(ATTEMPTS):
        record = scale_programs.run(
            tmp_path, 1, NAME, "tasks", "200", "50", "1000", clock="rseq", compiler=compiler
        )
        pieces = [site.work_s for site in sites(record, SiteKind.TASK)]
        whole = max(site.work_s for site in sites(record, SiteKind.REGION))
        assert len(pieces) == 2
        found.append(max(off(piece, whole) for piece in pieces))
        if found[-1] < RIGHT:
            return
    pytest.fail(f"off by {found}")


def calls(directory: Path) -> SpanRecord:
    records = directory / "records"
    records.mkdir(exist_ok=True)
    command = [with_hooks(NAME, directory), "calls", "1", "300", "4000"]
    subprocess.run(command, env=variables(records, 1, "rseq"), check=True, timeout=60)
    (record,) = records_of(records)
    return record


def test_the_first_calls_are_not_cut_short_by_a_cold_hook(tmp_path: Path) -> None:
    """The first hook of all makes what the others use: it takes some hundred times as long as they do."""
    found = []
    for _ in range(ATTEMPTS):
        rows = [call for call in calls(tmp_path).calls if call.on_work.count in (1, 300)]
        pieces = [call.on_work.local_work_s for call in rows if call.on_work.count == 300]
        whole = max(call.on_work.local_work_s for call in rows if call.on_work.count == 1)
        assert len(pieces) == 1
        found.append(off(pieces[0], whole))
        if found[-1] < RIGHT:
            return
    pytest.fail(f"off by {found}")


def part_of_cpu_time(directory: Path, others: int) -> float:
    """How much of its CPU time a program's work is, of which the rest are hooks, beside so many on its core."""
    records = directory / f"records-{os.urandom(6).hex()}"
    records.mkdir()
    command = [with_hooks(NAME, directory), "calls", "1", "5000000", "2"]
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with busy_loops(others):
            subprocess.run(command, env=variables(records, 1, "rseq"), check=True, timeout=120)
    finally:
        os.sched_setaffinity(0, cores)
    (record,) = records_of(records)
    return record.work_s / record.cpu_s


def test_a_switch_while_a_hook_reads_the_clock_is_no_work(tmp_path: Path) -> None:
    """A good part of the program's time is in these readings: so are as many of its preemptions."""
    alone = [part_of_cpu_time(tmp_path, 0) for _ in range(3)]
    beside = [part_of_cpu_time(tmp_path, 4) for _ in range(6)]
    assert statistics.mean(beside) < 1.08 * statistics.mean(alone), (alone, beside)
