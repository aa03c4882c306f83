# SPDX-License-Identifier: Apache-2.0
"""Programs that run in a debugger under `parprof record`: it must not see our stops, which it would take for the
program's own, and end what it was told to run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import profiling
from reports import record_command, report_of

pytestmark = pytest.mark.beside

DEBUGGER = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
PTRACE_TRACEME, PTRACE_CONT = 0, 7
child = os.fork()
if not child:
    libc.ptrace(PTRACE_TRACEME, 0, None, None)
    os.execv(sys.argv[1], sys.argv[1:])
while True:
    _, status = os.waitpid(child, 0)
    if not os.WIFSTOPPED(status):
        break
    stopped = os.WSTOPSIG(status)
    print(signal.Signals(stopped).name, flush=True)
    libc.ptrace(PTRACE_CONT, child, None, ctypes.c_long(0 if stopped == signal.SIGTRAP else stopped))
print("ended", os.waitstatus_to_exitcode(status))
"""


def test_a_debugger_sees_no_stop_of_ours(tmp_path: Path) -> None:
    # 0.8 s: what is not stopped at its start has its runtime met when it has lived for 0.2
    program = [str(profiling.BUILD / "omp_truth.gomp"), "balanced", "--repeat", "12"]
    command = [*record_command(tmp_path / "out.pb.gz"), sys.executable, "-c", DEBUGGER, *program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = [line for line in done.stdout.splitlines() if line.startswith(("SIG", "ended"))]
    assert told == ["SIGTRAP", "ended 0"], "that of its exec alone"
    report = report_of(tmp_path / "out.pb.gz")
    assert report["process"]["runtime"] == "libgomp"
    (work_s,) = [row["inclusive"]["work_s"] for row in report["functions"] if row["name"] == "burn"]
    assert work_s > 0.8 * report["totals"]["work_s"] > 0.1
