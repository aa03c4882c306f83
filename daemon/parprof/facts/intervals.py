"""What was counted when: a measurement cut into intervals, so that a span of it can be looked at by itself.

There are never more than `MOST` of them, nor more than `MOST_ROWS` rows in them: where there would be, each two become
one, and further ones take twice as long. So a short program is told in steps of `FIRST_SECONDS`, and a day takes no
more memory than a minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from parprof.halving import halved
from parprof.model import NO_EVENT, Count, Facts, SampleKey, ThreadState

MOST = 128
MOST_ROWS = 100_000
"""Some 450 bytes each."""
FIRST_SECONDS = 0.05


@dataclass(slots=True)
class CountedInterval:
    """A part of the time. Nanoseconds since the measurement began."""

    begin_ns: int
    end_ns: int
    level_ns: tuple[int, ...] = ()
    """For how long of it n_w was 0, 1, 2, ..."""
    facts: Facts = field(default_factory=dict)
    """What came in it. A wait comes when it is over: see `spread_waits`."""
    by_cores: dict[SampleKey, dict[int, Count]] = field(default_factory=dict)
    """See `parprof.facts.drain.Drain.by_cores`."""

    def add(self, facts: Mapping[SampleKey, Count], allowed: Mapping[int, int]) -> None:
        """These have come. ``allowed``: cores by image, of those for which that has changed."""
        for key, count in facts.items():
            self.facts.setdefault(key, Count()).add(count)
            if key.image in allowed:
                self.by_cores.setdefault(key, {}).setdefault(allowed[key.image], Count()).add(count)

    def divide(self, image: int, allowed: int) -> None:
        """So far this process was allowed so many cores, which is about to change."""
        for key, count in self.facts.items():
            if key.image == image:
                self.by_cores.setdefault(key, {}).setdefault(allowed, Count()).add(count)

    def joined(self, later: CountedInterval) -> CountedInterval:
        """This one and the one behind it as one."""
        levels = tuple(map(sum, zip_longest(self.level_ns, later.level_ns, fillvalue=0)))
        out = CountedInterval(self.begin_ns, later.end_ns, levels)
        for part in (self, later):
            out.add(part.facts, {})
            for key, divided in part.by_cores.items():
                known = out.by_cores.setdefault(key, {})
                for allowed, count in divided.items():
                    known.setdefault(allowed, Count()).add(count)
        return out


class Intervals:
    """The intervals of a measurement while it lasts."""

    def __init__(self) -> None:
        """Begin with the first one."""
        self.seconds = FIRST_SECONDS
        """How long one is to take."""
        self._closed: list[CountedInterval] = []
        self._open = CountedInterval(0, 0)
        self._level_ns: tuple[int, ...] = ()

    def is_due(self, now_ns: int) -> bool:
        """Whether the one that lasts is long enough. ``now_ns``: since the measurement began."""
        return now_ns - self._open.begin_ns >= self.seconds * 1e9

    def add(self, facts: Mapping[SampleKey, Count], allowed: Mapping[int, int]) -> None:
        """See `CountedInterval.add`."""
        self._open.add(facts, allowed)

    def divide(self, image: int, allowed: int) -> None:
        """See `CountedInterval.divide`."""
        for one in (*self._closed, self._open):
            one.divide(image, allowed)

    def close(self, now_ns: int, level_ns: Sequence[int]) -> None:
        """One is over, another begins. ``level_ns``: for how long n_w was 0, 1, 2, ... since the beginning."""
        self._closed.append(self._ended(now_ns, level_ns))
        self._level_ns = tuple(level_ns)
        self._open = CountedInterval(now_ns, now_ns)
        rows = sum(len(one.facts) for one in self._closed)
        if len(self._closed) >= MOST or rows > MOST_ROWS and len(self._closed) > 1:
            self._closed = halved(self._closed)
            self.seconds *= 2

    def all(self, end_ns: int, level_ns: Sequence[int]) -> list[CountedInterval]:
        """All of them, with the one that lasts, as far as there is anything in it."""
        last = self._ended(max(end_ns, self._open.begin_ns), level_ns)
        if last.end_ns > last.begin_ns or not self._closed:
            return [*self._closed, last]
        return [*self._closed[:-1], self._closed[-1].joined(last)]

    def _ended(self, end_ns: int, level_ns: Sequence[int]) -> CountedInterval:
        took = [now - before for now, before in zip_longest(level_ns, self._level_ns, fillvalue=0)]
        used = max((at for at, ns in enumerate(took, 1) if ns > 0), default=0)
        self._open.end_ns = end_ns
        self._open.level_ns = tuple(max(ns, 0) for ns in took[:used])
        return self._open


def spread_waits(intervals: Iterable[CountedInterval]) -> list[CountedInterval]:
    """The same with waits where they were: each came with the interval in which it was over, with all of its time.

    A thread cannot have slept for longer than an interval takes, nor can nobody have worked for longer than n_w was 0
    in it. What is more than that was before.
    """
    earlier: dict[SampleKey, int] = {}
    out = [replace(one, facts=dict(one.facts), by_cores=dict(one.by_cores)) for one in intervals]
    for at in range(len(out) - 1, -1, -1):
        part = out[at]
        nobody_ns = part.level_ns[0] if part.level_ns else 0
        awake: dict[tuple[int, int], int] = {}
        waits = {key: count for key, count in part.facts.items() if key.event == NO_EVENT}
        for key in [*waits, *(key for key in earlier if key not in waits)]:
            count = waits.get(key) or Count()
            wanted = count.total + earlier.pop(key, 0)
            thread = key.image, key.tid
            if key.state is ThreadState.STALLED:
                room = nobody_ns
                nobody_ns = max(room - wanted, 0)
            else:
                room = awake.get(thread, part.end_ns - part.begin_ns)
                awake[thread] = max(room - wanted, 0)
            if at and wanted > room:
                earlier[key] = wanted - room
                wanted = room
            _set_total(part, key, count, wanted)
    return out


def _set_total(part: CountedInterval, key: SampleKey, count: Count, total: int) -> None:
    """Let a wait have another total; by cores it divides as before."""
    if not total and not count.samples:
        part.facts.pop(key, None)
        part.by_cores.pop(key, None)
        return
    part.facts[key] = Count(count.samples, total, count.unsure)
    divided = part.by_cores.get(key)
    if divided:
        part.by_cores[key] = {
            allowed: Count(
                one.samples, round(one.total * total / count.total) if count.total else 0, one.unsure
            )
            for allowed, one in divided.items()
        }
