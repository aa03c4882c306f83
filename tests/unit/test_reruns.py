# SPDX-License-Identifier: Apache-2.0
"""Tests of many workers do not wait for what is said of each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
