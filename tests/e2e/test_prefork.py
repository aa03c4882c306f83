# SPDX-License-Identifier: Apache-2.0
"""Servers of several processes which nobody asks for anything: tests/workloads/prefork.py."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from profiling import ROOT
from reports import record_command, report_of

pytestmark = pytest.mark.alone
SERVER = ROOT / "tests/workloads/prefork.py"
PYTHON = "/usr/bin/python3"


def core_time_s(report: dict[str, Any]) -> float:
    """n times how long it ran."""
    return float(report["process"]["cores"] * report["duration_s"])


@pytest.mark.parametrize("waits", ["queue", "event", "sleep", "pings"])
def test_a_server_of_several_processes_without_requests_names_nobody(tmp_path: Path, waits: str) -> None:
    profile = tmp_path / "prefork.pb.gz"
    command = [*record_command(profile), PYTHON, str(SERVER), waits, "4"]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    report = report_of(profile)
    assert report["causes"] == []
    totals = report["totals"]
    looked_s = report["process"]["cores"] * float(told[-1])
    assert totals["outside_s"] == pytest.approx(looked_s, rel=0.05)
    assert totals["stall_s"] < 0.05 * looked_s
    assert totals["accounted"] == pytest.approx(1, abs=0.02)


def test_nor_does_one_that_is_attached_to(tmp_path: Path) -> None:
    profile = tmp_path / "prefork.pb.gz"
    with subprocess.Popen([PYTHON, str(SERVER), "queue", "6"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdout.readline().startswith("port")
        time.sleep(0.2)
        attach = f"attach --children -q --no-report -d 2.5 -o {profile} {server.pid}".split()
        subprocess.run([sys.executable, "-m", "parprof", *attach], check=True)
        server.terminate()
    report = report_of(profile)
    assert report["causes"] == []
    assert report["totals"]["outside_s"] > 0.8 * core_time_s(report)
