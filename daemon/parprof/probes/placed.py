"""The probes of one process, by what they cost it."""

from __future__ import annotations

from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import Cost
from parprof.kernel.uprobes import ProbeSet, Site


class PlacedProbes:
    """Remembers what is attached, so that each site is attached once."""

    def __init__(self, kernel: BpfKernel, pid: int) -> None:
        """``pid``: the process, alone: others that map the same files are not to execute breakpoints."""
        self._kernel = kernel
        self._pid = pid
        self._sets: dict[Cost | None, list[ProbeSet]] = {}
        self._placed: dict[Cost | None, set[tuple[str, int]]] = {}

    def attach(self, sites: list[Site], cost: Cost | None) -> None:
        """Attach those that are not attached yet. They go when ``cost``, if any, is cut off.

        Raises:
            ProbeAttachError: the kernel refused.
        """
        placed = self._placed.setdefault(cost, set())
        fresh = [site for site in sites if (site.path, site.offset) not in placed]
        if fresh:
            self._sets.setdefault(cost, []).append(self._kernel.attach_probes(self._pid, fresh, cost))
            placed.update((site.path, site.offset) for site in fresh)

    def detach(self, *kinds: Cost) -> None:
        """Take those of these kinds away. It does not wait."""
        for kind in kinds:
            self._placed.pop(kind, None)
            for probes in self._sets.pop(kind, ()):
                probes.close()

    def close(self) -> None:
        """Take all away."""
        for kept in self._sets.values():
            for probes in kept:
                probes.close()
        self._sets.clear()
        self._placed.clear()
