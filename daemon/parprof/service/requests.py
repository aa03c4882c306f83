"""What other threads want of the loop's thread, and how they wake it up."""

from __future__ import annotations

import os
import queue
import select
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Generic, TypeVar

from parprof.errors import TargetError

_Loop = TypeVar("_Loop")
_T = TypeVar("_T")
_MOST_IN_A_REST = 8
"""How often at most something is done while the loop rests: nobody can keep it from its turns, or make it busy."""


class Requests(Generic[_Loop]):
    """Actions that wait to be done in the loop's thread, with the loop."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[_Loop | None], None]] = queue.SimpleQueue()
        self._over = False
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Becomes readable when there is something to do."""

    def ask(self, action: Callable[[_Loop], _T]) -> Future[_T]:
        """Have something done; any thread. Fails with what ``action`` raises, or TargetError after `refuse`."""
        future: Future[_T] = Future()

        def run(loop: _Loop | None) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if loop is None:
                    raise TargetError("the daemon is stopping")
                future.set_result(action(loop))
            except Exception as error:  # the asker's to deal with
                future.set_exception(error)

        self._queue.put(run)
        self.wake_up()
        if self._over:  # the loop looks no more
            self._answer_all(None)
        return future

    def wake_up(self) -> None:
        """Let the loop turn; any thread, and signal handlers."""
        with suppress(OSError):
            os.eventfd_write(self.wake_fd, 1)

    def answer(self, loop: _Loop) -> None:
        """Do what was asked so far. For the loop's thread."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)
        self._answer_all(loop)

    def answer_until(self, loop: _Loop, until_s: float) -> None:
        """Rest until a time (CLOCK_MONOTONIC), but do what is asked meanwhile. For the loop's thread.

        Who attaches asks for one thing after the other, and would wait for the rest of a rest each time.
        """
        asked = select.poll()
        asked.register(self.wake_fd, select.POLLIN)
        for _ in range(_MOST_IN_A_REST):
            rest_s = until_s - time.monotonic()
            if rest_s <= 0 or not asked.poll(1e3 * rest_s):
                return
            self.answer(loop)
        time.sleep(max(until_s - time.monotonic(), 0.0))

    def refuse(self) -> None:
        """The loop has ended: refuse what waits, and all that comes."""
        self._over = True
        self._answer_all(None)

    def _answer_all(self, loop: _Loop | None) -> None:
        with suppress(queue.Empty):
            for _ in range(self._queue.qsize()):  # what comes meanwhile has its turn
                self._queue.get_nowait()(loop)
