"""Probes are gone from a program's code soon after they are closed, whoever is killed meanwhile."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import profiling
from parprof.kernel import multilinks
from parprof.kernel.detacher import Detacher, detacher
from parprof.kernel.engine import BpfKernel
from parprof.kernel.objects import LoadedObject, get_object
from parprof.kernel.uprobes import Prober, ProbeSet
from probed import INT3, PROGRAM, Target, running_target, within

pytestmark = pytest.mark.beside

GONE_S = 1.0
AFTER_A_KILL_S = 2.0
SINGLE_EVENT_S = 2.0
"""perf events take turns: 0.16 s each, until the last one's breakpoint is gone."""
LINGER_S = 3


@pytest.fixture
def target() -> Iterator[Target]:
    with running_target() as target:
        yield target


@pytest.fixture
def prober() -> Iterator[Prober]:
    with profiling.prober() as prober:
        yield prober


def attach(prober: Prober, target: Target, count: int = 1000) -> ProbeSet:
    probes = prober.attach(target.sites(count), target.process.pid)
    probed = target.code()
    assert set(probed[:count]) == {INT3} and probed[count:] == target.plain[count:]
    return probes


def test_probes_are_gone_soon_after_close(prober: Prober, target: Target) -> None:
    for _ in range(3):
        probes = attach(prober, target)
        start = time.monotonic()
        probes.close()
        assert time.monotonic() - start < 0.1
        within(GONE_S, target.is_plain)
        within(10, lambda: detacher.pending == 0)
        probes.close()
        assert detacher.pending == 0


def may_run_in_real_time() -> bool:
    """Tried in a thread, which ends with it."""

    def attempt() -> bool:
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        return os.sched_getscheduler(0) == os.SCHED_RR

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(attempt).result()


def test_who_closes_waits_for_no_time_slice_of_others() -> None:
    """A time slice is milliseconds, in each of which the target pays for hundreds of hits."""
    if not may_run_in_real_time():
        pytest.skip("real time is refused here")
    detacher.start()
    within(10, lambda: os.sched_getscheduler(detacher.pid) == os.SCHED_RR)
    with BpfKernel(["cpu-clock"], 99):
        alarms = next(thread for thread in threading.enumerate() if thread.name == "alarms")
        within(10, lambda: os.sched_getscheduler(alarms.native_id or 0) == os.SCHED_RR)


def test_a_kernel_is_told_by_trying() -> None:
    """Session links came later than the mending of multi links."""
    if "session" not in profiling.mechanisms():
        pytest.skip(f"this kernel has no session links; it uses {profiling.mechanisms()[0]}")
    start = time.monotonic()
    assert multilinks.serve_all_threads()
    assert time.monotonic() - start < 5


def test_a_kernel_is_told_by_trying_without_sys_admin() -> None:
    """The daemon has given that up."""
    if "session" not in profiling.mechanisms():
        pytest.skip("this kernel has no session links")
    asks = "from parprof.kernel import multilinks; print(multilinks.serve_all_threads())"
    done = subprocess.run(
        ["setpriv", "--bounding-set=-all,+bpf,+perfmon", sys.executable, "-c", asks],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(multilinks.__file__).parents[2])},
    )  # fmt: skip
    assert done.stdout == "True\n", done.stderr


def test_single_events_are_gone_too(prober: Prober, target: Target) -> None:
    prober._mechanisms = ["single"]
    probes = attach(prober, target, 4)
    start = time.monotonic()
    probes.close()
    assert time.monotonic() - start < 0.1
    assert detacher.pending > 0
    within(SINGLE_EVENT_S, target.is_plain)
    within(30, lambda: detacher.pending == 0)


def test_two_threads_close_the_same_probes(prober: Prober, target: Target) -> None:
    sets = [attach(prober, target), *(prober.attach(target.sites(), target.process.pid) for _ in range(20))]

    def close() -> None:
        for probes in sets:
            probes.close()

    threads = [threading.Thread(target=close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    within(GONE_S, target.is_plain)
    within(10, lambda: detacher.pending == 0)


def test_the_detacher_outlives_the_programs(target: Target) -> None:
    pids = set[int]()
    for _ in range(2):
        loaded = LoadedObject(get_object())
        probes = attach(Prober(loaded), target)
        loaded.close()
        probes.close()
        within(GONE_S, target.is_plain)
        pids.add(detacher.pid)
    assert len(pids) == 1 and 0 not in pids


@pytest.mark.parametrize("stopped", [False, True])
def test_the_child_is_killed(stopped: bool, prober: Prober, target: Target) -> None:
    """Before it is needed, and with probes that it has not closed."""
    probes = attach(prober, target)
    within(10, lambda: detacher.pending == 0)
    child = detacher.pid
    if stopped:
        os.kill(child, signal.SIGSTOP)
        probes.close()
        assert detacher.pending > 0 and not target.is_plain()
    os.kill(child, signal.SIGKILL)
    probes.close()
    within(AFTER_A_KILL_S, target.is_plain)
    within(10, lambda: detacher.pending == 0)
    attach(prober, target).close()
    within(GONE_S, target.is_plain)
    assert detacher.pid not in (0, child)


# The parent is killed.

PARENT = """
import os, signal, sys
from parprof.kernel.detacher import detacher
from parprof.kernel.objects import LoadedObject, get_object
from parprof.kernel.uprobes import Prober, Site

pid, path, what, *offsets = sys.argv[1:]
prober = Prober(LoadedObject(get_object()))
probes = [prober.attach([Site(path, int(o), 0, returns=True)], int(pid)) for o in offsets]
print(detacher.pid, flush=True)
sys.stdin.readline()
if what == "after":
    for one in probes:
        one.close()
os.kill(os.getpid(), signal.SIGKILL)
"""


def our_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(profiling.ROOT / "daemon")}


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_parent_is_killed(when: str, target: Target) -> None:
    """Before or right after it hands the probes over, of which each function has its own link."""
    command = [sys.executable, "-c", PARENT, str(target.process.pid), str(PROGRAM), when]
    command += [str(site.offset) for site in target.sites(8)]
    parent = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=our_environment()
    )
    with parent:
        assert parent.stdin and parent.stdout
        child = int(parent.stdout.readline())
        assert set(target.code()[:8]) == {INT3}
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.wait(10) == -signal.SIGKILL
    within(AFTER_A_KILL_S, target.is_plain)
    within(10, lambda: not runs(child))


def runs(pid: int) -> bool:
    """Whether it is there and no zombie that its new parent leaves."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# A descriptor whose close blocks. There is no cheap way to have a probe that does.


def fill(connection: socket.socket) -> None:
    """Make it a stand-in: data that nobody reads make close() wait, for the time to linger."""
    connection.setblocking(False)
    try:
        while True:
            connection.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    connection.setblocking(True)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))


def has_ended(reader: int) -> bool:
    poller = select.poll()
    poller.register(reader, 0)
    return any(event & select.POLLHUP for _, event in poller.poll(0))


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def test_the_stand_in_blocks(listener: socket.socket) -> None:
    connection = socket.create_connection(listener.getsockname())
    peer, _ = listener.accept()
    fill(connection)
    start = time.monotonic()
    connection.close()
    assert time.monotonic() - start > LINGER_S - 0.2
    peer.close()


def test_others_do_not_wait_for_one_that_blocks(listener: socket.socket) -> None:
    own = Detacher()
    connection = socket.create_connection(listener.getsockname())
    peer, _ = listener.accept()
    fill(connection)
    pipes = [os.pipe() for _ in range(20)]
    own.start()
    start = time.monotonic()
    own.close([connection.detach(), *(writer for _, writer in pipes)])
    assert time.monotonic() - start < 0.1
    within(LINGER_S / 2, lambda: all(has_ended(reader) for reader, _ in pipes))
    within(LINGER_S / 2, lambda: own.pending == 1)
    within(2 * LINGER_S, lambda: own.pending == 0)
    assert time.monotonic() - start > LINGER_S - 0.2
    own.stop()
    within(10, lambda: not own.pending and not own._leaving)
    peer.close()
    for reader, _ in pipes:
        os.close(reader)


LEAVES = """
import socket, struct, sys, time
from parprof.kernel.detacher import detacher

port, pipe, linger = map(int, sys.argv[1:])
connection = socket.create_connection(("127.0.0.1", port))
connection.setblocking(False)
try:
    while True:
        connection.send(bytes(1 << 16))
except BlockingIOError:
    pass
connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, linger))
connection.setblocking(True)
detacher.start()
print(detacher.pid, flush=True)
sys.stdin.readline()
detacher.close([connection.detach(), pipe])
"""


def test_nobody_waits_for_one_that_blocks(listener: socket.socket) -> None:
    """The parent ends at once, the child once all is closed."""
    reader, writer = os.pipe()
    parent = subprocess.Popen(
        [sys.executable, "-c", LEAVES, str(listener.getsockname()[1]), str(writer), str(LINGER_S)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[writer], env=our_environment(),
    )  # fmt: skip
    os.close(writer)
    with parent:
        assert parent.stdin and parent.stdout
        child = int(parent.stdout.readline())
        peer, _ = listener.accept()
        start = time.monotonic()
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.wait(10) == 0
        assert parent.stdout.read() == ""  # nor does the child hold its standard output
    assert time.monotonic() - start < LINGER_S / 2
    within(LINGER_S / 2, lambda: has_ended(reader))
    assert runs(child)
    within(2 * LINGER_S, lambda: not runs(child))
    assert time.monotonic() - start > LINGER_S - 0.2
    peer.close()
    os.close(reader)
