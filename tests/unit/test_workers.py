"""Children that parse for us: what ends one that hangs, and what one does that is still privileged."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parprof.service.model import Labels
from parprof.service.selection import Selection, is_ours
from parprof.workers import client, protocol
from parprof.workers.client import WorkerClient, WorkerFailed
from parprof.workers.privileges import STILL_PRIVILEGED

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


ANSWERS = """
from parprof.workers import serving
serving.run(lambda *_: {"uid": __import__("os").geteuid()}, 1 << 30)
"""
BOUND = ("setpriv", "--bounding-set", "-setuid,-setgid", "--")
"""Root, as in a container that was given few capabilities."""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to lose it")
@pytest.mark.parametrize(
    ("before", "status"), [((), 0), (BOUND, STILL_PRIVILEGED)], ids=["nobody", "still root"]
)
def test_a_child_that_cannot_become_nobody_answers_nothing(before: tuple[str, ...], status: int) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = subprocess.Popen(
                [*before, sys.executable, "-c", ANSWERS, str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        if status == 0:
            protocol.send(ours, {})
            answer = protocol.receive(ours)
            assert answer is not None and answer[0] == {"uid": 65534}
        else:
            assert protocol.receive(ours) is None
        ours.shutdown(socket.SHUT_RDWR)
        assert child.wait(30) == status


class Privileged(WorkerClient):
    module = "parprof.symbols.worker"
    doing = "reading symbols"


def test_a_client_says_why_its_child_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that ends at once with that status stands for one that was refused."""

    def start(module: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        theirs.close()
        return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({STILL_PRIVILEGED})"]), ours

    monkeypatch.setattr(client, "start_child", start)
    with Privileged() as worker, pytest.raises(WorkerFailed, match="cannot become nobody.*CAP_SETUID"):
        worker.ask({}, [], time.monotonic() + 30)


def test_the_daemon_does_not_watch_its_own_children() -> None:
    """A worker of ours is nobody's waste; another child of the same parent is watched as all else is."""
    child, ours = client.start_child("parprof.symbols.worker")
    with ours, subprocess.Popen(["sleep", "60"]) as other:
        try:
            while b"parprof" not in Path(f"/proc/{child.pid}/cmdline").read_bytes():
                time.sleep(0.01)
            assert is_ours(os.getpid()) and is_ours(child.pid)
            assert not is_ours(other.pid) and not is_ours(1)
            assert not Selection().wants(child.pid, Labels()) and Selection().wants(other.pid, Labels())
        finally:
            other.kill()
            client.end_child(child)
    assert not is_ours(child.pid), "it is gone"
