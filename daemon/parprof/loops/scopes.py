"""Loops as scopes of call paths: between a function and what it executes or calls (tallent-2009 sec. 4).

Only functions with many samples are looked at, and only for a limited time, the hottest first.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from parprof.errors import TargetError
from parprof.files.dso import Dso, FileKey
from parprof.files.eh_frame_header import Extent, extents_around
from parprof.files.elf import ElfError
from parprof.loops.kept import KeptLoops
from parprof.loops.names import LoopName, LoopPlace, context_of, name_loops
from parprof.loops.nest import LoopNest
from parprof.model import Frame, Frames
from parprof.symbols.debugfiles import find_debug_file
from parprof.symbols.symbolizer import NameRequest
from parprof.symbols.table import find_functions

ResolveScopes = Callable[[Iterable[NameRequest]], Mapping[NameRequest, Frames]]

HOT_SHARE = 0.005
"""A function's loops are shown if it is on the call path of at least this share of all samples."""
MAX_FUNCTIONS = 200
_MAX_REMEMBERED = 1024
_MAX_PLACES = 1 << 16


def functions_around(dso: Dso, addresses: Iterable[int]) -> dict[int, Extent]:
    """The function around each of these ELF virtual addresses of a file; those in none are left out.

    Raises:
        ElfError: the file cannot be read.
    """
    elf = dso.elf
    if elf is None:
        return {}
    missing = set(addresses)
    out = extents_around(elf, missing)
    with ExitStack() as stack:
        tables = [elf]
        for table in tables:
            missing -= out.keys()
            if not missing:
                break
            for address, symbol in find_functions(table, missing).items():
                if symbol.size:
                    out[address] = (symbol.value, symbol.size)
            if table is elf and (separate := find_debug_file(dso)):
                tables.append(stack.enter_context(separate))
    return out


class _Function(NamedTuple):
    nest: LoopNest
    names: list[LoopName]


class LoopScopes:
    """Knows the loops of hot functions. For one thread."""

    def __init__(self, resolve: ResolveScopes, kept: KeptLoops, seconds: float = 2.0) -> None:
        """Take names and lines from ``resolve`` (`Symbolizer.resolve`), and ``seconds`` for each `prepare`.

        ``kept`` finds loops, and stays the caller's.
        """
        self._resolve = resolve
        self._kept = kept
        self._seconds = seconds
        self._functions: OrderedDict[tuple[FileKey, Extent], _Function] = OrderedDict()
        self._extents: OrderedDict[tuple[FileKey, int], Extent | None] = OrderedDict()
        self.notes: list[str] = []
        """What the last `prepare` left out, for the reader."""

    def prepare(
        self, samples: Mapping[NameRequest, int], frames: Mapping[NameRequest, Frames], total: int
    ) -> None:
        """Find the loops of the functions that these addresses are in.

        ``samples`` says how many samples each address is on the call path of, ``frames`` what is known of it,
        ``total`` how many samples there are.
        """
        self.notes = []
        deadline = time.monotonic() + self._seconds
        self._find_extents(samples)
        weights: dict[tuple[FileKey, Extent], int] = {}
        dsos: dict[FileKey, Dso] = {}
        with_lines: set[tuple[FileKey, Extent]] = set()
        for (dso, vaddr, is_return), count in samples.items():
            extent = self._extents.get((dso.key, vaddr - is_return))
            if extent is not None:
                function = (dso.key, extent)
                weights[function] = weights.get(function, 0) + count
                dsos[dso.key] = dso
                if any(frame.line for frame in frames.get((dso, vaddr, is_return), ())):
                    with_lines.add(function)
        hot = [function for function, count in weights.items() if count >= HOT_SHARE * total]
        hot.sort(key=lambda function: (-weights[function], function[1]))
        late = 0
        for function in hot[:MAX_FUNCTIONS]:
            if function in self._functions:
                self._functions.move_to_end(function)
            elif time.monotonic() < deadline:
                key, extent = function
                self._functions[function] = self._look_at(dsos[key], extent, function in with_lines)
            else:
                late += 1
        self._kept.save()
        late += len(hot[MAX_FUNCTIONS:])
        if late:
            self.notes.append(f"the loops of {late} of {len(hot)} hot functions were not looked for")
        looked_at = [self._functions[function].nest for function in hot if function in self._functions]
        failed = [nest.notes[0] for nest in looked_at if not nest.loops and nest.notes]
        if failed:
            self.notes.append(f"the loops of {len(failed)} hot functions are unknown; of one: {failed[0]}")
        while len(self._functions) > _MAX_REMEMBERED:
            self._functions.popitem(last=False)

    def _find_extents(self, samples: Iterable[NameRequest]) -> None:
        missing: dict[FileKey, tuple[Dso, set[int]]] = {}
        for dso, vaddr, is_return in samples:
            if dso.key[0] in ("file", "vdso") and (dso.key, vaddr - is_return) not in self._extents:
                missing.setdefault(dso.key, (dso, set()))[1].add(vaddr - is_return)
        for key, (dso, addresses) in missing.items():
            try:
                found = functions_around(dso, addresses)
            except (ElfError, TargetError, OSError):
                found = {}
            for address in addresses:
                self._extents[key, address] = found.get(address)
        while len(self._extents) > _MAX_PLACES:
            self._extents.popitem(last=False)

    def _look_at(self, dso: Dso, extent: Extent, has_lines: bool) -> _Function:
        nest = self._kept.find(dso, extent)

        def lookup(addresses: Iterable[int]) -> dict[int, LoopPlace]:
            if not has_lines:
                return {}
            found = self._resolve([(dso, address, False) for address in addresses])
            return {vaddr: _place(frames) for (_, vaddr, _), frames in found.items()}

        names = name_loops(nest, lookup)
        nest.addresses = []  # no longer needed, and long
        return _Function(nest, names)

    def scopes(self, request: NameRequest, frames: Frames) -> Frames:
        """The frames at an address with the loops around it: each loop in front of the function that it is in."""
        dso, vaddr, is_return = request
        extent = self._extents.get((dso.key, vaddr - is_return))
        function = self._functions.get((dso.key, extent)) if extent else None
        chain = function.nest.chain(vaddr - is_return) if function else ()
        if not function or not chain or not frames:
            return frames
        return insert(frames, [function.names[loop.index] for loop in chain])


def insert(frames: Frames, loops: Iterable[LoopName]) -> Frames:
    """``frames`` with these loops, of which the outermost comes first.

    Of loops with the same name only the outermost is shown: they are on the same lines of source.
    """
    context = context_of(_place(frames))
    below: list[list[Frame]] = [[] for _ in frames]
    at = 0
    for loop in loops:
        at = max(at, len(os.path.commonprefix([list(loop.context), list(context)])) - 1)
        frame = frames[-1 - at]
        if not below[at] or below[at][-1].name != loop.name:
            below[at].append(
                replace(
                    frame, name=loop.name, file=loop.file, start_line=loop.first, inlined=True, is_loop=True
                )
            )
    out: list[Frame] = []
    for depth, frame in enumerate(reversed(frames)):
        out += [frame, *below[depth]]
    return tuple(reversed(out))


def _place(frames: Frames) -> LoopPlace:
    return tuple((frame.name, frame.file, frame.line) for frame in reversed(frames))
