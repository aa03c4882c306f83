"""Which processes the programs do not ask about, though they use the CPU: what was decided about each."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from parprof.kernel import bpf

_DENIED = 2


class Verdicts:
    """By PID. Only where the kernel was made with ``system_wide``."""

    def __init__(self, fd: int) -> None:
        """``fd``: descriptor of the map."""
        self._fd = fd

    def deny(self, pid: int) -> None:
        """Do not ask about this process again, until it calls exec or its PID is another's."""
        bpf.map_update(self._fd, struct.pack("<I", pid), struct.pack("<I", _DENIED))

    def forget(self, pids: Iterable[int] | None = None) -> None:
        """Ask about these processes again, or about all."""
        if pids is None:
            bpf.map_delete_batch(self._fd, [key for key, _ in bpf.map_read_all(self._fd, 4, 4)])
            return
        bpf.map_delete_batch(self._fd, [struct.pack("<I", pid) for pid in pids])
