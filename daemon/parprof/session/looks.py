"""Where threads sleep, looked up in ``/proc`` from time to time while context switches are too dear to be followed,
even for a moment.

A server that is asked a thousand times a second, and has little to do each time, cannot pay for that: of 1 % of the CPU
time that it uses not even what its samples take is left for a glimpse (`parprof.kernel.glimpses`). Reading its threads'
states is paid for by us. Each look stands for the time since the one before.
Where all sleep it is not seen who was the last to do so: likely one that goes to sleep often.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from pathlib import Path

from parprof.files.dso import Dso
from parprof.kernel.counts import ByTime
from parprof.kernel.scopes import wait_key
from parprof.kernel.stacks import StackTable
from parprof.model import Count, Facts, SampleKey, ThreadState, add_facts
from parprof.patterns import regex
from parprof.process.threads import system_call, thread_ids
from parprof.session.asleep import NO_TABLE, Asleep, Sleepers, Tables, look_at
from parprof.session.target import Target
from parprof.unwind.cache import Table
from parprof.values import dataclass

_REST_SHARE = 50
"""Looks are so far apart that they take one part in so many of a CPU,"""
_FREE_NS = 100_000_000
"""but for so much: the first one reads unwind tables, and walks all stacks."""
_BEFORE_SECONDS = 0.0005, 0.0015
"""We rest so long before: what woke up beside us, and had no core because of what we did until then, sleeps again."""
_MOST_THREADS = 64
"""Where there are more, a look takes so long that they do something else at its end than at its begin."""
_MOST_PLACES = 1024
"""That are remembered."""
_SLOT_NS = 1_000_000_000
"""What is found within so long is added up."""
_RUNS = "running"
_NAPS = regex(rb"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)

Thread = tuple[int, int]
"""Process image, thread id."""
_Part = Thread | int
"""Of what time is added up: a thread, or a scope by its number."""


@dataclass(frozen=True, slots=True)
class _State:
    """What a thread does."""

    sleeps: bool
    naps: int
    """How often it has gone to sleep so far."""


@dataclass(frozen=True, slots=True)
class _Noted:
    """What was noted of a thread or a scope at a look."""

    slot_ns: int
    took_ns: int
    facts: Facts

    def take_back(
        self, slots: Mapping[int, Facts], whole_ns: Counter[_Part], placed_ns: Counter[_Part], part: _Part
    ) -> None:
        """As if it had not been."""
        whole_ns[part] -= self.took_ns
        placed_ns[part] -= self.took_ns if self.facts else 0
        facts = slots[self.slot_ns]
        for key, count in self.facts.items():
            was = facts.pop(key)
            if was.samples > count.samples:
                facts[key] = Count(was.samples - count.samples, was.total - count.total, was.unsure)


class _Places:
    """Where threads sleep. One that has come back to the same system call, with the same arguments and the same stack
    pointer, is taken to be where it was then: to follow its stack each time takes 3 ms, and that 0.05.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, str], Asleep] = {}

    def __call__(self, target: Target, tid: int, tables: Tables) -> Asleep | None:
        words = ""
        with suppress(OSError):
            words = system_call(target.process.pid, tid)
        key = target.image, tid, words
        known = self._known.get(key)
        if known is None:
            known = look_at(target, tid, tables)
            if known is not None and not known.holder and known.user.end != NO_TABLE:  # who holds it changes
                if len(self._known) >= _MOST_PLACES:
                    self._known.clear()
                self._known[key] = known
        return known


class Looks:
    """Those of one session."""

    def __init__(self, tables: Tables, stacks: StackTable) -> None:
        """``tables`` must not wait: others want to go on."""
        self._tables = tables
        self._read: dict[Dso, Table] = {}
        self._stacks = stacks
        self._places = _Places()
        self._slots: dict[int, Facts] = {}
        self._since_ns = 0
        """Up to when the last look stands for the time; 0: switches are followed."""
        self._begun_ns = 0
        """When the first one was."""
        self._paid_ns = 0
        """CPU time that they took."""
        self._whole_ns: Counter[_Part] = Counter()
        """How long threads slept, and nobody worked in scopes,"""
        self._placed_ns: Counter[_Part] = Counter()
        """and for how much of that it is known where; of the rest a thread woke up too soon for that."""
        self._last: dict[_Part, _Noted] = {}
        """What was noted at the last look."""
        self._known: Set[_Part] = frozenset()
        """Threads and scopes of which all is known."""
        self._naps: dict[Thread, int] = {}
        """As they were at the last look."""
        self._seen_ns = 0
        """Time that they stand for."""
        self.number = 0
        """Of looks."""

    def pause(self) -> None:
        """Switches are followed."""
        self._since_ns = 0

    def look(
        self,
        targets: Iterable[Target],
        now_ns: int,
        long: Set[Thread] = frozenset(),
        stalled: Set[int] = frozenset(),
    ) -> None:
        """See where the threads of these sleep, if it is time. ``now_ns``: CLOCK_MONOTONIC, of now.

        ``long``, ``stalled``: threads that sleep for long, and scopes in which all do: of that all is known.
        """
        self._leave_out(long | stalled)
        if now_ns - self._begun_ns < _REST_SHARE * (self._paid_ns - _FREE_NS):
            return
        time.sleep(random.uniform(*_BEFORE_SECONDS))
        now_ns = time.monotonic_ns()
        paid_ns = time.thread_time_ns()
        living = {target.image: target for target in targets}
        states = _states(living.values())
        if states is not None and self._since_ns:
            took_ns = now_ns - self._since_ns
            self._note(living, states, took_ns, now_ns - now_ns % _SLOT_NS)
            self._seen_ns += took_ns
            self.number += 1
        if states is not None:
            self._naps = {thread: state.naps for thread, state in states.items()}
            self._since_ns = now_ns
        self._begun_ns = self._begun_ns or now_ns
        self._paid_ns += time.thread_time_ns() - paid_ns

    def _leave_out(self, known: Set[_Part]) -> None:
        """Of what these did all is known now, since before the last look already."""
        for part in known - self._known:
            if (last := self._last.pop(part, None)) is not None:
                last.take_back(self._slots, self._whole_ns, self._placed_ns, part)
        self._known = set(known)

    def _note(
        self, living: Mapping[int, Target], states: Mapping[Thread, _State], took_ns: int, slot_ns: int
    ) -> None:
        asleep = [thread for thread, state in states.items() if state.sleeps and thread not in self._known]
        self._last.clear()
        unended = {
            wait_key(ThreadState.BLOCKED, image, tid, 0, 0, 0, 0): Count(1, took_ns) for image, tid in asleep
        }
        sleepers = Sleepers(living, self._table, self._places)
        sleepers.look(unended)
        placed = {(key.image, key.tid): key for key in sleepers.placed(unended, self._stacks) if key.user}
        self._whole_ns.update(dict.fromkeys(asleep, took_ns))
        self._placed_ns.update(dict.fromkeys(placed, took_ns))
        facts = {key: Count(1, took_ns) for key in placed.values()}
        for thread in asleep:
            key = placed.get(thread)
            self._last[thread] = _Noted(slot_ns, took_ns, {} if key is None else {key: facts[key]})
        by_scope: defaultdict[int, list[Thread]] = defaultdict(list)
        for thread in states:
            by_scope[living[thread[0]].scope.number].append(thread)
        for scope, threads in by_scope.items():
            if scope not in self._known and all(states[thread].sleeps for thread in threads):
                self._whole_ns[scope] += took_ns
                stall = self._stall({thread: states[thread].naps for thread in threads}, placed, took_ns)
                self._placed_ns[scope] += took_ns if stall else 0
                facts.update(stall)
                self._last[scope] = _Noted(slot_ns, took_ns, stall)
        add_facts(self._slots.setdefault(slot_ns, {}), facts)

    def _stall(self, naps: Mapping[Thread, int], placed: Mapping[Thread, SampleKey], took_ns: int) -> Facts:
        """That time at those of these threads that went to sleep since the last look; empty where the place of one of
        them is not known."""
        fell = {thread: now - self._naps.get(thread, now) for thread, now in naps.items()}
        whole = sum(fell.values())
        if any(number and thread not in placed for thread, number in fell.items()):
            return {}
        return {
            placed[thread]._replace(state=ThreadState.STALLED): Count(1, took_ns * number // whole)
            for thread, number in fell.items()
            if number
        }

    def _table(self, dso: Dso) -> Table | None:
        """Read once; one that is not there yet may be at the next look."""
        found = self._read.get(dso) or self._tables(dso)
        if found is not None:
            self._read[dso] = found
        return found

    def facts(
        self, targets: Mapping[int, Target], known: Iterable[SampleKey], started_ns: int, unfollowed_ns: int
    ) -> ByTime:
        """What was found, by time since a measurement has started. ``targets``: by image. ``known``: waits of which all
        is known. ``unfollowed_ns``: for how long switches were not followed."""
        waits = {(key.image, key.tid) for key in known if key.state is ThreadState.BLOCKED}
        ratio = max(unfollowed_ns / self._seen_ns, 1.0)
        out: ByTime = {}
        for at_ns, facts in self._slots.items():
            found = out[max(at_ns - started_ns, 0)] = Facts()
            for key, count in facts.items():
                thread, is_wait = (key.image, key.tid), key.state is ThreadState.BLOCKED
                if is_wait and thread in waits:
                    continue
                part: _Part = thread if is_wait else targets[key.image].scope.number
                total_ns = round(count.total * ratio * self._whole_ns[part] / self._placed_ns[part])
                found[key._replace(glimpse=1)] = Count(count.samples, total_ns, count.unsure)
        return out


def _states(targets: Iterable[Target]) -> dict[Thread, _State] | None:
    """What threads do, read in one go; ``None``: these are too many."""
    pids: dict[Thread, int] = {}
    for target in targets:
        with suppress(OSError):
            pids.update({(target.image, tid): target.process.pid for tid in thread_ids(target.process.pid)})
    if len(pids) > _MOST_THREADS:
        return None
    calls: dict[Thread, str] = {}
    for thread, pid in pids.items():  # all of them first: what wakes up while we read may get no core
        with suppress(OSError):
            calls[thread] = system_call(pid, thread[1])
    out: dict[Thread, _State] = {}
    for thread, call in calls.items():
        with suppress(OSError):
            told = _NAPS.search(Path(f"/proc/{pids[thread]}/task/{thread[1]}/status").read_bytes())
            out[thread] = _State(not call.startswith(_RUNS), int(told[1]) if told else 0)
    return out
