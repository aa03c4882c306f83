"""What the daemon's children cost: they read symbols, compile and disassemble, and are in no figure of its own."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_USER, _SYSTEM, _ENDED_USER, _ENDED_SYSTEM = 11, 12, 13, 14
"""In ``/proc/PID/stat``, behind the name."""


class ChildrenCollector(Collector):
    """CPU time of all children that there have been, and memory of those that live."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._lock = threading.Lock()
        self._highest_s = 0.0

    def collect(self) -> Iterator[Metric]:
        """The two families."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s, memory = _of_living()
        with (
            self._lock
        ):  # a child that ended between the two looks is in neither, and yet no counter may fall
            self._highest_s = max(self._highest_s, cpu_s + ended.ru_utime + ended.ru_stime)
            total_s = self._highest_s
        yield CounterMetricFamily(
            "parprofd_children_cpu_seconds", "CPU time of the daemon's children, ended ones too.", total_s
        )
        yield GaugeMetricFamily(
            "parprofd_children_resident_memory_bytes",
            "Memory of the daemon's children; what they share counts for each.",
            memory,
        )


def _of_living() -> tuple[float, int]:
    """CPU time in seconds and resident memory in bytes."""
    ticks = pages = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                with suppress(OSError, ValueError, IndexError):
                    fields = Path(f"/proc/{child}/stat").read_bytes().rpartition(b")")[2].split()
                    ticks += sum(int(fields[at]) for at in (_USER, _SYSTEM, _ENDED_USER, _ENDED_SYSTEM))
                    pages += int(Path(f"/proc/{child}/statm").read_text().split()[1])
    return ticks * _TICK_S, pages * _PAGE
