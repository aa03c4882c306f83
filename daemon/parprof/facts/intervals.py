"""What was counted when: a measurement cut into intervals, so that a span of it can be looked at by itself.

There are never more than `MOST` of them, nor more than `MOST_ROWS` rows in them: where there would be, each two become
one, and further ones take twice as long. So a short program is told in steps of `FIRST_SECONDS`, and a day takes no
more memory than a minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import zip_longest

from parprof.halving import halved
from parprof.model import NO_EVENT, SEVERAL_THREADS, Count, Facts, SampleKey, ThreadState
from parprof.values import dataclass

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
    """The intervals of a measurement while it lasts, all of one length."""

    def __init__(self) -> None:
        """Begin with the first one."""
        self.length_ns = round(FIRST_SECONDS * 1e9)
        """How long each takes."""
        self._parts: list[CountedInterval] = []
        self._level_ns: tuple[int, ...] = ()
        self._levels_at_ns = 0

    def _part(self, at_ns: int) -> CountedInterval:
        """The one in which a time lies, ns since the measurement began."""
        at = max(at_ns, 0) // self.length_ns
        for number in range(len(self._parts), at + 1):
            self._parts.append(CountedInterval(number * self.length_ns, (number + 1) * self.length_ns))
        return self._parts[at]

    def add(self, at_ns: int, facts: Mapping[SampleKey, Count], allowed: Mapping[int, int]) -> None:
        """These came at a time, ns since the measurement began. See `CountedInterval.add`."""
        self._part(at_ns).add(facts, allowed)

    def divide(self, image: int, allowed: int) -> None:
        """See `CountedInterval.divide`."""
        for one in self._parts:
            one.divide(image, allowed)

    def wants_levels(self, now_ns: int) -> bool:
        """Whether another interval has begun since `note_levels`."""
        return now_ns // self.length_ns > self._levels_at_ns // self.length_ns

    def note_levels(self, now_ns: int, level_ns: Sequence[int]) -> None:
        """For how long n_w was 0, 1, 2, ... since the measurement began, as of now.

        What that has become more since the last time is shared among the intervals in between, by how much of each lies
        there.
        """
        before_ns, took = self._levels_at_ns, now_ns - self._levels_at_ns
        if took <= 0:
            return
        grown = [max(now - was, 0) for now, was in zip_longest(level_ns, self._level_ns, fillvalue=0)]
        self._level_ns, self._levels_at_ns = tuple(level_ns), now_ns
        begin_ns = before_ns
        while begin_ns < now_ns:
            part = self._part(begin_ns)
            end_ns = min(part.end_ns, now_ns)
            share = [ns * (end_ns - before_ns) // took - ns * (begin_ns - before_ns) // took for ns in grown]
            part.level_ns = without_zeroes(map(sum, zip_longest(part.level_ns, share, fillvalue=0)))
            begin_ns = end_ns

    def make_room(self, now_ns: int) -> bool:
        """Make them fewer and longer if there are, or are about to be, too many; whether that was so."""
        made = False
        while self._are_too_many(now_ns):
            self.length_ns *= 2
            self._parts = halved(self._parts)
            if self._parts:  # one that was left over has its other half before it
                self._parts[-1].end_ns = self._parts[-1].begin_ns + self.length_ns
            made = True
        return made

    def _are_too_many(self, now_ns: int) -> bool:
        rows = sum(len(one.facts) for one in self._parts)
        return now_ns >= (MOST - 1) * self.length_ns or (rows > MOST_ROWS and len(self._parts) > 1)

    def all(self, end_ns: int, level_ns: Sequence[int]) -> list[CountedInterval]:
        """All of them, up to the measurement's end; what came behind that is in the last. Call it once, then."""
        self.note_levels(end_ns, level_ns)
        self.make_room(end_ns)  # much may have come since the last time, where the program has huge libraries
        last = self._part(max(end_ns - 1, 0))
        out = self._parts[: last.begin_ns // self.length_ns + 1]
        for late in self._parts[len(out) :]:
            out[-1] = out[-1].joined(late)
        out[-1].end_ns = max(end_ns, out[-1].begin_ns)
        return out


def without_zeroes(values: Iterable[int]) -> tuple[int, ...]:
    """These, but for zeroes at the end."""
    found = tuple(values)
    used = len(found)
    while used and not found[used - 1]:
        used -= 1
    return found[:used]


def spread_waits(intervals: Iterable[CountedInterval]) -> list[CountedInterval]:
    """The same with waits where they were: each came with the interval in which it was over, with all of its time.

    A thread cannot have slept for longer than an interval takes, nor can nobody have worked for longer than n_w was 0
    in it. What is more than that was before. Of several threads each wait may have taken all of it. Of one thread's
    waits in an interval, nobody knows when the one was over and the next began: those that want more than there is room
    for get equal parts. Waits that were seen come first: one of which glimpses saw a part is told for as long as it is
    likely to have taken with what nobody saw, and would displace all that were before it if that is too much.
    """
    earlier: dict[SampleKey, int] = {}
    sleeping: dict[SampleKey, int] = {}
    """Of several threads: how many of their waits are not over in an interval."""
    out = [replace(one, facts=dict(one.facts), by_cores=dict(one.by_cores)) for one in intervals]
    for at in range(len(out) - 1, -1, -1):
        part = out[at]
        together: dict[object, list[tuple[SampleKey, int]]] = {}
        """What shares a room, with what it wants of that, in nanoseconds."""
        rooms_ns: dict[object, int] = {}
        waits = {key: count for key, count in part.facts.items() if key.event == NO_EVENT}
        for key in [*waits, *(key for key in earlier if key not in waits)]:
            count = waits.get(key) or Count()
            whose: object = key.image, key.tid
            room_ns = part.end_ns - part.begin_ns
            if key.state is ThreadState.STALLED:
                whose, room_ns = key.state, part.level_ns[0] if part.level_ns else 0
            elif key.tid == SEVERAL_THREADS:
                sleeping[key] = sleeping.get(key, 0) + count.samples
                whose, room_ns = key, sleeping[key] * room_ns
            rooms_ns[whose] = room_ns
            together.setdefault(whose, []).append((key, count.total + earlier.pop(key, 0)))
        for whose, those in together.items():
            room_ns = rooms_ns[whose]
            for is_estimated in (False, True):
                alike = [(key, wanted) for key, wanted in those if bool(key.glimpse) == is_estimated]
                got = _fitted([wanted for _, wanted in alike], room_ns) if at else [ns for _, ns in alike]
                room_ns -= sum(got)
                for (key, wanted), ns in zip(alike, got, strict=True):
                    if wanted > ns:
                        earlier[key] = wanted - ns
                    _set_total(part, key, waits.get(key) or Count(), ns)
    return out


def _fitted(wanted: Sequence[int], room: int) -> list[int]:
    """As much as there is room for: all of what wants less than its equal part, and equal parts of what is left.

    >>> _fitted([9, 2, 30], 20)
    [9, 2, 9]
    """
    out = [0] * len(wanted)
    for place, at in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        out[at] = min(wanted[at], room // (len(wanted) - place))
        room -= out[at]
    return out


def spread_rows(intervals: Sequence[CountedInterval]) -> int:
    """How many rows `spread_waits` makes of them, at most."""
    if not intervals:
        return 0
    length_ns = max(intervals[0].end_ns - intervals[0].begin_ns, 1)
    rows = 0
    for at, one in enumerate(intervals):
        rows += len(one.facts)
        for key, count in one.facts.items():
            if key.event == NO_EVENT and count.total > length_ns:
                rows += min(count.total // length_ns, at)
    return rows


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
