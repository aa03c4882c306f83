"""The child's end of a conversation with a worker that parses hostile files: give up privileges, then answer."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from parprof.workers import protocol
from parprof.workers.privileges import give_up_privileges

_REQUEST_SECONDS = 60
_DESCRIPTORS = 64

Responder = Callable[[dict[str, Any], list[int]], dict[str, Any]]
"""Makes the reply to a request. It may put other descriptors into the list, or take some out to keep them; those left
are closed."""


def serve(connection: socket.socket, answer: Responder) -> None:
    """Answer until the other end closes the socket.

    Raises:
        OSError: the conversation broke off.
        ValueError: the other end does not keep to the protocol.
    """
    while (received := protocol.receive(connection)) is not None:
        signal.alarm(_REQUEST_SECONDS)  # ends us if nobody waits any more and a file keeps us busy
        reply = answer(*received)
        protocol.close_all(received[1])
        protocol.send(connection, reply)
        signal.alarm(0)


def run(answer: Responder, memory: int, file_size: int = 0) -> NoReturn:
    """Be a worker process, whose first argument is the number of its socket, until that is closed.

    What ``answer`` has to read of our own files (modules, libraries) has to be loaded before this call. ``memory`` is
    of addresses and ``file_size`` of any file that is written, both in bytes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for our parent, which still needs us
    connection = socket.socket(fileno=int(sys.argv[1]))
    give_up_privileges(memory, file_size, _DESCRIPTORS)
    with suppress(OSError, ValueError):
        serve(connection, answer)
    sys.exit(0)
