# SPDX-License-Identifier: Apache-2.0
"""What a thread waits for in poll() and select(), from `/proc`: parprof.process.polled."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from parprof.model import AWAITS_ANSWER, AWAITS_TIME, AWAITS_UNKNOWN
from parprof.process.polled import awaited, is_own_connection

POLL, SELECT, READ = 7, 23, 0
AT = 0x1000
"""Where the list or the set is."""


class Files:
    """Open files of this process."""

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
        self.listener, self.client, self.accepted = server.fileno(), client.fileno(), accepted.fileno()
        self.pipe, writes = os.pipe()
        self.terminal, follows = os.openpty()
        for fd in (self.pipe, writes, self.terminal, follows):
            stack.callback(os.close, fd)


@pytest.fixture
def files() -> Iterator[Files]:
    with ExitStack() as stack:
        yield Files(stack)


def of_poll(*fds: int) -> int:
    memory = b"".join(struct.pack("<iI", fd, 1) for fd in fds)
    words = [str(POLL), hex(AT), hex(len(fds)), "0x0"]
    return awaited(os.getpid(), words, lambda at, size: memory[at - AT : at - AT + size])


def of_select(*fds: int) -> int:
    memory = struct.pack("<Q", sum(1 << fd for fd in fds))
    words = [str(SELECT), hex(max(fds, default=-1) + 1), hex(AT), "0x0"]
    return awaited(os.getpid(), words, lambda at, size: memory[at - AT : at - AT + size])


@pytest.mark.parametrize("of", [of_poll, of_select])
def test_who_looks_at_its_own_connection_waits_for_an_answer(of: Callable[..., int], files: Files) -> None:
    assert of(files.client) == of(files.client, files.pipe) == AWAITS_ANSWER


@pytest.mark.parametrize("of", [of_poll, of_select])
def test_all_else_may_be_a_request(of: Callable[..., int], files: Files) -> None:
    assert of(files.listener) == of(files.accepted) == of(files.pipe) == AWAITS_UNKNOWN
    assert of(files.client, files.accepted) == of(files.client, files.terminal) == AWAITS_UNKNOWN
    assert of(files.client, files.pipe, files.listener, files.accepted) == AWAITS_UNKNOWN, "too many"


@pytest.mark.parametrize("of", [of_poll, of_select])
def test_no_file_is_time(of: Callable[..., int]) -> None:
    assert of() == AWAITS_TIME


def test_what_cannot_be_read_is_not_known(files: Files) -> None:
    gone = 1 + max(map(int, os.listdir("/proc/self/fd")))
    assert of_poll(gone) == AWAITS_UNKNOWN
    assert awaited(os.getpid(), ["7", hex(AT), "0x1", "0x0"], lambda at, size: b"") == AWAITS_UNKNOWN
    assert (
        awaited(os.getpid(), [str(READ), hex(files.client), "0x0", "0x0"], lambda at, size: b"")
        == AWAITS_UNKNOWN
    )
    assert awaited(os.getpid(), ["running"], lambda at, size: b"") == AWAITS_UNKNOWN


def test_between_two_ports_of_clients_nobody_knows_who_connected() -> None:
    assert not is_own_connection(50051, 40000) and not is_own_connection(40000, 50051)
