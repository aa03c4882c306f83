"""Work and span of the barrier phases of one running process, as the program at its work edges adds them up
(bpf/phases.bpf.c)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from parprof.kernel.call_times import CallTimer
from parprof.kernel.objects import LoadedObject
from parprof.kernel.uprobes import Prober, ProbeSet, Site

MAX_SITES = 1 << 12
"""Of all regions together."""
_MAX_THREADS = 1 << 14
_THE_PROCESS = bytes(4)
"""Key of the only entry of its map, an array."""


def phase_sizes() -> dict[str, int]:
    """Sizes of the maps, in entries, where phases are to be measured: 3 MB in all."""
    return {"phase_sums": MAX_SITES, "phase_threads": _MAX_THREADS, "call_threads": _MAX_THREADS}


class PhaseKind(IntEnum):
    """``enum phase_kind`` of bpf/wire_calls.h."""

    SERIAL = 1
    """Code of the thread that begins regions, before one."""
    SHARES = 2
    """Of a team, up to a barrier or to the region's end."""


class PhaseSum(NamedTuple):
    """All phases of one site."""

    kind: int
    function: int
    """Address of the region's body."""
    barrier: int
    """The address that the barrier returns to which ended it; 0: the region's end."""
    work_ns: int
    span_ns: int
    """Of the thread that had most, phase by phase."""
    phases: int


class PhaseState(NamedTuple):
    """What is known of the process."""

    hits: int
    """Of probes."""
    regions: int
    widest: int
    """Threads of the largest team."""
    nested: int
    """Regions that began while one was open."""
    beside: int
    """Of these: begun by threads that had no part in that one."""


class PhaseCounter:
    """The probes of one session that tell phases, and the sums."""

    def __init__(self, loaded: LoadedObject, timer: CallTimer) -> None:
        self._object = loaded
        self._timer = timer
        self._prober: Prober | None = None

    def attach(self, sites: Sequence[Site], pid: int) -> ProbeSet:
        """Follow the threads of process ``pid`` through these places.

        Raises:
            ProbeAttachError: the kernel refused.
            KernelUnsupported: it does not take the program.
        """
        if self._prober is None:
            self._prober = Prober(self._object, "on_phase")
        self._timer.begin()
        return self._prober.attach(sites, pid)

    def sums(self) -> list[PhaseSum]:
        """Of each site."""
        return [
            PhaseSum(site.kind, site.function, site.barrier, one.work_ns, one.span_ns, one.phases)
            for site, one in self._object.entries("phase_sums", "phase_sum", "phase_site")
        ]

    def state(self) -> PhaseState:
        """Of the process."""
        one = self._object.get("phase_processes", _THE_PROCESS, "phase_process")
        return PhaseState(one.hits, one.region, one.widest, one.nested, one.beside)

    def close(self) -> None:
        """No more probes are placed; those that there are go with their sets."""
        if self._prober is not None:
            self._prober.close()
