"""Listens on the control socket: who connects is known from the kernel, and no user takes all the room."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Collection, Hashable

from parprof.service.control import DEFAULT_SOCKET
from parprof.service.control import control_pb2 as pb
from parprof.service.control.access import Peer, peer_of
from parprof.service.control.conversation import ControlConversation
from parprof.service.control.frames import framed
from parprof.service.control.leases import Leases
from parprof.service.control.listening import inherited, listen, stop_listening
from parprof.service.model import Service
from parprof.service.serving import ConnectionHandler, Limits, Listener, Seat
from parprof.service.subuids import user_of

MAX_CONNECTIONS = 32
MAX_OF_USERS = 24
"""What is left of `MAX_CONNECTIONS` is for root."""
MAX_PER_USER = 8
_BUSY = "too many clients are connected to parprofd; try again"


class ControlServer:
    """The control socket of a daemon, on threads of its own."""

    def __init__(self, service: Service, path: str = DEFAULT_SOCKET) -> None:
        """`start` listens on ``path``, or on what systemd handed over."""
        self._path = path
        self._listener = Listener("control", _Handler(service), Limits(served=MAX_CONNECTIONS))
        self._socket: socket.socket | None = None
        self._inode = 0

    def start(self) -> None:
        """Listen, and answer from now on.

        Raises:
            UsageError, OutputError: it cannot be listened there.
        """
        handed_over = inherited()
        self._socket = handed_over or listen(self._path)
        self._inode = 0 if handed_over else os.stat(self._path).st_ino
        self._listener.start(self._socket)

    def stop(self) -> None:
        """End all conversations, and remove the socket unless it is systemd's."""
        self._listener.close()
        if self._socket is not None:
            stop_listening(self._socket, self._path, self._inode)
            self._socket = None


class _Handler(ConnectionHandler[Peer]):
    """A `ControlConversation` for each client, and room for each user."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._leases = Leases(service)

    def identify(self, connection: socket.socket) -> Peer:
        """The user at the other end."""
        return peer_of(connection)

    def has_room(self, who: Peer, served: Collection[Peer]) -> bool:
        """Root has room that no user can take; a user has room that no other user can take."""
        if who.is_root:
            return True
        users = Counter(self.party(other) for other in served if not other.is_root)
        return users[self.party(who)] < MAX_PER_USER and users.total() < MAX_OF_USERS

    def party(self, who: Peer) -> Hashable:
        """A user is one client, with whatever group, in whatever namespace, and however often."""
        return user_of(who.uid)

    def makes_room(self, who: Peer) -> bool:
        """Root does not."""
        return not who.is_root

    def refusal(self) -> bytes:
        """The answer that asks to try again."""
        error = pb.Error(code=pb.Error.BUSY, message=_BUSY)
        return framed(pb.Response(error=error).SerializeToString())

    def hold(self, stream: socket.socket, who: Peer, seat: Seat) -> None:
        """Talk until the client leaves, errs, or falls silent."""
        ControlConversation(self._service, self._leases, who, stream, seat).run()
