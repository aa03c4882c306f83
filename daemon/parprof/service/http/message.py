"""HTTP/1 messages: a request's head, read within bounds, and a response. Every connection carries one."""

from __future__ import annotations

import gzip
import math
import socket
import time
from collections.abc import Mapping
from dataclasses import field, replace
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

from parprof.patterns import regex
from parprof.values import dataclass

MAX_HEAD = 16 * 1024
"""Bytes of a request line and its headers."""

MAX_HEADERS = 64
MAX_TARGET = 2048

MIN_COMPRESSED = 1024
"""Bytes of an answer that is worth it."""

SAFETY_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
NO_CONTENT_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

_TEXTS = ("text/", "application/json", "application/openmetrics-text")
_REQUEST_LINE = regex(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.([01])")
_HEADER = regex(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([ -~\t\x80-\xff]*?)[ \t]*")


class RequestError(Exception):
    """A request that gets an error for an answer."""

    def __init__(self, status: HTTPStatus, text: str, *headers: tuple[str, str]) -> None:
        """``text``: one line for the one who asks."""
        super().__init__(text)
        self.status = status
        self.headers = headers


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What is asked. Header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    is_old: bool = False
    """Whether it is one of HTTP/1.0."""

    @property
    def may_go_on(self) -> bool:
        """Whether the client may send another request on this connection: if it wants to, and this one ends here.

        A body is never read, so what has one is the last.
        """
        options = {one.strip().lower() for one in self.headers.get("connection", "").split(",")}
        has_body = "transfer-encoding" in self.headers or self.headers.get("content-length", "0") != "0"
        return not has_body and "close" not in options and ("keep-alive" in options or not self.is_old)


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered."""

    status: HTTPStatus
    content_type: str
    body: tuple[bytes, ...]
    """In parts, as large ones may be shared by many responses."""
    headers: tuple[tuple[str, str], ...] = ()
    policy: str = NO_CONTENT_POLICY
    """Content-Security-Policy."""

    def encode(self, with_body: bool = True, keep_seconds: int = 0) -> tuple[bytes, ...]:
        """The bytes to send, in parts. ``keep_seconds``: how long the connection stays afterwards; 0: it does not."""
        kept = f"Connection: keep-alive\r\nKeep-Alive: timeout={keep_seconds}"
        lines = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Date: {formatdate(usegmt=True)}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {sum(map(len, self.body))}",
            kept if keep_seconds else "Connection: close",
            f"Content-Security-Policy: {self.policy}",
            *(f"{name}: {value}" for name, value in (*SAFETY_HEADERS, *self.headers)),
        ]
        head = "\r\n".join(lines).encode("ascii", "replace") + b"\r\n\r\n"
        return (head, *self.body) if with_body else (head,)


def compressed(response: Response, accept_encoding: str) -> Response:
    """The same for a client that takes gzip, where that saves something: metrics shrink to a sixth."""
    size = sum(map(len, response.body))
    if (
        size < MIN_COMPRESSED
        or not response.content_type.startswith(_TEXTS)
        or not _takes_gzip(accept_encoding)
    ):
        return response
    body = gzip.compress(b"".join(response.body), compresslevel=1, mtime=0)
    headers = (*response.headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))
    return replace(response, body=(body,), headers=headers)


def _takes_gzip(accept_encoding: str) -> bool:
    """By an Accept-Encoding header (RFC 9110, 12.5.3).

    >>> [_takes_gzip(header) for header in ("deflate, gzip;q=0.5", "gzip; q=0.0", "identity", "*", "gzip;q=x")]
    [True, False, False, True, False]
    """
    for item in accept_encoding.split(","):
        name, _, parameter = item.partition(";")
        if name.strip().lower() in ("gzip", "*"):
            try:
                return float(parameter.strip().lower().removeprefix("q=") or 1) > 0
            except ValueError:
                return False
    return False


def plain(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> Response:
    """A line of text."""
    return Response(status, "text/plain; charset=utf-8", (f"{text}\n".encode("utf-8", "replace"),), headers)


def receive_head(connection: socket.socket, deadline_s: float, head: bytes = b"") -> tuple[bytes, bytes]:
    """The bytes up to the empty line that ends the headers, and those that came after it.

    Both are empty when the client left without asking. ``deadline_s``: CLOCK_MONOTONIC; ``head``: what has come
    already.

    Raises:
        RequestError: the head is too long, or late, or ends early.
        OSError: the connection broke.
    """
    while b"\r\n\r\n" not in head:
        if len(head) > MAX_HEAD:
            raise RequestError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"send at most {MAX_HEAD} bytes of headers"
            )
        remaining_s = deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise RequestError(HTTPStatus.REQUEST_TIMEOUT, "the request came too slowly")
        connection.settimeout(remaining_s)
        try:
            part = connection.recv(4096)
        except TimeoutError:
            continue
        if not part:
            if head:
                raise RequestError(HTTPStatus.BAD_REQUEST, "the request ended within its headers")
            return b"", b""
        head += part
    head, _, rest = head.partition(b"\r\n\r\n")
    return head, rest


def parse_head(head: bytes) -> HttpRequest:
    """The request that these bytes are.

    Raises:
        RequestError: they are none.
    """
    first, *rest = head.split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise RequestError(HTTPStatus.BAD_REQUEST, "that is no HTTP/1 request for a path")
    if len(match[2]) > MAX_TARGET:
        raise RequestError(
            HTTPStatus.REQUEST_URI_TOO_LONG, f"send at most {MAX_TARGET} bytes of path and query"
        )
    if len(rest) > MAX_HEADERS:
        raise RequestError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"send at most {MAX_HEADERS} header lines"
        )
    headers: dict[str, str] = {}
    for line in rest:
        field_match = _HEADER.fullmatch(line)
        if field_match is None:
            raise RequestError(HTTPStatus.BAD_REQUEST, "a header line is malformed")
        name = field_match[1].decode("ascii").lower()
        if name in headers and name in ("host", "authorization", "content-length"):
            raise RequestError(HTTPStatus.BAD_REQUEST, f"send one {name} header only")
        headers[name] = field_match[2].decode("latin-1")
    if match[3] == b"1" and "host" not in headers:
        raise RequestError(HTTPStatus.BAD_REQUEST, "send a Host header")
    try:
        target = urlsplit("http://host" + match[2].decode("ascii"))
        pairs = parse_qsl(target.query, keep_blank_values=True, max_num_fields=16)
    except ValueError as error:
        raise RequestError(HTTPStatus.BAD_REQUEST, "the query is malformed") from error
    return HttpRequest(match[1].decode("ascii"), target.path, dict(pairs), headers, match[3] == b"0")


def number(request: HttpRequest, name: str, default: float, low: float, high: float) -> float:
    """A number of the query.

    Raises:
        RequestError: it is none, or outside of ``low`` to ``high``.
    """
    text = request.query.get(name)
    if text is None:
        return default
    try:
        value = float(text) if len(text) <= 20 else math.nan
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"{name} must be a number from {low:g} to {high:g}")
    return value
