"""What ends a child process that hangs when the daemon does not."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

from parprof.workers import protocol

HANGS = """
import sys
from parprof.{package} import worker

def hang(*_):
    while True:
        pass

worker.{name} = hang
worker._REQUEST_SECONDS = 1
sys.exit(worker.main())
"""


@pytest.mark.parametrize(
    ("package", "name"), [("unwind", "answer"), ("symbols", "Worker.answer")], ids=["unwind", "symbols"]
)
def test_its_alarm_ends_a_child_that_hangs_over_a_file(package: str, name: str) -> None:
    """Also one that became nobody, whom its parent may not be able to end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = subprocess.Popen(
            [sys.executable, "-c", HANGS.format(package=package, name=name), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
        )
        try:
            protocol.send(ours, {"file": "x"})
            assert child.wait(60) == -signal.SIGALRM
        finally:
            child.kill()
            child.wait()
