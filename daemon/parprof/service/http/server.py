"""Listens, keeps connections few and short, and answers each on its own thread.

`MAX_CONNECTIONS` are served at a time, as many wait for up to `WAIT_SECONDS`, all others are sent away.
"""

from __future__ import annotations

import logging
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from contextlib import suppress
from http import HTTPStatus

from parprof.errors import OutputError
from parprof.service.http.address import Guard, check_exposure, parse_address, tls_context
from parprof.service.http.conversation import Conversation
from parprof.service.http.message import plain
from parprof.service.http.site import Site
from parprof.service.model import Service

MAX_CONNECTIONS = 64
MAX_WAITING = 64
WAIT_SECONDS = 2.0
HANDSHAKE_SECONDS = 5.0
CLOSE_SECONDS = 2.0
LINGER_SECONDS = 0.5

_log = logging.getLogger("parprof.http")
_CHUNK = 64 * 1024
_TICK_SECONDS = 0.1


class HttpServer:
    """The HTTP side of the daemon, on threads of its own."""

    def __init__(
        self, service: Service, address: str, *, token: str = "", certificate: str = "", key: str = ""
    ) -> None:
        """Check the settings; `start` listens. ``address``: HOST:PORT; ``certificate``, ``key``: PEM files.

        Raises:
            UsageError: an address that is none; one that is open to others without token and TLS; bad files.
        """
        self._endpoint = parse_address(address)
        check_exposure(self._endpoint, token, has_tls=bool(certificate and key))
        self._files = (certificate, key)
        self._tls = tls_context(certificate, key)
        guard = Guard(is_loopback=self._endpoint.is_loopback, token=token)
        self._conversation = Conversation(Site(service), guard)
        self._listener: socket.socket | None = None
        self._bound: tuple[str, int] | None = None
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._waiting: deque[tuple[float, socket.socket]] = deque()
        self._leaving: deque[tuple[float, socket.socket]] = deque()
        self._threads: set[threading.Thread] = set()
        self._closing = False
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._acceptor = threading.Thread(target=self._accept, name="parprofd-http", daemon=True)

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
            listener.listen(MAX_CONNECTIONS + MAX_WAITING)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            raise OutputError(
                f"cannot listen for HTTP on {self.address}: {error.strerror}; set another [http] listen"
            ) from error
        self._listener, self._bound = listener, listener.getsockname()[:2]
        self._acceptor.start()

    def reload_certificate(self) -> None:
        """Read certificate and key again, for connections from now on.

        Raises:
            UsageError: a file is missing or wrong; the old ones stay in use.
        """
        self._tls = tls_context(*self._files)

    def close(self) -> None:
        """Stop listening, break what is still open, and wait a little for the threads."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._wake()
        if self._acceptor.ident is not None:
            self._acceptor.join(CLOSE_SECONDS)
        with self._lock:
            open_now, threads = list(self._open), list(self._threads)
        for connection in open_now:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        until_s = time.monotonic() + CLOSE_SECONDS
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        self._wake_reader.close()
        self._wake_writer.close()

    def _accept(self) -> None:
        """The thread that accepts, and hands connections to threads."""
        listener = self._listener
        assert listener is not None
        with listener, selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(self._wake_reader, selectors.EVENT_READ)
            while not self._closing:
                for ready, _ in selector.select(
                    timeout=_TICK_SECONDS if self._waiting or self._leaving else None
                ):
                    if ready.fileobj is listener:
                        self._accept_one(listener)
                    else:
                        self._wake_reader.recv(4096)
                self._admit()
                self._let_go()
            for _, connection in (*self._waiting, *self._leaving):
                connection.close()

    def _accept_one(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            # No descriptor or memory is left: the daemon's other parts need the pause more than we do.
            _log.warning("cannot accept an HTTP connection: %s", error.strerror)
            time.sleep(0.1)
            return
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append((time.monotonic(), connection))
        else:
            self._send_away(connection)

    def _admit(self) -> None:
        """Serve those who wait as far as there is room; send away those who waited too long."""
        while self._waiting:
            since_s, connection = self._waiting[0]
            with self._lock:
                room = len(self._open) < MAX_CONNECTIONS
                if room:
                    self._open.add(connection)
            if room:
                self._waiting.popleft()
                self._serve_on_thread(connection)
            elif time.monotonic() - since_s > WAIT_SECONDS:
                self._waiting.popleft()
                self._send_away(connection)
            else:
                break

    def _serve_on_thread(self, connection: socket.socket) -> None:
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="parprofd-http-one", daemon=True
        )
        with self._lock:
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                self._threads.discard(thread)
                self._open.discard(connection)
            self._send_away(connection)

    def _send_away(self, connection: socket.socket) -> None:
        """Say 503 without waiting for anything. A client of TLS just sees the end."""
        self._conversation.requests.count("none", HTTPStatus.SERVICE_UNAVAILABLE)
        try:
            connection.setblocking(False)
            if self._tls is None:
                answer = plain(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections", ("Retry-After", "5"))
                connection.send(b"".join(answer.encode()))
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            connection.close()
        else:
            self._leaving.append((time.monotonic(), connection))

    def _let_go(self) -> None:
        """Close those that were sent away and have left, or take long, or are too many.

        A socket that is closed before all has been read is reset, which may take the answer along.
        """
        for _ in range(len(self._leaving)):
            since_s, connection = self._leaving.popleft()
            try:
                left = not connection.recv(_CHUNK)
            except BlockingIOError:
                left = False
            except OSError:
                left = True
            if left or len(self._leaving) >= MAX_WAITING or time.monotonic() - since_s > LINGER_SECONDS:
                connection.close()
            else:
                self._leaving.append((since_s, connection))

    def _serve(self, connection: socket.socket) -> None:
        """The thread of one connection."""
        stream: socket.socket = connection
        try:
            if self._tls is not None:
                stream = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
                with self._lock:
                    self._open.discard(connection)
                    self._open.add(stream)
                stream.settimeout(HANDSHAKE_SECONDS)
                stream.do_handshake()
            self._conversation.hold(stream)
        except (OSError, ssl.SSLError):
            pass
        except Exception:
            _log.exception("an HTTP connection failed")
        finally:
            with self._lock:
                self._open.difference_update((connection, stream))
                self._threads.discard(threading.current_thread())
            stream.close()
            self._wake()

    def _wake(self) -> None:
        with suppress(OSError):
            self._wake_writer.send(b"\0")
