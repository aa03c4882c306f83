# SPDX-License-Identifier: Apache-2.0
"""An HTTP server that stores profiles, and misbehaves when told to. A stand-in for the real stores."""

from __future__ import annotations

import gzip
import socket
import ssl
import struct
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from parprof.service.config.load import load
from parprof.service.config.push import push_config
from parprof.service.config.text import toml_value
from parprof.service.push import parca_pb2, pyroscope_pb2
from parprof.service.push.config import PushConfig


def push_config_of(table: dict[str, object]) -> PushConfig:
    """What the pusher is told where a file has this [push] table.

    Raises:
        ConfigError: that is no such table.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(f"push = {toml_value(table)}\n")
        file.flush()
        return push_config(load(file.name, environment={}).config.push)


@dataclass(frozen=True)
class Received:
    """A request that came whole."""

    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes
    time_s: float = 0.0


Behaviour = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        store = self.server
        behaviour = store.take()
        if behaviour is not None and getattr(behaviour, "before_body", False):
            behaviour(self)
            return
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:  # whoever sent it is gone
            self.close_connection = True
            return
        split = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        received = Received(split.path, parse_qs(split.query), headers, body)
        if behaviour is not None:
            store.refused.append(received)
            behaviour(self)
            return
        store.accept(received)
        self.answer()

    def answer(self, status: int = 200, body: bytes | None = None, **headers: str) -> None:
        """Answer as a real store would, unless told otherwise."""
        kind, default = self.server.kind_of_answer(self.path)
        body = default if body is None else body
        self.send_response(status)
        for name, value in (
            {"Content-Type": kind} | {k.replace("_", "-"): v for k, v in headers.items()}
        ).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Does what `plan` says for as many requests as there are behaviours in it, then what it should."""

    daemon_threads = True

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.secure = context is not None
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.plan: deque[Behaviour] = deque()
        self.always: Behaviour | None = None
        self.accepted: list[Received] = []
        self.refused: list[Received] = []
        self.news = threading.Condition()
        self.end = threading.Event()

    @property
    def url(self) -> str:
        return f"http{'s' if self.secure else ''}://127.0.0.1:{self.server_address[1]}"

    def take(self) -> Behaviour | None:
        with self.news:
            return self.plan.popleft() if self.plan else self.always

    def accept(self, received: Received) -> None:
        with self.news:
            self.accepted.append(received)
            self.news.notify_all()

    def wait_for(self, count: int) -> list[Received]:
        """Wait until so many requests were accepted."""
        with self.news:
            assert self.news.wait_for(lambda: len(self.accepted) >= count, 60), "the server waits in vain"
            return list(self.accepted)

    def kind_of_answer(self, path: str) -> tuple[str, bytes]:
        if path.startswith("/push.v1"):
            return "application/proto", pyroscope_pb2.PushResponse().SerializeToString()
        if path.startswith("/parca"):
            message = parca_pb2.WriteRawResponse().SerializeToString()
            trailer = b"grpc-status: 0\r\ngrpc-message: \r\n"
            frames = (
                struct.pack(">BI", 0, len(message))
                + message
                + struct.pack(">BI", 0x80, len(trailer))
                + trailer
            )
            return "application/grpc-web+proto", frames
        if path.startswith("/v1development"):
            return "application/x-protobuf", b""
        return "text/plain", b""

    def handle_error(self, *_: object) -> None:
        pass  # clients that go away are what the tests are about


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(context)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.end.set()
        server.shutdown()
        thread.join()
        server.server_close()


def status(code: int, **headers: str) -> Behaviour:
    return lambda handler: handler.answer(code, b"not now\n\x1b[31m", **headers)


def hang(handler: Handler) -> None:
    """Take the request and say nothing until the test ends."""
    handler.server.end.wait()


def drip(handler: Handler) -> None:
    """Send a header byte by byte, for ever: every single wait of the client is short."""
    for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_000:
        handler.wfile.write(bytes([byte]))
        if handler.server.end.wait(0.05):
            return


def reset(handler: Handler) -> None:
    """Read a part of the body, then reset the connection."""
    handler.rfile.read(10)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.close_connection = True


reset.before_body = True  # type: ignore[attr-defined]


def read_slowly(handler: Handler) -> None:
    """Take the body in small pieces, then do as usual."""
    left = int(handler.headers["Content-Length"])
    parts = []
    while left:
        part = handler.rfile.read(min(left, 512))
        left -= len(part)
        parts.append(part)
        if handler.server.end.wait(0.002):
            return
    split = urlsplit(handler.path)
    headers = {name.lower(): value for name, value in handler.headers.items()}
    handler.server.accept(Received(split.path, parse_qs(split.query), headers, b"".join(parts)))
    handler.answer()


read_slowly.before_body = True  # type: ignore[attr-defined]


def refuse_early(handler: Handler) -> None:
    """Answer without reading, and close."""
    handler.answer(413, b"too large")
    handler.close_connection = True


refuse_early.before_body = True  # type: ignore[attr-defined]


def garbage(handler: Handler) -> None:
    handler.wfile.write(bytes(range(256)) * 4)
    handler.close_connection = True


def close_silently(handler: Handler) -> None:
    handler.close_connection = True


def cut_answer(handler: Handler) -> None:
    """Promise more of an answer than there comes."""
    handler.wfile.write(b"HTTP/1.1 500 No\r\nContent-Length: 1000\r\n\r\nhalf")
    handler.close_connection = True


def endless_answer(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 500 No\r\nContent-Length: 1000000000\r\n\r\n")
    while not handler.server.end.is_set():
        handler.wfile.write(b"x" * 65536)


def endless_headers(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(100_000):
        handler.wfile.write(b"X-%d: y\r\n" % number)
    handler.close_connection = True


def web_page(handler: Handler) -> None:
    """What a proxy says that wants a login."""
    handler.answer(200, b"<html>please log in</html>", Content_Type="text/html")


def form_of(received: Received) -> dict[str, bytes]:
    """The parts of a multipart form, as the email parser of the standard library takes them apart."""
    from email.parser import BytesParser
    from email.policy import HTTP

    head = f"Content-Type: {received.headers['content-type']}\r\n\r\n".encode()
    message = BytesParser(policy=HTTP).parsebytes(head + received.body)
    out = {}
    for part in message.iter_parts():
        data = part.get_payload(decode=True)
        assert isinstance(data, bytes)
        out[str(part.get_param("name", header="content-disposition"))] = data
    return out


def grpc_message(body: bytes) -> bytes:
    """The message in the one frame of a gRPC-Web request."""
    flags, length = struct.unpack_from(">BI", body)
    assert (flags, length) == (0, len(body) - 5)
    return body[5:]


def unzipped(data: bytes) -> bytes:
    return gzip.decompress(data)
