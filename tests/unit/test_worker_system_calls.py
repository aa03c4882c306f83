"""What children that read hostile input may ask of the kernel, and what comes of asking for more."""

from __future__ import annotations

import errno
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from parprof.kernel import capability
from parprof.workers import client, seccomp
from parprof.workers.client import WorkerClient, WorkerFailed

HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
pytestmark = pytest.mark.skipif(bool(seccomp.missing()), reason="no filters of system calls here")

OBEYS = """
import ctypes, fcntl, os, socket, sys, threading, time
from parprof.workers import serving
libc = ctypes.CDLL(None, use_errno=True)

def raw(number, *arguments):
    ctypes.set_errno(0)
    libc.syscall(number, *arguments)
    return ctypes.get_errno()

def answer(request, fds):
    try:
        return {"value": eval(request["do"])}
    except OSError as error:
        return {"errno": error.errno}

serving.run(answer, 1 << 30)
"""


class Obedient(WorkerClient):
    """A worker that is in the hands of an attacker: it does what it is told."""

    module = "obeys"
    doing = "reading symbols"


def starts(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """From now on this is what children execute."""

    def start(module: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-c", code, str(theirs.fileno())]
            return subprocess.Popen(command, pass_fds=[theirs.fileno()]), ours

    monkeypatch.setattr(client, "start_child", start)


@pytest.fixture
def attacked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Obedient]:
    starts(monkeypatch, OBEYS)
    with Obedient() as worker:
        yield worker


def tell(worker: WorkerClient, do: str) -> dict[str, object]:
    return worker.ask({"do": do}, [], time.monotonic() + 30)


def test_the_numbers_are_those_of_the_machine() -> None:
    if not HEADER.exists():
        pytest.skip("no kernel headers")
    theirs = dict(re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text()))
    known = {name: number for name, number in seccomp.NUMBERS.items() if name in theirs}
    assert known == {name: int(theirs[name]) for name in known} and len(known) > 100


ENDS_IT = {
    "another program": "os.execv('/bin/true', ['true'])",
    "another process": "os.fork()",
    "a command": "os.system('true')",
    "a look into a process": "raw(101, 16, os.getppid(), 0, 0)",
    "memory of a process": "raw(310, os.getppid(), 0, 0, 0, 0, 0)",
    "a signal": "os.kill(os.getppid(), 0)",
    "a socket": "socket.socket(socket.AF_INET)",
    "a socket of this machine": "socket.socket(socket.AF_UNIX)",
    "bpf": "raw(321, 5, 0, 0)",
    "perf events": "raw(298, 0, 0, 0, 0, 0)",
    "mount": "raw(165, 0, 0, 0, 0, 0)",
    "a module": "raw(175, 0, 0, 0)",
    "a key": "raw(250, 0, 0, 0, 0, 0)",
    "a user": "os.setresuid(0, 0, 0)",
    "a namespace": "raw(272, 0x10000000)",
    "io_uring": "raw(425, 1, 0)",
    "an x32 system call": "raw(0x40000000 | 39)",
}


@pytest.mark.parametrize("do", ENDS_IT.values(), ids=ENDS_IT.keys())
def test_what_no_parser_does_ends_the_child_and_is_said(
    attacked: Obedient, do: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(WorkerFailed, match="reading symbols: .*system call that reading never needs.*attack"):
        tell(attacked, do)
    assert "may be an attack" in caplog.text
    assert tell(attacked, "1 + 1") == {"value": 2}, "another child goes on with the next file"
    assert attacked.starts == 2


REFUSED = {
    "write a file": ("os.open('/tmp/hard', os.O_WRONLY | os.O_CREAT)", errno.EACCES),
    "write a file that is there": ("os.open('/dev/null', os.O_RDWR)", errno.EACCES),
    "a file without a name": ("os.open('/tmp', os.O_TMPFILE | os.O_RDWR)", errno.EACCES),
    "empty a file": ("os.open('/dev/null', os.O_TRUNC)", errno.EACCES),
    "a directory": ("os.mkdir('/tmp/hard-directory')", errno.ENOSYS),
    "remove a file": ("os.unlink('/nothing')", errno.ENOSYS),
    "a link": ("os.symlink('a', '/tmp/hard-link')", errno.ENOSYS),
    "type on the terminal": ("fcntl.ioctl(0, 0x5412, b'x')", errno.ENOTTY),
}


@pytest.mark.parametrize(("do", "number"), REFUSED.values(), ids=REFUSED.keys())
def test_what_python_may_try_is_refused(attacked: Obedient, do: str, number: int) -> None:
    assert tell(attacked, do) == {"errno": number}
    assert attacked.starts == 1


ALLOWED = {
    "read a file": "len(open('/proc/self/status').read()) > 0",
    "a thread": "(t := threading.Thread(target=time.sleep, args=(0,))).start() is t.join()",
    "time": "time.sleep(0.01) is None",
    "much memory": "len(bytearray(1 << 26)) > 0",
    "itself": "os.kill(os.getpid(), 0) is None",
}


@pytest.mark.parametrize("do", ALLOWED.values(), ids=ALLOWED.keys())
def test_what_reading_needs_is_allowed(attacked: Obedient, do: str) -> None:
    assert tell(attacked, do) == {"value": True}


FETCHES = """
import os, socket
from parprof.workers.privileges import give_up_privileges
"a".encode("idna")
give_up_privileges(1 << 31, 0, 64, network=True)
assert socket.getaddrinfo("localhost", 80)
server = socket.socket(socket.AF_INET)
server.bind(("127.0.0.1", 0))
try:
    socket.socket(socket.AF_UNIX)
except OSError:
    print("no socket of this machine", flush=True)
%s
"""


@pytest.mark.parametrize(
    ("then", "status"),
    [("", 0), ("server.listen()", -31), ("os.fork()", -31)],
    ids=["a client", "a server", "a process"],
)
def test_the_child_that_asks_servers_can_look_up_names_and_no_more(then: str, status: int) -> None:
    done = subprocess.run([sys.executable, "-c", FETCHES % then], capture_output=True, text=True, timeout=60)
    assert done.stdout == "no socket of this machine\n" and done.returncode == status, done.stderr


@contextmanager
def child_of(module: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    child, ours = client.start_child(module, *arguments)
    try:
        with ours:
            yield child, ours
    finally:
        client.end_child(child)


WORKERS = (
    "symbols.worker",
    "probes.facts_worker",
    "calls.worker",
    "unwind.worker",
    "jit.worker",
    "loops.worker",
    "languages.hotspot.worker",
    "symbols.fetcher",
)


@pytest.mark.parametrize("module", WORKERS)
def test_each_child_that_reads_hostile_input_is_filtered(module: str) -> None:
    """Seen from outside, in the kernel's words."""
    with child_of(f"parprof.{module}", *(["1000"] if module.endswith("fetcher") else [])) as (child, _):
        deadline = time.monotonic() + 60
        while "Seccomp:\t2" not in (status := Path(f"/proc/{child.pid}/status").read_text()):
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        assert "NoNewPrivs:\t1" in status and re.search(r"CapEff:\t0+\n", status)


def test_those_are_all_children_that_give_up_privileges() -> None:
    package = Path(client.__file__).parents[1]
    users = set()
    for path in package.rglob("*.py"):
        if re.search(r"^ +(run|give_up_privileges)\(.*(LIMIT|MEMORY)", path.read_text(), re.M):
            users.add(".".join(path.relative_to(package).with_suffix("").parts))
    assert users == set(WORKERS)


def test_a_child_that_is_refused_a_filter_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here because another thread of it would go on without."""
    sleeper = "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nserving.run("
    starts(monkeypatch, OBEYS.replace("serving.run(", sleeper))
    with Obedient() as worker, pytest.raises(WorkerFailed, match="refused a filter of its system calls"):
        tell(worker, "1")


def test_elsewhere_there_is_none_and_check_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seccomp.missing("aarch64") == "none for aarch64"
    found = capability.children()
    assert found.ok and not found.remedy and "system calls" in found.says
    monkeypatch.setattr(capability.seccomp, "missing", lambda: "none for aarch64")
    found = capability.children()
    assert not found.fatal and "none for aarch64" in found.says and not found.ok
