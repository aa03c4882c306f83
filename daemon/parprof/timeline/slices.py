"""What threads did, as slices of time: their states, and how many of them worked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from parprof.kernel.trace import ENDED, QUEUES, RUNS, WORKS, ThreadRecord

WORKING, READY, SPINNING, IDLE_OFF_CPU, WAITING = (
    "working", "ready, no CPU", "spinning", "idle, no CPU", "waiting",
)  # fmt: skip
"""States as a trace names them."""
TracedThread = tuple[int, int]
"""Process image and thread id."""


class Slice(NamedTuple):
    """Something that a thread did, from a time up to but not including another; CLOCK_MONOTONIC."""

    begin_ns: int
    end_ns: int
    name: str


class CounterStep(NamedTuple):
    """A number from a time on."""

    time_ns: int
    value: int


def state_of(does: int) -> str:
    """The state that ``ThreadRecord.does`` means; empty: the thread has ended.

    >>> state_of(WORKS | RUNS), state_of(QUEUES), state_of(ENDED)
    ('working', 'idle, no CPU', '')
    """
    if does & ENDED:
        return ""
    if does & RUNS:
        return WORKING if does & WORKS else SPINNING
    if does & QUEUES:
        return READY if does & WORKS else IDLE_OFF_CPU
    return WAITING


def by_thread(records: Iterable[ThreadRecord]) -> dict[TracedThread, list[ThreadRecord]]:
    """The records of each thread, in their order."""
    found: dict[TracedThread, list[ThreadRecord]] = {}
    for record in records:
        found.setdefault((record.image, record.tid), []).append(record)
    return found


def states(records: Sequence[ThreadRecord], end_ns: int) -> list[Slice]:
    """The states of one thread, of which these are all records; the last lasts until ``end_ns``.

    >>> states([ThreadRecord(10, 1, 1, WORKS | RUNS), ThreadRecord(15, 1, 1, 0)], 20)
    [Slice(begin_ns=10, end_ns=15, name='working'), Slice(begin_ns=15, end_ns=20, name='waiting')]
    """
    found: list[Slice] = []
    since_ns, state = 0, ""
    for record in records:
        now = state_of(record.does)
        if now == state:
            continue
        if state and record.time_ns > since_ns:
            found.append(Slice(since_ns, record.time_ns, state))
        since_ns, state = record.time_ns, now
    if state and end_ns > since_ns:
        found.append(Slice(since_ns, end_ns, state))
    return found


def runs(records: Sequence[ThreadRecord], end_ns: int) -> list[tuple[int, int]]:
    """When one thread, of which these are all records, had a CPU, whatever it did there; CLOCK_MONOTONIC.

    >>> runs([ThreadRecord(10, 1, 1, WORKS | RUNS), ThreadRecord(12, 1, 1, RUNS), ThreadRecord(15, 1, 1, 0)], 20)
    [(10, 15)]
    """
    found: list[tuple[int, int]] = []
    for begin_ns, until_ns, state in states(records, end_ns):
        if state in (WORKING, SPINNING):
            if found and found[-1][1] == begin_ns:
                begin_ns = found.pop()[0]
            found.append((begin_ns, until_ns))
    return found


def n_working(records: Iterable[ThreadRecord]) -> list[CounterStep]:
    """n_w over time: how many of these threads work, on a CPU or waiting for one.

    >>> n_working([ThreadRecord(1, 7, 1, WORKS | RUNS), ThreadRecord(2, 8, 1, WORKS), ThreadRecord(3, 7, 1, 0)])
    [CounterStep(time_ns=1, value=1), CounterStep(time_ns=2, value=2), CounterStep(time_ns=3, value=1)]
    """
    at_work: set[TracedThread] = set()
    steps: list[CounterStep] = []
    for record in records:
        thread = record.image, record.tid
        if record.does & WORKS and not record.does & ENDED:
            at_work.add(thread)
        else:
            at_work.discard(thread)
        if not steps or steps[-1].value != len(at_work):
            steps.append(CounterStep(record.time_ns, len(at_work)))
    return steps


def end_replaced(records: Iterable[ThreadRecord], pids: dict[int, int]) -> list[ThreadRecord]:
    """The same, where threads end with their process image: another program took its place (exec).

    ``pids``: the process of each image. Records are in the order of time.
    """
    live: dict[int, dict[TracedThread, ThreadRecord]] = {}
    out: list[ThreadRecord] = []
    for record in records:
        threads = live.setdefault(pids.get(record.image, 0), {})
        replaced = [one for one in threads if one[0] < record.image] if record.image in pids else []
        out += [
            threads.pop(thread)._replace(time_ns=record.time_ns, does=ENDED, edge=0, depth=0)
            for thread in replaced
        ]
        out.append(record)
        if record.does & ENDED:
            threads.pop((record.image, record.tid), None)
        else:
            threads[record.image, record.tid] = record
    return out
