"""What ``-e malloc-bytes`` takes: `record` starts the command with a library that counts what it allocates, `attach`
probes the functions of the allocator."""

from __future__ import annotations

import os
from collections.abc import Mapping

from parprof.errors import ProbeAttachError, TargetError
from parprof.instruments.alloc import Preloaded, preloaded, why_not
from parprof.kernel.allocation_probe import AllocationProbe
from parprof.kernel.amounts import MALLOC
from parprof.kernel.engine import BpfKernel
from parprof.kernel.perf_events import EventChoice
from parprof.kernel.records import Cost
from parprof.probes.allocators import allocation_probes, unseen_new
from parprof.probes.facts_book import BOOK
from parprof.session.session import Session
from parprof.values import dataclass


@dataclass(frozen=True, slots=True)
class Allocations:
    """How a command's allocations are sampled."""

    library: Preloaded
    sample_bytes: int
    budget_ratio: float

    @classmethod
    def of(cls, events: EventChoice, command: str, budget_percent: float) -> Allocations:
        """Those of a command that is about to be started. ``budget_percent``: what samples may take of its time.

        Raises:
            TargetError: nothing can be preloaded into it. KernelUnsupported: there is no library, nor a compiler.
        """
        wanted = next(one for one in events.amounts if one.name == MALLOC)
        if reason := why_not(command):
            raise TargetError(f"-e {MALLOC}: {reason}")
        return cls(preloaded(), wanted.bytes, budget_percent / 100)

    def environment(self) -> Mapping[str, str]:
        """Variables for the command."""
        return self.library.environment(
            self.sample_bytes, self.budget_ratio, os.environ.get("LD_PRELOAD", "")
        )

    def follow(self, kernel: BpfKernel) -> None:
        """Take its samples, before it begins.

        Raises:
            ProbeAttachError, KernelUnsupported.
        """
        probe = AllocationProbe(self.library.library, self.library.probe_offset)
        kernel.amounts.follow_allocations([probe])


def notes(session: Session) -> list[str]:
    """What of the allocations was not counted."""
    maps = [target.load_map for target in session.targets.values() if target.load_map is not None]
    names = {unseen_new([dso for dso in one.dsos() if dso.key[0] == "file"], BOOK.facts) for one in maps}
    return [
        f"{MALLOC}: {name} has a `new` of its own, which is not counted where it calls no malloc: `parprof attach` "
        "probes it"
        for name in sorted(names - {""})
    ]


def follow_running(session: Session) -> None:
    """Sample what processes that run already allocate, by probes, as long as each one's budget allows for that.

    Raises:
        ProbeAttachError: nobody knows where one of them allocates, or the kernel refused.
    """
    for target in list(session.targets.values()):
        if target.load_map is None or session.live(target.pid) is None:
            continue
        dsos = [dso for dso in target.load_map.dsos() if dso.key[0] == "file"]
        try:
            probes = session.kernel.amounts.follow_allocations(
                allocation_probes(dsos, BOOK.facts), target.pid
            )
        except ProbeAttachError as error:
            raise ProbeAttachError(f"-e {MALLOC}: process {target.pid}: {error}") from error
        session.kernel.breaker.guard(target.pid, Cost.ALLOCATION, probes)
