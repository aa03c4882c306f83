"""Probes that serve all processes at once: a file is probed once, however many processes map it.

For rare events only (a thread is created, a library is loaded): processes that are not watched hit them too.
"""

from __future__ import annotations

import ctypes
import os
import struct

from parprof.errors import ProbeAttachError
from parprof.kernel.engine import BpfKernel
from parprof.kernel.uprobes import ProbeSet, Site

_EVERY_PROCESS = 0
_OVERLAY = 0x794C7630
"""What ``statfs`` calls an overlay."""
_libc = ctypes.CDLL(None, use_errno=True)

Key = tuple[int, ...]


def _file_system(path: str) -> int:
    """The kind of file system that a file is on. Raises OSError."""
    buffer = ctypes.create_string_buffer(512)
    if _libc.statfs(os.fsencode(path), buffer):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(struct.unpack_from("@l", buffer)[0])


def _key(site: Site) -> Key:
    """The same for two sites if one probe serves both. Raises OSError.

    The kernel probes the file below an overlay, and all containers of an image have the same one, each through an
    overlay with a device number of its own: a probe for each would run the program as often at each hit. What
    tells these files apart is their inode and times. The time of change is among them because a file that a
    container made its own (with another owner, say) keeps its number, size and contents, but is another to the
    kernel. Other file systems keep their device: their snapshots and clones agree in all the rest.
    """
    status = os.stat(site.path)
    if os.major(status.st_dev) == 0 and _file_system(site.path) == _OVERLAY:
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, site.offset
    return status.st_dev, status.st_ino, site.offset


class SharedProbes:
    """Keeps what it attached until it is closed."""

    def __init__(self, kernel: BpfKernel) -> None:
        """``kernel`` attaches them."""
        self._kernel = kernel
        self._placed: set[Key] = set()
        self._sets: list[ProbeSet] = []

    def attach(self, sites: list[Site]) -> None:
        """Attach those that are not attached yet.

        Raises:
            ProbeAttachError: the kernel refused, or the file is gone.
        """
        fresh = {}
        for site in sites:
            try:
                key = _key(site)
            except OSError as error:
                raise ProbeAttachError(f"uprobes on {site.path}: {error.strerror}") from error
            if key not in self._placed:
                fresh[key] = site
        if fresh:
            self._sets.append(self._kernel.attach_probes(_EVERY_PROCESS, list(fresh.values())))
            self._placed.update(fresh)

    def close(self) -> None:
        """Detach all."""
        for probes in self._sets:
            probes.close()
        self._sets.clear()
        self._placed.clear()
