"""Where threads sleep that did so when their process was met: each is looked at once, and the programs are told, so
that its wait has a place, and the stall that it ends, though it wakes up long before the measurement ends.

What sleeps until then is another matter, with more to be known of it: see `parprof.session.asleep`.
"""

from __future__ import annotations

import time
from collections.abc import Set
from contextlib import suppress

from parprof.kernel.engine import BpfKernel
from parprof.model import AWAITS_UNKNOWN, Facts, SampleKey, ThreadState, add_facts
from parprof.process.threads import thread_ids
from parprof.session.asleep import MOST_LOOKED_AT, NO_TABLE, Finder, Tables, look_at
from parprof.session.target import Target
from parprof.values import dataclass

_PATIENCE_S = 10.0
"""For so long unwind tables may come that are missing at first."""
_PAUSE_S = 0.1


@dataclass(slots=True)
class _Due:
    """A process whose threads are yet to be looked at."""

    target: Target
    until_s: float
    next_s: float = 0.0


class FirstSleepers:
    """Of one session."""

    def __init__(self, kernel: BpfKernel, tables: Tables, finder: Finder = look_at) -> None:
        """``tables`` must not wait: others want to go on."""
        self._kernel = kernel
        self._tables = tables
        self._finder = finder
        self._due: dict[int, _Due] = {}
        self._told: dict[tuple[int, int], int] = {}
        """Stacks of threads, by image and thread."""

    def add(self, target: Target) -> None:
        """The threads of a process are to be looked at that has just been met, or whose waits are of interest now."""
        self._due.setdefault(target.image, _Due(target, time.monotonic() + _PATIENCE_S))

    def look(self, now_s: float) -> None:
        """Find out where they sleep, as far as that can be told by now. ``now_s``: CLOCK_MONOTONIC."""
        for image, due in list(self._due.items()):
            if due.target.ended:
                del self._due[image]
            elif now_s >= due.next_s:
                is_done = self._tell_of(due.target)
                due.next_s = time.monotonic() + _PAUSE_S
                if is_done or now_s > due.until_s:
                    del self._due[image]

    def _tell_of(self, target: Target) -> bool:
        """Tell the programs of each of its threads that sleeps; whether that was all."""
        is_done = True
        with suppress(OSError):
            for tid in thread_ids(target.pid, MOST_LOOKED_AT):
                is_done &= self._tell(target, tid)
        return is_done

    def _tell(self, target: Target, tid: int) -> bool:
        """Whether nothing is left to be told of a thread."""
        wait = self._kernel.placeless_wait(tid, target.image)
        if wait is None or (found := self._finder(target, tid, self._tables)) is None:
            return True
        if found.user.end == NO_TABLE:
            return False
        user, kernel = found.put(self._kernel.stacks)
        self._told[target.image, tid] = user
        epoch = target.mapped.maps.epoch
        self._kernel.breaker.place_wait(target.pid, wait, user, kernel, epoch, found.awaits)
        return True

    def without_told(self, unended: Facts) -> Facts:
        """What lasts, with the waits of which the programs were told where as if they had not been: they are looked at
        again, as who keeps the others asleep is to be known, too."""
        facts: Facts = {}
        for key, count in unended.items():
            is_wait = key.state is ThreadState.BLOCKED and key.user
            is_told = is_wait and key.user == self._told.get((key.image, key.tid))
            add_facts(facts, {_without_place(key) if is_told else key: count})
        return facts

    def forget(self, images: Set[int]) -> None:
        """These have been dealt with."""
        self._told = {thread: user for thread, user in self._told.items() if thread[0] not in images}


def _without_place(key: SampleKey) -> SampleKey:
    return key._replace(user=0, kernel=0, context=0, awaits=AWAITS_UNKNOWN)
