"""Executables that the programs in the kernel do not stop at exec, nor when ld.so has mapped their libraries."""

from __future__ import annotations

import struct
from contextlib import suppress

from parprof.kernel import bpf

_ONE = struct.pack("<I", 1)


class PlainPrograms:
    """Known by the ids that RECORD_EXEC brings. The least used are forgotten where there are too many."""

    def __init__(self, fd: int) -> None:
        """``fd``: descriptor of the map."""
        self._fd = fd

    def add(self, program: int) -> None:
        """Do not stop it from now on."""
        with suppress(OSError):  # no room: it is stopped as before
            bpf.map_update(self._fd, struct.pack("<Q", program), _ONE)

    def remove(self, program: int) -> None:
        """Stop it again."""
        bpf.map_delete(self._fd, struct.pack("<Q", program))
