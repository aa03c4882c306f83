# SPDX-License-Identifier: Apache-2.0
"""Tests of many workers do not wait for what is said of each; what is run again looks at something new."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from reruns import MadeForAll

TESTS = Path(__file__).resolve().parents[1]
CONFTEST = """
import reruns
def pytest_sessionstart(session):
    reruns.tell_at_once(session.config)
"""
INSIDE = """
import pytest, socket
@pytest.mark.flaky(reruns=1)
def test_it(request):
    told = request.config.failures_db.sock
    assert told.getpeername() and told.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
"""


def test_a_worker_holds_no_message_back(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_inside.py").write_text(INSIDE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "-n", "1"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(TESTS), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


def test_a_test_that_asks_again_has_another() -> None:
    numbers = iter(range(9))
    made = MadeForAll(lambda: next(numbers))
    asked = ["a", "b", "b", "b", "a", "c", "a"]
    assert [made.take(test) for test in asked] == [0, 0, 1, 2, 2, 2, 3]
