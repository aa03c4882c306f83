"""The child process that closes descriptors: what is said to it, and what happens when it is not there."""

from __future__ import annotations

import array
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from parprof.kernel import detach_worker, detacher
from parprof.kernel.detach_worker import Closers, Lines
from parprof.kernel.detacher import Detacher
from stopwatch import Stopwatch

WAIT_S = 20.0


def eventually(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Ends:
    """Descriptors whose close can be seen from their other ends."""

    def __init__(self, count: int) -> None:
        pairs = [os.pipe() for _ in range(count)]
        self.readers, self.writers = [r for r, _ in pairs], [w for _, w in pairs]

    def closed(self) -> list[bool]:
        """Which of the writers are closed everywhere."""
        poller = select.poll()
        for reader in self.readers:
            poller.register(reader, 0)
        ended = {fd for fd, event in poller.poll(0) if event & select.POLLHUP}
        return [reader in ended for reader in self.readers]

    def all_closed(self) -> bool:
        return all(self.closed())

    def forget(self) -> None:
        for reader in self.readers:
            os.close(reader)


@pytest.fixture
def ends() -> Iterator[Callable[[int], Ends]]:
    made: list[Ends] = []

    def make(count: int) -> Ends:
        made.append(Ends(count))
        return made[-1]

    yield make
    for some in made:
        some.forget()


@pytest.fixture
def own() -> Iterator[Detacher]:
    own = Detacher()
    yield own
    own.stop()
    eventually(lambda: not own.pending and not own._leaving)


# What is said to it.


class Served:
    """The child's loop, in a thread."""

    def __init__(self) -> None:
        self.ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.counter = os.eventfd(0, os.EFD_NONBLOCK)
        closers = Closers(4, lambda: os.eventfd_write(self.counter, 1))
        self.thread = threading.Thread(
            target=detach_worker.serve, args=(self._theirs, closers, self.counter, Lines()), daemon=True
        )
        self.thread.start()

    def send(self, descriptors: list[int], said: int | None = None) -> None:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        self.ours.sendmsg([bytes([len(descriptors) if said is None else said])], [rights])
        for fd in descriptors:
            os.close(fd)

    def count(self) -> int:
        try:
            return os.eventfd_read(self.counter)
        except BlockingIOError:
            return 0

    def end(self) -> None:
        self.ours.close()
        self.thread.join(WAIT_S)
        self._theirs.close()


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.end()
    os.close(served.counter)


def test_descriptors_are_held_until_the_sender_has_closed_its_own(
    served: Served, ends: Callable[[int], Ends]
) -> None:
    some = ends(3)
    served.send(some.writers)
    time.sleep(0.1)
    assert not any(some.closed()) and served.count() == 0
    served.ours.send(b"\0")
    eventually(some.all_closed)
    eventually(lambda: served.count() or True)


def test_each_descriptor_is_counted(served: Served, ends: Callable[[int], Ends]) -> None:
    some = ends(100)
    served.send(some.writers)
    served.ours.send(b"\0")
    count = 0
    deadline = time.monotonic() + WAIT_S
    while count < 100:
        assert time.monotonic() < deadline
        count += served.count()
    assert count == 100 and some.all_closed()


def test_what_did_not_arrive_is_counted_as_closed(served: Served, ends: Callable[[int], Ends]) -> None:
    served.send(ends(1).writers, said=6)
    served.ours.send(b"\0")
    count = 0
    deadline = time.monotonic() + WAIT_S
    while count < 6:
        assert time.monotonic() < deadline
        count += served.count()
    assert count == 6


def test_the_end_of_the_sender_closes_all(served: Served, ends: Callable[[int], Ends]) -> None:
    some = ends(7)
    served.send(some.writers)
    served.end()
    assert not served.thread.is_alive() and some.all_closed() and served.count() == 7


# Threads that close.


class SlowClose:
    """Stands in for `os.close` of descriptors that the kernel does not let go of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slow: set[int]) -> None:
        self.closed: list[int] = []
        self.blocked = 0
        self.release = threading.Event()
        self._slow = slow
        monkeypatch.setattr(detach_worker, "os", SimpleNamespace(close=self._close))

    def _close(self, fd: int) -> None:
        if fd in self._slow:
            self.blocked += 1
            self.release.wait(WAIT_S)
        self.closed.append(fd)


def test_nothing_waits_behind_what_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        slow = SlowClose(patch, {1000, 1001})
        closers = Closers(3)
        assert closers.add(range(1000, 1010))
        eventually(lambda: closers.left == 2)
        assert slow.closed == list(range(1002, 1010))  # in the order given
        slow.release.set()
        closers.work()
        assert closers.left == 0 and sorted(slow.closed) == list(range(1000, 1010))


def test_no_more_threads_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        slow = SlowClose(patch, set(range(1000, 1100)))
        closers = Closers(5)
        closers.add(range(1000, 1100))
        eventually(lambda: slow.blocked == 5)
        time.sleep(0.05)
        assert (slow.blocked, closers.left) == (5, 100)
        slow.release.set()
        closers.work()
        assert (slow.blocked, closers.left) == (100, 0)


def test_without_threads_the_caller_is_told(
    monkeypatch: pytest.MonkeyPatch, ends: Callable[[int], Ends]
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    some, more = ends(2), ends(1)
    closers = Closers(5)
    with monkeypatch.context() as patch:
        patch.setattr(detach_worker, "_thread", SimpleNamespace(start_new_thread=refuse))
        assert not closers.add(some.writers)
        assert closers.left == 2 and not any(some.closed())
    assert closers.add(more.writers)  # takes along what was left
    eventually(lambda: some.all_closed() and more.all_closed())
    eventually(lambda: not closers.left)
    closers.work()


# The parent's side.


def test_the_child_closes_and_counts(own: Detacher, ends: Callable[[int], Ends]) -> None:
    some = ends(250)
    own.close(some.writers)
    assert own.pid
    eventually(some.all_closed)
    eventually(lambda: own.pending == 0)


def test_what_the_child_is(own: Detacher, ends: Callable[[int], Ends]) -> None:
    """Small, alone in its session, nobody where it can be, deaf to polite signals; it holds nothing of ours."""
    inherited = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(inherited, True)
    try:
        own.start()
    finally:
        os.close(inherited)
    some = ends(1)
    own.close(some.writers)
    eventually(some.all_closed)
    process = Path(f"/proc/{own.pid}")
    status = dict(
        line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line
    )
    assert int(status["VmRSS"].split()[0]) < 12 << 10
    assert int((process / "schedstat").read_text().split()[0]) / 1e9 < 0.3, "seconds of CPU; 0.02 when quiet"
    assert set(status["Uid"].split()) == {"65534" if os.geteuid() == 0 else str(os.geteuid())}
    if os.geteuid() == 0:
        assert os.getpriority(os.PRIO_PROCESS, own.pid) < 0, "the target pays until it has done its work"
    ignored = int(status["SigIgn"], 16)
    assert all(ignored >> number - 1 & 1 for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    assert os.getsid(own.pid) == own.pid != os.getsid(0)
    if os.access(process / "fd", os.X_OK):
        held = {int(entry.name): os.readlink(entry) for entry in (process / "fd").iterdir()}
        assert [held.pop(number) for number in range(3)] == [os.devnull] * 3
        assert sorted(name.split(":")[0] for name in held.values()) == ["anon_inode", "socket"]


def test_it_ends_with_its_work(ends: Callable[[int], Ends]) -> None:
    own = Detacher()
    some = ends(3)
    own.close(some.writers)
    pid = own.pid
    own.stop()
    eventually(some.all_closed)
    eventually(lambda: not own.pending and not own._leaving)
    assert not Path(f"/proc/{pid}").exists()
    own.stop()


def test_a_killed_child_is_replaced(own: Detacher, ends: Callable[[int], Ends]) -> None:
    own.start()
    first = own.pid
    os.kill(first, signal.SIGKILL)
    some = ends(30)
    own.close(some.writers)  # it may be dying or dead
    eventually(some.all_closed)
    eventually(lambda: not own.pending)
    eventually(lambda: not Path(f"/proc/{first}").exists())
    more = ends(3)
    own.close(more.writers)
    eventually(more.all_closed)
    assert own.pid not in (0, first)


def test_a_killed_child_leaves_nothing_open(own: Detacher, ends: Callable[[int], Ends]) -> None:
    own.start()
    os.kill(own.pid, signal.SIGSTOP)
    some = ends(30)
    own.close(some.writers)
    assert own.pending == 30 and not any(some.closed())
    os.kill(own.pid, signal.SIGKILL)
    eventually(some.all_closed)
    eventually(lambda: own.pending == 0)


def test_threads_of_ours_where_no_child_can_be_started(
    own: Detacher, ends: Callable[[int], Ends], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(detacher.sys, "executable", "/nonexistent/python")
        some = ends(40)
        own.close(some.writers)
        assert own.pid == 0
        eventually(some.all_closed)
        eventually(lambda: own.pending == 0)
    more = ends(1)
    own.close(more.writers)
    eventually(more.all_closed)
    assert own.pid


def test_threads_of_ours_where_the_child_ends_at_once(
    own: Detacher, ends: Callable[[int], Ends], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detacher, "DETACH_WORKER", Path("/nonexistent.py"))
    for _ in range(5):
        some = ends(10)
        own.close(some.writers)
        eventually(some.all_closed)
    eventually(lambda: own.pending == 0)


def test_a_descriptor_that_is_not_open_does_no_harm(own: Detacher, ends: Callable[[int], Ends]) -> None:
    some = ends(3)
    own.close([some.writers[0], 1 << 20, *some.writers[1:]])
    eventually(some.all_closed)
    eventually(lambda: own.pending == 0)


def test_a_child_that_does_not_listen_costs_no_time(own: Detacher, ends: Callable[[int], Ends]) -> None:
    """Nor are any lost when no more messages fit."""
    own.start()
    os.kill(own.pid, signal.SIGSTOP)
    try:
        watch = Stopwatch()
        some = ends(600)
        for fd in some.writers:
            own.close([fd])
        assert watch.seconds < 2
    finally:
        os.kill(own.pid, signal.SIGCONT)
    eventually(lambda: own.pending == 0)
    assert some.all_closed()


def test_many_threads_at_once(own: Detacher, ends: Callable[[int], Ends]) -> None:
    some = ends(200)
    threads = [threading.Thread(target=own.close, args=(some.writers[at::8],)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(some.all_closed)
    eventually(lambda: own.pending == 0)


def test_a_forked_process_does_not_use_it(ends: Callable[[int], Ends]) -> None:
    shared = detacher.detacher
    shared.start()
    first = shared.pid
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        left = shared.pid == 0 and shared.pending == 0
        os.write(writer, b"y" if left else b"n")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"y"
    os.close(reader)
    os.close(writer)
    some = ends(2)
    shared.close(some.writers)
    eventually(some.all_closed)
    assert shared.pid == first


def test_the_worker_imports_little() -> None:
    """Each module costs the child memory for as long as we run."""
    folder = str(detacher.DETACH_WORKER.parent)
    code = f"import sys; sys.path.append({folder!r}); import detach_worker; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"socket", "threading", "subprocess", "ctypes", "parprof"} & set(done.stdout.split())
