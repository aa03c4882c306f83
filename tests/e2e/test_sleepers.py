# SPDX-License-Identifier: Apache-2.0
"""A few threads that work among thousands that sleep: tests/workloads/sleepers.c. What is said of them is right, and
nothing is lost that is not counted."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from profiling import BUILD
from reports import attach_command, record_command, report_of

THREADS = 2000
SERIAL_S, PARALLEL_S = 1.0, 1.0
NOT_LOOKED_AT = "[asleep, not looked where]"


def told_by(output: str) -> dict[str, float]:
    """The lines of the program: a name and a number each."""
    return {name: float(value) for name, _, value in (line.partition(" ") for line in output.splitlines())}


def of(report: dict[str, Any], function: str, metric: str) -> float:
    """What a function has, with all that it calls."""
    return sum(float(row["inclusive"][metric]) for row in report["functions"] if row["name"] == function)


def check_answer(report: dict[str, Any]) -> None:
    """One thread works alone in one function, and two in another: so is the first answer, whoever sleeps."""
    cores = report["process"]["cores"]
    serial, parallel = (
        of(report, name, "idleness_s") + of(report, name, "stolen_s")
        for name in ("serial_here", "parallel_here")
    )
    assert serial == pytest.approx((cores - 1) * of(report, "serial_here", "work_s"), rel=0.1)
    assert parallel < 0.5 * serial
    assert report["causes"][0]["function"] == "serial_here" and report["causes"][0]["kind"] == "serial"
    assert report["lost"].keys() <= {"user_stack"}  # a thread that ends has none


def test_record(tmp_path: Path) -> None:
    profile = tmp_path / "sleepers.pb.gz"
    program = (BUILD / "sleepers", THREADS, SERIAL_S, PARALLEL_S)
    command = [*record_command(profile, "--cores", 2, "-F", 999), *map(str, program)]
    told = told_by(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    report = report_of(profile)
    assert told["ready"] == THREADS
    check_answer(report)
    for name in ("serial_here", "parallel_here"):
        assert of(report, name, "work_s") == pytest.approx(told[name], rel=0.05)
    waited = of(report, "sleeps_among_many", "wait_s") + of(report, NOT_LOOKED_AT, "wait_s")
    assert waited == pytest.approx(told["sleeps_among_many"], rel=0.05)


def linkers_code(pid: int) -> bytes:
    """The code of the dynamic linker in a process, with the breakpoint that tells of new libraries, where that is."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    line = next(line for line in maps if "r-xp" in line and "/ld-linux" in line)
    begin, end = (int(address, 16) for address in line.split()[0].split("-"))
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), end - begin, begin)


def test_attach(tmp_path: Path) -> None:
    """They sleep already: where, nobody saw."""
    profile = tmp_path / "sleepers.pb.gz"
    with subprocess.Popen([BUILD / "sleepers", str(THREADS), "2", "2", "--wait"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # fmt: skip
        assert process.stdin and process.stdout
        assert process.stdout.readline() == f"ready {THREADS}\n"
        code = linkers_code(process.pid)
        command = attach_command(profile, process.pid, "--cores", 2, "-F", 999)
        with subprocess.Popen(command) as attach:
            while (
                linkers_code(process.pid) == code
            ):  # until then it is not watched, for seconds on a busy machine
                assert attach.poll() is None
                time.sleep(0.01)
            process.stdin.write("\n")
            process.stdin.flush()
        assert attach.returncode == 0
        told = told_by(process.stdout.read())
    assert process.returncode == 0
    report = report_of(profile)
    check_answer(report)
    assert of(report, "parallel_here", "work_s") == pytest.approx(told["parallel_here"], rel=0.05)
    waited = of(report, "sleeps_among_many", "wait_s") + of(report, NOT_LOOKED_AT, "wait_s")
    assert waited == pytest.approx(THREADS * report["elapsed_s"], rel=0.05)
