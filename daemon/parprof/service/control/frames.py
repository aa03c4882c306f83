"""Frames on a stream socket: a length of 4 bytes, big endian, then a message. Both sides use this.

Every wait has an end. The sockets must be blocking ones; their timeout is changed.
"""

from __future__ import annotations

import select
import socket
import struct
import time

MAX_REQUEST = 1 << 20
"""Bytes of a client's frame at most."""

MAX_RESPONSE = 32 << 20
"""Bytes of a server's frame at most."""

_LENGTH = struct.Struct(">I")
_CHUNK = 1 << 16


class FrameError(Exception):
    """The other side sent what is no frame, or sent or took it too slowly, or left in the middle of it."""


def framed(data: bytes) -> bytes:
    """A message as a frame."""
    return _LENGTH.pack(len(data)) + data


def send(sock: socket.socket, data: bytes, seconds: float) -> None:
    """Send one frame, all of it within ``seconds``.

    Raises:
        FrameError: the other side has gone, or does not read.
    """
    deadline = time.monotonic() + seconds
    rest = memoryview(framed(data))
    try:
        while rest:
            sock.settimeout(_left(deadline))
            rest = rest[sock.send(rest[:_CHUNK]) :]
    except TimeoutError:
        raise FrameError("a reader is too slow") from None
    except OSError as error:
        raise FrameError(f"the connection ended: {error.strerror or error}") from None


def receive(sock: socket.socket, limit: int, idle_seconds: float, seconds: float) -> bytes | None:
    """The next frame; None when the other side has ended the connection before it.

    It must begin within ``idle_seconds``, and be there ``seconds`` after its first byte.

    Raises:
        FrameError: it is longer than ``limit``, is late, or is cut off.
    """
    try:
        sock.settimeout(idle_seconds)
        first = sock.recv(1)
        if not first:
            return None
        deadline = time.monotonic() + seconds
        (length,) = _LENGTH.unpack(first + _exactly(sock, _LENGTH.size - 1, deadline))
        if length > limit:
            raise FrameError(f"a frame of {length} bytes; at most {limit} are taken")
        return _exactly(sock, length, deadline)
    except TimeoutError:
        raise FrameError("nothing came in time") from None
    except OSError as error:
        raise FrameError(f"the connection ended: {error.strerror or error}") from None


def is_readable(sock: socket.socket, seconds: float) -> bool:
    """Wait up to ``seconds`` for something to receive; the end of the connection counts."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(max(seconds, 0.0) * 1000))


def _exactly(sock: socket.socket, size: int, deadline: float) -> bytes:
    out = bytearray()
    while len(out) < size:
        sock.settimeout(_left(deadline))
        part = sock.recv(min(size - len(out), _CHUNK))
        if not part:
            raise FrameError("the connection ended in the middle of a frame")
        out += part
    return bytes(out)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
