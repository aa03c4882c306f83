"""Loops on disk: in a large function, such as an interpreter's, finding them takes a second, at each measurement."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

from parprof import __version__
from parprof.cache import DiskCache
from parprof.files.dso import Dso
from parprof.loops.extents import Extent
from parprof.loops.nest import MAX_LOOPS, Loop, LoopNest, find_loops
from parprof.loops.noreturn import Calls

FORMAT = 1
"""To be raised with each change of what is found."""
DEAR_SECONDS = 0.02
"""What took less CPU time is found anew."""
_MAX_BYTES = 1 << 24
_MAX_FILE = 1 << 22
_MAX_NUMBERS = 1 << 18


class KeptLoops:
    """Finds the loops of functions, those that are dear to find only once."""

    def __init__(self, base: Path | None = None) -> None:
        """Keep them in ``base``, or in parprof's own cache directory."""
        self._disk = DiskCache("loops", _MAX_BYTES, base)

    def find(self, dso: Dso, extent: Extent, calls: Calls) -> LoopNest:
        """The loops of a function; see `find_loops`.

        Raises:
            ElfError: the file cannot be read.
        """
        if dso.elf is None:
            return LoopNest()
        content = dso.content_name()
        name = f"{content}-{extent[0]:x}-{extent[1]:x}-{FORMAT}-{__version__}" if content else ""
        if (raw := self._disk.read(name) if name else None) is not None:
            with suppress(ValueError):
                return from_json(json.loads(raw))
            self._disk.remove(name)
        started_s = time.thread_time()
        nest = find_loops(dso.elf, *extent, calls)
        is_dear = time.thread_time() - started_s > DEAR_SECONDS
        if name and is_dear and len(nest.addresses) <= _MAX_NUMBERS:
            text = json.dumps(to_json(nest)).encode()
            if len(text) <= _MAX_FILE:
                self._disk.write(name, text)
        return nest


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
            Loop(index, int(header), tuple(map(int, branches)), int(parent), int(depth))
            for index, (header, branches, parent, depth) in enumerate(raw["loops"])
        ]
        nest = LoopNest(
            loops,
            [str(note) for note in raw["notes"]],
            list(accumulate(map(int, raw["addresses"]))),
            list(accumulate(map(int, raw["starts"]))),
            [int(index) for index in raw["innermost"]],
            int(raw["end"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
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
    return nest
