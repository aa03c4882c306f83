"""The kernel's thread that polls for io_uring is no thread of the program that works: tests/workloads/sqpoll.c."""

from __future__ import annotations

import os
import subprocess

import pytest

import profiling
from parprof.metrics import IDLENESS, SPIN, WORK
from parprof.model import PathSample

pytestmark = pytest.mark.beside

PROGRAM = profiling.BUILD / "sqpoll"
_NOT_HERE = 77


def total(rows: list[PathSample]) -> tuple[float, float, float]:
    """Work, spin and idleness, ns."""
    work_ns, spin_ns, idleness_ns = (sum(row.metrics[one] for row in rows) for one in (WORK, SPIN, IDLENESS))
    return work_ns, spin_ns, idleness_ns


def test_who_polls_for_io_uring_spins_and_lets_its_core_be_idle() -> None:
    if subprocess.run([PROGRAM, "0"]).returncode == _NOT_HERE:
        pytest.skip("the kernel gives nobody a thread that polls")
    rows = profiling.rows_of_program(PROGRAM)
    polls = [row for row in rows if any(frame.name == "io_sq_thread" for frame in row.path)]
    work_ns, spin_ns, _ = total(polls)
    assert spin_ns > 0.9 * (work_ns + spin_ns) > 0
    work_ns, _, idleness_ns = total([row for row in rows if any(frame.name == "work" for frame in row.path)])
    assert work_ns > 0.8e9
    cores = len(os.sched_getaffinity(0))
    assert idleness_ns > 0.9 * (cores - 1) * work_ns, "nobody but the program works"
