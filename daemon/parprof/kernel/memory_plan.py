"""Plans for reading a runtime's memory, in the form that the BPF programs take them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from parprof.runtimes.memory import ClosureChain, MemoryPlan, TeamBarrier

_TEAM, _WORKERS = 1, 2


def fill_memory_plan(raw: Any, plan: MemoryPlan) -> None:
    """Write a plan into a ``struct memory_plan``."""
    if isinstance(plan, TeamBarrier):
        raw.kind = _TEAM
        for field in fields(plan):
            value = getattr(plan, field.name)
            setattr(raw, field.name, value & (1 << 64) - 1 if field.name == "tls" else value)
        return
    raw.kind = _WORKERS
    raw.root_kind, raw.root = plan.root_kind, plan.root & (1 << 64) - 1
    raw.hop_count, raw.worker_hop_count = len(plan.hops), len(plan.worker_hops)
    for index, offset in enumerate(plan.hops):
        raw.hops[index] = offset
    for index, offset in enumerate(plan.worker_hops):
        raw.worker_hops[index] = offset
    for name in ("count", "array", "stride", "pointers", "value"):
        setattr(raw, name, getattr(plan, name))
    raw.mask = (1 << 8 * plan.size) - 1
    raw.not_zero = plan.equals is None
    raw.equals = plan.equals or 0


def fill_closures(raw: Any, chain: ClosureChain) -> None:
    """Write a chain into a ``struct closure_chain``."""
    raw.there = 1
    for field in fields(chain):
        if field.name not in ("argument", "entry"):
            setattr(raw, field.name, getattr(chain, field.name))
