"""Where the threads of a session's targets sleep, where no event tells that: as they are met, while they are measured,
at the end. Each is a matter of its own (`first_sleepers`, `asleep`, `looks`); here is which is when.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Set

from parprof.kernel.counts import ByTime
from parprof.kernel.engine import BpfKernel
from parprof.model import Facts, SampleKey, add_facts
from parprof.session.asleep import Meanwhile, placed_at_end
from parprof.session.first_sleepers import FirstSleepers
from parprof.session.long_sleeps import LongSleeps
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
        self._long = LongSleeps(builder.at_hand, kernel.stacks, kernel.last_seen) if looks_on else None

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
        breaker = self._kernel.breaker
        if self._looks is None or self._long is None or not in_time:
            return
        there = list(living)
        last = breaker.glimpses.last
        if not breaker.follows_switches or breaker.glimpses.is_open:
            self._long.look(there, breaker.glimpses.unseen_since_ns, last.begin_ns if last is not None else 0)
            if self._long.all_asleep_since_ns:  # what the glimpse stands for is not that
                breaker.leave_switches(self._long.all_asleep_since_ns)
        elif self._long.is_on:
            self._long.pause()
        if breaker.follows_switches:
            self._looks.pause()
        elif self.is_looked_for:
            self._looks.look(there, time.monotonic_ns(), self._long.threads, self._long.scopes)

    def rest_s(self) -> float:
        """The next look is to come so soon; infinite: whenever it comes."""
        return math.inf if self._long is None else self._long.rest_s()

    def seen(
        self, known: Iterable[SampleKey], targets: Mapping[int, Target], started_ns: int, ended_ns: int
    ) -> ByTime:
        """What was found by looking. ``known``: waits of which all is known.

        ``targets``: by image; ``started_ns``, ``ended_ns``: of the measurement, CLOCK_MONOTONIC.
        """
        if self._looks is None or self._long is None:
            return {}
        glimpses = self._kernel.breaker.glimpses
        out = self._long.facts(started_ns, ended_ns)
        glimpses.told_ns = self._long.stall_ns
        if self._looks.number and not glimpses.count:
            glimpses.looks = self._looks.number
            unfollowed_ns = 1000 * glimpses.statistics()["unfollowed_us"]
            for at_ns, facts in self._looks.facts(targets, known, started_ns, unfollowed_ns).items():
                add_facts(out.setdefault(at_ns, {}), facts)
        return out

    def forget(self, images: Set[int]) -> None:
        """All that was measured of these has been dealt with."""
        self._first.forget(images)
        self._meanwhile = {image: one for image, one in self._meanwhile.items() if image not in images}
