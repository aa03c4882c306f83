"""The daemon as other threads see it: they read what its loop leaves for them, and ask for what they want done."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import Budget
from parprof.model import Profile
from parprof.profile.naming import FileNamer
from parprof.service import footprint
from parprof.service.config.options import DaemonOptions
from parprof.service.loop import Board, DaemonLoop, Pushing
from parprof.service.model import ProfileEntry, Snapshot
from parprof.service.recent import RecentProfiles
from parprof.service.requests import Requests
from parprof.symbols.symbolizer import Symbolizer

_LOG = logging.getLogger(__name__)
_STUCK_SECONDS = 30.0


class Daemon:
    """Runs until `stop`; implements `parprof.service.model.Service`."""

    def __init__(self, options: DaemonOptions) -> None:
        """`run` does the rest."""
        self._options = options
        self._requests = Requests[DaemonLoop]()
        self._stopping = False
        self._ready = False
        now_s, clock_s = time.time(), time.monotonic()
        self._board = Board(
            Snapshot(
                now_s,
                now_s,
                (),
                options.frequency_hz,
                0,
                {},
                {},
                {},
                {},
                options.budget_ratio,
                0.0,
                0.0,
                clock_s=clock_s,
                begun_s=clock_s,
            )
        )
        self.recent = RecentProfiles(max_bytes=options.ring_bytes)
        """For the loop's thread: in ``each_turn``, and after `run`."""
        self.push = Pushing()
        """To be filled in before `run`."""
        self._await_programs: Callable[[], None] = lambda: None

    def tell_protection(self, sentences: tuple[str, ...]) -> None:
        """What was given up of our powers, and what could not be: for those who ask. Before `run`."""
        self._board.snapshot = replace(self._board.snapshot, protection=sentences)

    def run(self, each_turn: Callable[[DaemonLoop], None] = lambda loop: None) -> None:
        """Watch until `stop`. ``each_turn`` is called about once a second, by this thread.

        Raises:
            PrivilegeError, KernelUnsupported: see `BpfKernel`.
        """
        options = self._options
        with (
            BpfKernel(
                options.events,
                options.frequency_hz,
                system_wide=True,
                activations=True,
                sizes=footprint.ring_sizes(),
                budget=Budget(options.budget_ratio),
            ) as kernel,
            Symbolizer(footprint.FILE_SECONDS, _LOG.info, footprint.SYMBOLS_SECONDS) as symbolizer,
            FileNamer(
                symbolizer, loops=options.loops, kernel_pass_seconds=footprint.KERNEL_PASS_SECONDS
            ) as namer,
        ):
            loop = DaemonLoop(
                options, kernel, namer, self._board, self.recent, self.push, self._requests.wake_fd
            )
            self._await_programs = kernel.await_programs
            try:
                self._ready = True
                while not self._stopping:
                    loop.turn(self._requests)
                    each_turn(loop)
                loop.charge()
            finally:
                self._ready = False
                loop.finish()
                self._requests.refuse()

    # What other threads may call.

    def stop(self) -> None:
        """End `run` soon. May be called from a signal handler."""
        self._stopping = True
        self._requests.wake_up()

    def snapshot(self) -> Snapshot:
        """The newest snapshot."""
        return self._board.snapshot

    def profiles(self) -> tuple[ProfileEntry, ...]:
        """The processes of which there is a recent profile."""
        return self._board.entries

    def is_healthy(self) -> str:
        """Empty while the loop turns."""
        late_s = time.monotonic() - self._board.turned_s
        return f"the loop has not turned for {late_s:.0f} s" if late_s > _STUCK_SECONDS else ""

    def is_ready(self) -> str:
        """Empty once programs and events are in place."""
        return "" if self._ready else "BPF programs are being loaded"

    def refresh(self) -> Future[None]:
        """Charge what was sampled until now, for a snapshot of now; not more often than is worth it."""
        if self._ready:
            return self._requests.ask(DaemonLoop.renew)
        not_yet: Future[None] = Future()
        not_yet.set_result(None)
        return not_yet

    def profile(self, pid: int, seconds: float) -> Future[Profile]:
        """The last ``seconds`` of a process. Fails with TargetError."""
        return self._requests.ask(lambda loop: loop.last(pid, seconds, by_interval=False))

    def history(self, pid: int, seconds: float, only: tuple[int, int] | None = None) -> Future[Profile]:
        """The same with its intervals, or certain intervals. Fails with TargetError."""
        if only is None:
            return self._requests.ask(lambda loop: loop.last(pid, seconds, by_interval=True))
        first, last = only
        return self._requests.ask(lambda loop: loop.exactly(pid, first, last))

    def watch(self, pid: int) -> Future[bool]:
        """Begin to watch a process, whatever the selection says of it: see `Service.watch`. Fails with TargetError."""
        return self._requests.ask(lambda loop: loop.watch(pid))

    def unwatch(self, pid: int) -> Future[None]:
        """Stop to watch a process. Fails with TargetError."""
        return self._requests.ask(lambda loop: loop.unwatch(pid))

    def find_waits(self, pid: int, wanted: bool) -> Future[None]:
        """Find out from now on where the threads of a process wait, and how often what is called; or do so no more."""
        return self._requests.ask(lambda loop: loop.find_waits(pid, wanted))

    def sample_at(self, frequency_hz: int) -> Future[None]:
        """Sample at this rate, if it is higher than the usual one, until further notice; 0: at the usual one."""
        return self._requests.ask(lambda loop: loop.sample_at(frequency_hz))

    def losses(self) -> Future[dict[str, int]]:
        """What was lost of processes that are watched, by reason, so far."""
        return self._requests.ask(DaemonLoop.losses)

    def cut(self, pid: int) -> Future[float]:
        """End the interval that is under way, and with it the waits of a process that go on; answers when it ended.

        Waits first, in the caller's thread, for programs that are being loaded: those of waits, and of interpreters.
        """
        self._await_programs()
        return self._requests.ask(lambda loop: loop.cut(pid))
