"""Has a child process build the unwind table of a file, of which it gets a descriptor."""

from __future__ import annotations

import mmap
import os
import time
from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SHRINK, F_SEAL_WRITE, fcntl
from typing import Any

from parprof.untrusted import visible
from parprof.unwind.emit import MAX_ROWS
from parprof.unwind.returns import AT_ONCE_BYTES
from parprof.unwind.rows import ROW_SIZE
from parprof.unwind.table import UnwindTable
from parprof.workers.client import WorkerClient, WorkerFailed

_MAX_TEXT = 500


class TableClient(WorkerClient):
    """One child, and what it is asked."""

    module = "parprof.unwind.worker"
    doing = "building its unwind table"

    def build(
        self, path: str, fd: int, build_id: str, seconds: float, follow_bytes: int = AT_ONCE_BYTES
    ) -> UnwindTable:
        """The table of a file, within so many seconds. ``follow_bytes``: see `parprof.unwind.table.build_table`.

        Raises:
            WorkerFailed: there is none; OSError: there is no memory for it.
        """
        out = os.memfd_create("parprof-unwind", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(out, MAX_ROWS * ROW_SIZE)  # takes no memory yet
            fcntl(out, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
            request = {"file": path, "follow": follow_bytes}
            answer = self.ask(request, [fd, out], time.monotonic() + seconds)
            if problem := answer.get("problem"):
                raise WorkerFailed(visible(str(problem), _MAX_TEXT))
            count = answer.get("rows")
            if not isinstance(count, int) or not 0 <= count <= MAX_ROWS:
                raise WorkerFailed("building its unwind table gave no answer")
            fcntl(out, F_ADD_SEALS, F_SEAL_WRITE)
            rows: bytes | memoryview = b""
            if count:  # private: older kernels refuse a shared mapping of what is sealed
                size = count * ROW_SIZE
                rows = memoryview(mmap.mmap(out, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ))
            return UnwindTable(rows, build_id, _notes(answer.get("notes")))
        finally:
            os.close(out)


def _notes(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        return {}
    return {visible(str(kind), 64): number for kind, number in value.items() if isinstance(number, int)}
