"""Forks that called exec before anybody looked: most processes of a build begin as one, for less than a millisecond.

Few of them are ever sampled. They become targets if they were, and are forgotten if not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from parprof.kernel.records import RECORD_EXEC, RECORD_FORK, ControlRecord
from parprof.session.target import Target

_MOST = 1 << 12
"""Samples of one come with the next drain, or some drains later if their stack does."""


class Fork(NamedTuple):
    """A process image that was forked, and over when its record was read."""

    record: ControlRecord
    parent: Target
    """The image that forked it."""
    ended_ns: int
    """When it called exec (CLOCK_MONOTONIC)."""


class Passed:
    """Those of one session, the newest `_MOST`."""

    def __init__(self) -> None:
        """None yet."""
        self._by_image: OrderedDict[int, Fork] = OrderedDict()
        self._last_of: dict[int, Fork] = {}
        """By PID, until its exec has been dealt with."""

    def add(self, fork: Fork) -> None:
        """It was over before it could be looked at."""
        self._by_image[fork.record.image] = self._last_of[fork.record.pid] = fork
        if len(self._by_image) > _MOST:
            self._by_image.popitem(last=False)

    def parent_of(self, pid: int) -> Target | None:
        """What forked the process that has just called exec; None if its fork has a target of its own."""
        fork = self._last_of.pop(pid, None)
        return fork.parent if fork is not None else None

    def take(self, image: int) -> Fork | None:
        """One of which there are samples: it has to be remembered by other means from now on."""
        return self._by_image.pop(image, None)


def execs_of_forks(records: Sequence[ControlRecord]) -> dict[int, ControlRecord]:
    """Those of the forked images that nobody has to look at: by image, the exec that ended it.

    That comes in the same batch of records, with nothing else about the process, nor a child of it, in between.
    """
    forks: dict[int, int] = {}
    out: dict[int, ControlRecord] = {}
    for record in records:
        if record.kind == RECORD_FORK:
            forks.pop(record.parent_pid, None)
            forks[record.pid] = record.image
            continue
        image = forks.pop(record.pid, None)
        if image is not None and record.kind == RECORD_EXEC:
            out[image] = record
    return out
