"""The programs' counters: what they did, and what was lost by which reason."""

from __future__ import annotations

import struct

from parprof.kernel import bpf
from parprof.kernel.cpus import possible_cpus
from parprof.kernel.records import Cost
from parprof.kernel.stacks import PYTHON_ENDS, STACK_ENDS

LOST_REASONS = (
    "counts_full",
    "stack_ring",
    "user_stack",
    "control_ring",
    "threads_full",
    "processes_full",
    "nesting",
    "learned_full",
    "trace_ring",
    "contexts",
    "memory",
    "undecided",
    "cpus",
    "waits",
    "calls",
    "callers",
)
_STATISTICS = {
    "samples": 16, "switches": 17, "wakeups": 18, "repaired": 19, "unsure": 20, "contexts": 21, "caught": 23,
    "checked": 24, "disagreed": 25, "ticks": 26, "known_creations": 27,
    "stops": 28, "waits": 29, "walked_waits": 30, "scope_contended": 31, "placeless_waits": 47,
    "missed_switches": 61, "not_compared": 62, "untimed_calls": 63,
}  # fmt: skip
_STACKS = 32
_PYTHON = 44
_EDGES = 48
_EDGE_KINDS = 13
_LEFT_OUT = 64
EDGE_NAMES = {
    1: "work", 2: "wait", 3: "region", 4: "learn", 5: "create_thread", 6: "load_map", 7: "begin", 8: "end",
    9: "create_task", 10: "steal", 11: "lock", 12: "unlock",
}  # fmt: skip
"""Names of ``enum edge_kind``, as in metrics."""


LEFT_OUT = {
    Cost.PROBE: "probe_hits", Cost.LOCK: "lock_hits", Cost.CREATE: "thread_creations", Cost.WALK: "creation_walks",
    Cost.SAMPLE: "samples", Cost.CALL: "calls", Cost.TRANSFER: "transfers",
    Cost.ALLOCATION: "allocations",
}  # fmt: skip
"""Events that the breaker leaves out: names as in reports and metrics."""


class Counters:
    """Reads the per-CPU array of counters."""

    def __init__(self, fd: int, entries: int) -> None:
        """``fd``: descriptor of the map."""
        self._fd = fd
        self._entries = entries
        self._cpus = possible_cpus()

    def _read(self) -> list[int]:
        out = [0] * self._entries
        entry = struct.Struct(f"<{self._cpus}Q")
        for key, value in bpf.map_read_all(self._fd, 4, entry.size, self._entries + 1):
            out[int.from_bytes(key, "little")] = sum(entry.unpack(value))
        return out

    def lost(self) -> dict[str, int]:
        """Losses so far, by reason; reasons with none are left out."""
        values = self._read()
        return {name: values[index] for index, name in enumerate(LOST_REASONS) if values[index]}

    def statistics(self) -> dict[str, int]:
        """All else that is counted."""
        values = self._read()
        out = {name: values[index] for name, index in _STATISTICS.items()}
        out.update({f"left_out_{name}": values[_LEFT_OUT + cost] for cost, name in LEFT_OUT.items()})
        out["probe_hits"] = sum(values[_EDGES : _EDGES + _EDGE_KINDS])
        out.update({f"stacks_{end}": values[_STACKS + index] for index, end in enumerate(STACK_ENDS)})
        out.update({f"python_{end}": values[_PYTHON + index] for index, end in enumerate(PYTHON_ENDS)})
        return out

    def edges(self) -> dict[int, int]:
        """Probe hits by ``enum edge_kind``."""
        values = self._read()
        return {kind: values[_EDGES + kind] for kind in range(_EDGE_KINDS)}
