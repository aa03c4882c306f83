"""The child process that touches files that may never answer: ``python -m parprof.files.guard_worker FD``.

It answers requests on a socket, one after the other (see `parprof.workers.protocol`):

* ``{"do": "open", "way", "device", "inode"}`` (0, 0: whichever file it is) with ``{"file": number, "status":
  [...]}`` and a descriptor with ``O_PATH``, which does not touch the file when it is closed,
* ``{"do": "read", "file", "offset", "size"}`` with ``{"size"}`` and so many bytes,
* ``{"do": "lend", "file"}`` and a socket with ``{}``; the file's descriptor goes through the socket,
* ``{"do": "close", "file"}`` with nothing.

The first thing that it says is ``{}``. Any request may be answered with ``{"error": number, "text"}`` instead. It
has our privileges: it reads nothing of the files that it would have to understand.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from parprof.files.open_file import FileStatus
from parprof.untrusted import open_regular
from parprof.workers import protocol

_MAX_READ = 1 << 24


class Files:
    """The files that the child holds."""

    def __init__(self, connection: socket.socket) -> None:
        """Answer on ``connection``."""
        self._connection = connection
        self._open: dict[int, int] = {}
        self._next = 0

    def serve(self) -> None:
        """Answer until the other end closes the socket."""
        protocol.send(self._connection, {})  # from now on it is the files that take the time
        while (received := protocol.receive(self._connection)) is not None:
            request, fds = received
            try:
                self._answer(request, fds)
            except OSError as error:
                answer = {"error": error.errno or 0, "text": error.strerror or str(error)}
                protocol.send(self._connection, answer)
            finally:
                protocol.close_all(fds)

    def _answer(self, request: dict[str, Any], fds: list[int]) -> None:
        what = request["do"]
        if what == "open":
            self._open_file(request["way"].encode("latin-1"), request["device"], request["inode"])
            return
        fd = self._open[request["file"]]
        if what == "read":
            data = os.pread(fd, min(request["size"], _MAX_READ), request["offset"])
            protocol.send(self._connection, {"size": len(data)})
            self._connection.sendall(data)
        elif what == "lend":
            with socket.socket(fileno=os.dup(fds[0])) as way:
                socket.send_fds(way, [b"\0"], [fd])
            protocol.send(self._connection, {})
        elif what == "close":
            os.close(self._open.pop(request["file"]))

    def _open_file(self, way: bytes, device: int, inode: int) -> None:
        fd = open_regular(way)
        try:
            status = FileStatus.of(os.fstat(fd))
            if inode and not status.is_mapped_as(device, inode):
                raise FileNotFoundError(errno.ENOENT, "another file has its path now")
            name = os.open(f"/proc/self/fd/{fd}", os.O_PATH | os.O_CLOEXEC)
        except BaseException:
            os.close(fd)
            raise
        self._next += 1
        self._open[self._next] = fd
        try:
            protocol.send(self._connection, {"file": self._next, "status": list(status)}, [name])
        finally:
            os.close(name)


def main() -> int:
    """Entry point of the child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the daemon, which still needs us
    connection = socket.socket(fileno=int(sys.argv[1]))
    with suppress(OSError, ValueError, KeyError):
        Files(connection).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
