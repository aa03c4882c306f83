"""Where the threads of a session's targets sleep, where no event tells that: as they are met, while they are measured,
at the end. Each is a matter of its own (`first_sleepers`, `asleep`, `looks`); here is which is when.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Set

from parprof.kernel.counts import ByTime
from parprof.kernel.engine import BpfKernel
from parprof.model import Facts, SampleKey
from parprof.session.asleep import Meanwhile, placed_at_end
from parprof.session.first_sleepers import FirstSleepers
from parprof.session.looks import Looks
from parprof.session.target import Target
from parprof.unwind.builder import TableBuilder


class SessionSleep:
    """Of one session."""

    def __init__(self, kernel: BpfKernel, builder: TableBuilder, *, looks_on: bool) -> None:
        """``looks_on``: look in ``/proc`` now and then while context switches are too dear to be followed."""
        self._kernel = kernel
        self._builder = builder
        self._meanwhile: dict[int, Meanwhile] = {}
        """By image, of those whose waits are cut in two now and then."""
        self._first = FirstSleepers(kernel, builder.at_hand)
        self._looks = Looks(builder.at_hand, kernel.stacks) if looks_on else None

    def met(self, target: Target) -> None:
        """A process was met whose threads may have slept before."""
        self._first.add(target)

    def cut(self, target: Target, unended: Facts, now_ns: int, *, goes_on: bool) -> Facts:
        """Waits and stalls of a process that last at a time (CLOCK_MONOTONIC), with their places.

        ``goes_on``: it will be asked again, for what has come since.
        """
        if target.image not in self._meanwhile:
            self._meanwhile[target.image] = Meanwhile(target, self._builder.at_hand)
            self._first.add(target)
        facts = self._meanwhile[target.image].placed(
            self._first.without_told(unended),
            now_ns,
            self._kernel.stacks,
            knows_stalls=self._kernel.breaker.follows_switches,
        )
        if not goes_on:
            del self._meanwhile[target.image]
        return facts

    def at_end(self, unended: Facts, living: Mapping[int, Target]) -> Facts:
        """What lasts at the end of the measurement, with its places. ``living``: by image."""
        lasting = self._first.without_told(unended)
        return placed_at_end(lasting, living, self._builder.table, self._kernel.stacks)

    @property
    def is_looked_for(self) -> bool:
        """Whether context switches are too dear, and there are no glimpses of them, which would tell more."""
        breaker = self._kernel.breaker
        return self._looks is not None and not breaker.follows_switches and not breaker.glimpses.count

    def look(self, living: Iterable[Target], now_s: float, *, in_time: bool) -> None:
        """Look where it is time to. ``in_time``: the measurement goes on. ``now_s``: CLOCK_MONOTONIC."""
        self._first.look(now_s)
        if self._looks is None or not in_time:
            return
        if self._kernel.breaker.follows_switches:
            self._looks.pause()
        elif self.is_looked_for:
            self._looks.look(living, time.monotonic_ns())

    def seen(self, known: Iterable[SampleKey], targets: Mapping[int, Target], started_ns: int) -> ByTime:
        """What was found by looking, where there was no glimpse. ``known``: waits of which all is known.

        ``targets``: by image; ``started_ns``: when the measurement began, CLOCK_MONOTONIC.
        """
        glimpses = self._kernel.breaker.glimpses
        if self._looks is None or not self._looks.number or glimpses.count:
            return {}
        glimpses.looks = self._looks.number
        return self._looks.facts(targets, known, started_ns, 1000 * glimpses.statistics()["unfollowed_us"])

    def forget(self, images: Set[int]) -> None:
        """All that was measured of these has been dealt with."""
        self._first.forget(images)
        self._meanwhile = {image: one for image, one in self._meanwhile.items() if image not in images}
