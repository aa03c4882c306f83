"""Probes that serve all processes at once: a file is probed once, however many processes map it.

For rare events only (a thread is created, a library is loaded): processes that are not watched hit them too.
"""

from __future__ import annotations

import os

from parprof.errors import ProbeAttachError
from parprof.kernel.engine import Kernel
from parprof.kernel.uprobes import ProbeSet, Site

_EVERY_PROCESS = 0


class SharedProbes:
    """Keeps what it attached until it is closed."""

    def __init__(self, kernel: Kernel) -> None:
        """``kernel`` attaches them."""
        self._kernel = kernel
        self._placed: set[tuple[int, int, int]] = set()
        self._sets: list[ProbeSet] = []

    def attach(self, sites: list[Site]) -> None:
        """Attach those that are not attached yet.

        Raises:
            ProbeAttachError: the kernel refused, or the file is gone.
        """
        fresh = {}
        for site in sites:
            try:
                status = os.stat(site.path)
            except OSError as error:
                raise ProbeAttachError(f"uprobes on {site.path}: {error.strerror}") from error
            key = status.st_dev, status.st_ino, site.offset
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
