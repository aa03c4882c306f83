"""Accepts connections and gives each a thread: so many at a time, a few more may wait, the rest are sent away.

The HTTP server and the control socket both stand on this. What is said on a connection, over what, and to
whom is theirs to decide (`ConnectionHandler`), and so is where to listen; how many and how long is `Limits`.
No client can hold up another one: nothing here waits for a client but the thread that serves it; who stays after
its answer goes when its place is needed; and who has most connections loses those on which it asks nothing to
those who have fewer.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

from parprof.resources import Closing
from parprof.values import dataclass

CLOSE_SECONDS = 2.0
"""How long `Listener.close` waits for the threads of those who are served."""

LINGER_SECONDS = 0.5
"""How long those who are sent away have to read why."""

MAX_LEAVING = 64
"""How many of those there are at a time; beyond that the oldest are cut off."""

_log = logging.getLogger("parprof.serving")
_CHUNK = 64 * 1024
_TICK_SECONDS = 0.1
_PAUSE_SECONDS = 0.1

Who = TypeVar("Who", bound=Hashable)
"""What a handler knows of a client from the start, such as its user. What is equal is one client."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many clients there may be."""

    served: int
    """At a time, each on a thread of its own."""
    waiting: int = 0
    """Beyond those, until one of them has left."""
    wait_seconds: float = 0.0
    """How long one waits before it is sent away."""


class Seat:
    """A client's place among those who are served. Who is not being answered may lose it to others."""

    def __init__(self, is_roomy: Callable[[], bool]) -> None:
        """``is_roomy``: see there."""
        self.is_busy = False
        """Whether an answer is being made or sent: set by the client's thread."""
        self.is_kept = False
        """Whether it has been answered and may ask again, but has not begun to: the first to lose its place, to anyone,
        as it can come again. Set by the client's thread."""
        self.is_roomy = is_roomy
        """Whether less than half of the places are taken, so that a client may stay without asking."""


class ConnectionHandler(ABC, Generic[Who]):
    """What a server does with its connections. `hold` runs on the client's thread, the rest must not wait."""

    @abstractmethod
    def identify(self, connection: socket.socket) -> Who:
        """Who has connected.

        Raises:
            OSError: that cannot be found out; the connection is closed.
        """

    def has_room(self, who: Who, served: Collection[Who]) -> bool:
        """Whether this client may be served beside those, of whom there are fewer than `Limits.served`."""
        return True

    def party(self, who: Who) -> Hashable:
        """What this client's connections are counted by."""
        return who

    def makes_room(self, who: Who) -> bool:
        """Whether this client may be broken off while it is silent, for others who have fewer connections."""
        return True

    @abstractmethod
    def refusal(self) -> bytes:
        """What the next client is told that is sent away; empty where it just sees the end."""

    def stream(self, connection: socket.socket) -> socket.socket:
        """What to talk over: the connection, or TLS around it, with the handshake left to `hold`."""
        return connection

    @abstractmethod
    def hold(self, stream: socket.socket, who: Who, seat: Seat) -> None:
        """Talk with the client until there is no more to say; it is closed then.

        Raises:
            OSError: the client is gone, or breaks the rules; that is nobody's business.
        """


class Listener(Closing, Generic[Who]):
    """Serves the clients of one listening socket, on threads of its own."""

    def __init__(self, name: str, handler: ConnectionHandler[Who], limits: Limits) -> None:
        """Nothing is served before `start`. ``name``: for threads and the log."""
        self._name = name
        self._handler = handler
        self._limits = limits
        self._lock = threading.Lock()
        self._served: dict[socket.socket, tuple[Who, Seat]] = {}
        self._threads: set[threading.Thread] = set()
        self._ends = threading.Event()
        self._acceptor: threading.Thread | None = None
        self._waker: socket.socket | None = None
        # These two belong to the accepting thread alone; the times are those since when.
        self._waiting: deque[tuple[float, socket.socket, Who]] = deque()
        self._leaving: deque[tuple[float, socket.socket]] = deque()

    @property
    def served(self) -> int:
        """How many clients are served now."""
        return len(self._served)

    @property
    def waiting(self) -> int:
        """How many clients wait until one of the served ones has left."""
        return len(self._waiting)

    def start(self, listener: socket.socket) -> None:
        """Serve all who connect to this listening socket, which is ours from now on."""
        listener.setblocking(False)
        wake, self._waker = socket.socketpair()
        wake.setblocking(False)
        self._waker.setblocking(False)
        self._acceptor = threading.Thread(
            target=self._accept_all, args=(listener, wake), name=self._name, daemon=True
        )
        self._acceptor.start()

    def close(self) -> None:
        """Stop listening, break what is still open, and wait a little for the threads."""
        with self._lock:
            if self._ends.is_set():
                return
            self._ends.set()
        if self._acceptor is None or self._waker is None:
            return
        self._wake()
        self._acceptor.join(CLOSE_SECONDS)
        with self._lock:
            connections, threads = list(self._served), list(self._threads)
        for connection in connections:
            _break_off(connection)
        until_s = time.monotonic() + CLOSE_SECONDS
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        self._waker.close()

    def _accept_all(self, listener: socket.socket, wake: socket.socket) -> None:
        """The thread that accepts clients, and hands them to threads of their own."""
        with listener, wake, selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            while not self._ends.is_set():
                has_guests = self._waiting or self._leaving
                for ready, _ in selector.select(timeout=_TICK_SECONDS if has_guests else None):
                    if ready.fileobj is listener:
                        self._accept_one(listener)
                    else:
                        wake.recv(_CHUNK)
                self._admit()
                self._see_off()
            for _, connection, _ in self._waiting:
                connection.close()
            for _, connection in self._leaving:
                connection.close()

    def _accept_one(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            # No descriptor or memory is left, and the listener stays ready. The daemon's other parts need the
            # pause more than we do.
            _log.warning("%s: cannot accept a connection: %s", self._name, error.strerror)
            self._ends.wait(_PAUSE_SECONDS)
            return
        try:
            who = self._handler.identify(connection)
        except OSError:
            connection.close()
            return
        self._waiting.append((time.monotonic(), connection, who))
        self._admit()
        while len(self._waiting) > self._limits.waiting:
            self._send_away(self._of_the_greediest())

    def _of_the_greediest(self) -> socket.socket:
        """Who waits no more: the last to come of the client that has most connections waiting."""
        parties = [self._handler.party(who) for _, _, who in self._waiting]
        many = Counter(parties)
        _, index = max((many[party], index) for index, party in enumerate(parties))
        connection = self._waiting[index][1]
        del self._waiting[index]
        return connection

    def _admit(self) -> None:
        """Serve those who wait, in order, as far as there is room; send away who waited too long."""
        for _ in range(len(self._waiting)):
            since_s, connection, who = self._waiting.popleft()
            if self._take_in(connection, who):
                self._serve_on_thread(connection)
            elif self._limits.waiting and time.monotonic() - since_s > self._limits.wait_seconds:
                self._send_away(connection)
            else:
                self._waiting.append((since_s, connection, who))

    def _take_in(self, connection: socket.socket, who: Who) -> bool:
        """Count it among the served ones, if there is room, or if a greedier client has to make some."""
        with self._lock:
            others = [other for other, _ in self._served.values()]
            if not self._fits(who, others) and not self._make_room(who, others):
                return False
            self._served[connection] = who, Seat(self._is_roomy)
            return True

    def _fits(self, who: Who, others: list[Who]) -> bool:
        return len(others) < self._limits.served and self._handler.has_room(who, others)

    def _make_room(self, who: Who, others: list[Who]) -> bool:
        """Break off a connection, if that lets in this client: one that is kept, or a silent one of the greediest."""
        for connection, other in [*self._kept(others), *self._silent(who, others)]:
            rest = others.copy()
            rest.remove(other)
            if self._fits(who, rest):
                del self._served[connection]  # its thread ends by itself
                _break_off(connection)
                return True
        return False

    def _kept(self, others: list[Who]) -> list[tuple[socket.socket, Who]]:
        """Those that are kept for who may ask again, of the client first that has most; the oldest first."""
        party = self._handler.party
        many = Counter(map(party, others))
        kept = ((connection, other) for connection, (other, seat) in self._served.items() if seat.is_kept)
        return sorted(kept, key=lambda one: -many[party(one[1])])

    def _silent(self, who: Who, others: list[Who]) -> list[tuple[socket.socket, Who]]:
        """The oldest silent one of the client that has most, if that has more than this one would have."""
        party = self._handler.party
        many = Counter(map(party, others))
        few = many[party(who)] + 1
        silent = (
            (connection, other)
            for connection, (other, seat) in self._served.items()
            if not seat.is_busy and many[party(other)] > few and self._handler.makes_room(other)
        )
        oldest = max(silent, key=lambda one: many[party(one[1])], default=None)
        return [] if oldest is None else [oldest]

    def _is_roomy(self) -> bool:
        return 2 * len(self._served) < self._limits.served

    def _serve_on_thread(self, connection: socket.socket) -> None:
        thread = threading.Thread(
            target=self._serve, args=(connection,), name=f"{self._name}-client", daemon=True
        )
        with self._lock:
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # no more threads
            with self._lock:
                self._threads.discard(thread)
                del self._served[connection]
            self._send_away(connection)

    def _serve(self, connection: socket.socket) -> None:
        """The thread of one client."""
        stream = connection
        try:
            stream = self._handler.stream(connection)
            with self._lock:
                place = self._served.pop(connection, None)
                if place is None or self._ends.is_set():
                    _break_off(stream)  # that was done to the other one, which may have been an empty shell
                if place is None:
                    return
                self._served[stream] = place
            who, seat = place
            self._handler.hold(stream, who, seat)
        except OSError:
            pass
        except Exception:
            _log.exception("%s: a connection failed", self._name)
        finally:
            with self._lock:
                self._served.pop(connection, None)
                self._served.pop(stream, None)
                self._threads.discard(threading.current_thread())
            stream.close()
            self._wake()

    def _send_away(self, connection: socket.socket) -> None:
        """Say why, without waiting for anything, and give the client time to read it."""
        try:
            connection.setblocking(False)
            if refusal := self._handler.refusal():
                connection.send(refusal)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            connection.close()
        else:
            self._leaving.append((time.monotonic(), connection))

    def _see_off(self) -> None:
        """Close those that were sent away and have left, or take long, or are too many.

        A socket that is closed before all has been read is reset, which may take the refusal along.
        """
        for _ in range(len(self._leaving)):
            since_s, connection = self._leaving.popleft()
            try:
                has_left = not connection.recv(_CHUNK)
            except BlockingIOError:
                has_left = False
            except OSError:
                has_left = True
            late = time.monotonic() - since_s > LINGER_SECONDS
            if has_left or late or len(self._leaving) >= MAX_LEAVING:
                connection.close()
            else:
                self._leaving.append((since_s, connection))

    def _wake(self) -> None:
        if self._waker is not None:
            with suppress(OSError):
                self._waker.send(b"\0")


def _break_off(connection: socket.socket) -> None:
    """End whatever another thread does on it. Past the methods of a TLS socket, which are for its own thread."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
