"""The child process that builds unwind tables: ``python -m parprof.unwind.worker FD``.

It answers requests on a socket: ``{"file": path, "follow": bytes}`` with two descriptors, of the ELF file and of one to
write the rows to, with ``{"rows": number, "notes": {kind: number}, "problem": text}``. It ends with the socket. What
it reads is hostile: so it gives up its privileges first, and its memory and time are limited.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any

from parprof.files.elf import ElfError, ElfFile
from parprof.unwind.emit import MAX_ROWS
from parprof.unwind.frames import UnwindError
from parprof.unwind.returns import AT_ONCE_BYTES, LATER_SECONDS
from parprof.unwind.rows import ROW_SIZE
from parprof.unwind.table import build_table
from parprof.workers import protocol
from parprof.workers.serving import run

MEMORY_LIMIT = 2 << 30
"""Bytes of addresses that the child may use."""
_MAX_LABEL = 300


def answer(request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """The reply to a request; the rows are written to the second descriptor."""
    try:
        source, out = fds
        source = fds[0] = protocol.borrowed(source)
        size = os.fstat(source).st_size
        label = str(request.get("file"))[:_MAX_LABEL]
        elf = ElfFile(lambda offset, size: os.pread(source, size, offset), size, label)
        follow_bytes = int(request.get("follow", AT_ONCE_BYTES))
        if follow_bytes > AT_ONCE_BYTES:
            signal.alarm(LATER_SECONDS)
        table = build_table(elf, follow_bytes)
        rows = memoryview(table.rows)
        at = 0
        while at < len(rows):
            at += os.pwrite(out, rows[at:], at)
    except (ElfError, UnwindError, OSError, ValueError) as error:
        return {"problem": str(error)[:500]}
    except MemoryError:
        return {"problem": "its call frame information takes too much memory"}
    return {"problem": "", "rows": table.count, "notes": dict(table.notes)}


if __name__ == "__main__":
    with suppress(ImportError):
        import capstone  # noqa: F401
    run(answer, MEMORY_LIMIT, MAX_ROWS * ROW_SIZE)
