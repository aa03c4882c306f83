"""What ends a child process that hangs when the daemon does not."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

from parprof.workers import protocol

HANGS = """
from parprof.workers import serving

def hang(*_):
    while True:
        pass

serving._REQUEST_SECONDS = 1
serving.run(hang, 1 << 30)
"""


def test_its_alarm_ends_a_child_that_hangs_over_a_file() -> None:
    """Also one that became nobody, whom its parent may not be able to end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = subprocess.Popen(
            [sys.executable, "-c", HANGS, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
        )
        try:
            protocol.send(ours, {"file": "x"})
            assert child.wait(60) == -signal.SIGALRM
        finally:
            child.kill()
            child.wait()
