"""Accepts clients on the control socket, few at a time, and gives each a thread."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from collections import Counter
from contextlib import suppress

from parprof.service.control import DEFAULT_SOCKET
from parprof.service.control import control_pb2 as pb
from parprof.service.control.access import Peer, peer_of
from parprof.service.control.conversation import Conversation
from parprof.service.control.frames import FrameError, send
from parprof.service.control.leases import Leases
from parprof.service.control.listening import inherited, listen, stop_listening
from parprof.service.model import Service

MAX_CONNECTIONS = 32
MAX_OF_USERS = 24
"""What is left of `MAX_CONNECTIONS` is for root."""
MAX_PER_USER = 8
STOP_SECONDS = 2.0
_PAUSE_SECONDS = 0.2
_BUSY = "too many clients are connected to parprofd; try again"

_log = logging.getLogger("parprof.control")


class ControlServer:
    """The control socket of a daemon, on threads of its own."""

    def __init__(self, service: Service, path: str = DEFAULT_SOCKET) -> None:
        """`start` listens on ``path``, or on what systemd handed over."""
        self._service = service
        self._path = path
        self._leases = Leases(service)
        self._listener: socket.socket | None = None
        self._inode = 0
        self._lock = threading.Lock()
        self._open: dict[socket.socket, Peer] = {}
        self._threads: set[threading.Thread] = set()
        self._acceptor: threading.Thread | None = None
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._stopping = False

    def start(self) -> None:
        """Listen, and answer from now on.

        Raises:
            UsageError, OutputError: it cannot be listened there.
        """
        handed_over = inherited()
        self._listener = handed_over or listen(self._path)
        self._inode = 0 if handed_over else os.stat(self._path).st_ino
        self._listener.setblocking(False)
        self._wake = socket.socketpair()
        self._acceptor = threading.Thread(
            target=self._accept_all, args=(self._listener, self._wake[0]), name="control", daemon=True
        )
        self._acceptor.start()

    def stop(self) -> None:
        """End all conversations, and remove the socket unless it is systemd's."""
        if self._listener is None or self._wake is None or self._acceptor is None:
            return
        self._stopping = True
        self._wake[1].send(b"x")
        self._acceptor.join(STOP_SECONDS)
        with self._lock:
            for sock in self._open:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            threads = list(self._threads)
        deadline = time.monotonic() + STOP_SECONDS
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        stop_listening(self._listener, self._path, self._inode)
        for end in self._wake:
            end.close()
        self._listener = None

    def _accept_all(self, listener: socket.socket, wake: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            while not self._stopping:
                selector.select()
                if self._stopping:
                    return
                try:
                    sock, _ = listener.accept()
                except (BlockingIOError, ConnectionError):
                    continue
                except OSError as error:  # out of descriptors, say: the listener stays ready
                    _log.warning("cannot accept a control connection: %s", error.strerror)
                    time.sleep(_PAUSE_SECONDS)
                    continue
                self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        try:
            peer = peer_of(sock)
        except OSError:
            sock.close()
            return
        with self._lock:
            if not self._has_room(peer):
                self._send_away(sock)
                return
            thread = threading.Thread(
                target=self._converse, args=(sock, peer), name="control-client", daemon=True
            )
            self._open[sock] = peer
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._end(sock, thread)

    def _has_room(self, peer: Peer) -> bool:
        if len(self._open) >= MAX_CONNECTIONS:
            return False
        if peer.is_root:
            return True
        users = Counter(other.uid for other in self._open.values() if not other.is_root)
        return users[peer.uid] < MAX_PER_USER and users.total() < MAX_OF_USERS

    def _send_away(self, sock: socket.socket) -> None:
        with suppress(FrameError):
            busy = pb.Response(error=pb.Error(code=pb.Error.BUSY, message=_BUSY))
            send(sock, busy.SerializeToString(), _PAUSE_SECONDS)
        sock.close()

    def _converse(self, sock: socket.socket, peer: Peer) -> None:
        try:
            Conversation(self._service, self._leases, peer, sock).run()
        finally:
            self._end(sock, threading.current_thread())

    def _end(self, sock: socket.socket, thread: threading.Thread) -> None:
        with self._lock:
            self._open.pop(sock, None)
            self._threads.discard(thread)
        sock.close()
