"""What profiling costs the targets, as the programs measure it in place while they run.

Each event is charged to its process in the kernel: what the trap takes on this machine (`parprof.probes.prices`) and
what the program took (bpf/budget.bpf.c). The same figures hold the cost to its budget and stand in reports and metrics.
"""

from __future__ import annotations

from collections.abc import Iterable

from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import COST_NAMES, Cost
from parprof.session.target import Target


class CostMeter:
    """Adds up what the targets of a session paid."""

    def __init__(self, kernel: BpfKernel) -> None:
        """``kernel`` knows what following context switches takes on the whole machine."""
        self._kernel = kernel
        self._gone_ns = [0.0] * len(Cost)

    def forget(self, targets: Iterable[Target]) -> None:
        """These are gone; what they paid stays."""
        for target in targets:
            for kind, ns in enumerate(target.spent_ns):
                self._gone_ns[kind] += ns

    def by_kind_ns(self, targets: Iterable[Target]) -> dict[Cost, float]:
        """What these targets, and those before them, have paid so far: CPU time in nanoseconds."""
        out = {kind: self._gone_ns[kind] for kind in Cost}
        for target in targets:
            for kind in Cost:
                out[kind] += target.spent_ns[kind]
        return out

    def by_name_s(self, targets: Iterable[Target]) -> dict[str, float]:
        """The same in seconds, by `COST_NAMES`."""
        return {COST_NAMES[kind]: ns / 1e9 for kind, ns in self.by_kind_ns(targets).items()}

    def machine_ns(self, targets: Iterable[Target]) -> float:
        """CPU time that the programs took so far on the whole machine, processes that are not watched included."""
        paid = self.by_kind_ns(targets)
        return (
            sum(paid.values()) - paid[Cost.SWITCH] + max(self._kernel.breaker.hooks_ns(), paid[Cost.SWITCH])
        )
