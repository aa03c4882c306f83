"""What `record` does for ``-e malloc-bytes``: the command is started with a library that counts what it allocates."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from parprof.errors import TargetError, UsageError
from parprof.instruments.alloc import Preloaded, preloaded, why_not
from parprof.kernel.amount_events import AllocationProbe
from parprof.kernel.amounts import MALLOC
from parprof.kernel.engine import BpfKernel
from parprof.kernel.perf_events import EventChoice


@dataclass(frozen=True, slots=True)
class Allocations:
    """How a command's allocations are sampled; not at all without a library."""

    library: Preloaded | None = None
    sample_bytes: int = 0
    budget_ratio: float = 1.0

    @classmethod
    def of(cls, events: EventChoice, command: str, budget_percent: float) -> Allocations:
        """Those of a command that is about to be started. ``budget_percent``: what samples may take of its time.

        Raises:
            TargetError: nothing can be preloaded into it. KernelUnsupported: there is no library, nor a compiler.
        """
        wanted = next((one for one in events.amounts if one.name == MALLOC), None)
        if wanted is None:
            return cls()
        if reason := why_not(command):
            raise TargetError(f"-e {MALLOC}: {reason}")
        return cls(preloaded(), wanted.bytes, budget_percent / 100)

    def environment(self) -> Mapping[str, str]:
        """Variables for the command."""
        if self.library is None:
            return {}
        return self.library.environment(
            self.sample_bytes, self.budget_ratio, os.environ.get("LD_PRELOAD", "")
        )

    def follow(self, kernel: BpfKernel) -> None:
        """Take its samples, before it begins.

        Raises:
            ProbeAttachError, KernelUnsupported.
        """
        if self.library is not None:
            kernel.amounts.follow_allocations(
                AllocationProbe(self.library.library, self.library.probe_offset)
            )


def refuse_running(events: EventChoice) -> None:
    """See that nobody asks for the allocations of a program that runs already.

    Raises:
        UsageError: somebody does.
    """
    if any(one.name == MALLOC for one in events.amounts):
        raise UsageError(
            f"-e {MALLOC}: a probe at each malloc of a running program would take more of it than any budget: start it "
            f"with `parprof record -e {MALLOC} -- CMD`"
        )
