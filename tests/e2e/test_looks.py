# SPDX-License-Identifier: Apache-2.0
"""A server that uses so little CPU time that not even a moment of its context switches can be followed for 1 % of that:
tests/workloads/asked.c. Where its threads wait is told all the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from profiling import BUILD
from reports import attach_command, report_of

ASKS = """
import socket, sys, time
those = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(2)]
print("asks", flush=True)
while True:
    for one in those:
        one.sendall(b"?")
    for one in those:
        one.recv(1)
    time.sleep(0.001)
"""
SECONDS = 5
TRIES, LOOKS = 5, 20
"""By chance it may be the places of waits alone that are found too dear, for all of the time or for some seconds; then
there are no looks, or they begin late. There are some 40 where they begin soon."""


@pytest.mark.alone
def test_a_server_with_hardly_anything_to_do_waits_for_requests(tmp_path: Path) -> None:
    for _ in range(TRIES):
        profile = attached(tmp_path)
        text = " ".join(shown(profile).split())
        looked_up = re.search(r"where threads wait was then looked up (\d+) times", text)
        if looked_up and int(looked_up[1]) >= LOOKS:
            break
    else:
        pytest.fail(f"too few looks, each time: {text}")
    assert "context switches are no longer followed" in text, text
    report = report_of(profile)
    stall_s, outside_s = (report["totals"][metric] for metric in ("stall_s", "outside_s"))
    assert outside_s > 0.6 * 2 * report["elapsed_s"], report["causes"]
    assert stall_s < 0.1 * outside_s, report["causes"]
    assert not any(cause["kind"] == "stall" for cause in report["causes"][:1]), report["causes"]


def attached(folder: Path) -> Path:
    """The profile of some seconds of it."""
    profile = folder / "asked.pb.gz"
    with subprocess.Popen([BUILD / "asked"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        port = server.stdout.readline().strip()
        with subprocess.Popen([sys.executable, "-c", ASKS, port], stdout=subprocess.PIPE, text=True) as asks:
            assert asks.stdout and asks.stdout.readline()
            try:
                subprocess.run(attach_command(profile, server.pid, "--cores", 2, "-d", SECONDS), check=True)
            finally:
                asks.kill()
                server.kill()
    return profile


def shown(profile: Path) -> str:
    """What `parprof report -v` prints."""
    command = [sys.executable, "-m", "parprof", "report", "-v", str(profile)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
