"""What the programs have counted, taken from them a phase at a time: with the stacks that it is counted under, and told
apart by when it came.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable

from parprof.kernel import bpf
from parprof.kernel.activations import Activations
from parprof.kernel.counts import ByTime, CountTable
from parprof.kernel.objects import LoadedObject
from parprof.kernel.settings import Settings
from parprof.kernel.stacks import StackTable
from parprof.model import Facts, SampleKey, add_facts

_PHASE_SECONDS = 0.002
"""Programs that still saw the old phase end within microseconds."""


class Drains:
    """Empties the table of counts; what has no stack yet waits for it."""

    def __init__(
        self, loaded: LoadedObject, settings: Settings, stacks: StackTable, calls_seconds: float = 0.0
    ) -> None:
        """``stacks``: those that have come so far. ``calls_seconds``: look no more often than so for what is new in
        samples' stacks, which takes as long as all the rest: nobody waits for that before the end."""
        self._sent_stacks = loaded.maps["sent_stacks"]
        self._settings = settings
        self._stacks = stacks
        self._phase = 0
        self._number = 0
        self._slices = 0, 0
        self._slice_ns = 0
        """How long a slice takes in the phase that the programs write now."""
        self._more: ByTime = {}
        self._counts = CountTable(loaded, self._is_known, self._note_fresh)
        self._activations = Activations(stacks)
        self._calls_seconds = calls_seconds
        self._calls_at_s = time.monotonic()
        """When that was looked for last."""

    def slice_time(self, begin_ns: int, length_ns: int) -> None:
        """See `BpfKernel.slice_time`."""
        is_first = not self._slices[1]
        self._slices = begin_ns, length_ns
        if is_first:
            self._slice_ns = length_ns
            self._settings.write(slices=self._slices)

    def add(self, time_ns: int, facts: Facts) -> None:
        """To the next drain, as what came at that time (CLOCK_MONOTONIC)."""
        at_ns = max(time_ns - self._slices[0], 0) if self._slices[1] else 0
        add_facts(self._more.setdefault(at_ns, {}), facts)

    def take(self, poll: Callable[[], None], weigh: Callable[[ByTime], ByTime]) -> ByTime:
        """All that was counted since the last time, by when it came.

        The kernel first moves on to the other phase, so that no count changes while it is read and deleted. ``poll``
        reads the stacks that have come; ``weigh`` makes of what glimpses saw what they stand for.
        """
        old, self._phase = self._phase, 1 - self._phase
        self._settings.write(phase=self._phase, slices=self._slices)
        time.sleep(_PHASE_SECONDS)
        by_time = self._counts.take(old, self._slice_ns)
        self._slice_ns = self._slices[1]
        poll()  # after the counts: a stack is sent before it is counted
        self._number += 1
        for facts in by_time.values():
            self._stacks.touch((digest for key in facts for digest in (key.user, key.kernel)), self._number)
        ready = self._counts.ready(by_time, self._number)
        for at_ns, facts in self._more.items():
            add_facts(ready.setdefault(at_ns, {}), facts)
        self._more = {}
        ready = weigh(ready)
        if time.monotonic() >= self._calls_at_s + self._calls_seconds:
            self._add_calls(ready)
        return ready

    def _add_calls(self, ready: ByTime) -> None:
        self._calls_at_s = time.monotonic()
        for at_ns, facts in self._activations.ready(self._number).items():
            self._stacks.touch((key.user for key in facts), self._number)
            ready.setdefault(at_ns, {}).update(facts)

    def rest(self, weigh: Callable[[ByTime], ByTime]) -> ByTime:
        """At the end: facts whose stack never arrived, without it; and what nobody looked for yet of new frames."""
        rest = weigh(self._counts.rest())
        self._add_calls(rest)
        return rest

    def trim_stacks(self, drains: int, limit: int) -> int:
        """See `BpfKernel.trim_stacks`."""
        old = self._stacks.trim(self._number - drains, limit)
        self._activations.trim()
        bpf.map_delete_batch(self._sent_stacks, [struct.pack("<Q", digest) for digest in old])
        return len(old)

    def forget_calls(self) -> None:
        """No samples are to be compared any more: see `Activations.forget`."""
        self._activations.forget()

    def lost(self) -> Counter[str]:
        """Losses so far, by reason."""
        return Counter(stack_missing=self._counts.without_stack, activations=self._activations.left_out)

    def _is_known(self, digest: int) -> bool:
        return digest == 0 or digest in self._stacks

    def _note_fresh(self, at_ns: int, key: SampleKey, fresh: int, samples: int) -> None:
        self._activations.note(at_ns, key, fresh, samples, self._number)
