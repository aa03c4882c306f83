# SPDX-License-Identifier: Apache-2.0
"""Jobs of several processes, started in the ways in which people start them: efficiency against the CPU time and the
time that the processes tell themselves.

What the machine did not give them is known to the kernel alone, and is taken out of both sides. Still they judge shares
of time, and want a quiet machine: processes that wait for each other wait for whoever lacks a core. So where it was not
quiet another run may show it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from identity import record
from profiling import BUILD
from reports import attach_command, judge, record_command, report_of

pytestmark = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")

CORES = 2
POINTS = 0.02
"""By so much efficiency may be off."""
BEGIN = """
import os, sys, time
times = float(sys.argv[1]) if len(sys.argv) > 1 else 1
def busy(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
def tell():
    os.write(2, f"cpu {time.process_time()}\\n".encode())
def all_of(*works):
    for work in works:
        if not os.fork():
            work()
            tell()
            os._exit(0)
    for _ in works:
        os.wait()
"""
"""`tell` says on standard error, in one write, what CPU time a process took since it began or was forked."""
SCRIPTS = {
    "burn": "busy(times)",
    "nap": "time.sleep(times)",
    "pool": """
import multiprocessing.util
def told_at_end():
    multiprocessing.util.Finalize(None, tell, exitpriority=1)
with multiprocessing.get_context("fork").Pool(2, told_at_end) as pool:
    pool.map(busy, [0.1] * int(24 * times), 1)
    pool.close()
    pool.join()
""",
    "fork": "all_of(lambda: busy(1.2 * times), lambda: busy(1.2 * times))",
    "uneven": "all_of(lambda: busy(1.6), lambda: busy(0.8))",
    "ranks": """
import socket
server = socket.create_server(("127.0.0.1", 0))
def rank(number):
    other = socket.create_connection(server.getsockname()) if number else server.accept()[0]
    for step in range(int(20 * times)):
        busy(0.06)
        other.sendall(bytes(8))
        other.recv(8)
all_of(lambda: rank(0), lambda: rank(1))
""",
    "grandchild": """
gone, told = os.pipe()
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    os.close(gone)
    busy(1.2)
    tell()
    os._exit(0)
os.close(told)
os.wait()
busy(1.2)
os.read(gone, 1)
""",
    "first": "for _ in range(40): busy(0.03); print('x' * 100, flush=True)",
    "second": "for line in sys.stdin: busy(0.03); print(line, end='', flush=True)",
    "third": "for line in sys.stdin: busy(0.002)",
}
BURN, NAP = "$PYTHON -S $HERE/burn.py", "$PYTHON -S $HERE/nap.py"
MAKEFILE = f"""
burns := $(foreach one,1 2 3 4 5 6 7 8,burn$(one))
naps := $(foreach one,1 2,nap$(one))
all: $(burns) $(naps)
$(burns):; @{BURN.replace("$", "$$")} 0.25
$(naps):; @{NAP.replace("$", "$$")} 0.5
"""
COMMANDS = {
    "pool": "$PYTHON -S $HERE/pool.py",
    "fork": "$PYTHON -S $HERE/fork.py",
    "uneven": "$PYTHON -S $HERE/uneven.py",
    "shell": f"{BURN} 1.2 & {BURN} 1.2 & wait",
    "ranks": "$PYTHON -S $HERE/ranks.py",
    "xargs": f"for _ in 1 2 3 4 5 6 7 8; do echo 0.25; done | xargs -P2 -n1 {BURN}",
    "make": "make -s -j2 -f $HERE/steps.mk all",
    "pipeline": "$PYTHON -S $HERE/first.py | $PYTHON -S $HERE/second.py | $PYTHON -S $HERE/third.py",
    "grandchild": "$PYTHON -S $HERE/grandchild.py",
}
ENDLESS = {
    "pool": "$PYTHON -S $HERE/pool.py 1000; :",
    "fork": "$PYTHON -S $HERE/fork.py 1000; :",
    "shell": f"{BURN} 1000 & {BURN} 1000 & wait",
    "ranks": "$PYTHON -S $HERE/ranks.py 1000; :",
    "xargs": f"yes 0.2 | head -n 10000 | xargs -P2 -n1 {BURN}",
}
"""Of the balanced ones, for as long as one looks."""


@dataclass(frozen=True)
class Job:
    """A command that was recorded."""

    report: dict[str, Any]
    cpu_s: float
    """Of all its processes, by their own account."""

    @property
    def efficiency(self) -> float:
        """The processes' CPU time of all that the machine gave them, which may have lacked more cores than there are.

        On a quiet machine that is the cores for as long as it took.
        """
        totals, levels = self.report["totals"], self.report["concurrency"]
        too_many_s = sum((at - CORES) * took_s for at, took_s in enumerate(levels) if at > CORES)
        withheld_s = totals["ready_s"] - too_many_s + totals["stolen_s"]
        return self.cpu_s / (CORES * self.report["elapsed_s"] - withheld_s)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the scripts."""
    for name, script in SCRIPTS.items():
        (tmp_path / f"{name}.py").write_text(f"{BEGIN}{script}\ntell()\nos._exit(0)\n")
    (tmp_path / "steps.mk").write_text(MAKEFILE)
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("HERE", str(tmp_path))
    return tmp_path


def recorded(folder: Path, command: str) -> Job:
    """The command of a shell, and what its processes told."""
    profile = folder / "job.pb.gz"
    record = [*record_command(profile, "--cores", CORES), "sh", "-c", command]
    done = subprocess.run(record, stderr=subprocess.PIPE, text=True, check=True)
    told = [float(found) for found in re.findall(r"^cpu (\S+)$", done.stderr, re.MULTILINE)]
    return Job(report_of(profile), sum(told))


def check(report: dict[str, Any]) -> None:
    """All of it is one job, and adds up."""
    assert report["scope"]["kind"] == "tree"
    assert report["totals"]["accounted"] == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("way", COMMANDS)
def test_efficiency_of_a_job(way: str, folder: Path) -> None:
    jobs = []

    def record() -> dict[str, Any]:
        jobs.append(recorded(folder, COMMANDS[way]))
        return jobs[-1].report

    def check_job(report: dict[str, Any]) -> None:
        check(report)
        assert jobs[-1].cpu_s > 2
        assert report["totals"]["efficiency"] == pytest.approx(jobs[-1].efficiency, abs=POINTS)

    judge(record, check_job)


def test_efficiency_of_a_thousand_short_children(tmp_path: Path) -> None:
    """One after the other, so half of two cores is idle."""
    run = record([BUILD / "identity", "children", "1000"], tmp_path, "--cores", CORES)
    check(run.report)
    job = Job(run.report, run.told["cpu"])
    assert run.report["totals"]["efficiency"] == pytest.approx(job.efficiency, abs=POINTS)


@pytest.mark.parametrize("way", ENDLESS)
def test_efficiency_of_a_job_that_runs_already(way: str, folder: Path) -> None:
    """By its parent, which sleeps: both cores are busy with its children, and theirs."""
    profile = folder / "job.pb.gz"
    options = ("--children", "-F", 498, "-d", 2, "--cores", CORES)

    def record() -> dict[str, Any]:
        with subprocess.Popen(
            ["sh", "-c", ENDLESS[way]], stderr=subprocess.DEVNULL, start_new_session=True
        ) as parent:
            try:
                wait_for_processes(parent.pid, 3)
                subprocess.run(attach_command(profile, parent.pid, *options), check=True)
            finally:
                os.killpg(parent.pid, signal.SIGKILL)
        return report_of(profile)

    def check_attached(report: dict[str, Any]) -> None:
        check(report)
        totals = report["totals"]
        assert totals["work_s"] + totals["ready_s"] > 0.9 * CORES * report["elapsed_s"]
        assert totals["efficiency"] > 1 - POINTS

    judge(record, check_attached)


def wait_for_processes(session: int, number: int) -> None:
    """Until a session has so many."""
    for _ in range(600):
        if len(processes_of(session)) >= number:
            return
        time.sleep(0.05)
    raise AssertionError("its processes did not come")


def processes_of(session: int) -> list[int]:
    """By what the kernel says of all."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[3]) == session:
                found.append(int(stat.parent.name))
    return found
