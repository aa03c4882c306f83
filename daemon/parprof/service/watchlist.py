"""Which processes the daemon watches: those that the selection takes, and those that somebody asked for."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping

from parprof.errors import ParprofError, TargetError
from parprof.kernel.engine import BpfKernel
from parprof.service.losses import failure_reason
from parprof.service.selection import Candidates
from parprof.service.short_lived import ShortLived
from parprof.service.watching import Watching
from parprof.session.session import Session
from parprof.session.target import Target

_LOG = logging.getLogger(__name__)
RETRY_SECONDS = 60.0
"""A process that could not be watched is tried again so often."""


class Watchlist:
    """Decides about processes that have been seen, and keeps what was asked for. For the loop's thread."""

    def __init__(
        self,
        kernel: BpfKernel,
        session: Session,
        watching: Watching,
        candidates: Candidates,
        short: ShortLived,
    ) -> None:
        """``candidates`` are what the session sees; ``short`` is told of all that are decided upon."""
        self._kernel = kernel
        self._session = session
        self._watching = watching
        self._candidates = candidates
        self._short = short
        self._failures: Counter[tuple[str, str]] = Counter()
        self._refused: set[int] = set()
        """PIDs that were to be watched, and could not be."""
        self._asked: set[int] = set()
        """PIDs watched on request, whatever the selection says of them."""
        self._beginning: set[int] = set()
        """PIDs that somebody was the first to attach to, whose interval has not begun."""
        self._retried_s = time.monotonic()
        self._cannot_compare = False

    @property
    def failures(self) -> Mapping[tuple[str, str], int]:
        """Processes that could not be watched, by (runtime, reason)."""
        return self._failures

    def begin(self, pid: int) -> bool:
        """Watch a process on request; False if that is yet to begin: see `Watching.watch`. Raises TargetError."""
        self._asked.add(pid)
        try:
            if self._session.live(pid) is not None:
                return True
            if self._watch(pid):
                self._find_waits_if_attached(pid)
                return True
            self._candidates.add(pid)
        except BaseException:
            self._asked.discard(pid)
            raise
        return False

    def end(self, pid: int) -> None:
        """It is not wanted any more. Raises TargetError."""
        was_asked = pid in self._asked
        self._asked.discard(pid)
        target = self._session.live(pid)
        if target is None:
            raise TargetError(f"process {pid} is not watched")
        if was_asked and self._wants(target):
            return  # the selection would have found it by now
        self._session.unwatch(target)
        self._kernel.verdicts.deny(pid)

    def find_waits(self, pid: int, wanted: bool) -> None:
        """Find out from now on where the threads of a process wait, and tell its calls apart, or do so no more.

        Somebody attaches to it, or nobody any more.
        """
        attached = self._watching.attached
        if wanted and pid not in attached:
            self._load_comparing()
            self._beginning.add(pid)
        if wanted:
            attached.setdefault(pid, time.monotonic())
        else:
            attached.pop(pid, None)
            self._beginning.discard(pid)
        target = self._session.live(pid)
        if target is not None:
            self._session.find_waits(target, wanted)
        if not wanted:
            self._kernel.forget_last_stacks(self._watching.attached_images())

    def _find_waits_if_attached(self, pid: int) -> None:
        """Of a process that is watched from now on."""
        if pid in self._watching.attached and (target := self._session.live(pid)) is not None:
            self._session.find_waits(target, True)

    def begin_calls(self, pid: int) -> None:
        """The interval begins that whoever was the first to attach to a process asks for: calls are told apart anew.

        A sample between `find_waits` and here has counted the calls that last, into an interval that nobody is shown;
        what is sampled of them later would be time without a call.
        """
        target = self._session.live(pid)
        if pid in self._beginning and target is not None and not self._cannot_compare:
            self._kernel.forget_last_stacks(self._watching.attached_images() - {target.image})
        self._beginning.discard(pid)

    def _load_comparing(self) -> None:
        """Be ready to tell calls apart."""
        try:
            self._kernel.load_comparing()
        except (ParprofError, OSError) as error:  # its profile is without; whoever asked for it is told
            if not self._cannot_compare:
                self._cannot_compare = True
                _LOG.warning("calls are not told apart: %s", error)

    def cut_waits(self, now_ns: int) -> None:
        """Count the waits of processes that somebody attaches to, as far as they got: each belongs where it was.

        ``now_ns``: CLOCK_MONOTONIC.
        """
        for pid in self._watching.attached:
            target = self._session.live(pid)
            if target is not None:
                self._session.find_waits(target, True, now_ns)

    def consider(self) -> None:
        """Decide about processes that have been seen, and from time to time anew about those that were refused."""
        now_s = time.monotonic()
        for pid, wanted in self._candidates.due(now_s, self._watching.count(), self._asked):
            if self._session.live(pid) is None:  # else it was asked for since it was seen
                self._decide(pid, wanted)
        if self._refused and now_s - self._retried_s >= RETRY_SECONDS:
            self._retried_s = now_s
            self._kernel.verdicts.forget(self._refused)
            self._refused.clear()

    def _decide(self, pid: int, wanted: bool) -> None:
        if not wanted and pid not in self._asked:
            self._short.met(pid)
            self._kernel.verdicts.deny(pid)
            return
        try:
            if not self._watch(pid):  # nobody waits for that
                self._candidates.add(pid)
            else:
                self._find_waits_if_attached(pid)
        except (ParprofError, OSError) as error:  # one target's failure never stops the daemon
            self._asked.discard(pid)
            if reason := failure_reason(pid, error):
                self._failures["none", reason] += 1
                self._refused.add(pid)
            _LOG.debug("process %d is not watched: %s", pid, error)
            self._kernel.verdicts.deny(pid)

    def _watch(self, pid: int) -> bool:
        """See `Watching.watch`."""
        has_begun = self._watching.watch(pid)
        if has_begun:
            self._short.met(pid)
        return has_begun

    def _wants(self, target: Target) -> bool:
        return target.pid in self._asked or self._candidates.wants(target.pid, target.process.comm)

    def drop_unwanted(self) -> None:
        """The selection has changed: leave those alone that it leaves out now, and decide anew about all others."""
        for target in list(self._session.targets.values()):
            if not target.ended and not self._wants(target):
                self._session.unwatch(target)
        self._kernel.verdicts.forget()

    def drop_become_others(self) -> None:
        """Leave those alone that have become another program, by exec, which the selection leaves out."""
        for target in list(self._session.targets.values()):
            if not target.ended and not self._watching.knows(target) and not self._wants(target):
                self._session.unwatch(target)
                self._kernel.verdicts.deny(target.pid)

    def forget(self, pids: Iterable[int]) -> None:
        """These have ended; whoever gets their numbers was not asked for."""
        gone = set(pids)
        self._asked -= gone
        self._beginning -= gone
        for pid in gone:
            self._watching.attached.pop(pid, None)
