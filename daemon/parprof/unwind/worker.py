"""The child process that builds unwind tables: ``python -m parprof.unwind.worker FD``.

It answers requests on a socket: ``{"file": path}`` with two descriptors, of the ELF file and of one to write
the rows to, with ``{"rows": number, "notes": {kind: number}, "problem": text}``. It ends with the socket. What
it reads is hostile: so it gives up its privileges first, and its memory and time are limited.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from parprof.files.elf import ElfError, ElfFile
from parprof.unwind.emit import MAX_ROWS
from parprof.unwind.frames import UnwindError
from parprof.unwind.rows import ROW_SIZE
from parprof.unwind.table import build_table
from parprof.workers import protocol
from parprof.workers.privileges import drop_privileges

MEMORY_LIMIT = 2 << 30
"""Bytes of addresses that the child may use."""
_REQUEST_SECONDS = 60
_FILES = 64
_MAX_LABEL = 300


def answer(request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """The reply to a request; the rows are written to the second descriptor."""
    try:
        source, out = fds
        source = fds[0] = protocol.borrowed(source)
        size = os.fstat(source).st_size
        label = str(request.get("file"))[:_MAX_LABEL]
        elf = ElfFile(lambda offset, size: os.pread(source, size, offset), size, label)
        table = build_table(elf)
        rows = memoryview(table.rows)
        at = 0
        while at < len(rows):
            at += os.pwrite(out, rows[at:], at)
    except (ElfError, UnwindError, OSError, ValueError) as error:
        return {"problem": str(error)[:500]}
    except MemoryError:
        return {"problem": "its call frame information takes too much memory"}
    return {"problem": "", "rows": table.count, "notes": dict(table.notes)}


def serve(connection: socket.socket) -> None:
    """Answer until the other end closes the socket."""
    while (received := protocol.receive(connection)) is not None:
        signal.alarm(_REQUEST_SECONDS)  # ends us if the daemon is gone and a file keeps us busy
        reply = answer(*received)
        protocol.close_all(received[1])
        protocol.send(connection, reply)
        signal.alarm(0)


def main() -> int:
    """Entry point of the child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the daemon, which still needs us
    connection = socket.socket(fileno=int(sys.argv[1]))
    with suppress(ImportError):  # while its files can be read
        import capstone  # noqa: F401
    drop_privileges(MEMORY_LIMIT, MAX_ROWS * ROW_SIZE, _FILES)
    with suppress(OSError, ValueError):
        serve(connection)
    return 0


if __name__ == "__main__":
    sys.exit(main())
