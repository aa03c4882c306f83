"""Threads that wait for others without going to sleep, in code that no agent knows: found by where samples hit most.

Where many samples of working threads hit it is asked whether that is a loop which only waits (`parprof.loops.spins`).
If it is the programs are told, and from then on a thread that is found there does not work. Likewise where many samples
hit `sched_yield`: the loop that calls it is hit far less often. What was sampled before is judged anew at the end
(`parprof.facts.late_spins`).
"""

from __future__ import annotations

import heapq
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from parprof.kernel.stacks import INTERRUPTED, StackTable
from parprof.model import Facts, SampleKey, ThreadState
from parprof.probes.spin_book import SPINS, SpinBook
from parprof.probes.wait_functions import WaitFunctions
from parprof.session.target import Target

_LEAST_SAMPLES = 4
"""In so few bytes, for a look."""
_BYTES_LOG2 = 4
"""Of a block, by which samples are counted: a loop that waits is hit at several addresses."""
_WORD = 8
"""Bytes of an address."""
_MOST_SECONDS = 1.0
"""For answers when a short measurement is over."""
_MOST_LOOKS = 8
"""Places that are asked about after one drain."""


class SpinFinder:
    """Of one session."""

    def __init__(self, stacks: StackTable, book: SpinBook = SPINS) -> None:
        """``stacks``: what samples' stacks are called."""
        self._stacks = stacks
        self._book = book

    def look(self, facts: Facts, targets: Mapping[int, Target]) -> None:
        """Ask about the places where most of these samples hit. ``targets`` by image.

        Of processes with several threads that run: one alone has nobody to wait for, and is not worth the child's time.
        """
        hits: dict[tuple[int, int, int], Counter[tuple[int, int]]] = defaultdict(Counter)
        """By image and the blocks of the leaf and its caller: the samples at each pair of addresses there."""
        threads: dict[int, set[int]] = {}
        for key, count in facts.items():
            if key.event != 0:  # none of the clock: it says nothing of who runs
                continue
            threads.setdefault(key.image, set()).add(key.tid)
            stack = self._stacks.raw(key.user)
            if stack is None:
                continue
            leaf, caller = _innermost(stack.native), 0
            if key.state is ThreadState.SPINNING and key.image in targets:
                targets[key.image].loops.note(leaf)
            if key.state is ThreadState.SPINNING and len(stack.native) >= 2 * _WORD:
                caller = _innermost(stack.native[_WORD:], return_address=True)
            elif key.state is not ThreadState.WORKING:
                continue
            hits[key.image, leaf >> _BYTES_LOG2, caller >> _BYTES_LOG2][leaf, caller] += count.samples
        for (image, *_), at in heapq.nlargest(_MOST_LOOKS, hits.items(), key=lambda item: item[1].total()):
            target = targets.get(image)
            if at.total() < _LEAST_SAMPLES or len(threads[image]) < 2:
                continue
            if target is None or target.load_map is None:
                continue
            ((leaf, caller), _), *_ = at.most_common(1)
            found = target.load_map.find(leaf)
            if found is not None and caller:
                self._book.note_pool(*found)
            if found is not None and caller:
                found = target.load_map.find(caller) if self._book.yields(*found) else None
            if found is not None and found[0].elf is not None:
                target.loops.asked_about.add(found[0].key)
                self._book.ask(*found)

    def look_back(self, facts: Facts, targets: Mapping[int, Target]) -> None:
        """The measurement is over, and was short: ask about all of its samples, and wait for the answers, but not for
        long. Others, which are still to come from before, are then there as well."""
        until_s = time.monotonic() + _MOST_SECONDS
        while True:
            self.look(facts, targets)
            if not self._book.await_answers(until_s - time.monotonic()):
                return

    def close(self) -> None:
        """Keep what has been answered since: it came too late for this measurement, not for the next."""
        self._book.answered()

    def tell(self, targets: Iterable[Target], named: WaitFunctions | None) -> None:
        """Have the programs know the loops that were found since the last call, and functions that the user says wait
        (``named``, if any)."""
        found = {
            dso.key for dso in (*self._book.answered(), *(named.answered() if named is not None else ()))
        }
        if not found:
            return
        for target in targets:
            if target.load_map is not None and any(dso.key in found for dso in target.load_map.dsos()):
                target.learn_spins(found)

    def has_found(self, targets: Mapping[int, Target], key: SampleKey) -> bool:
        """Whether samples are in code of which it is known by now that threads only wait there.

        ``targets`` by image."""
        target, stack = targets.get(key.image), self._stacks.raw(key.user)
        return target is not None and stack is not None and target.loops.are_at(_innermost(stack.native))


def _innermost(native: bytes, *, return_address: bool = False) -> int:
    """The first of a stack's addresses; a call is before the address that it returns to."""
    return (int.from_bytes(native[:_WORD], "little") & ~INTERRUPTED) - return_address
