"""The kernel's side of events by amount (bpf/amounts.bpf.c): what is attached for them, and what they count."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from parprof.kernel import bpf
from parprof.kernel.allocation_probe import AllocationProbe
from parprof.kernel.amounts import ALLOCATED, AMOUNT_STATISTICS, AMOUNTS, Amount, statistic
from parprof.kernel.cpus import possible_cpus
from parprof.kernel.objects import LoadedObject
from parprof.kernel.sampling import Tracepoints
from parprof.kernel.uprobes import Prober, ProbeSet

_TRANSFERS = (("sys_exit", "on_transfer"),)


class AmountEvents:
    """Those of one session. Nothing is attached that nobody asked for."""

    def __init__(self, loaded: LoadedObject, amounts: Sequence[Amount], events: Sequence[str]) -> None:
        """``events``: the names of all events, by their index in samples."""
        self._object = loaded
        self._amounts = tuple(amounts)
        self._transfers = Tracepoints(loaded, _TRANSFERS)
        self._cpus = possible_cpus()
        self._prober: Prober | None = None
        self._probes: list[ProbeSet] = []
        layout = loaded.layouts["amount_plan"]
        for one in amounts:
            plan: Any = layout(size=one.bytes, event=events.index(one.name))
            loaded.put("amount_plans", struct.pack("<I", AMOUNTS[one.name]), plan)

    def begin(self) -> None:
        """Sample from now on.

        Raises:
            KernelUnsupported: the kernel lacks something; the text names it.
        """
        if any(AMOUNTS[one.name] != ALLOCATED for one in self._amounts):
            self._object.load_wait_unwinder()
            self._transfers.attach()

    def follow_allocations(self, probes: Sequence[AllocationProbe], pid: int = 0) -> ProbeSet:
        """Sample what a process allocates by these functions; 0: all watched ones that have them. Until `close`.

        Raises:
            ProbeAttachError: the kernel refused. KernelUnsupported: it does not take the program.
        """
        if self._prober is None:
            self._prober = Prober(self._object, "on_allocation")
        self._probes.append(self._prober.attach(probes, pid))
        return self._probes[-1]

    def leave_transfers(self) -> None:
        """System calls are too dear: all of the machine take longer while they are followed."""
        self._transfers.detach()

    def statistics(self) -> Mapping[str, int]:
        """`AMOUNT_STATISTICS` of each event that is asked for."""
        kinds = {AMOUNTS[one.name]: one.name for one in self._amounts}
        out = {statistic(name, what): 0 for name in kinds.values() for what in AMOUNT_STATISTICS}
        size, layout = self._object.definitions["amounts"]["value_size"], self._object.layouts["amount"]
        found = bpf.map_read_all(self._object.maps["amounts"], 4, size * self._cpus, 8) if kinds else ()
        for key, raw in found:
            name = kinds.get(int.from_bytes(key, "little"))
            for at in range(0, len(raw) if name else 0, size):
                amount: Any = layout.from_buffer_copy(raw, at)
                out[statistic(name or "", "total")] += amount.bytes
                out[statistic(name or "", "times")] += amount.times
                out[statistic(name or "", "left_out")] += amount.left_out
        return out

    def close(self) -> None:
        """Sample no more."""
        self._transfers.detach()
        for probes in self._probes:
            probes.close()
        if self._prober is not None:
            self._prober.close()
