"""How large the programs' maps are: by the number of CPUs, up to a bound."""

from __future__ import annotations

from collections.abc import Collection

from parprof.kernel.amounts import MALLOC

_WALKS_PER_CPU = 2
"""Walks of creators' stacks at once: a probe's program can be preempted by that of another thread."""
_THREADS_PER_CPU, _LEAST_THREADS, _MOST_THREADS = 256, 1 << 14, 1 << 16
"""An entry takes 1.3 kB."""
_LEAST_COUNTS, _MOST_COUNTS = 1 << 16, 1 << 19
"""An entry takes 0.14 kB."""
_STACKS_PER_CPU, _LEAST_STACKS, _MOST_STACKS = 64, 1 << 11, 1 << 14
"""Threads whose last stack is kept where calls are to be told apart. An entry takes 1.1 kB."""
_OUTER_CALLS = 1 << 12
"""Threads that are in the middle of an allocation at once."""
_TRACE_BYTES_PER_CPU = 50_000 * 48
FEW_SCOPES = 1024
"""Where nobody asks for all processes of the machine: one job is one scope. An entry takes 1.2 kB."""
_RING_BYTES_PER_CPU, _LEAST_RING, _MOST_RING = 1 << 19, 1 << 22, 1 << 25
"""For a second or two of deep stacks that are all new at 99 Hz; what finds no room comes with a later sample."""


def map_sizes(cpus: int, samples_per_second: float = 0.0) -> dict[str, int]:
    """Sizes of those maps that one size does not fit: entries, and bytes of ring buffers.

    ``cpus``: those that there may ever be; ``samples_per_second`` and CPU, of all events together. What is too much for
    the largest of them is counted as lost.

    >>> map_sizes(2, 499)["counts"], map_sizes(256, 499)["counts"]
    (65536, 262144)
    """
    return {
        "counts": _bounded(2 * cpus * samples_per_second, _LEAST_COUNTS, _MOST_COUNTS),
        "threads": _bounded(_THREADS_PER_CPU * cpus, _LEAST_THREADS, _MOST_THREADS),
        "edge_walks": _WALKS_PER_CPU * cpus,
        "walk_claims": _WALKS_PER_CPU * cpus,
        "stacks": _bounded(_RING_BYTES_PER_CPU * cpus, _LEAST_RING, _MOST_RING),
    }


def activation_sizes(cpus: int) -> dict[str, int]:
    """The same for what is only there where calls are to be told apart.

    >>> activation_sizes(2), activation_sizes(1024)
    ({'last_stacks': 2048}, {'last_stacks': 16384})
    """
    return {"last_stacks": _bounded(_STACKS_PER_CPU * cpus, _LEAST_STACKS, _MOST_STACKS)}


def amount_sizes(names: Collection[str]) -> dict[str, int]:
    """The same for events by amount.

    >>> amount_sizes(["read-bytes"]), amount_sizes(["malloc-bytes"])
    ({}, {'outer_calls': 4096})
    """
    return {"outer_calls": _OUTER_CALLS} if MALLOC in names else {}


def trace_ring_bytes(cpus: int) -> int:
    """Size of the ring of an execution trace, which is emptied ten times a second: 50,000 changes a second and CPU.

    >>> trace_ring_bytes(2), trace_ring_bytes(256)
    (8388608, 33554432)
    """
    return _bounded(_TRACE_BYTES_PER_CPU * cpus, _LEAST_RING, _MOST_RING)


def _bounded(wanted: float, least: int, most: int) -> int:
    """A power of two, as ring buffers must be."""
    return min(max(1 << (int(wanted) - 1).bit_length(), least), most)
