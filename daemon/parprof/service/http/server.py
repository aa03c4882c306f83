"""Listens for HTTP, with TLS or without, and lets a `HttpConversation` answer."""

from __future__ import annotations

import socket
import ssl
from collections import Counter
from collections.abc import Collection, Hashable
from dataclasses import replace
from http import HTTPStatus

from parprof.errors import OutputError, UsageError
from parprof.resources import Closing
from parprof.service.http.address import Guard, check_exposure, parse_address, tls_context
from parprof.service.http.conversation import HttpConversation
from parprof.service.http.message import plain
from parprof.service.http.peers import Visitor, client_of
from parprof.service.http.site import Pages
from parprof.service.model import Service
from parprof.service.serving import ConnectionHandler, Limits, Listener, Seat
from parprof.service.subuids import user_of

LIMITS = Limits(served=64, waiting=64, wait_seconds=2.0)
MAX_OF_OTHERS = 48
"""What is left of `LIMITS` is for root."""
MAX_PER_CLIENT = 16
HANDSHAKE_SECONDS = 5.0


class HttpServer(Closing):
    """The HTTP side of the daemon, on threads of its own."""

    def __init__(
        self,
        service: Service,
        address: str,
        *,
        token: str = "",
        certificate: str = "",
        key: str = "",
        client_ca: str = "",
        functions_for_all: bool = False,
        metrics_for_all: bool = False,
    ) -> None:
        """Check the settings; `start` listens. ``address``: HOST:PORT; ``certificate``, ``key``: PEM files.

        ``client_ca``: PEM file; who shows a certificate that one in it has issued needs no token.
        ``functions_for_all``: metrics name functions whoever asks. ``metrics_for_all``: metrics need no token.

        Raises:
            UsageError: an address that is none; one that is open to others without token and TLS; bad files.
        """
        self._endpoint = parse_address(address)
        self._client_ca, self._metrics_for_all = client_ca, metrics_for_all
        self._has_tls = bool(certificate and key)
        self._check_exposure(token)
        self._files = (certificate, key, client_ca)
        self._guard = Guard(
            is_loopback=self._endpoint.is_loopback,
            token=token,
            has_client_ca=bool(client_ca),
            metrics_for_all=metrics_for_all,
        )
        self._handler = _Handler(
            HttpConversation(Pages(service, functions_for_all=functions_for_all), self._guard),
            tls_context(*self._files),
        )
        self._listener = Listener("parprofd-http", self._handler, LIMITS)
        self._bound: tuple[str, int] | None = None

    @property
    def address(self) -> str:
        """HOST:PORT that is listened on, with the real port once started."""
        host, port = self._bound or (self._endpoint.host, self._endpoint.port)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self) -> None:
        """Listen and serve.

        Raises:
            OutputError: the address is taken, not this machine's, or not allowed.
        """
        endpoint = self._endpoint
        listener = socket.socket(endpoint.family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((endpoint.host, endpoint.port))
            listener.listen(LIMITS.served + LIMITS.waiting)
        except OSError as error:
            listener.close()
            raise OutputError(
                f"cannot listen for HTTP on {self.address}: {error.strerror}; set another [http] listen"
            ) from error
        self._bound = listener.getsockname()[:2]
        self._listener.start(listener)

    def reload_certificate(self) -> None:
        """Read certificate, key and client CA again, for connections from now on.

        Raises:
            UsageError: a file is missing or wrong; the old ones stay in use.
        """
        self._handler.tls = tls_context(*self._files)

    def reload_token(self, token: str) -> None:
        """Ask for this token from now on, instead of the one before. One is needed where one was.

        Raises:
            UsageError: it is too weak; the old one stays in use.
        """
        self._check_exposure(token)
        if bool(token) != self._guard.has_token:
            raise UsageError("whether a token is needed is decided at a start: restart parprofd")
        self._guard.take_token(token)

    def _check_exposure(self, token: str) -> None:
        check_exposure(
            self._endpoint,
            token,
            self._has_tls,
            client_ca=self._client_ca,
            metrics_for_all=self._metrics_for_all,
        )

    def close(self) -> None:
        """Stop listening, break what is still open, and wait a little for the threads."""
        self._listener.close()


class _Handler(ConnectionHandler[Visitor]):
    """HTTP on one connection, and room for each client."""

    def __init__(self, conversation: HttpConversation, tls: ssl.SSLContext | None) -> None:
        self._conversation = conversation
        self.tls = tls

    def identify(self, connection: socket.socket) -> Visitor:
        """The address at the other end, and the user where that is this machine."""
        return client_of(connection)

    def has_room(self, who: Visitor, served: Collection[Visitor]) -> bool:
        """Root has room that nobody can take; others have some that no single one of them can."""
        if who.sees_all:
            return True
        others = Counter(self.party(other) for other in served if not other.sees_all)
        return others[self.party(who)] < MAX_PER_CLIENT and others.total() < MAX_OF_OTHERS

    def party(self, who: Visitor) -> Hashable:
        """A user is one client, in whatever namespace."""
        return who if who.uid is None else user_of(who.uid)

    def makes_room(self, who: Visitor) -> bool:
        """Root does not."""
        return not who.sees_all

    def refusal(self) -> bytes:
        """A 503. A client of TLS just sees the end."""
        self._conversation.requests.count("none", HTTPStatus.SERVICE_UNAVAILABLE)
        if self.tls is not None:
            return b""
        answer = plain(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections", ("Retry-After", "5"))
        return b"".join(answer.encode())

    def stream(self, connection: socket.socket) -> socket.socket:
        """TLS, where it is set."""
        if self.tls is None:
            return connection
        return self.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def hold(self, stream: socket.socket, who: Visitor, seat: Seat) -> None:
        """Shake hands, then requests and their answers."""
        if isinstance(stream, ssl.SSLSocket):
            stream.settimeout(HANDSHAKE_SECONDS)
            stream.do_handshake()
            # Only what was verified is told; one that is not has ended the handshake.
            who = replace(who, is_certified=bool(stream.getpeercert()))
        self._conversation.hold(stream, who, seat)
