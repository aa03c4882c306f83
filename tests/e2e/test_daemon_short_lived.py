# SPDX-License-Identifier: Apache-2.0
"""A real parprofd, and a program that starts many processes too short to be watched, as a build does."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import daemon_process as dp

PARENT = """
import ctypes, resource, subprocess, sys
name, brief = sys.argv[1:]
ctypes.CDLL(None).prctl(15, name.encode())
for _ in range(50):  # two at a time, as a build on two cores
    if any(child.wait() for child in [subprocess.Popen([brief, "50"]) for _ in range(2)]):
        sys.exit("a child failed")
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, flush=True)
sys.stdin.read()
"""
METRIC = "parprof_short_processes_seconds_total"


def test_a_hundred_short_children_are_told_by_their_parent(tmp_path: Path) -> None:
    name = dp.PREFIX + "parent"
    brief = dp.named(tmp_path, "brief", "brief")
    with dp.running(tmp_path / "parprofd") as daemon:
        daemon.page_when("a look", lambda page: page.value("parprofd_samples_total") >= 0)
        time.sleep(1)
        command = [sys.executable, "-c", PARENT, name, brief]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as parent:
            assert parent.stdout is not None
            used_s = float(parent.stdout.readline())
            page = daemon.page_when("the last", lambda page: page.value(METRIC, comm=name) > 0.7 * used_s)
            parent.communicate()
        assert 5 < used_s < 10
        told_s = page.value(METRIC, comm=name)
        assert told_s < 1.1 * used_s
