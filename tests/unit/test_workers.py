"""Children that parse for us: what ends one that hangs, and what one does that is still privileged."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from parprof.kernel.detacher import Detacher
from parprof.service.model import Labels
from parprof.service.selection import Selection, is_ours
from parprof.workers import client, privileges, protocol
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


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from parprof.workers.privileges import drop_privileges
drop_privileges(1 << 30, 1 << 20, 256)
print(*(resource.getrlimit(what) for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_FSIZE)))
"""


@pytest.mark.parametrize(("before", "after"), [("0", 500), ("900", 900)])
def test_where_memory_runs_out_the_child_ends_and_not_the_daemon(before: str, after: int) -> None:
    """The kernel ends whoever takes most, of this cgroup or of the machine; that would be the daemon."""
    code = (
        f"open('/proc/self/oom_score_adj', 'w').write('{before}')\n"
        "from parprof.workers import privileges\n"
        "privileges.drop_privileges(1 << 30, 1 << 20, 64)\n"
        "print(open('/proc/self/oom_score_adj').read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == after


def test_a_child_that_the_kernel_ended_is_told() -> None:
    class Killed(WorkerClient):
        module = "parprof.symbols.worker"
        doing = "looking up names"

        def _start(self) -> None:
            super()._start()
            os.kill(self.pid, signal.SIGSTOP)
            threading.Timer(0.2, os.kill, (self.pid, signal.SIGKILL)).start()

    with Killed() as worker, pytest.raises(WorkerFailed, match="memory runs out"):
        worker.ask({"file": "x"}, [], time.monotonic() + 20)


def test_bounds_that_are_lower_already_stay() -> None:
    out = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True).stdout
    assert out == f"(64, 64) ({1 << 30}, {1 << 30}) ({1 << 20}, {1 << 20})\n"


@pytest.mark.parametrize(
    "error", [OSError(1, "not permitted"), ValueError("not allowed to raise maximum limit")]
)
def test_a_child_without_bounds_reads_nothing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN that memory cannot be bounded, as a filter of system calls may do, THEN the child ends."""
    real = resource.setrlimit

    def refuse(what: int, limits: tuple[int, int]) -> None:
        if what == resource.RLIMIT_AS:
            raise error
        real(what, limits)

    child = os.fork()
    if child == 0:
        monkeypatch.setattr(resource, "setrlimit", refuse)
        try:
            privileges.give_up_privileges(1 << 40, 1 << 20, 256)
        except SystemExit as end:
            os._exit(int(str(end.code)))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == privileges.UNBOUNDED


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
    detacher = Detacher()
    child, ours = client.start_child("parprof.symbols.worker")
    with ours, subprocess.Popen(["sleep", "60"]) as other:
        try:
            while b"parprof" not in Path(f"/proc/{child.pid}/cmdline").read_bytes():
                time.sleep(0.01)
            assert is_ours(os.getpid()) and is_ours(child.pid)
            assert not is_ours(other.pid) and not is_ours(1)
            detacher.start()
            assert is_ours(detacher.pid) and not Selection().wants(detacher.pid, Labels())
            assert not Selection().wants(child.pid, Labels()) and Selection().wants(other.pid, Labels())
        finally:
            other.kill()
            client.end_child(child)
            detacher.stop()
    assert not is_ours(child.pid), "it is gone"
