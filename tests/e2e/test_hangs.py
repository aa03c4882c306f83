# SPDX-License-Identifier: Apache-2.0
"""Programs that sleep when one attaches, and go on sleeping: tests/workloads/hangs.c and hangs.py. Nothing happens that
could be counted, and where they hang is all that there is to tell."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon_process import running
from profiling import BUILD, ROOT
from reports import attach_command, report_of

pytestmark = pytest.mark.beside

HANGS = ROOT / "tests/workloads/hangs.py"
NOT_LOOKED_AT = "[asleep, not looked where]"


@pytest.fixture(params=["alone", "through the daemon"], scope="module")
def socket(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where `attach` asks for a daemon: with one and without, it says the same."""
    if request.param == "alone":
        yield "/nowhere"
        return
    with running(tmp_path_factory.mktemp("daemon")) as daemon:
        yield str(daemon.socket)


def attached_to(command_line: list[Any], profile: Path, socket: str) -> dict[str, Any]:
    """The report on that program, in which nothing happens meanwhile."""
    with subprocess.Popen(command_line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hangs:
        try:
            assert hangs.stdout is not None and hangs.stdout.readline() == "ready\n"
            command = attach_command(profile, hangs.pid, "-d", 1)
            subprocess.run(command, check=True, env={**os.environ, "PARPROF_SOCKET": socket})
        finally:
            hangs.kill()
    return report_of(profile)


def waits(report: dict[str, Any]) -> dict[str, float]:
    """For how long threads waited, by the program's function."""
    return {row["name"]: row["inclusive"]["wait_s"] for row in report["functions"]}


def test_a_deadlock(tmp_path: Path, socket: str) -> None:
    report = attached_to([BUILD / "hangs", "deadlock"], tmp_path / "deadlock.pb.gz", socket)
    (cause,) = report["causes"]
    assert (cause["kind"], cause["function"]) == ("stall", "take_both")
    assert "for another thread (pthread_mutex_lock)" in cause["what"] and "a deadlock" in cause["what"]
    assert waits(report)["take_both"] == pytest.approx(2 * report["elapsed_s"], rel=0.05)
    assert NOT_LOOKED_AT not in waits(report)
    assert report["totals"]["accounted"] == pytest.approx(1, abs=0.01)


def test_who_waits_for_the_end_of_threads_is_not_to_blame(tmp_path: Path, socket: str) -> None:
    report = attached_to([BUILD / "hangs", "joined"], tmp_path / "joined.pb.gz", socket)
    (cause,) = report["causes"]
    assert (cause["kind"], cause["function"]) == ("stall", "take_both")


def test_who_has_a_lock_that_others_want(tmp_path: Path, socket: str) -> None:
    """glibc notes who has a mutex: what that one waits for is the question, and not that others wait for it."""
    report = attached_to([BUILD / "hangs", "kept"], tmp_path / "kept.pb.gz", socket)
    (cause,) = report["causes"]
    assert (cause["kind"], cause["function"]) == ("stall", "await_item")
    assert "in pthread_cond_wait, with a mutex locked that other threads wait for" in cause["what"]
    assert waits(report)["take_it"] == pytest.approx(report["elapsed_s"], rel=0.05)


def test_a_deadlock_in_python(tmp_path: Path, socket: str) -> None:
    report = attached_to(["/usr/bin/python3", HANGS, "deadlock"], tmp_path / "deadlock.pb.gz", socket)
    (cause,) = report["causes"]
    assert (cause["kind"], cause["function"]) == ("stall", "take_both")
    assert cause["file"].endswith("hangs.py") and cause["line"] == 14
    assert "for another thread" in cause["what"]
    elapsed_s = report["elapsed_s"]
    assert waits(report)["take_both"] == pytest.approx(2 * elapsed_s, rel=0.05)
    assert waits(report)["deadlock"] == pytest.approx(elapsed_s, rel=0.05)


def test_who_reads_from_a_pipe_in_python(tmp_path: Path, socket: str) -> None:
    report = attached_to(["/usr/bin/python3", HANGS, "pipe"], tmp_path / "pipe.pb.gz", socket)
    (cause,) = report["causes"]
    assert (cause["kind"], cause["function"]) == ("stall", "read_forever") and "a pipe" in cause["what"]
    assert waits(report)["consume"] == pytest.approx(report["elapsed_s"], rel=0.05)


def test_who_reads_from_a_pipe_keeps_others_waiting(tmp_path: Path, socket: str) -> None:
    report = attached_to([BUILD / "hangs", "pipe"], tmp_path / "pipe.pb.gz", socket)
    (cause,) = report["causes"]
    assert (cause["kind"], cause["function"]) == ("stall", "read_forever") and "a pipe" in cause["what"]
    assert waits(report)["await_item"] == pytest.approx(report["elapsed_s"], rel=0.05)


def test_a_server_without_requests_loses_nothing(tmp_path: Path, socket: str) -> None:
    report = attached_to([BUILD / "hangs", "requests"], tmp_path / "requests.pb.gz", socket)
    assert report["causes"] == [] and report["totals"]["stall_s"] == 0
    assert waits(report)["serve"] == pytest.approx(report["elapsed_s"], rel=0.05)
