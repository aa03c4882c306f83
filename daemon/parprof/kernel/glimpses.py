"""What is seen in glimpses, weighed by what they stand for.

Where following context switches all the time costs more than the budget, they are followed for a moment now and then
(`parprof.kernel.breaker.Breaker.glimpse`). What waits and stalls were in such a glimpse stands for those around it, of
which nobody saw anything: half of those up to the glimpse before, half of those up to the next one, and all where there
is no other. So the rows of a glimpse are held back until the next one has begun.

How many more there were tells CPU time: a program that naps 20,000 times a second, and then sleeps for a minute, does
not nap in that minute.
"""

from __future__ import annotations

import threading
from dataclasses import field

from parprof.kernel.counts import ByTime
from parprof.model import Count, Facts, add_facts
from parprof.values import dataclass

NUMBERS = 255
"""They are numbered from 1 on, then from 1 again: one byte has room for no more."""
_LEAST_NS = 100_000
"""What is seen in a shorter one is left out: it would stand for thousands of times as long."""
_CHANCE = 1.25
"""Time and CPU time may differ so much, though the program did the same all the time."""


@dataclass(slots=True)
class Span:
    """Some time, and CPU time of the processes in it. Nanoseconds."""

    took_ns: int = 0
    used_ns: int = 0

    def __add__(self, other: Span) -> Span:
        """Both together."""
        return Span(self.took_ns + other.took_ns, self.used_ns + other.used_ns)

    def half(self) -> Span:
        """Half of it."""
        return Span(self.took_ns // 2, self.used_ns // 2)


@dataclass(slots=True)
class Glimpse:
    """One of them. Nanoseconds; times are CLOCK_MONOTONIC."""

    number: int
    begin_ns: int
    begin_cpu_ns: int
    """What the processes had used by then."""
    around: Span
    """What nobody saw, and it stands for."""
    end_ns: int = 0
    """0: it lasts."""
    seen: Span = field(default_factory=Span)
    """What it saw."""
    is_weighed: bool = False
    """Whether it is known what it stands for."""
    waits_end_ns: int = 0
    """Until when waits were seen that began in it; 0: they still are."""
    is_cut: bool = False
    """Whether those that lasted then have been taken."""

    @property
    def weight(self) -> float:
        """What each second of it stands for: by time and by CPU time, and little more than by the lesser of these.

        So neither a sleep beside it counts as more of what it saw, nor one in it as many.

        >>> Glimpse(1, 0, 0, Span(800_000, 400_000), 200_000, Span(200_000, 200_000)).weight
        3.5
        """
        if self.seen.took_ns < _LEAST_NS:
            return 0.0
        by_time = self.around.took_ns / self.seen.took_ns
        if not self.seen.used_ns:
            return 1 + by_time
        by_cpu = self.around.used_ns / self.seen.used_ns
        return 1 + min((by_time + by_cpu) / 2, _CHANCE * min(by_time, by_cpu))


class Glimpses:
    """Those of one session. Any thread may call it. ``cpu_ns``: CPU time that the processes have used so far."""

    def __init__(self) -> None:
        """Switches are followed."""
        self._lock = threading.Lock()
        self._recent: dict[int, Glimpse] = {}
        self._last: Glimpse | None = None
        self._unseen_since_ns = 0
        """Since when nobody looks; 0: somebody does."""
        self._unseen_since_cpu_ns = 0
        self._number = 0
        self._held: dict[int, ByTime] = {}
        self._count = 0
        self.looks = 0
        """How often threads were looked at where there was no glimpse: `parprof.session.looks`."""
        self.told_ns = 0
        """Of the time that nobody saw: for how long all slept, as is known otherwise: `parprof.session.long_sleeps`."""
        self._seen, self._gaps = Span(), Span()
        """What they saw, and what nobody saw between them, before and after."""

    def next_number(self) -> int:
        """That of the next one."""
        return self._number % NUMBERS + 1

    def begin(self, at_ns: int, cpu_ns: int) -> None:
        """The next one has begun."""
        with self._lock:
            self._number = self.next_number()
            around = self._end_gap(at_ns, cpu_ns)
            last = self._last
            if last is not None and not last.is_weighed:
                around = around.half()
                self._weigh(last, around)
            self._last = Glimpse(self._number, at_ns, cpu_ns, around)
            self._recent[self._number] = self._last

    def leave(self, at_ns: int, cpu_ns: int, paid_ns: int = 0) -> None:
        """Switches are not followed any more. ``paid_ns``: CPU time that a glimpse took itself."""
        with self._lock:
            if self._unseen_since_ns:
                return
            self._unseen_since_ns, self._unseen_since_cpu_ns = at_ns, cpu_ns
            last = self._last
            if last is None:
                return
            if not last.waits_end_ns:
                last.waits_end_ns = at_ns
            if not last.end_ns:
                self._end(last, at_ns, cpu_ns, paid_ns)

    def finish(self, at_ns: int, cpu_ns: int) -> None:
        """The measurement ends, or switches are followed for good: the last glimpse stands for nothing after it."""
        with self._lock:
            last = self._last
            if last is not None and not last.end_ns:
                self._end(last, at_ns, cpu_ns, 0)
            after = self._end_gap(at_ns, cpu_ns)
            if last is not None and not last.is_weighed:
                self._weigh(last, after)

    def _end_gap(self, at_ns: int, cpu_ns: int) -> Span:
        """What nobody saw, up to now."""
        if not self._unseen_since_ns:
            return Span()
        gap = Span(max(at_ns - self._unseen_since_ns, 0), max(cpu_ns - self._unseen_since_cpu_ns, 0))
        self._unseen_since_ns = 0
        self._gaps += gap
        return gap

    def _weigh(self, glimpse: Glimpse, after: Span) -> None:
        glimpse.around += after
        glimpse.is_weighed = True

    def _end(self, glimpse: Glimpse, at_ns: int, cpu_ns: int, paid_ns: int) -> None:
        used_ns = max(cpu_ns - glimpse.begin_cpu_ns, 0)
        glimpse.end_ns = max(at_ns, glimpse.begin_ns)
        glimpse.seen = Span(glimpse.end_ns - glimpse.begin_ns, max(used_ns - paid_ns, used_ns // 2))
        if glimpse.weight:
            self._count += 1
            self._seen += glimpse.seen

    @property
    def last(self) -> Glimpse | None:
        """The newest; None: there was none."""
        return self._last

    @property
    def count(self) -> int:
        """Of those that have ended and stand for something."""
        return self._count

    @property
    def unseen_since_ns(self) -> int:
        """Since when switches are not followed, not even for a moment (CLOCK_MONOTONIC); 0: they are."""
        return self._unseen_since_ns

    @property
    def is_open(self) -> bool:
        """Whether one lasts."""
        return self._last is not None and not self._last.end_ns

    def take_cut(self, now_ns: int) -> tuple[Glimpse, int] | None:
        """The newest, once when it has ended, and until when its waits were seen."""
        with self._lock:
            last = self._last
            if last is None or not last.end_ns or last.is_cut:
                return None
            last.is_cut = True
            return last, last.waits_end_ns or now_ns

    def statistics(self) -> dict[str, int]:
        """How many there were, and how long they were together; for how long nobody looked, and for how long of that
        the program did not do the same: it used too little CPU time, so it slept.
        """
        seen, gaps = self._seen, self._gaps
        alike_ns = _CHANCE * gaps.used_ns * seen.took_ns / seen.used_ns if seen.used_ns else 0
        return {
            "glimpses": self._count,
            "glimpsed_us": seen.took_ns // 1000,
            "unfollowed_us": gaps.took_ns // 1000,
            "unglimpsed_us": 0
            if self.looks
            else round(max(gaps.took_ns - alike_ns - self.told_ns, 0)) // 1000,
            "looks": self.looks,
        }

    def weigh(self, by_time: ByTime) -> ByTime:
        """These facts, and those that were held back, as far as it is known what they stand for."""
        out: ByTime = {}
        with self._lock:
            for at_ns, facts in by_time.items():
                glimpsed = [key for key in facts if key.glimpse]
                out[at_ns] = facts
                if glimpsed:
                    out[at_ns] = {key: count for key, count in facts.items() if not key.glimpse}
                for key in glimpsed:
                    held = self._held.setdefault(key.glimpse, {}).setdefault(at_ns, {})
                    add_facts(held, {key: facts[key]})
            for number in list(self._held):
                glimpse = self._recent.get(number)
                if glimpse is None or not glimpse.is_weighed:
                    continue
                for at_ns, facts in self._held.pop(number).items():
                    if glimpse.weight:
                        add_facts(out.setdefault(at_ns, {}), _weighed(facts, glimpse.weight))
        return out


def _weighed(facts: Facts, weight: float) -> Facts:
    return {
        key._replace(glimpse=1): Count(count.samples, round(count.total * weight), count.unsure)
        for key, count in facts.items()
    }
