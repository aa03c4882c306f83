"""Barrier phases of a running process (`parprof attach --span`) as a record, like that of a run of `parprof scale`.

A phase takes as long as the largest share of its threads had CPU time (instruments.md sec. 3.6), so its part of the
span is its part of the bound, too: no share is shorter than the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parprof.scale.record import Address, Flag, SiteKind, SiteRecord, SpanRecord
from parprof.values import dataclass

NOWHERE = Address("", "", 0)


@dataclass(frozen=True, slots=True)
class Phase:
    """All phases of one site, in seconds of CPU time."""

    is_serial: bool
    """Code between regions, before the one with this body; else shares of a team."""
    body: Address
    """The first address of the function that is the region's body."""
    barrier: Address
    """That ended it: the address it returns to. `NOWHERE`: the region's end, or not known."""
    work_s: float
    span_s: float
    count: int


def record_of(
    phases: Sequence[Phase],
    *,
    pid: int,
    command: str,
    threads: int,
    regions: int,
    cpu_s: float,
    elapsed_s: float,
) -> SpanRecord:
    """The record. ``threads``: of the largest team; ``cpu_s``: of the process, while it was measured."""
    sites = tuple(_site(index, phase, max(threads, 1)) for index, phase in enumerate(phases))
    return SpanRecord(pid, command, Flag.CLOSED, threads, threads, regions, 0, cpu_s, elapsed_s, False, sites)


def _site(index: int, phase: Phase, threads: int) -> SiteRecord:
    body = replace(phase.body, vaddr=phase.body.vaddr + 1)  # sites are known by the address after the code
    kind, address, origin = SiteKind.REGION, body, NOWHERE
    if phase.is_serial:
        kind = SiteKind.SERIAL
    elif phase.barrier.vaddr:
        kind, address, origin = SiteKind.PHASE, phase.barrier, body
    uneven_s = 0.0 if phase.is_serial else max(0.0, phase.span_s - phase.work_s / threads)
    return SiteRecord(
        index,
        kind,
        address,
        origin,
        phase.work_s,
        phase.count,
        phase.span_s,
        phase.count,
        phase.span_s,
        uneven_s,
        0.0,
        0.0,
    )
