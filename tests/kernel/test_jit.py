# SPDX-License-Identifier: Apache-2.0
"""Code that a JIT compiler has told debuggers of: stacks go through it, and it has names."""

from __future__ import annotations

import subprocess
import time

import pytest

import profiling
from parprof.commands.spawn import Child
from parprof.kernel.engine import BpfKernel
from parprof.model import PathSample
from parprof.session.session import Session
from parprof.symbols.kernel import KERNEL

SOURCES = profiling.ROOT / "tests/workloads/jit"
OPTIONS = ("-O2", "-fomit-frame-pointer", "-fno-pic", "-mcmodel=large", "-fcf-protection=none")
PATH = ["main", "run_made", "made_outer", "made_inner"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The program and its objects: one with call frame information, the other without."""
    out = tmp_path_factory.mktemp("jit")

    def built(name: str, *options: str) -> str:
        target = out / (name if "-c" not in options else f"{name}.o")
        subprocess.run(["gcc", *options, SOURCES / f"{name}.c", "-o", target], check=True)
        return str(target)

    loads = built("loads", "-O2", "-g", "-fomit-frame-pointer", "-Wall", "-Wextra")
    inner = built("inner", *OPTIONS, "-c", "-fno-asynchronous-unwind-tables")
    return [loads, built("outer", *OPTIONS, "-c"), inner]


def judge(rows: list[PathSample]) -> tuple[float, float]:
    """CPU time with the whole path, interrupts below it included, and all of the program's in seconds."""
    whole = sum(row.metrics.cpu_ns for row in rows)
    right = 0.0
    for row in rows:
        names = [frame.name for frame in row.path if not frame.is_loop and frame.module != KERNEL]
        if names[-len(PATH) :] == PATH:
            right += row.metrics.cpu_ns
    return right / 1e9, whole / 1e9


def measured(program: list[str], cpu_s: float, attach_after_s: float | None) -> list[PathSample]:
    """By record, or attached to when it has used so much CPU time."""
    command = [program[0], str(cpu_s), *program[1:]]
    with BpfKernel(["cpu-clock"], 499) as kernel:
        session = Session(kernel)
        try:
            if attach_after_s is None:
                child = Child(command)
                session.watch(child.pid, follow=True, stop=True)
                child.release()
                profiling.run_until(session, lambda: child.poll() is not None)
                pid = child.pid
            else:
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
                pid = process.pid
                while profiling.cpu_seconds(pid) < attach_after_s:
                    time.sleep(0.01)
                session.watch(pid, patient=lambda files: True)  # as `attach` does
                profiling.run_until(session, lambda: process.poll() is not None)
            session.finish()
            return profiling.complete_rows(session, pid)[1]
        finally:
            session.close()


@pytest.mark.parametrize("attach_after_s", [None, 0.1], ids=["record", "attach"])
def test_stacks_go_through_it(program: list[str], attach_after_s: float | None) -> None:
    rows = measured(program, 1.2, attach_after_s)
    right, whole = judge(rows)
    assert whole > 0.2
    missing = {tuple(frame.name for frame in row.path): row.metrics.cpu_ns / 1e9 for row in rows}
    assert right > 0.9 * whole, missing
