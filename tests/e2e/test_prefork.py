# SPDX-License-Identifier: Apache-2.0
"""Servers of several processes which nobody asks for anything: tests/workloads/prefork.py."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from profiling import ROOT
from reports import attach_command, record_command, report_of

pytestmark = pytest.mark.alone
SERVER = ROOT / "tests/workloads/prefork.py"
PYTHON = "/usr/bin/python3"


def core_time_s(report: dict[str, Any]) -> float:
    """n times how long it ran."""
    return float(report["process"]["cores"] * report["duration_s"])


WAITS = ("queue", "event", "sleep", "pings")
Recording = tuple[dict[str, Any], float]
"""A report, and for how long the main process looked after its workers as it says itself, in seconds."""


def recorded_each(ways: Iterable[str], folder: Path) -> dict[str, Recording]:
    """Servers that wait in these ways, all at the same time: they sleep."""
    with ExitStack() as running:
        commands = {
            waits: [*record_command(folder / waits), PYTHON, str(SERVER), waits, "4"] for waits in ways
        }
        servers = {
            waits: running.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            for waits, command in commands.items()
        }
        told = {waits: server.communicate()[0].split() for waits, server in servers.items()}
    assert [server.returncode for server in servers.values()] == [0] * len(servers)
    return {waits: (report_of(folder / waits), float(words[-1])) for waits, words in told.items()}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recording]:
    """All of them, each judged once: whoever wants another has one of its own."""
    return recorded_each(WAITS, tmp_path_factory.mktemp("prefork"))


@pytest.fixture
def recorded(recordings: dict[str, Recording], tmp_path: Path) -> Callable[[str], Recording]:
    return lambda waits: recordings.pop(waits, None) or recorded_each([waits], tmp_path)[waits]


@pytest.mark.parametrize("waits", WAITS)
def test_a_server_of_several_processes_without_requests_names_nobody(
    waits: str, recorded: Callable[[str], Recording]
) -> None:
    report, looked_for_s = recorded(waits)
    assert report["causes"] == []
    totals = report["totals"]
    looked_s = report["process"]["cores"] * looked_for_s
    assert totals["outside_s"] == pytest.approx(looked_s, rel=0.05)
    assert totals["stall_s"] < 0.05 * looked_s
    assert totals["accounted"] == pytest.approx(1, abs=0.02)


def test_nor_does_one_that_is_attached_to(tmp_path: Path) -> None:
    profile = tmp_path / "prefork.pb.gz"
    with subprocess.Popen([PYTHON, str(SERVER), "queue", "6"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdout.readline().startswith("port")
        time.sleep(0.2)
        subprocess.run(attach_command(profile, server.pid, "--children", "-d", 2.5), check=True)
        server.terminate()
    report = report_of(profile)
    assert report["causes"] == []
    assert report["totals"]["outside_s"] > 0.8 * core_time_s(report)
