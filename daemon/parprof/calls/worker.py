"""The child process that looks for functions in files: ``python -m parprof.calls.worker FD``.

It answers requests on a socket, each with a descriptor of an ELF file: ``{"patterns": [...], "addresses": [...],
"nop5": bool}`` with ``{"found": ...}`` (`parprof.calls.search.Found`), and ``{"list": true}`` with
``{"functions": [...]}``.
It ends with the socket. What it reads is hostile: so it gives up its privileges first, and memory and time are limited.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from parprof.calls.search import list_functions, search
from parprof.files.elf import ElfError, ElfFile
from parprof.symbols.names import readable
from parprof.workers import protocol
from parprof.workers.privileges import drop_privileges

MEMORY_LIMIT = 2 << 30
"""Bytes of addresses that the child may use."""
_REQUEST_SECONDS = 60
_FILES = 64


def answer(request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """The reply to a request."""
    try:
        (source,) = fds
        source = fds[0] = protocol.borrowed(source)
        elf = ElfFile(lambda offset, size: os.pread(source, size, offset), os.fstat(source).st_size, "file")
        if request.get("list"):
            return {"functions": list_functions(elf)}
        patterns = [str(one) for one in request.get("patterns", ())]
        addresses = [int(one) for one in request.get("addresses", ())]
        return {"found": search(elf, patterns, addresses, nop5_is_cheap=bool(request.get("nop5")))}
    except (ElfError, OSError, ValueError) as error:
        return {"problem": str(error)[:500]}
    except MemoryError:
        return {"problem": "its symbols take too much memory"}


def serve(connection: socket.socket) -> None:
    """Answer until the other end closes the socket."""
    while (received := protocol.receive(connection)) is not None:
        signal.alarm(_REQUEST_SECONDS)  # ends us if nobody waits any more and a file keeps us busy
        reply = answer(*received)
        protocol.close_all(received[1])
        protocol.send(connection, reply)
        signal.alarm(0)


def main() -> int:
    """Entry point of the child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for our parent, which still needs us
    connection = socket.socket(fileno=int(sys.argv[1]))
    readable("_Z1fv")  # loads the C++ library while files can be read
    with suppress(ImportError):
        import capstone  # noqa: F401
    drop_privileges(MEMORY_LIMIT, 0, _FILES)
    with suppress(OSError, ValueError):
        serve(connection)
    return 0


if __name__ == "__main__":
    sys.exit(main())
