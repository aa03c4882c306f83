"""Which processes are watched because a client asked, and who may end that."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeVar

from parprof.errors import ParprofError
from parprof.process.identity import Process, inspect, is_alive
from parprof.service.model import Service, Snapshot

_T = TypeVar("_T")
WATCH_SECONDS = 30.0
_AGAIN_SECONDS = 0.02
"""A process whose files are being looked into is asked for again so soon."""
MAX_PER_USER = 16
"""Processes that one user, root aside, can have watched on request at a time."""

_log = logging.getLogger("parprof.control")


class TooMany(Exception):
    """A user has asked for more than `MAX_PER_USER` processes."""


class Leases:
    """Watches for clients. A process that the daemon watches by itself is left to it. Thread-safe."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._attached: Counter[int] = Counter()
        """By PID: how many clients attach to a process that is watched for them alone."""
        self._coming: set[int] = set()
        """Those of them whose files are being looked into."""
        self._looking: Counter[int] = Counter()
        """By PID: how many clients attach to it at all."""
        self._rates: Counter[int] = Counter()
        """How many clients ask for each rate."""
        self._asked: dict[int, tuple[int, Process]] = {}
        """By PID: the user who asked to watch it until further notice, and which process that was."""
        self._unwatched: dict[int, Snapshot] = {}
        """By PID: the snapshot from before it was left alone, which still lists it."""

    @contextmanager
    def attached(self, pid: int, frequency_hz: int = 0) -> Iterator[float]:
        """Have a process watched inside the block, and an interval begin: when it began, CLOCK_MONOTONIC.

        ``frequency_hz``: how often to sample meanwhile, if that is more often than usual.

        Raises:
            TargetError: it cannot be watched.
            TimeoutError: the daemon has not come to it in time; all is as it was before.
        """
        with ExitStack() as afterwards:  # without the lock
            with self._lock:
                if self._attached[pid] or not self._is_watched(pid):
                    if not self._attached[pid] and not _wait(self._service.watch(pid)):
                        self._coming.add(pid)
                    self._attached[pid] += 1
                    afterwards.callback(self._release, pid)
                afterwards.callback(self._end, self._look_closely, pid)
                self._look_closely(pid, 1)
                afterwards.callback(self._end, self._sample_at, frequency_hz)
                self._sample_at(frequency_hz, 1)
            self._await_watched(pid)
            yield _wait(self._service.cut(pid))  # nothing from before belongs into the profile

    def _end(self, counted: Callable[[int, int], None], what: int) -> None:
        """Nobody asks for it any more. The daemon will come to that, or ends itself."""
        with self._lock, suppress(ParprofError, TimeoutError):
            counted(what, -1)

    def _look_closely(self, pid: int, change: int) -> None:
        """Where its threads wait is found out as long as anybody attaches to it."""
        before = self._looking[pid]
        now = self._looking[pid] = before + change
        if not now:
            del self._looking[pid]
        if bool(now) != bool(before):
            _wait(self._service.find_waits(pid, bool(now)), given_up=bool(now))

    def _sample_at(self, frequency_hz: int, change: int) -> None:
        """The highest rate that is asked for is that of all: the clocks of the CPUs are what is set."""
        before = max(self._rates, default=0)
        self._rates[frequency_hz] += change
        self._rates += Counter()  # without those that nobody asks for any more
        now = max(self._rates, default=0)
        if now != before:
            _wait(self._service.sample_at(now), given_up=change > 0)

    def _release(self, pid: int) -> None:
        with self._lock:
            self._attached[pid] -= 1
            if self._attached[pid] > 0:
                return
            del self._attached[pid]
            self._coming.discard(pid)
            if self._asker(pid) is not None:
                return
            try:
                self._unwatch(pid)
            except ParprofError:
                pass  # it has ended
            except Exception as error:
                _log.error("cannot unwatch process %d: %s", pid, error)

    def watch(self, pid: int, uid: int) -> None:
        """Have a process watched until `unwatch`.

        Raises:
            TooMany, TargetError.
        """
        with self._lock:
            if not self._attached[pid] and self._is_watched(pid):
                return
            if uid and sum(self._asker(known) == uid for known in list(self._asked)) >= MAX_PER_USER:
                raise TooMany
            process = inspect(pid)
            if not self._attached[pid]:
                _wait(self._service.watch(pid))
            self._asked[pid] = uid, process

    def _await_watched(self, pid: int) -> None:
        """Returns when it is watched, so that nothing of the time that is measured is missing, or will not be soon.

        Without the lock: files may hang, and other processes are attached to meanwhile.

        Raises:
            TargetError: it cannot be watched.
        """
        until_s = time.monotonic() + WATCH_SECONDS
        while pid in self._coming and time.monotonic() < until_s:
            if _wait(self._service.watch(pid)):
                self._coming.discard(pid)
            else:
                time.sleep(_AGAIN_SECONDS)

    def unwatch(self, pid: int, uid: int) -> bool:
        """Stop to watch a process; False when this user may not: only root ends what another one began.

        Raises:
            TargetError: it is not watched.
        """
        with self._lock:
            if uid and self._asker(pid) != uid:
                return False
            self._asked.pop(pid, None)
            if not self._attached[pid]:
                self._unwatch(pid)
            return True

    def _unwatch(self, pid: int) -> None:
        self._unwatched = {
            known: snapshot
            for known, snapshot in self._unwatched.items()
            if snapshot is self._service.snapshot()
        }
        self._unwatched[pid] = self._service.snapshot()
        _wait(self._service.unwatch(pid), given_up=False)

    def _asker(self, pid: int) -> int | None:
        """The user who asked to watch what now has this PID."""
        if pid in self._asked and not is_alive(self._asked[pid][1]):
            del self._asked[pid]
        return self._asked[pid][0] if pid in self._asked else None

    def _is_watched(self, pid: int) -> bool:
        """As far as a snapshot tells that was made since we had it left alone."""
        snapshot = self._service.snapshot()
        return self._asker(pid) is not None or (
            self._unwatched.get(pid) is not snapshot and any(one.pid == pid for one in snapshot.processes)
        )


def _wait(future: Future[_T], *, given_up: bool = True) -> _T:
    """The answer. ``given_up``: what has not begun in time is not to be done later; else nobody would end it."""
    try:
        return future.result(WATCH_SECONDS)
    except TimeoutError:
        if given_up:
            future.cancel()
        raise
