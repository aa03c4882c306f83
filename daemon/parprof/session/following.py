"""Keeping up with what a process maps: who is told of a new load map, when probes are planned for what it brings."""

from __future__ import annotations

import math
import time
from typing import Protocol

from parprof.jit.registered import RegisteredCode
from parprof.probes.facts_book import BOOK
from parprof.probes.wait_functions import WaitFunctions
from parprof.session.mapped import Mapped
from parprof.session.probing import Probing
from parprof.session.spoken import Spoken

_FACTS_PAUSE_S = 0.005
_PLAN_PAUSE, _LONGEST_PLAN_PAUSE_S = 3.0, 0.5
"""Probes are planned anew after so many times as long as that took, but no later than so."""


class PlannedImage(Protocol):
    """The process image, as far as keeping up with it asks something of it."""

    def place_probes(self) -> None:
        """Probe whatever the present load map calls for and is not probed yet."""


class Following:
    """Of one process image."""

    def __init__(
        self,
        mapped: Mapped,
        probing: Probing,
        made: RegisteredCode,
        spoken: Spoken,
        planned: PlannedImage,
        wait_functions: WaitFunctions | None,
    ) -> None:
        """``made``, ``spoken``: what the load map tells of code that JIT compilers make, and of an interpreter.

        ``wait_functions``: those that the user named, which are looked for in new files.
        """
        self._mapped = mapped
        self._probing = probing
        self._made = made
        self._spoken = spoken
        self._planned = planned
        self._wait_functions = wait_functions
        self._is_to_plan = False
        """The load map has changed since it was planned for."""
        self._next_plan_s = 0.0

    def read(self, wait: bool = False) -> bool:
        """Read the load map again; False when the process is gone or nothing is mapped any more.

        ``wait`` for unwind tables that have to be built, because the process stands still for us.
        """
        before = self._mapped.newest
        if not self._mapped.read(wait):
            return False
        load_map = self._mapped.newest
        if load_map is not None:
            self._made.follow(load_map, self._probing.plan.code_lists)
        if load_map is not None and load_map is not before:
            self._spoken.find(load_map)
        return True

    def follow(self, wait: bool = False) -> None:
        """Read the load map again: what is mapped now can be unwound from now on.

        A process whose map takes long to read, because it is huge, is read less often. What it maps in the meantime
        the kernel finds by itself.
        """
        if self.read(wait) and not self._probing.is_planned_for(self._mapped.newest):
            self._is_to_plan = True
        self._mapped.is_stale = False

    def read_and_plan(self, wait: bool) -> None:
        """Both at once. ``wait``: also for what is yet to be found out of its files."""
        self.follow(wait)
        if self._is_to_plan:
            self.plan(wait)

    def plan_due(self, now: float) -> bool:
        """Whether what came with the load map read last is to be probed now.

        That takes long, and everything else waits for it: a program that loads one library after another is not
        planned for at each of them.
        """
        return self._is_to_plan and now >= self._next_plan_s

    def due_s(self) -> float:
        """When the load map is to be read or to be planned for; infinite: not before something happens."""
        reading = self._mapped.next_reading_s if self._mapped.is_stale else math.inf
        return min(reading, self._next_plan_s if self._is_to_plan else math.inf)

    def plan(self, wait: bool = False) -> None:
        """Place probes, later if what is to be known of its files is not: nobody else is to wait for that."""
        started, load_map = time.monotonic(), self._mapped.newest
        if not wait and load_map is not None and BOOK.coming(load_map.dsos()):
            self._is_to_plan, self._next_plan_s = True, started + _FACTS_PAUSE_S
            return
        self._is_to_plan = False
        if wait and self._wait_functions is not None and load_map is not None:
            self._wait_functions.look_into(load_map.dsos())
        if not self._probing.is_planned_for(load_map):
            self._planned.place_probes()
        now = time.monotonic()
        self._next_plan_s = now + min(_PLAN_PAUSE * (now - started), _LONGEST_PLAN_PAUSE_S)
