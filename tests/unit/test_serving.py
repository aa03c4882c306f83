# SPDX-License-Identifier: Apache-2.0
"""The listener under the HTTP server and the control socket: which clients it survives, and whom it serves."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from parprof.service import serving
from parprof.service.serving import ConnectionHandler, Limits, Listener, Seat

REFUSAL = b"come again"


class Line(ConnectionHandler[str]):
    """Answers one line with itself; its clients say who they are by the order in which they come."""

    def __init__(self, names: str = "abcdefghijklmnopqrstuvwxyz") -> None:
        self.names = list(names)
        self.held: list[str] = []
        self.seconds = 60.0
        self.unwelcome: set[str] = set()
        self.refused = 0

    def identify(self, connection: socket.socket) -> str:
        name = self.names.pop(0)
        if name == "?":
            raise OSError("nobody knows")
        return name

    def has_room(self, who: str, served: Collection[str]) -> bool:
        return not (who in self.unwelcome and served)

    def refusal(self) -> bytes:
        self.refused += 1
        return REFUSAL

    def makes_room(self, who: str) -> bool:
        return who != "r"

    def hold(self, stream: socket.socket, who: str, seat: Seat) -> None:
        self.held.append(who)
        until_s = time.monotonic() + self.seconds
        line = b""
        while not line.endswith(b"\n"):
            stream.settimeout(max(0.001, until_s - time.monotonic()))
            part = stream.recv(100)
            if not part:
                return
            seat.is_busy = True
            line += part
        if line == b"bug\n":
            raise ZeroDivisionError("inner secret")
        stream.sendall(line)


class Server:
    def __init__(self, handler: ConnectionHandler[str], limits: Limits) -> None:
        self.listener = Listener("test-line", handler, limits)
        listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = listening.getsockname()
        self.listener.start(listening)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=30)

    def ask(self, line: bytes = b"hello\n") -> bytes:
        with self.connect() as client:
            client.sendall(line)
            return everything(client)


@contextmanager
def running(handler: ConnectionHandler[str], limits: Limits) -> Iterator[Server]:
    server = Server(handler, limits)
    with server.listener:
        yield server


@pytest.fixture
def line() -> Line:
    return Line()


def everything(client: socket.socket) -> bytes:
    out = b""
    while part := client.recv(65536):
        out += part
    return out


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("test-line")]


def test_each_client_has_its_answer(line: Line) -> None:
    with running(line, Limits(4)) as server:
        assert [server.ask(b"%d\n" % number) for number in range(5)] == [b"%d\n" % n for n in range(5)]
    assert line.held == ["a", "b", "c", "d", "e"]
    assert line.refused == 0


def test_silent_slow_and_half_closed_clients_hold_up_nobody(line: Line) -> None:
    with running(line, Limits(10)) as server, ExitStack() as stack:
        silent, slow, half = (stack.enter_context(server.connect()) for _ in range(3))
        slow.sendall(b"hel")
        half.sendall(b"half")
        half.shutdown(socket.SHUT_WR)
        assert everything(half) == b""
        assert server.ask() == b"hello\n"
        slow.sendall(b"lo\n")
        assert everything(slow) == b"hello\n"
        assert server.listener.served == 1
        silent.close()
        until(lambda: server.listener.served == 0)


def test_clients_that_leave_with_a_reset(line: Line) -> None:
    with running(line, Limits(4)) as server:
        for _ in range(10):
            client = server.connect()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.close()
        until(lambda: server.listener.served == 0)
        assert server.ask() == b"hello\n"


def test_a_client_that_is_late_is_ended(line: Line) -> None:
    line.seconds = 0.05
    with running(line, Limits(1)) as server, server.connect() as client:
        assert everything(client) == b""


def test_too_many_are_told_so(line: Line) -> None:
    with running(line, Limits(2)) as server, ExitStack() as stack:
        served = [stack.enter_context(server.connect()) for _ in range(2)]
        until(lambda: server.listener.served == 2)
        assert server.ask() == REFUSAL
        assert line.refused == 1
        served[0].sendall(b"now\n")
        assert everything(served[0]) == b"now\n"
        until(lambda: server.listener.served == 1)
        assert server.ask() == b"hello\n"
    assert line.held == ["a", "b", "d"]


def test_the_refusal_survives_what_the_client_still_sends(line: Line) -> None:
    """GIVEN data that nobody will read THEN the connection is not reset before the refusal is read."""
    with running(line, Limits(1)) as server, server.connect():
        until(lambda: server.listener.served == 1)
        with server.connect() as refused:
            refused.sendall(bytes(1 << 20))
            time.sleep(0.2)
            refused.sendall(b"more")
            refused.shutdown(socket.SHUT_WR)
            assert everything(refused) == REFUSAL


def test_those_who_are_sent_away_and_stay_are_cut_off(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "LINGER_SECONDS", 0.2)
    with running(line, Limits(1)) as server, server.connect():
        until(lambda: server.listener.served == 1)
        with server.connect() as refused:
            assert everything(refused) == REFUSAL
            with pytest.raises(OSError):
                for _ in range(10_000):
                    refused.sendall(bytes(1000))
                    time.sleep(0.005)


def test_few_may_stay_when_sent_away(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "LINGER_SECONDS", 600.0)
    monkeypatch.setattr(serving, "MAX_LEAVING", 3)
    with running(line, Limits(1)) as server, ExitStack() as stack:
        stack.enter_context(server.connect())
        until(lambda: server.listener.served == 1)
        for _ in range(10):
            assert everything(stack.enter_context(server.connect())) == REFUSAL
        until(lambda: len(server.listener._leaving) == 3)


def test_some_wait_in_order(line: Line) -> None:
    with running(line, Limits(1, 2, 600.0)) as server, ExitStack() as stack:
        first = stack.enter_context(server.connect())
        until(lambda: server.listener.served == 1)
        waiting = []
        for number in (1, 2):
            waiting.append(stack.enter_context(server.connect()))
            until(lambda number=number: server.listener.waiting == number)
        assert server.ask() == REFUSAL
        for number, client in enumerate((first, *waiting)):
            client.sendall(b"%d\n" % number)
            assert everything(client) == b"%d\n" % number
    assert line.held == ["a", "b", "c"]


def test_those_who_wait_too_long_are_sent_away(line: Line) -> None:
    with running(line, Limits(1, 2, 0.2)) as server, server.connect():
        until(lambda: server.listener.served == 1)
        began = time.monotonic()
        with server.connect() as client:
            assert everything(client) == REFUSAL
        assert time.monotonic() - began >= 0.2


def test_room_can_depend_on_who_it_is(line: Line) -> None:
    line.unwelcome = {"b"}
    with running(line, Limits(4)) as server, ExitStack() as stack:
        stack.enter_context(server.connect())
        until(lambda: server.listener.served == 1)
        assert server.ask() == REFUSAL
        assert server.ask() == b"hello\n"
    assert line.held == ["a", "c"]


def test_one_who_must_wait_does_not_stop_those_behind(line: Line) -> None:
    line.unwelcome = {"b"}
    with running(line, Limits(4, 4, 600.0)) as server, ExitStack() as stack:
        first = stack.enter_context(server.connect())
        until(lambda: server.listener.served == 1)
        second = stack.enter_context(server.connect())
        second.sendall(b"late\n")
        assert server.ask() == b"hello\n"
        first.close()
        assert everything(second) == b"late\n"
    assert line.held == ["a", "c", "b"]


def test_the_oldest_silent_one_of_the_greediest_makes_room() -> None:
    line = Line("abbbc")
    with running(line, Limits(4)) as server, ExitStack() as stack:
        clients = []
        for number in range(1, 5):
            clients.append(stack.enter_context(server.connect()))
            until(lambda number=number: server.listener.served == number and len(line.held) == number)
        clients[1].sendall(b"asks")
        until(lambda: [seat.is_busy for _, seat in server.listener._served.values()].count(True) == 1)
        assert server.ask() == b"hello\n"
        assert everything(clients[2]) == b"", "the oldest of b that is silent"
        for number in (0, 1, 3):
            clients[number].sendall(b"%d\n" % number)
        assert [everything(clients[number]) for number in (0, 1, 3)] == [b"0\n", b"asks1\n", b"3\n"]
        until(lambda: server.listener.served == 0)
    assert line.refused == 0


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("aabbb", "b has as many as a"),
        ("aabcb", "b would have more than a then"),
        ("rrrrc", "r never makes room"),
    ],
)
def test_nobody_makes_room_for_the_greedy(names: str, why: str) -> None:
    line = Line(names)
    with running(line, Limits(4)) as server, ExitStack() as stack:
        for number in range(1, 5):
            stack.enter_context(server.connect())
            until(lambda number=number: len(line.held) == number)
        assert server.ask() == REFUSAL, why
        assert server.listener.served == 4


class Staying(Line):
    """Answers line after line, and keeps its clients in between."""

    def hold(self, stream: socket.socket, who: str, seat: Seat) -> None:
        self.held.append(who)
        while part := stream.recv(100):
            seat.is_busy, seat.is_kept = True, False
            stream.sendall(part)
            if part != b"stay busy\n":
                seat.is_busy, seat.is_kept = False, True


@pytest.mark.parametrize(
    ("names", "ends", "why"),
    [
        ("abac", 0, "a has most, and this is its oldest"),
        ("aaab", 0, "the same"),
        ("abcd", 0, "all have one: the oldest"),
        ("rabc", 0, "r makes no room while it is silent, but a kept one is no loss"),
        ("aaaa", 0, "for its own client, too"),
    ],
)
def test_the_oldest_kept_one_goes_first(names: str, ends: int, why: str) -> None:
    with running(Staying(names), Limits(3)) as server, ExitStack() as stack:
        clients = []
        for number in range(1, 4):
            clients.append(stack.enter_context(server.connect()))
            clients[-1].sendall(b"hello\n")
            assert clients[-1].recv(100) == b"hello\n"
            until(
                lambda number=number: (
                    [seat.is_kept for _, seat in server.listener._served.values()].count(True) == number
                )
            )
        with server.connect() as late:
            late.sendall(b"hello\n")
            assert late.recv(100) == b"hello\n"
        assert everything(clients[ends]) == b"", why
        for client in (client for number, client in enumerate(clients) if number != ends):
            client.sendall(b"more\n")
            assert client.recv(100) == b"more\n"


def test_a_kept_one_that_is_busy_again_stays() -> None:
    with running(Staying("aab"), Limits(2)) as server, ExitStack() as stack:
        busy, kept = (stack.enter_context(server.connect()) for _ in range(2))
        for client, line in ((busy, b"stay busy\n"), (kept, b"hello\n")):
            client.sendall(line)
            assert client.recv(100) == line
        until(lambda: [seat.is_kept for _, seat in server.listener._served.values()] == [False, True])
        with server.connect() as late:
            late.sendall(b"hello\n")
            assert late.recv(100) == b"hello\n"
        assert everything(kept) == b""
        busy.sendall(b"more\n")
        assert busy.recv(100) == b"more\n"


def test_a_kept_one_stays_where_that_makes_no_room() -> None:
    line = Staying("aac")
    line.unwelcome = {"c"}
    with running(line, Limits(4)) as server, ExitStack() as stack:
        kept = [stack.enter_context(server.connect()) for _ in range(2)]
        for client in kept:
            client.sendall(b"hello\n")
            assert client.recv(100) == b"hello\n"
        assert server.ask() == REFUSAL
        assert server.listener.served == 2


def test_nobody_is_broken_off_where_that_makes_no_room() -> None:
    line = Line("aaac")
    line.unwelcome = {"c"}
    with running(line, Limits(4)) as server, ExitStack() as stack:
        for number in range(1, 4):
            stack.enter_context(server.connect())
            until(lambda number=number: len(line.held) == number)
        assert server.ask() == REFUSAL
        assert server.listener.served == 3


def test_one_is_broken_off_whose_stream_is_just_being_made() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Wrapping(Line):
        def stream(self, connection: socket.socket) -> socket.socket:
            if self.held or begun.is_set():
                return connection
            wrapped = socket.socket(fileno=connection.detach())
            begun.set()
            assert go_on.wait(60)
            return wrapped

    line = Wrapping("aab")
    with running(line, Limits(2)) as server, server.connect() as first:
        assert begun.wait(60)
        with server.connect():
            until(lambda: server.listener.served == 2)
            assert server.ask() == b"hello\n"
        go_on.set()
        assert everything(first) == b""


def test_nobody_in_particular_is_not_served() -> None:
    line = Line("?a")
    with running(line, Limits(4)) as server:
        assert server.ask(b"") == b""
        assert server.ask() == b"hello\n"
    assert line.held == ["a"]


def test_a_bug_ends_one_connection(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    with running(line, Limits(1, 1, 600.0)) as server:
        assert server.ask(b"bug\n") == b""
        assert server.ask() == b"hello\n"
    assert "inner secret" in caplog.text


def test_without_threads_clients_are_sent_away(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(line, Limits(1)) as server:
        start = threading.Thread.start

        def none_left(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", none_left)
        assert server.ask(b"") == REFUSAL
        monkeypatch.setattr(threading.Thread, "start", start)
        assert server.listener.served == 0
        assert server.ask() == b"hello\n"


def test_without_descriptors_it_pauses_and_goes_on(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    """GIVEN that nothing can be accepted for a while THEN it does not spin, and serves again afterwards."""
    tries = 0

    class Exhausted(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            nonlocal tries
            tries += 1
            if tries <= 3:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    listening = Exhausted()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    with Listener("test-line", line, Limits(1)) as listener:
        listener.start(listening)
        began = time.monotonic()
        with socket.create_connection(listening.getsockname(), timeout=30) as client:
            client.sendall(b"hello\n")
            assert everything(client) == b"hello\n"
        assert time.monotonic() - began >= 3 * serving._PAUSE_SECONDS
    assert tries >= 4
    assert "Too many open files" in caplog.text


def test_close_ends_everything(line: Line) -> None:
    server = Server(line, Limits(1, 4, 600.0))
    with ExitStack() as stack:
        served, waits = (stack.enter_context(server.connect()) for _ in range(2))
        until(lambda: server.listener.served == 1 and server.listener.waiting == 1)
        server.listener.close()
        assert everything(served) == everything(waits) == b""
        until(lambda: threads() == [])
    with pytest.raises(ConnectionRefusedError):
        server.connect()
    server.listener.close()


def test_close_reaches_a_stream_that_is_just_being_made() -> None:
    """GIVEN a client whose stream replaces the connection while all is closed THEN it ends all the same."""
    begun, go_on = threading.Event(), threading.Event()

    class Wrapping(Line):
        def stream(self, connection: socket.socket) -> socket.socket:
            wrapped = socket.socket(fileno=connection.detach())
            begun.set()
            assert go_on.wait(60)
            return wrapped

    server = Server(Wrapping(), Limits(1))
    with server.connect() as client:
        assert begun.wait(60)
        closing = threading.Thread(target=server.listener.close)
        closing.start()
        until(server.listener._ends.is_set)
        until(lambda: "test-line" not in threads())
        go_on.set()
        assert everything(client) == b""
        closing.join()
    until(lambda: threads() == [])


def test_never_started(line: Line) -> None:
    Listener("test-line", line, Limits(1)).close()


def test_no_descriptors_are_left(line: Line) -> None:
    line.names = ["x"] * 1000

    def open_now() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = open_now()
    with running(line, Limits(2, 2, 0.05)) as server:
        with ExitStack() as stack:
            clients = [stack.enter_context(server.connect()) for _ in range(20)]
            clients[0].sendall(b"hello\n")
            until(lambda: line.refused >= 10)
        until(lambda: server.listener.served == 0)
        assert server.ask() == b"hello\n"
    until(lambda: threads() == [] and open_now() == before)
