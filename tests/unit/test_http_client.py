# SPDX-License-Identifier: Apache-2.0
"""GETs with redirections, proxies and limits, from servers that misbehave. POSTs are in test_push_transport."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from parprof.http_client import (
    Answer,
    HttpClient,
    NoAnswer,
    NotTrusted,
    Proxy,
    Question,
    ServerOrigin,
    TooLarge,
    Unreachable,
    get,
)
from stopwatch import Stopwatch

Say = Callable[[socket.socket, str], None]
"""What a server does once it has read a request, whose first line and headers it is given."""


class Server:
    """Takes connections, one request each."""

    def __init__(self, say: Say, context: ssl.SSLContext | None = None) -> None:
        self.say = say
        self.context = context
        self.asked: list[str] = []
        self.closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=32)
        self.port = self._listener.getsockname()[1]
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), ExitStack() as stack:
            stack.callback(connection.close)
            if self.context:
                connection = self.context.wrap_socket(connection, server_side=True)
                stack.callback(connection.close)
            head = read_head(connection)
            if head:
                self.asked.append(head)
                self.say(connection, head)


def read_head(connection: socket.socket) -> str:
    head = b""
    while b"\r\n\r\n" not in head:
        part = connection.recv(4096)
        if not part:
            return ""
        head += part
    return head.decode("latin-1")


def saying(answer: bytes) -> Say:
    return lambda connection, head: connection.sendall(answer)


def full(body: bytes = b"hello", status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def moved(location: str, status: str = "302 Found") -> bytes:
    return full(b"", status, f"Location: {location}")


def whole(answer: Answer) -> tuple[int, bytes]:
    return answer.status, b"".join(answer.chunks(1 << 20))


def fetch(url: str, seconds: float = 60.0, redirections: int = 2, **more: object) -> tuple[int, bytes]:
    return get(url, {"User-Agent": "test"}, whole, seconds=seconds, redirections=redirections, **more)  # type: ignore[arg-type]


def test_get() -> None:
    with Server(saying(full())) as server:
        assert fetch(f"{server.url}/a/b?c=d#e") == (200, b"hello")
    first, *headers = server.asked[0].split("\r\n")
    assert first == "GET /a/b?c=d HTTP/1.1"
    assert {f"Host: 127.0.0.1:{server.port}", "User-Agent: test", "Connection: close"} <= set(headers)
    assert "Accept-Encoding: identity" in headers  # what is compressed could grow without bound


def test_every_status_is_an_answer() -> None:
    with Server(saying(full(b"no", "404 Not Found"))) as server:
        assert fetch(server.url) == (404, b"no")


@pytest.mark.parametrize("status", ["301 M", "302 F", "303 S", "307 T", "308 P"])
def test_redirections(status: str) -> None:
    with Server(saying(full(b"there"))) as there:
        with Server(saying(moved(f"{there.url}/x?y", status))) as here:
            assert fetch(here.url) == (200, b"there")
    assert there.asked[0].startswith("GET /x?y ")


def test_a_relative_redirection() -> None:
    def say(connection: socket.socket, head: str) -> None:
        connection.sendall(full(b"there") if head.startswith("GET /a/there ") else moved("there"))

    with Server(say) as server:
        assert fetch(f"{server.url}/a/here") == (200, b"there")


def test_redirections_without_end() -> None:
    with Server(saying(moved("/again"))) as server:
        with pytest.raises(NoAnswer, match="too many redirections"):
            fetch(server.url, redirections=3)
        assert len(server.asked) == 4


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "ftp://x/", "data:,x", "http://[::", "http://:80/", "http://a b/", ""]
)
def test_redirections_elsewhere(location: str) -> None:
    with Server(saying(moved(location))) as server:
        with pytest.raises(NoAnswer) as caught:
            fetch(server.url)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("url", ["ftp://x/", "http://", "http://x:0/", "http://x:99999/", "nonsense", ""])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(NoAnswer):
        fetch(url)
    with pytest.raises(ValueError):
        ServerOrigin.of(url)


def dripping(answer: bytes, at_once: bytes = b"") -> Say:
    def say(connection: socket.socket, head: str) -> None:
        connection.sendall(at_once)
        for byte in answer:
            connection.sendall(bytes([byte]))
            time.sleep(0.05)

    return say


@pytest.mark.parametrize(
    "say",
    [
        dripping(full(bytes(500))),
        dripping(bytes(500), b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"),
        dripping(bytes(500), b"HTTP/1.1 200 OK\r\n\r\n"),  # http.client lets go of this connection early
        saying(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"),
        lambda connection, head: time.sleep(30),
    ],
)
def test_the_time_is_for_all_of_it(say: Say) -> None:
    """GIVEN that no single wait is long THEN it ends all the same, and a part is not taken for the whole."""

    def hold_on(connection: socket.socket, head: str) -> None:
        say(connection, head)
        server.closing.wait(60)

    with Server(hold_on) as server:
        watch, began = Stopwatch(), time.monotonic()
        with pytest.raises(Unreachable, match=r"no answer (within 0\.5 s|in time)"):
            fetch(server.url, seconds=0.5)
        assert 0.4 < time.monotonic() - began and watch.seconds < 20


def test_the_end_of_time_looks_like_no_end() -> None:
    """GIVEN an answer without a length WHEN the time is up THEN what came so far is not the answer."""

    def say(connection: socket.socket, head: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        server.closing.wait(60)

    with Server(say) as server:
        with pytest.raises(Unreachable):
            fetch(server.url, seconds=0.5)


def test_the_time_is_for_all_redirections() -> None:
    def say(connection: socket.socket, head: str) -> None:
        time.sleep(0.2)
        connection.sendall(moved("/again"))

    with Server(say) as server:
        with pytest.raises(Unreachable):
            fetch(server.url, seconds=0.5, redirections=1000)
        assert len(server.asked) <= 3


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (full(bytes(101)), "101 bytes are more than 100"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(101), "more than 100 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n" + bytes(101), "more than 100 bytes"),
    ],
)
def test_too_large(answer: bytes, said: str) -> None:
    taken: list[bytes] = []

    def take(answer: Answer) -> None:
        taken.extend(answer.chunks(100))

    with Server(saying(answer)) as server:
        with pytest.raises(TooLarge, match=said):
            get(server.url, {}, take, seconds=60, redirections=0)
    assert sum(map(len, taken)) <= 100


def test_just_not_too_large() -> None:
    with Server(saying(full(bytes(100)))) as server:
        assert get(server.url, {}, lambda a: len(b"".join(a.chunks(100))), seconds=60, redirections=0) == 100


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nContent-Length: -9\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nmany\r\nhalf",
        b"SSH-2.0-OpenSSH_9.2p1\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * 100_000,
        b"",
    ],
)
def test_what_is_no_answer(answer: bytes) -> None:
    with Server(saying(answer)) as server:
        with pytest.raises(NoAnswer) as caught:
            fetch(server.url)
        assert not isinstance(caught.value, Unreachable)
        assert str(caught.value).isprintable()


def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable, match="refused"):
            fetch(f"http://127.0.0.1:{taken.getsockname()[1]}")
    with pytest.raises(Unreachable):
        fetch("http://no-such-host.invalid")


def test_what_take_raises_comes_out() -> None:
    def take(answer: Answer) -> None:
        raise KeyError("mine")

    with Server(saying(full())) as server:
        with pytest.raises(KeyError, match="mine"):
            get(server.url, {}, take, seconds=60, redirections=0)


def test_close_ends_an_answer_without_end() -> None:
    begun = threading.Event()

    def say(connection: socket.socket, head: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nx")
        begun.set()
        server.closing.wait(60)

    said: list[str] = []
    with Server(say) as server:
        client = HttpClient(ServerOrigin.of(server.url), 300.0)

        def run() -> None:
            with pytest.raises(NoAnswer) as caught:
                client.exchange(Question("/", {}), whole)
            said.append(str(caught.value))

        thread = threading.Thread(target=run)
        thread.start()
        assert begun.wait(60)
        client.close()
        thread.join(60)
        assert said == ["this process ends"]


# Proxies


def test_a_proxy_is_asked_for_the_whole_address() -> None:
    with Server(saying(full(b"by proxy"))) as proxy:
        by = Proxy("127.0.0.1", proxy.port, "Basic abc")
        assert fetch("http://far.example:81/x?y", proxy_of=lambda origin: by) == (200, b"by proxy")
    first, *headers = proxy.asked[0].split("\r\n")
    assert first == "GET http://far.example:81/x?y HTTP/1.1"
    assert {"Host: far.example:81", "Proxy-Authorization: Basic abc"} <= set(headers)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for far.example that signs itself, with its key."""
    place = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", place / "key.pem", "-out", place / "cert.pem", "-days", "2", "-subj", "/CN=t",
         "-addext", "subjectAltName=DNS:far.example"],
        check=True, capture_output=True,
    )  # fmt: skip
    return place


def connecting(to: int) -> Say:
    """A proxy that connects everybody to one port here."""

    def say(connection: socket.socket, head: str) -> None:
        with socket.create_connection(("127.0.0.1", to)) as other:
            connection.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")

            def pump(source: socket.socket, sink: socket.socket) -> None:
                with suppress(OSError):
                    while part := source.recv(65536):
                        sink.sendall(part)
                    sink.shutdown(socket.SHUT_WR)

            back = threading.Thread(target=pump, args=(other, connection), daemon=True)
            back.start()
            pump(connection, other)
            back.join(60)

    return say


def test_tls_through_a_proxy(certificate: Path) -> None:
    """The proxy sees the name of the server and its own password; the server is who it should be."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    trusting = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    with Server(saying(full(b"secret")), serving) as server, Server(connecting(server.port)) as proxy:
        by = Proxy("127.0.0.1", proxy.port, "Basic abc")
        url = "https://far.example/x"
        assert fetch(url, proxy_of=lambda origin: by, context=trusting) == (200, b"secret")
        with pytest.raises(NotTrusted, match="not trusted"):
            fetch(url, proxy_of=lambda origin: by)
        with pytest.raises(NotTrusted, match="not trusted"):
            fetch("https://other.example/x", proxy_of=lambda origin: by, context=trusting)
    assert proxy.asked[0].startswith("CONNECT far.example:443 HTTP/1.")
    assert "Proxy-Authorization: Basic abc\r\n" in proxy.asked[0]
    assert len(server.asked) == 1
    assert "Proxy-Authorization" not in server.asked[0]
    assert "Host: far.example\r\n" in server.asked[0]


def test_a_proxy_that_refuses() -> None:
    with Server(saying(full(b"", "407 Proxy Authentication Required"))) as proxy:
        with pytest.raises(NoAnswer, match="407"):
            fetch("https://far.example/", proxy_of=lambda origin: Proxy("127.0.0.1", proxy.port))


def test_a_proxy_that_refuses_is_left() -> None:
    """The connection is closed at once, not when nobody holds the exception any more, which Python 3.11.2 waits for."""
    left = threading.Event()

    def refuse(connection: socket.socket, head: str) -> None:
        connection.sendall(full(b"", "407 Proxy Authentication Required"))
        if not connection.recv(1):
            left.set()

    with Server(refuse) as proxy, pytest.raises(NoAnswer, match="407") as caught:
        fetch("https://far.example/", proxy_of=lambda origin: Proxy("127.0.0.1", proxy.port))
    assert left.wait(60), f"not while somebody holds {caught.value!r}"


def test_no_way_back_from_tls(certificate: Path) -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    trusting = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    with (
        Server(saying(full())) as there,
        Server(saying(moved(f"{there.url}/there")), serving) as server,
        Server(connecting(server.port)) as proxy,
    ):
        by = Proxy("127.0.0.1", proxy.port)
        with pytest.raises(NoAnswer, match="a redirection to http: not followed"):
            fetch("https://far.example/", proxy_of=lambda origin: by, context=trusting)
    assert not [head for head in there.asked if "/there" in head], (
        "others may still ask for who had that port"
    )
