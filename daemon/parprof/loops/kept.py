"""Loops of functions: found by a child, which disassembles what is not ours, and those dear to find kept on disk.

In a large function, such as an interpreter's, finding them takes a second, at each measurement.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from parprof import __version__
from parprof.cache import DiskCache
from parprof.errors import TargetError
from parprof.files.dso import Dso, FileKey
from parprof.files.eh_frame_header import Extent
from parprof.loops.nest import MAX_LOOPS, Loop, LoopNest
from parprof.resources import Closing
from parprof.untrusted import visible
from parprof.workers.client import WorkerClient, WorkerFailed

FORMAT = 1
"""To be raised with each change of what is found."""
DEAR_SECONDS = 0.02
"""What took less CPU time is found anew."""
_MAX_BYTES = 1 << 24
_MAX_FILE = 1 << 22
_MAX_NUMBERS = 1 << 18
_MAX_ADDRESS = 1 << 64
_MAX_NOTES, _MAX_TEXT = 16, 500
_FUNCTION_SECONDS = 10.0
"""How long one function may take."""
_ATTEMPTS = 2
"""How often a file may crash the child or keep it busy for too long."""
_MAX_FAILURES = 1 << 12


class _Client(WorkerClient):
    module = "parprof.loops.worker"
    doing = "looking for loops"


class KeptLoops(Closing):
    """Finds the loops of functions, those that are dear to find only once. For one thread."""

    def __init__(self, base: Path | None = None) -> None:
        """Keep them in ``base``, or in parprof's own cache directory."""
        self._disk = DiskCache("loops", _MAX_BYTES, base)
        self._client = _Client()
        self._failures: dict[FileKey, int] = {}

    def prepare(self) -> None:
        """Start the child, which takes a moment, beside what else there is to do."""
        self._client.prepare()

    def trim(self, idle_seconds: float = 60.0) -> None:
        """End the child, and give back its memory, if it had nothing to do for so long."""
        self._client.stop_if_idle(idle_seconds)

    def close(self) -> None:
        """End the child; it is started again if need be."""
        self._client.close()

    def find(self, dso: Dso, extent: Extent) -> LoopNest:
        """The loops of a function; see `find_loops`. Where they cannot be found, a note says why."""
        if dso.elf is None:
            return LoopNest()
        content = dso.content_name()
        name = f"{content}-{extent[0]:x}-{extent[1]:x}-{FORMAT}-{__version__}" if content else ""
        if (raw := self._disk.read(name) if name else None) is not None:
            with suppress(ValueError):
                return from_json(json.loads(raw))
            self._disk.remove(name)
        try:
            nest, seconds = self._ask(dso, extent)
        except (WorkerFailed, TargetError, OSError, ValueError) as error:
            return LoopNest(notes=[visible(str(error), _MAX_TEXT)])
        if name and seconds > DEAR_SECONDS and len(nest.addresses) <= _MAX_NUMBERS:
            text = json.dumps(to_json(nest)).encode()
            if len(text) <= _MAX_FILE:
                self._disk.write(name, text)
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
            if len(self._failures) >= _MAX_FAILURES:
                self._failures.clear()
            self._failures[dso.key] = self._failures.get(dso.key, 0) + 1
            raise
        finally:
            os.close(fd)
        if problem := answer.get("problem"):
            raise ValueError(str(problem))
        seconds = answer.get("seconds")
        return from_json(answer.get("nest")), seconds if isinstance(seconds, float) else 0.0


def to_json(nest: LoopNest) -> dict[str, Any]:
    """Loops as they are kept; addresses as distances from the one before."""
    return {
        "loops": [[loop.header, loop.branches, loop.parent, loop.depth] for loop in nest.loops],
        "notes": nest.notes,
        "addresses": _distances(nest.addresses),
        "starts": _distances(nest.starts),
        "innermost": nest.innermost,
        "end": nest.end,
    }


def _distances(numbers: list[int]) -> list[int]:
    return [number - before for before, number in zip([0, *numbers], numbers, strict=False)]


def from_json(raw: Any) -> LoopNest:
    """The loops again.

    Raises:
        ValueError: these are none.
    """
    try:
        loops = [
            Loop(index, _address(header), tuple(map(_address, branches)), int(parent), int(depth))
            for index, (header, branches, parent, depth) in enumerate(raw["loops"])
        ]
        nest = LoopNest(
            loops,
            [visible(str(note), _MAX_TEXT) for note in raw["notes"][:_MAX_NOTES]],
            list(accumulate(map(int, raw["addresses"]))),
            list(accumulate(map(int, raw["starts"]))),
            [int(index) for index in raw["innermost"]],
            _address(raw["end"]),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError("no loops") from error
    if (
        len(loops) > MAX_LOOPS
        or len(nest.addresses) > _MAX_NUMBERS
        or len(nest.innermost) != len(nest.starts)
    ):
        raise ValueError("no loops of a function")
    if not all(-1 <= index < len(loops) for index in nest.innermost):
        raise ValueError("a block in a loop that there is not")
    if not all(-1 <= loop.parent < loop.index for loop in loops):
        raise ValueError("a loop around itself")
    for numbers in (nest.addresses, nest.starts):
        inside = not numbers or (0 <= numbers[0] and numbers[-1] < nest.end)
        if not inside or any(before >= number for before, number in pairwise(numbers)):
            raise ValueError("code that is in no order")
    if nest.addresses[:1] != nest.starts[:1]:
        raise ValueError("code outside of the function")
    return nest


def _address(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < _MAX_ADDRESS:
        raise ValueError("no address")
    return value
