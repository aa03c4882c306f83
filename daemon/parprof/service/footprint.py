"""What keeps the daemon small: sizes of buffers, how often they are emptied, and what is given back when."""

from __future__ import annotations

import gc
import mmap
import os

from parprof.resources import trim_heap
from parprof.service.config.options import DaemonOptions

TURN_SECONDS = 0.2
"""From one turn of the loop to the next, at least: thousands of processes may come and go in a second, and what they
tell is dealt with in bundles."""
CORES_SECONDS = 15.0
"""How often at most it is read how many cores a process may use."""
KERNEL_PASS_SECONDS = 300.0
"""How often at most new functions of the kernel are looked up, which takes 0.1 s."""
FILE_SECONDS, SYMBOLS_SECONDS = 8.0, 6.0
"""For the symbols of one file, read twice at most, and for all files of a charge: the loop stands still meanwhile, and
the watchdog's 30 s must not be reached. What is not had by then is asked for again with the next charge."""
_RING_BYTES_PER_CPU = 1 << 19
"""For a second or two of deep stacks at 99 Hz."""
_SMALLEST_RING, _LARGEST_RING = 1 << 20, 1 << 23
_COUNTS_PER_DRAIN = 20_000
"""The kernel's table has room for three times as many."""


def ring_sizes(cpus: int | None = None) -> dict[str, int]:
    """Sizes of the kernel's ring buffers, bytes; all of their pages count as ours.

    A stack that finds no room comes with a later sample.

    >>> ring_sizes(4)["stacks"] >> 20
    2
    """
    wanted = _RING_BYTES_PER_CPU * (cpus or os.cpu_count() or 1)
    stacks = min(max(1 << (wanted - 1).bit_length(), _SMALLEST_RING), _LARGEST_RING)
    return {"stacks": stacks, "trace": mmap.PAGESIZE}


def drain_seconds(options: DaemonOptions, cpus: int | None = None) -> float:
    """How long samples may stay in the kernel: until they are charged, but before they could fill its table.

    >>> drain_seconds(DaemonOptions(), 2), drain_seconds(DaemonOptions(), 101)
    (20.0, 2.000200020002)
    """
    per_second = options.frequency_hz * len(options.events) * (cpus or os.cpu_count() or 1)
    return min(2 * options.interval_seconds, max(_COUNTS_PER_DRAIN / per_second, 1.0))


def give_back() -> None:
    """Give freed memory back to the system. The first time, set apart what is there to stay, as modules are."""
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
    trim_heap()
