"""Messages between the daemon and its symbol worker: a length, JSON, and at most one descriptor.

Both ends read with a bound: a message of unreasonable length ends the conversation.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("<I")
MAX_MESSAGE = 1 << 24


def send(connection: socket.socket, message: dict[str, Any], fd: int | None = None) -> None:
    """Send a message, and a descriptor with it.

    Raises:
        OSError: the other end is gone, or the socket's timeout passed.
    """
    body = json.dumps(message).encode()
    header = _LENGTH.pack(len(body))
    if fd is None:
        connection.sendall(header)
    else:
        socket.send_fds(connection, [header], [fd])
    connection.sendall(body)


def receive(connection: socket.socket) -> tuple[dict[str, Any], int | None] | None:
    """The next message and the descriptor that came with it, which the caller closes; None at the end.

    Raises:
        OSError: the socket's timeout passed.
        ValueError: this is no message.
    """
    header, fds, _, _ = socket.recv_fds(connection, _LENGTH.size, 1)
    try:
        while 0 < len(header) < _LENGTH.size:
            more = connection.recv(_LENGTH.size - len(header))
            if not more:
                return None
            header += more
        if not header:
            return None
        (length,) = _LENGTH.unpack(header)
        if length > MAX_MESSAGE:
            raise ValueError(f"a message of {length} bytes")
        parts = []
        while length:
            part = connection.recv(min(length, 1 << 20))
            if not part:
                return None
            parts.append(part)
            length -= len(part)
        message = json.loads(b"".join(parts))
        if not isinstance(message, dict):
            raise ValueError("not an object")
        fd = fds[0] if fds else None
        fds = []
        return message, fd
    finally:
        for left in fds:
            os.close(left)
