"""CPU time of processes that ended before anybody decided about them, by what their parents belong to.

The kernel side counts their samples, but not whose they are: when Python looks, they are gone. Who waits for a child
inherits its CPU time, though (``cutime`` and ``cstime`` in ``/proc/PID/stat``), exactly. So the samples give how much
there is to tell, and these times say whose it is: what a process has inherited since the last look, less what was
watched of that. Neither alone would do. Inherited times are of watched children, too, which are known by their
samples alone, not exactly; and samples do not tell parents.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import field

from parprof.service.groups import KEPT_SECONDS, REST, clean_key
from parprof.service.labels import read_labels
from parprof.service.model import GroupKey
from parprof.untrusted import visible
from parprof.values import dataclass

MAX_KEYS = 200
"""Parents, by what they belong to, that have series of their own."""

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_LEAST_S = 0.05
"""For less than that of undecided time nobody looks."""
_PAUSE = 200
"""All processes are looked at no sooner than after so many times as long as the last look took: 0.5 % of a core."""
_ANCESTORS = 8
_MAX_OWED = 4096
_HALF_SECONDS = 20.0
"""What is told by one of the two and not yet by the other is halved in so long a time."""


@dataclass(slots=True)
class Seen:
    """What ``/proc/PID/stat`` said of a process. Times in seconds."""

    start_ticks: int
    parent: int
    own_s: float
    """CPU time of its own."""
    inherited_s: float
    """CPU time of its children that it has waited for, and of theirs."""
    comm: str = ""
    watched_s: float = 0.0
    """What was sampled of it, and what it had used before that."""
    is_met: bool = False
    """Whether it was watched at some time, or ran before anything was looked at."""


LookUp = Callable[[int], "Seen | None"]


def look_at(pid: int) -> Seen | None:
    """The process of that PID; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            raw = file.read(1024)
    except OSError:
        return None
    head, _, tail = raw.rpartition(b")")
    fields = tail.split(None, 20)
    try:
        user, system, of_user, of_system = (int(field) * _TICK_S for field in fields[11:15])
        comm = visible(head.partition(b"(")[2])
        return Seen(int(fields[19]), int(fields[1]), user + system, of_user + of_system, comm)
    except (IndexError, ValueError):
        return None


def all_pids() -> list[int]:
    """The processes there are."""
    return [int(name) for name in os.listdir("/proc") if name.isascii() and name.isdigit()]


@dataclass(slots=True)
class ShortLived:
    """Tells the time of processes about which nothing was decided. For one thread.

    ``look``, ``pids``, ``belongs``, ``clock``: where it looks.
    """

    look: LookUp = look_at
    pids: Callable[[], Iterable[int]] = all_pids
    belongs: Callable[[int, str], GroupKey] = lambda pid, comm: clean_key(read_labels(pid, comm))
    clock: Callable[[], float] = time.monotonic
    seconds: dict[GroupKey, float] = field(default_factory=dict)
    """CPU time so far, by what the parents belong to. No value falls; what has not grown for an hour goes."""
    _seen: dict[int, Seen] = field(default_factory=dict)
    _begun: bool = False
    _debts_s: dict[int, float] = field(default_factory=dict)
    """What a living process is yet to inherit, or has, and what was told of already."""
    _owed_s: dict[GroupKey, float] = field(default_factory=dict)
    _undecided_s: float = 0.0
    _undecided_so_far_s: float = 0.0
    _looked_s: float = 0.0
    _took_s: float = 0.0
    _grown_s: dict[GroupKey, float] = field(default_factory=dict)

    def met(self, pid: int) -> None:
        """A process is watched from now on. What it has used until now was not."""
        for step in range(_ANCESTORS):
            seen, known = self.look(pid) if pid else None, self._seen.get(pid)
            if seen is None:
                return
            is_known = known is not None and known.start_ticks == seen.start_ticks
            entry = known if known is not None and is_known else seen
            self._seen[pid] = entry
            if step == 0 and self._begun and not entry.is_met:
                entry.is_met, entry.watched_s = True, seen.own_s
                self._owe(self.belongs(pid, seen.comm), seen.own_s)
            if is_known:
                return
            pid = seen.parent

    def sampled(self, pid: int, cpu_s: float) -> None:
        """So much CPU time of a watched process was sampled, all that will be of this image."""
        if pid in self._seen:
            self._seen[pid].watched_s += cpu_s

    def advance(self, undecided_s: float) -> Mapping[GroupKey, float]:
        """The time so far by key, given that of all undecided samples so far, in seconds."""
        now_s = self.clock()
        self._undecided_s += max(undecided_s - self._undecided_so_far_s, 0.0)
        self._undecided_so_far_s = undecided_s
        if not self._begun:
            self._undecided_s = 0.0
        waited_s = now_s - self._looked_s
        due = self._undecided_s > _LEAST_S or waited_s > 60 or len(self._seen) > 4 * _MAX_OWED
        if not self._begun or (due and waited_s > _PAUSE * self._took_s):
            self._look()
            self._tell(now_s, waited_s)
            self._looked_s, self._took_s, self._begun = now_s, self.clock() - now_s, True
        return self.seconds

    def _look(self) -> None:
        """Find out what has been inherited, and from whom."""
        now: dict[int, Seen] = {}
        for pid in self.pids():
            seen = self.look(pid)
            if seen is not None:
                now[pid] = seen
        for pid, before in self._seen.items():
            if not self._lives(pid, before, now):
                heir = self._heir(before, now)
                told_s = max(before.own_s, before.watched_s) + before.inherited_s
                self._debts_s[heir] = self._debts_s.get(heir, 0.0) + told_s + self._debts_s.pop(pid, 0.0)
        debts: dict[int, float] = {}
        for pid, seen in now.items():
            known = self._seen.get(pid)
            if known is not None and known.start_ticks == seen.start_ticks:
                seen.watched_s, seen.is_met = known.watched_s, known.is_met
                inherited_s = seen.inherited_s - known.inherited_s
            else:
                inherited_s = seen.inherited_s if self._begun else 0.0
            seen.is_met |= not self._begun
            rest_s = inherited_s - self._debts_s.get(pid, 0.0)
            if rest_s < 0:
                debts[pid] = -rest_s
            elif rest_s > 0 and pid != os.getpid():
                self._owe(self.belongs(pid, seen.comm), rest_s)
        self._seen, self._debts_s = now, debts

    @staticmethod
    def _lives(pid: int, before: Seen, now: Mapping[int, Seen]) -> bool:
        seen = now.get(pid)
        return seen is not None and seen.start_ticks == before.start_ticks

    def _heir(self, ended: Seen, now: Mapping[int, Seen]) -> int:
        """The nearest ancestor that lives; the first process where that is not known."""
        pid = ended.parent
        for _ in range(_ANCESTORS):
            seen = self._seen.get(pid)
            if seen is None or self._lives(pid, seen, now):
                break
            pid = seen.parent
        return pid if pid in now else 1

    def _owe(self, key: GroupKey, seconds: float) -> None:
        if key not in self._owed_s and len(self._owed_s) >= _MAX_OWED:
            key = REST
        self._owed_s[key] = self._owed_s.get(key, 0.0) + seconds

    def _tell(self, now_s: float, waited_s: float) -> None:
        """Share out what was undecided among those who are owed it; none gets more than that."""
        owed_s = sum(self._owed_s.values())
        share = min(self._undecided_s / owed_s, 1.0) if owed_s > 0 else 0.0
        for key, seconds in self._owed_s.items():
            if seconds * share > 0:
                self._add(key, seconds * share, now_s)
        kept = 0.5 ** (waited_s / _HALF_SECONDS)
        self._undecided_s = (self._undecided_s - share * owed_s) * kept
        left_s = ((key, seconds * (1 - share) * kept) for key, seconds in self._owed_s.items())
        self._owed_s = {key: seconds for key, seconds in left_s if seconds > 1e-3}

    def _add(self, key: GroupKey, seconds: float, now_s: float) -> None:
        if key not in self.seconds and len(self.seconds) >= MAX_KEYS:
            for old in [one for one, grown_s in self._grown_s.items() if grown_s < now_s - KEPT_SECONDS]:
                with suppress(KeyError):
                    del self.seconds[old], self._grown_s[old]
            if len(self.seconds) >= MAX_KEYS:
                key = REST
        self.seconds[key] = self.seconds.get(key, 0.0) + seconds
        self._grown_s[key] = now_s
