"""Messages between the daemon and its children: a length, JSON, and a few descriptors.

Both ends read with a bound: a message of unreasonable length ends the conversation.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("<I")
MAX_MESSAGE = 1 << 24
MAX_FDS = 2
_LEND_SECONDS = 1.0


def send(connection: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send a message, and at most ``MAX_FDS`` descriptors with it.

    Raises:
        OSError: the other end is gone, or the socket's timeout passed.
    """
    body = json.dumps(message).encode()
    header = _LENGTH.pack(len(body))
    if fds:
        socket.send_fds(connection, [header], list(fds))
    else:
        connection.sendall(header)
    connection.sendall(body)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and the descriptors that came with it, which the caller closes; None at the end.

    Raises:
        OSError: the socket's timeout passed.
        ValueError: this is no message.
    """
    header, fds, _, _ = socket.recv_fds(connection, _LENGTH.size, MAX_FDS)
    taken = False
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
        taken = True
        return message, list(fds)
    finally:
        if not taken:
            close_all(fds)


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors that came with a message."""
    for fd in fds:
        os.close(fd)


def borrowed(fd: int) -> int:
    """The file that `parprof.files.open_file.OpenFile.lend` lent, open in this process instead of ``fd``.

    Raises:
        OSError: nothing was lent.
    """
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return fd
    with socket.socket(fileno=fd) as way:
        way.settimeout(_LEND_SECONDS)
        _, fds, _, _ = socket.recv_fds(way, 1, 1)
    if not fds:
        raise OSError(0, "the file was not handed over")
    return int(fds[0])
