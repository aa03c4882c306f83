"""One connection's requests and responses, with a client that need not be quick, or honest."""

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

KEEP_SECONDS = 75
"""Time until the next one begins: more than there is between two scrapes."""

STAY_SECONDS = 600.0
"""Time for a whole connection: beyond that it is made anew, with the certificates that are valid then."""

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
        """Requests of a client, and a response to each, until either side has enough."""
        until_s = time.monotonic() + STAY_SECONDS
        begun = b""
        while self._exchange(stream, client, seat, until_s, begun):
            seat.is_busy, seat.is_kept = False, True
            stream.settimeout(KEEP_SECONDS)
            try:
                begun = stream.recv(4096)
            except TimeoutError:
                break
            seat.is_kept = False
            if not begun:
                return
        _finish(stream)

    def _exchange(
        self, stream: socket.socket, client: Visitor, seat: Seat, until_s: float, begun: bytes
    ) -> bool:
        """One request, of which the beginning may have come, and its response; whether there may be another one.

        After an error there is none: what such a client sends next need not be what it seems.
        """
        request: HttpRequest | None = None
        stays = False
        try:
            head, more = receive_head(stream, time.monotonic() + HEAD_SECONDS, begun)
            if not head and not more:
                return False
            seat.is_busy = True
            request = parse_head(head)
            response = self._answer(request, client)
            # Whoever sends the next one before it has this answer is told by "close" to send it again elsewhere.
            stays = request.may_go_on and not more and time.monotonic() < until_s
        except RequestError as error:
            response = plain(error.status, str(error), *error.headers)
        except Exception:
            _log.exception("an HTTP request failed")
            response = plain(HTTPStatus.INTERNAL_SERVER_ERROR, "this failed; the daemon's log says why")
        self.requests.count(request.path if request else "none", response.status)
        with_body = request is None or request.method != "HEAD"
        _send(stream, response.encode(with_body, KEEP_SECONDS if stays else 0))
        return stays

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
