"""Work and span of Cilk programs on the stand-ins of its runtimes, whose macros call instrument/parprof_span.h.

Untested with OpenCilk's own compiler, which is not to be had as a package. With one worker, as the header says: what is
stolen goes on in another thread.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

from parprof.instruments.toolchain import source_directory
from parprof.scale.record import SiteKind, SpanRecord
from scale_programs import WORKLOADS, records_of, sites, variables

CILK = WORKLOADS / "cilk"
UNIT_NS = 10_000_000
RUNTIMES = {
    "opencilk": ("cheetah", ()),
    "cilkplus": ("cilkplus", (f"-Wl,--version-script,{CILK}/cilkplus.map",)),
}
_FLAGS = ("-std=gnu11", "-O2", "-g", "-fomit-frame-pointer", "-Wall", "-Wextra", "-Werror")
_FLAGS += ("-fno-optimize-sibling-calls",)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scale-cilk")


@cache
def program(runtime: str, directory: Path) -> Path:
    """As tests/workloads/cilk/Makefile builds them, with the calls of the header."""
    source, options = RUNTIMES[runtime]
    library, output = directory / f"lib{runtime}.so", directory / runtime
    shared = ("-fPIC", "-shared", "-fvisibility=hidden", "-pthread", *options)
    subprocess.run(["gcc", *_FLAGS, *shared, CILK / f"{source}.c", "-o", library], check=True)
    own = ("-mno-red-zone", f'-DCILK_ABI="{source}_abi.h"', "-DPARPROF_SPAN", f"-I{source_directory()}")
    linked = (library, f"-Wl,-rpath,{directory}", "-o", output)
    subprocess.run(["gcc", *_FLAGS, *own, CILK / "spawn_truth.c", *linked], check=True)
    return output


def run(runtime: str, directory: Path, threads: int, phase: str) -> SpanRecord:
    records = directory / f"records-{os.urandom(6).hex()}"
    records.mkdir()
    command = [program(runtime, directory), phase, "--threads", "1"]
    subprocess.run(command, env=variables(records, threads), check=True, capture_output=True, timeout=60)
    (record,) = records_of(records)
    return record


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    ("phase", "work", "span", "spawns", "calls"),
    [
        ("region", 2, 2, 0, 0),
        ("skewed", 6 + 2, 6, 1, 0),
        ("fan", 7, 1, 7, 0),
        (
            "tree",
            34,
            1,
            33,
            66,
        ),  # the leaves of a Fibonacci tree of 8; each other node spawns one and calls one
        ("chain", 11, 1, 10, 10),  # each works beside the next
    ],
)
def test_work_and_span_of_cilk(
    directory: Path, runtime: str, phase: str, work: int, span: int, spawns: int, calls: int
) -> None:
    record = run(runtime, directory, 4, phase)
    assert round(record.work_s * 1e9) == work * UNIT_NS
    assert round(record.span_s * 1e9) == span * UNIT_NS
    assert round(record.bound_s * 1e9) == pytest.approx(max(work * UNIT_NS / 4, span * UNIT_NS), abs=2)
    assert sum(task.count for task in sites(record, SiteKind.TASK)) == spawns + calls


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_it_runs_alone_and_is_right(directory: Path, runtime: str) -> None:
    """Results are checked by the program; with two workers what is spawned is stolen."""
    command = [program(runtime, directory), "all", "--unit-ms", "1"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
