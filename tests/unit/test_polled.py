# SPDX-License-Identifier: Apache-2.0
"""What a thread waits for in poll(), select() and epoll_wait(), from `/proc`: parprof.process.polled."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from parprof.model import AWAITS_ANSWER, AWAITS_CHILD, AWAITS_FILE, AWAITS_PIPE, AWAITS_TIME, AWAITS_UNKNOWN
from parprof.process.polled import awaited

POLL, SELECT, READ, RECVFROM, RECVMSG = 7, 23, 0, 45, 47
AT = 0x1000
"""Where the list or the set is."""


class Files:
    """Open files of a process that has few: of select() it is known who looks at numbers below 64."""

    def __init__(self, stack: ExitStack) -> None:
        server = stack.enter_context(socket.socket())
        for port in range(25000 + os.getpid() % 7000, 32768):
            try:
                server.bind(("127.0.0.1", port))
                break
            except OSError:
                continue
        server.listen(1)
        client = stack.enter_context(socket.create_connection(server.getsockname()))
        accepted = stack.enter_context(server.accept()[0])
        pipe, writes = os.pipe()
        own_pipe, own_end = os.pipe()
        terminal, follows = os.openpty()
        counter, timer, child = os.eventfd(0), _timer(), os.pidfd_open(os.getpid())
        ends, signals = _signals(signal.SIGCHLD, signal.SIGTERM), _signals(signal.SIGCHLD, signal.SIGUSR1)
        kept = (counter, timer, child, ends, signals)
        for fd in (pipe, writes, own_pipe, own_end, terminal, follows, *kept):
            stack.callback(os.close, fd)
        pair, other_end = socket.socketpair()
        named, asks, asked = _by_name(stack, f"\0parprof {os.getpid()}")
        desktop, shows, shown = _by_name(stack, f"\0/tmp/.X11-unix/parprof{os.getpid()}")
        for end in (pair, other_end):
            stack.enter_context(end)
        sockets = (server, client, accepted, pair, named, asks, asked, desktop, shows, shown)
        ours = (*(each.fileno() for each in sockets), pipe, terminal, own_pipe, own_end, *kept)
        self.listener, self.client, self.accepted, self.pair, *numbers = range(10, 10 + len(ours))
        (
            self.named,
            self.asks,
            self.asked,
            _,
            self.shows,
            _,
            self.pipe,
            self.terminal,
            self.own_pipe,
            *numbers,
        ) = numbers
        self.counter, self.timer, self.child, self.ends, self.signals = numbers[-len(kept) :]
        self.gone = 10 + len(ours)

        def place() -> None:
            out_of_the_way = [fcntl.fcntl(fd, fcntl.F_DUPFD, 512) for fd in ours]
            for number, fd in enumerate(out_of_the_way):
                os.dup2(fd, 10 + number)
            os.closerange(10 + len(ours), 4096)

        holder = stack.enter_context(
            subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE, preexec_fn=place, close_fds=False)  # noqa: PLW1509
        )
        stack.callback(holder.kill)
        self.pid = holder.pid

    def of_poll(self, *fds: int, is_timed: bool = False) -> int:
        memory = b"".join(struct.pack("<iI", fd, 1) for fd in fds)
        words = [str(POLL), hex(AT), hex(len(fds)), "0x32" if is_timed else "0xffffffff"]
        return awaited(self.pid, words, lambda at, size: memory[at - AT : at - AT + size])

    def of_select(self, *fds: int, is_timed: bool = False) -> int:
        memory = struct.pack("<Q", sum(1 << fd for fd in fds))
        words = [
            str(SELECT),
            hex(max(fds, default=-1) + 1),
            hex(AT),
            "0x0",
            "0x0",
            hex(AT if is_timed else 0),
        ]
        return awaited(self.pid, words, lambda at, size: memory[at - AT : at - AT + size])

    def of_read(self, fd: int, call: int = READ) -> int:
        return awaited(self.pid, [str(call), hex(fd), hex(AT), "0x10"], lambda at, size: b"")


def _timer() -> int:
    """A file that tells when its time is over. Python has a function for it from version 3.13 on."""
    return int(ctypes.CDLL(None, use_errno=True).timerfd_create(time.CLOCK_MONOTONIC, 0))


def _signals(*ones: signal.Signals) -> int:
    """A file that tells of these signals."""
    mask = ctypes.c_uint64(sum(1 << one - 1 for one in ones))
    return int(ctypes.CDLL(None, use_errno=True).syscall(289, -1, ctypes.byref(mask), 8, 0))


def _by_name(stack: ExitStack, name: str) -> tuple[socket.socket, socket.socket, socket.socket]:
    """Unix sockets: one that listens, one that is connected to it, and its other end."""
    listens, connects = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
    listens.bind(name)
    listens.listen(1)
    connects.connect(name)
    return listens, connects, stack.enter_context(listens.accept()[0])


@pytest.fixture
def files() -> Iterator[Files]:
    with ExitStack() as stack:
        yield Files(stack)


Of = Callable[..., int]


@pytest.mark.parametrize("of", [Files.of_poll, Files.of_select])
def test_who_looks_at_its_own_connection_waits_for_an_answer(of: Of, files: Files) -> None:
    assert of(files, files.client) == of(files, files.client, files.pipe) == AWAITS_ANSWER
    assert of(files, files.asks) == of(files, files.asks, files.pair) == AWAITS_ANSWER
    assert of(files, files.asks, files.client) == of(files, files.client, files.pair) == AWAITS_ANSWER


@pytest.mark.parametrize("of", [Files.of_poll, Files.of_select])
def test_all_else_may_be_a_request(of: Of, files: Files) -> None:
    for looked_at in (
        (files.listener,),
        (files.accepted,),
        (files.own_pipe,),
        (files.pipe, files.own_pipe, files.counter),
        (files.pipe, files.accepted),
        (files.pipe, files.terminal),
        (files.client, files.accepted),
        (files.client, files.terminal),
        (files.pair,),
        (files.named,),
        (files.asked,),
        (files.client, files.asked),
        (files.asks, files.accepted),
        (files.shows,),  # a desktop tells of keys
        (files.client, files.pipe, files.listener, files.accepted),  # too many
    ):
        assert of(files, *looked_at) == AWAITS_UNKNOWN, looked_at


@pytest.mark.parametrize("of", [Files.of_poll, Files.of_select])
def test_who_looks_at_pipes_of_others_alone_waits_for_these(of: Of, files: Files) -> None:
    """But not who has both ends, to wake itself up by, nor a filter at the one that it was started with."""
    assert of(files, files.pipe) == of(files, files.pipe, files.pair, files.own_pipe) == AWAITS_PIPE
    assert of(files, 0) == AWAITS_UNKNOWN


@pytest.mark.parametrize("of", [Files.of_poll, Files.of_select])
def test_no_file_is_time(of: Of, files: Files) -> None:
    assert of(files) == AWAITS_TIME


@pytest.mark.parametrize("of", [Files.of_poll, Files.of_select])
def test_who_looks_at_a_timer_or_for_a_time_at_what_its_own_threads_wake_it_by_waits_for_time(
    of: Of, files: Files
) -> None:
    """As Ruby's sleep does."""
    assert of(files, files.timer) == of(files, files.timer, is_timed=True) == AWAITS_TIME
    assert of(files, files.counter, is_timed=True) == AWAITS_TIME
    assert of(files, files.counter) == of(files, files.counter, files.timer) == AWAITS_UNKNOWN
    for besides in (files.listener, files.own_pipe, files.pair, files.accepted, files.terminal):
        assert of(files, files.counter, besides, is_timed=True) == AWAITS_UNKNOWN
        assert of(files, files.timer, besides) == AWAITS_UNKNOWN


@pytest.mark.parametrize("of", [Files.of_poll, Files.of_select])
def test_who_looks_at_the_end_of_a_child_alone_waits_for_that(of: Of, files: Files) -> None:
    """Whatever wakes it beside that from inside, or tells it to end."""
    for tells in (files.child, files.ends):
        assert of(files, tells) == of(files, files.child, files.ends) == AWAITS_CHILD
        for besides in (files.counter, files.timer, files.pair, files.own_pipe):
            assert of(files, tells, besides) == of(files, tells, besides, is_timed=True) == AWAITS_CHILD
        for besides in (files.listener, files.accepted, files.terminal, files.signals):
            assert of(files, tells, besides) == AWAITS_UNKNOWN, besides
        assert of(files, tells, files.pipe) == AWAITS_PIPE
        assert of(files, tells, files.client) == AWAITS_ANSWER
    assert of(files, files.signals) == AWAITS_UNKNOWN


@pytest.mark.parametrize("call", [READ, RECVFROM, RECVMSG])
def test_who_reads_from_one_of_a_pair_of_sockets_waits_for_a_pipe(call: int, files: Files) -> None:
    """Of all else the kernel's functions tell."""
    assert files.of_read(files.pair, call) == AWAITS_PIPE
    for fd in (
        files.client,
        files.accepted,
        files.asks,
        files.asked,
        files.shows,
        files.terminal,
        files.gone,
    ):
        assert files.of_read(fd, call) == AWAITS_UNKNOWN, fd


def test_what_cannot_be_read_is_not_known(files: Files) -> None:
    def read(*words: str) -> int:
        return awaited(files.pid, list(words), lambda at, size: b"")

    assert files.of_poll(files.gone) == AWAITS_UNKNOWN
    assert read("7", hex(AT), "0x1", "0x0") == AWAITS_UNKNOWN
    assert read(str(READ), hex(files.client), "0x0", "0x0") == AWAITS_UNKNOWN
    assert read("running") == AWAITS_UNKNOWN


@pytest.mark.parametrize("call", [208, 333])
def test_who_waits_for_asynchronous_io_for_as_long_as_it_takes_waits_for_a_file(call: int) -> None:
    """With a limit it may be a database's thread that looks for what others have asked for."""
    words = [str(call), "0x7f00", "0x1", "0x1", "0x1000", "0x0", "0x0", "0x7ffe", "0x7f01"]
    assert awaited(os.getpid(), words, bytes) == AWAITS_FILE  # type: ignore[arg-type]
    words[5] = "0x2000"
    assert awaited(os.getpid(), words, bytes) == AWAITS_UNKNOWN  # type: ignore[arg-type]
