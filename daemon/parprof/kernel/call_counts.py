"""Exact calls of chosen functions: their probes, and what the program at these counts (bpf/calls.bpf.c)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from parprof.kernel import bpf
from parprof.kernel.call_times import CallTimer
from parprof.kernel.cpus import possible_cpus
from parprof.kernel.objects import LoadedObject
from parprof.kernel.uprobes import Prober, ProbeSet
from parprof.values import dataclass

CALL_DEAR, CALL_KNOWS_CALLER, CALL_TIMED, CALL_LEAVES, CALL_LANDS = (1 << bit for bit in range(16, 21))
CALL_ROUTINE_SHIFT = 32
MAX_SITES = 1 << 12
"""Places that can be probed at once."""
_MAX_CALLERS = 1 << 13
_METER = 4
"""METER_CALL of bpf/budget.bpf.c."""


def map_sizes() -> dict[str, int]:
    """Sizes of the maps, in entries, where calls are to be counted."""
    return {"call_counts": MAX_SITES, "call_arcs": _MAX_CALLERS}


@dataclass(frozen=True, slots=True)
class CallProbe:
    """A place to probe: file offset in the file at ``path``, and the number under which its calls are counted."""

    path: str
    offset: int
    number: int
    dear: bool = False
    """The kernel has to execute the instruction there out of line."""
    knows_caller: bool = False
    """The instruction there is the one that calls, not the function's own."""
    timed: bool = False
    """Its exits are probed, too: a place that is the function's own, with the return address on top of the stack."""
    leaves: bool = False
    """No call, but an exit of the routine."""
    lands: bool = False
    """No call: here threads go on after an exception or longjmp."""
    routine: int = 0
    """The number under which times are added up."""
    returns: bool = False
    moves: bool = True
    """Never a return probe, not even for a moment: an exception may pass through."""

    @property
    def cookie(self) -> int:
        """What the program is told."""
        flags = (
            (self.dear, CALL_DEAR),
            (self.knows_caller, CALL_KNOWS_CALLER),
            (self.timed, CALL_TIMED),
            (self.leaves, CALL_LEAVES),
            (self.lands, CALL_LANDS),
        )
        return self.number | sum(flag for on, flag in flags if on) | self.routine << CALL_ROUTINE_SHIFT


class Calls(NamedTuple):
    """How many calls, by the state of the program at the entry."""

    sequential: int = 0
    """n_w was 1."""
    concurrent: int = 0
    """n_w was more."""
    unsure: int = 0
    """Of both: n_w was partly a guess."""

    @property
    def all(self) -> int:
        """In either state."""
        return self.sequential + self.concurrent

    def plus(self, other: Calls) -> Calls:
        """The sum.

        >>> Calls(1, 2, 1).plus(Calls(2, 0, 0))
        Calls(sequential=3, concurrent=2, unsure=1)
        """
        return Calls(*(mine + others for mine, others in zip(self, other, strict=True)))


class Caller(NamedTuple):
    """Who called through a site."""

    site: int
    return_address: int
    epoch: int
    """Of the load map: see `parprof.model.SampleKey`."""
    image: int
    """Of the process that called: a site may be that of several images, one after the other."""


class CallCounter:
    """The probes of one session that count calls, and the counts."""

    def __init__(self, loaded: LoadedObject) -> None:
        self._object = loaded
        self._prober: Prober | None = None
        self._cpus = possible_cpus()
        self.times = CallTimer(loaded)
        """How long calls took, of those probes that are timed."""

    def attach(self, probes: Sequence[CallProbe], pid: int) -> ProbeSet:
        """Count at these places in process ``pid`` alone.

        Raises:
            ProbeAttachError: the kernel refused.
            KernelUnsupported: it does not take the program.
        """
        if self._prober is None:
            self._prober = Prober(self._object, "on_call")
        if any(probe.timed for probe in probes):
            self.times.begin()
        return self._prober.attach(probes, pid)

    def by_site(self) -> dict[int, dict[int, Calls]]:
        """Calls through each site by CPU, where there were any."""
        out: dict[int, dict[int, Calls]] = {}
        for key, counted in self._read("call_counts"):
            by_cpu = {cpu: calls for cpu, calls in enumerate(counted) if calls.all}
            if by_cpu:
                out[int.from_bytes(key, "little")] = by_cpu
        return out

    def by_caller(self) -> dict[Caller, Calls]:
        """Calls by who called, of the sites that do not say so themselves."""
        layout = self._object.layouts["call_arc"]
        out: dict[Caller, Calls] = {}
        for key, counted in self._read("call_arcs"):
            arc: Any = layout.from_buffer_copy(key)
            total = Calls()
            for calls in counted:
                total = total.plus(calls)
            if total.all:
                out[Caller(arc.site, arc.caller, arc.epoch, arc.image)] = total
        return out

    def price_ns(self) -> int:
        """What the program takes for a call, the probe's trap aside; 0: none was timed yet."""
        definition, layout = self._object.definitions["meters"], self._object.layouts["meter"]
        size = definition["value_size"]
        prices = []
        for _, raw in bpf.map_read_all(self._object.maps["meters"], 4, size * self._cpus, 2):
            for at in range(0, len(raw), size):
                meter: Any = layout.from_buffer_copy(raw[at : at + size])
                if meter.hits[_METER]:
                    prices.append((meter.hits[_METER], meter.price_ns[_METER]))
        hits = sum(count for count, _ in prices)
        return sum(count * ns for count, ns in prices) // hits if hits else 0

    def _read(self, name: str) -> Iterator[tuple[bytes, list[Calls]]]:
        """All entries of a table, and what each CPU counted there."""
        definition, layout = self._object.definitions[name], self._object.layouts["call_count"]
        size = definition["value_size"]
        entries = bpf.map_read_all(self._object.maps[name], definition["key_size"], size * self._cpus, 1024)
        for key, raw in entries:
            if not any(raw):
                continue
            yield (
                key,
                [self._calls(layout.from_buffer_copy(raw, at)) for at in range(0, len(raw), size)],
            )

    @staticmethod
    def _calls(raw: Any) -> Calls:
        return Calls(raw.sequential, raw.concurrent, raw.unsure)

    def close(self) -> None:
        """No more probes are placed; those that there are go with their sets."""
        self.times.close()
        if self._prober is not None:
            self._prober.close()
