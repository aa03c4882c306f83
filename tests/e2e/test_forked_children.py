# SPDX-License-Identifier: Apache-2.0
"""Children that a program forks and that run parallel regions from their first instant on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parprof.exporters import pprof
from profiling import BUILD
from reports import record_command, report_of

pytestmark = pytest.mark.beside


def told(tmp_path: Path, mode: str, hz: int, program: str = "forked_teams.gomp") -> str:
    """What `record` and the long report say of the program."""
    profile = tmp_path / "forked.pb.gz"
    subprocess.run([*record_command(profile, "-F", hz), str(BUILD / program), mode], check=True)
    return subprocess.run(
        [sys.executable, "-m", "parprof", "report", "-v", str(profile)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_a_child_has_walks_to_its_creators_from_the_beginning(tmp_path: Path) -> None:
    """It begins with a quarter of what a process may save up for bursts; its samples take nearly all that comes in."""
    report = told(tmp_path, "sites", 999)
    assert "creation walks" not in report
    assert "[unknown context]" not in report


def test_children_that_live_for_a_moment_are_described_as_others_are(tmp_path: Path) -> None:
    report = told(tmp_path, "brief", 499)
    assert "made at run time" not in report  # their [vdso], which nobody had looked for
    assert "please report" not in report  # they lived longer than we knew of them


@pytest.mark.parametrize("program", ["forked_teams.gomp", "forked_teams.omp"])
def test_a_child_has_one_thread_that_does_what_its_parents_did(program: str, tmp_path: Path) -> None:
    """Also where no edge of it will ever tell, and the runtime's memory cannot be asked."""
    if not (BUILD / program).exists():
        pytest.skip("needs LLVM's libomp")
    report = told(tmp_path, "single", 499, program)
    guessed = re.search(r"n_w was partly guessed in ([\d,]+) samples", report)
    # the team's second thread may be met before its first edge; the child has some 250
    assert guessed is None or int(guessed[1].replace(",", "")) < 10
    functions = report_of(tmp_path / "forked.pb.gz")["functions"]
    (spin,) = (row["inclusive"] for row in functions if row["name"] == "spin")
    assert spin["work_s"] > 0.45, "half a second of CPU time"


BRIEF = """import os, time
for _ in range(5):
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    end = time.process_time() + 0.02
    while time.process_time() < end:
        pass
    os._exit(0)
"""


def test_the_thread_of_a_child_that_is_gone_has_its_name(tmp_path: Path) -> None:
    """It was "tid 7079 of id 7079"."""
    profile, program = tmp_path / "brief.pb.gz", tmp_path / "brief.py"
    program.write_text(BRIEF)
    subprocess.run([*record_command(profile, "-F", 999), sys.executable, program], check=True)
    names = {sample.origin.thread for sample in pprof.read(str(profile)).samples}
    assert not [name for name in names if name.startswith("tid ")], names


CHAIN = """import os, time
levels = 5
while levels and not (child := os.fork()):
    levels -= 1
if levels:
    os.wait()
else:
    time.sleep(0.3)
os._exit(0)
"""
"""Each process waits for its child, so that all end at once, the command last."""


def told_at_the_end(tmp_path: Path, *command: str | Path) -> str:
    """What `record` says on standard error."""
    profile = tmp_path / "chain.pb.gz"
    return subprocess.run(
        [sys.executable, "-m", "parprof", "record", "--no-report", "-o", profile, "--", *command],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ).stderr


def test_children_that_ended_with_the_command_are_not_said_to_run(tmp_path: Path) -> None:
    """Nor when the command ends before we have read that they did."""
    chain = tmp_path / "chain.py"
    chain.write_text(CHAIN)
    for _ in range(3):
        assert "still run" not in told_at_the_end(tmp_path, sys.executable, chain)


def test_a_child_that_the_command_leaves_behind_is_named(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    said = told_at_the_end(tmp_path, "sh", "-c", f"sleep 60 >&- 2>&- & echo $! > {pid_file}; sleep 0.3")
    pid = int(pid_file.read_text())
    os.kill(pid, signal.SIGKILL)
    assert f"process {pid} of the command still runs, unobserved from here on: parprof attach {pid}" in said
