"""One connection's request and response, with a client that need not be quick, or honest."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Iterable
from dataclasses import replace
from http import HTTPStatus

from parprof.service.http.address import Guard
from parprof.service.http.message import (
    HttpRequest,
    RequestError,
    Response,
    compressed,
    parse_head,
    plain,
    receive_head,
)
from parprof.service.http.peers import Visitor
from parprof.service.http.site import Pages
from parprof.service.serving import Seat

HEAD_SECONDS = 5.0
"""Time for a client to send its request."""

SEND_SECONDS = 20.0
"""Time for a client to take the answer."""

_log = logging.getLogger("parprof.http")
_CHUNK = 64 * 1024
_LINGER_SECONDS = 0.5


class HttpConversation:
    """Reads a request, asks guard and site, sends the response."""

    def __init__(self, site: Pages, guard: Guard) -> None:
        """For all connections; several threads may use it."""
        self._site = site
        self._guard = guard
        self.requests = site.requests

    def hold(self, stream: socket.socket, client: Visitor, seat: Seat) -> None:
        """One request of a client, one response."""
        request: HttpRequest | None = None
        try:
            head = receive_head(stream, time.monotonic() + HEAD_SECONDS)
            if not head:
                return
            seat.is_busy = True
            request = parse_head(head)
            response = self._answer(request, client)
        except RequestError as error:
            response = plain(error.status, str(error), *error.headers)
        except Exception:
            _log.exception("an HTTP request failed")
            response = plain(HTTPStatus.INTERNAL_SERVER_ERROR, "this failed; the daemon's log says why")
        self.requests.count(request.path if request else "none", response.status)
        _send(stream, response.encode(with_body=request is None or request.method != "HEAD"))
        _finish(stream)

    def _answer(self, request: HttpRequest, client: Visitor) -> Response:
        if self._guard.refuses_host(request.headers.get("host")):
            raise RequestError(
                HTTPStatus.MISDIRECTED_REQUEST, "ask for localhost or 127.0.0.1; other host names are refused"
            )
        guard = self._guard
        allowed = client.is_certified or not guard.refuses_token(request.headers.get("authorization"))
        is_open = request.path in Pages.OPEN_TO_ALL or (
            guard.metrics_for_all and request.path == Pages.METRICS
        )
        if not allowed and not is_open:
            raise RequestError(
                HTTPStatus.UNAUTHORIZED,
                "send the token of the configuration: Authorization: Bearer TOKEN",
                ("WWW-Authenticate", 'Basic realm="parprofd: the token is the password", charset="UTF-8"'),
            )
        if allowed and guard.wants_proof:
            client = replace(client, uid=0)
        elif not allowed:
            client = replace(client, uid=None)
        response = self._site.answer(request, client, in_full=allowed)
        return compressed(response, request.headers.get("accept-encoding", ""))


def _send(stream: socket.socket, parts: Iterable[bytes]) -> None:
    """Send all of them within `SEND_SECONDS`."""
    until_s = time.monotonic() + SEND_SECONDS
    for part in parts:
        view = memoryview(part)
        while view:
            remaining_s = until_s - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError("the client reads too slowly")
            stream.settimeout(remaining_s)
            view = view[stream.send(view[:_CHUNK]) :]


def _finish(stream: socket.socket) -> None:
    """End our side and let the client end its own, as closing with unread bytes would reset the connection."""
    if isinstance(stream, ssl.SSLSocket):
        stream.settimeout(_LINGER_SECONDS)
        stream.unwrap()
        return
    stream.shutdown(socket.SHUT_WR)
    until_s = time.monotonic() + _LINGER_SECONDS
    budget = 16 * _CHUNK
    while budget > 0 and (remaining_s := until_s - time.monotonic()) > 0:
        stream.settimeout(remaining_s)
        part = stream.recv(_CHUNK)
        if not part:
            return
        budget -= len(part)
