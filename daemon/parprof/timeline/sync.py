"""Regions, tasks and the places where threads wait for each other, as the runtime's probes told of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from parprof.kernel.trace import ENDED, ThreadRecord
from parprof.plans import Edge
from parprof.timeline.slices import Slice

_FRAMES = {Edge.WORK: "work", Edge.WAIT: "wait", Edge.REGION: "region", Edge.LOCK: "lock"}
"""What lasts until it returns, and what it is called."""
_INSTANTS = {
    Edge.CREATE_TASK: "create task", Edge.CREATE_THREAD: "create thread", Edge.UNLOCK: "unlock",
    Edge.STEAL: "steal",
}  # fmt: skip


class Instant(NamedTuple):
    """Something that takes no time."""

    time_ns: int
    name: str


class _Open(NamedTuple):
    depth: int
    begin_ns: int
    name: str


def named(what: str, function: str) -> str:
    """How a trace calls it.

    >>> named("region", "main._omp_fn.0"), named("wait", "")
    ('region main._omp_fn.0', 'wait')
    """
    return f"{what} {function}" if function else what


def sync_points(
    records: Sequence[ThreadRecord], end_ns: int, name_of: Callable[[int], str]
) -> tuple[list[Slice], list[Instant]]:
    """What one thread was in when, the outer before the inner; and what it did at an instant.

    ``name_of``: the function at an address of its process. What lasts still ends at ``end_ns``. A frame whose return
    was not seen ends with the next event that shows it gone.
    """
    done: list[tuple[int, int, Slice]] = []
    """Each with what it is sorted by: when it begins, and how deep it is."""
    instants: list[Instant] = []
    stack: list[_Open] = []

    def close(deeper_than: int, now_ns: int) -> None:
        while stack and stack[-1].depth > deeper_than:
            one = stack.pop()
            done.append((one.begin_ns, one.depth, Slice(one.begin_ns, now_ns, one.name)))

    for record in records:
        if record.does & ENDED:
            close(-1, record.time_ns)
            continue
        if not record.edge:
            continue
        edge = Edge(record.edge)
        begins = bool(record.function)
        if edge in (Edge.BEGIN, Edge.END):
            close(-1, record.time_ns)
            if edge is Edge.BEGIN:
                stack.append(_Open(0, record.time_ns, "work"))
        elif edge in _FRAMES and begins:
            close(record.depth - 1, record.time_ns)
            stack.append(_Open(record.depth, record.time_ns, named(_FRAMES[edge], name_of(record.function))))
        else:
            close(record.depth, record.time_ns)
            if edge in _INSTANTS and begins:
                instants.append(Instant(record.time_ns, named(_INSTANTS[edge], name_of(record.function))))
    close(-1, end_ns)
    return [one for _, _, one in sorted(done)], instants
