"""Loops of functions: found by a child, which disassembles what is not ours, and kept on disk (`shelf`)."""

from __future__ import annotations

import os
import time
from pathlib import Path

from parprof.errors import TargetError
from parprof.files.dso import Dso, FileKey
from parprof.files.eh_frame_header import Extent
from parprof.loops.nest import LoopNest
from parprof.loops.nest_json import from_json
from parprof.loops.shelf import Shelf
from parprof.remembered import Remembered
from parprof.resources import Closing
from parprof.untrusted import visible
from parprof.workers.client import WorkerClient, WorkerFailed

_MAX_TEXT = 500
_FUNCTION_SECONDS = 10.0
"""How long one function may take."""
_ATTEMPTS = 2
"""How often a file may crash the child or keep it busy for too long."""
_MAX_FAILURES = 1 << 12


class _Client(WorkerClient):
    module = "parprof.loops.worker"
    doing = "looking for loops"


class KeptLoops(Closing):
    """Finds the loops of functions, each only once. For one thread."""

    def __init__(self, base: Path | None = None) -> None:
        """Keep them in ``base``, or in parprof's own cache directory."""
        self._shelf = Shelf(base)
        self._client = _Client()
        self._failures = Remembered[FileKey, int](_MAX_FAILURES)

    def prepare(self, hottest: Dso) -> None:
        """Start the child, which takes a moment, beside what else there is to do; not if it will hardly be needed.

        ``hottest``: the file of which most functions will be looked at.
        """
        if not self._shelf.knows(hottest):
            self._client.prepare()

    def save(self) -> None:
        """Write what was found to disk."""
        self._shelf.save()

    def trim(self, idle_seconds: float = 60.0) -> None:
        """End the child, and give back its memory, if it had nothing to do for so long."""
        self._client.stop_if_idle(idle_seconds)

    def close(self) -> None:
        """Write what was found, and end the child; it is started again if need be."""
        self._shelf.save()
        self._client.close()

    def find(self, dso: Dso, extent: Extent) -> LoopNest:
        """The loops of a function; see `find_loops`. Where they cannot be found, a note says why."""
        if dso.elf is None:
            return LoopNest()
        if (known := self._shelf.get(dso, extent)) is not None:
            return known
        try:
            nest, seconds = self._ask(dso, extent)
        except (WorkerFailed, TargetError, OSError, ValueError) as error:
            return LoopNest(notes=[visible(str(error), _MAX_TEXT)])
        self._shelf.put(dso, extent, nest, seconds)
        return nest

    def _ask(self, dso: Dso, extent: Extent) -> tuple[LoopNest, float]:
        """What the child finds, and the CPU time that took it.

        Raises:
            WorkerFailed, ValueError: it does not, or talks nonsense; TargetError, OSError: the file cannot be opened.
        """
        if self._failures.get(dso.key, 0) >= _ATTEMPTS:
            raise WorkerFailed("looking for loops in this file failed before")
        fd = dso.file().lend()
        try:
            request = {"file": repr(dso.key), "start": extent[0], "size": extent[1]}
            answer = self._client.ask(request, [fd], time.monotonic() + _FUNCTION_SECONDS)
        except WorkerFailed:
            self._failures[dso.key] = self._failures.get(dso.key, 0) + 1
            raise
        finally:
            os.close(fd)
        if problem := answer.get("problem"):
            raise ValueError(str(problem))
        seconds = answer.get("seconds")
        return from_json(answer.get("nest")), seconds if isinstance(seconds, float) else 0.0
