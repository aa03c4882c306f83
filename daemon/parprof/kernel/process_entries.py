"""The entries of one process in the programs' maps: what they are told of it, and what they know."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from parprof.kernel.records import ProcessState, WatchConfig
from parprof.plans import ClosureChain, MemoryPlan, TeamBarrier

_TEAM, _WORKERS = 1, 2


def process_state(raw: Any, *, follows_switches: bool) -> ProcessState:
    """What a ``struct process`` says. ``follows_switches``: whether context switches are followed at all."""
    parity = raw.generation & 1
    return ProcessState(
        raw.image,
        raw.n_working[parity],
        raw.n_unknown[parity],
        raw.members,
        raw.members_max,
        raw.probe_hits,
        tuple(raw.spent_ns),
        raw.ready_ns,
        bool(raw.ticks) or not follows_switches,
        raw.thin,
        raw.threads_created,
        raw.last_image,
        raw.last_ready_ns,
    )


def fill_config(raw: Any, config: WatchConfig) -> None:
    """Write what is told of a process into a ``struct process_config``."""
    for index, (start, end) in enumerate(config.runtime_ranges):
        raw.range_start[index], raw.range_end[index] = start, end
    for index, (start, end) in enumerate(config.user_ranges):
        raw.user_start[index], raw.user_end[index] = start, end
    for index, (start, end) in enumerate(config.wait_ranges):
        raw.wait_start[index], raw.wait_end[index] = start, end
    for index, (start, end) in enumerate(config.spin_ranges):
        raw.spin_start[index], raw.spin_end[index] = start, end
    for index, (start, end) in enumerate(config.libc_ranges):
        raw.libc_start[index], raw.libc_end[index] = start, end
    for index, (start, end) in enumerate(config.unprobed_ranges):
        raw.unprobed_start[index], raw.unprobed_end[index] = start, end
    for index, (start, end) in enumerate(config.code_spans):
        raw.code_start[index], raw.code_end[index] = start, end
    raw.flags = config.flags
    if config.memory is not None:
        fill_memory_plan(raw.memory, config.memory)
    if config.closures is not None:
        fill_closures(raw.closures, config.closures)


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
