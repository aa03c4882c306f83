"""Logging: one line for each event, with the journal's priorities under systemd; bounded in rate and length."""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TextIO

from parprof.untrusted import visible

BURST = 10
"""Lines of one kind that are let through at once."""
PERIOD_SECONDS = 60.0
"""Within this time."""
_MAX_KINDS = 512
_MAX_LINE = 2000
_MAX_FRAMES = 8
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))


def set_up(level: str, stream: TextIO | None = None, environment: Mapping[str, str] | None = None) -> None:
    """Send all log messages to ``stream`` (standard error). ``level``: error, warning, info or debug."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(journal=is_journal(stream, environment)))
    handler.addFilter(RateLimit())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    logging.raiseExceptions = False  # a full disk or a closed pipe is no reason for a traceback
    set_level(level)


def set_level(level: str) -> None:
    """Change what is logged from now on."""
    logging.getLogger().setLevel(level.upper())


def is_journal(stream: TextIO, environment: Mapping[str, str] | None = None) -> bool:
    """Whether what is written to ``stream`` goes to the journal."""
    given = (os.environ if environment is None else environment).get("JOURNAL_STREAM", "")
    with suppress(OSError, ValueError):
        found = os.fstat(stream.fileno())
        return given == f"{found.st_dev}:{found.st_ino}"
    return False


class LineFormatter(logging.Formatter):
    """One line for each record, whatever is in it; ``<N>`` in front for the journal, else the program's name."""

    def __init__(self, *, journal: bool) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        text = visible(_message(record), _MAX_LINE)
        if self._journal:
            number = next((number for least, number in _PRIORITIES if record.levelno >= least), 7)
            return f"<{number}>{text}"
        word = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        return f"parprofd: {word}{text}"


def _message(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except Exception as error:
        text = f"{record.msg} (cannot be formatted: {error})"
    if record.exc_info and record.exc_info[1] is not None:
        cause = record.exc_info[1]
        frames = traceback.extract_tb(record.exc_info[2])[-_MAX_FRAMES:]
        places = " < ".join(
            f"{os.path.basename(frame.filename)}:{frame.lineno} {frame.name}" for frame in reversed(frames)
        )
        text += f": {type(cause).__name__}: {cause} ({places})"
    return text


class RateLimit(logging.Filter):
    """Lets `BURST` lines of one kind through in `PERIOD_SECONDS`, and says how many it left out.

    Of one kind are lines of one logger, level and text before its arguments are put in.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, int, str], tuple[float, int]] = {}
        """Since when (CLOCK_MONOTONIC) how many lines came."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record passes."""
        kind = (record.name, record.levelno, str(record.msg))
        now = self._clock()
        since, count = self._kinds.pop(kind, (now, 0))
        if now - since >= PERIOD_SECONDS:
            if count > BURST:
                record.msg = f"{record.msg} ({count - BURST} more like this were left out)"
            since, count = now, 0
        self._kinds[kind] = (since, count + 1)
        if len(self._kinds) > _MAX_KINDS:
            del self._kinds[next(iter(self._kinds))]
        return count < BURST
