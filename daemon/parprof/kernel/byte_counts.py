"""Bytes that system calls bring a command's processes, counted by tracepoints (bpf/bytes.bpf.c)."""

from __future__ import annotations

import struct

from parprof.errors import KernelUnsupported
from parprof.kernel import bpf
from parprof.kernel.objects import LoadedObject, get_object
from parprof.kernel.sampling import Tracepoints
from parprof.resources import Closing

_MAX_PROCESSES = 1 << 14
_ONE = struct.pack("<I", 1)
_TRACEPOINTS = (("sched_process_fork", "on_bytes_fork"), ("sys_exit", "on_bytes"))


class ByteCounter(Closing):
    """Counts for one process and its descendants, until it is closed.

    Raises:
        PrivilegeError: bpf is not permitted.
        KernelUnsupported: the kernel lacks something; the text names it.
    """

    def __init__(self, pid: int) -> None:
        """``pid``: of a process that has not begun yet."""
        self._object = LoadedObject(get_object(), {"byte_processes": _MAX_PROCESSES})
        self._calls = Tracepoints(self._object, _TRACEPOINTS)
        try:
            bpf.map_update(self._object.maps["byte_processes"], struct.pack("<I", pid), _ONE)
            self._calls.attach()
        except OSError as error:
            self.close()
            raise KernelUnsupported(f"counting bytes of system calls: {error.strerror}") from error
        except KernelUnsupported:
            self.close()
            raise

    def brought(self) -> int:
        """Bytes that system calls have brought so far."""
        return self._total(0)

    def taken(self) -> int:
        """Bytes that they have taken so far."""
        return self._total(1)

    def _total(self, which: int) -> int:
        raw = bpf.map_lookup(self._object.maps["byte_totals"], struct.pack("<I", which), 8)
        return int.from_bytes(raw or b"", "little")

    def close(self) -> None:
        """Stop counting."""
        self._calls.detach()
        self._object.close()
