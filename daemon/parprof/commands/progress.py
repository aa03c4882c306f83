"""The line that shows, while a measurement runs, that it does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

from parprof.kernel.records import ProcessState
from parprof.session.session import Session
from parprof.session.target import Target

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

    from parprof.service.control import control_pb2 as pb

_REFRESH_SECONDS = 0.25


def _line_on(stream: TextIO) -> Live:
    from rich.console import Console  # not before there is a terminal: it takes a while
    from rich.live import Live

    return Live(console=Console(file=stream), auto_refresh=False, transient=True)


def _cut_to_width(line: str) -> Text:
    from rich.text import Text

    return Text(line, no_wrap=True, overflow="ellipsis")


class Progress:
    """A single line on a terminal: time, samples, n_w, losses. Nothing where there is no terminal."""

    def __init__(self, stream: TextIO, enabled: bool = True) -> None:
        self._stream = stream
        self._live: Live | None = None
        self._enabled = enabled and stream.isatty()
        self._started = self._shown = time.monotonic()
        self._lost_before: int | None = None

    def show(self, session: Session, main: Target) -> None:
        """Bring the line up to date with a session of our own; cheap to call often."""
        now = time.monotonic()
        if self._live is None or now - self._shown < _REFRESH_SECONDS:
            return
        self._shown = now
        state = session.kernel.process_state(main.pid)
        counted = session.kernel.statistics()["samples"]
        lost = sum(session.kernel.lost().values())
        working = _working(state, main.cores) if state else "ended"
        self._update(now - self._started, counted, working, lost)

    def show_daemon(self, progress: pb.Progress) -> None:
        """Bring the line up to date with what the daemon says. It counts losses since it began, in all processes."""
        if self._lost_before is None:
            self._lost_before = progress.lost
        working = f"n_w {progress.n_working} of {progress.cores}" if progress.cores else "ended"
        lost = max(progress.lost - self._lost_before, 0)
        self._update(progress.elapsed_s, progress.samples, working, lost)

    def _update(self, elapsed_s: float, samples: int, working: str, lost: int) -> None:
        if self._live is not None:
            line = f"{elapsed_s:6.1f} s  {samples} samples  {working}  lost {lost}  (Ctrl-C ends it)"
            self._live.update(_cut_to_width(line), refresh=True)

    def __enter__(self) -> Progress:
        if self._enabled:
            self._live = _line_on(self._stream)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()


def _working(state: ProcessState, cores: int) -> str:
    """How many threads work now, as far as that is known."""
    return f"n = {cores}" if state.ticks else f"n_w {max(state.n_working, 0)} of {cores}"
