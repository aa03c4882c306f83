"""Records to a profile: addresses get the names of routines, and what the records lack is said."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

from parprof.files.dso import Dso
from parprof.files.dso_cache import DsoCache
from parprof.files.maps_line import MapsLine
from parprof.input.model import BLOCKS, NANOSECONDS, InputProfile, Point, RoutineName, total
from parprof.input.records import BackEnd, InputRecord, Lacking, PointRow
from parprof.patterns import regex
from parprof.symbols.names import without_clone_suffixes, without_defaults
from parprof.symbols.symbolizer import Symbolizer
from parprof.untrusted import visible

_TOOLS = {BackEnd.TSAN: "tsan", BackEnd.VALGRIND: "valgrind"}
_MAX_CALLERS = 512
_ALIAS = regex(r"__GI_+(?=[A-Za-z])")


def make_profile(records: Sequence[InputRecord], command: str, *, by_thread: bool = False) -> InputProfile:
    """What the processes of one run showed, together; each thread's activations apart with ``by_thread``."""
    blocks = not any(record.flags & Lacking.NO_BLOCKS for record in records)
    first = records[0]
    profile = InputProfile(command, _TOOLS[first.back_end], BLOCKS if blocks else NANOSECONDS)
    profile.counted_by = "tool" if first.back_end is BackEnd.VALGRIND else "proc"
    with DsoCache() as cache, Symbolizer() as symbolizer:
        for record in records:
            names = Names(cache, symbolizer, record)
            _add(profile, record, names, blocks, by_thread)
    profile.runs, profile.processes = 1, len(records)
    _note_what_is_missing(profile, records)
    return profile


class Names:
    """The routines of one record."""

    def __init__(self, cache: DsoCache, symbolizer: Symbolizer, record: InputRecord) -> None:
        places = record.places
        self._contexts = record.contexts if record.flags & Lacking.CONTEXTS else {}
        self._in_context: dict[int, RoutineName] = {}
        dsos = {path: _dso(cache, path) for path in {place.path for place in places.values()}}
        asked = {
            routine: (dso, place.address, place.is_return_address)
            for routine, place in places.items()
            if (dso := dsos[place.path]) is not None
        }
        found = symbolizer.resolve(asked.values())
        self._known = {}
        for routine, request in asked.items():
            frame = found[request][-1]
            name = without_defaults(_ALIAS.sub("", without_clone_suffixes(frame.name)))
            self._known[routine] = RoutineName(name, frame.module, frame.file, frame.start_line or frame.line)

    def of(self, identity: int) -> RoutineName:
        """The name of a routine, or of a routine in its context."""
        if not self._contexts:
            return self._routine(identity)
        known = self._in_context.get(identity)
        if known is None:
            known = self._in_context[identity] = self._context(identity)
        return known

    def _context(self, identity: int) -> RoutineName:
        path: list[int] = []
        while (context := self._contexts.get(identity)) is not None and len(path) < _MAX_CALLERS:
            path.append(context.routine)
            identity = context.caller
        if not path:
            return self._routine(identity)
        callers = tuple(self._routine(routine).name for routine in reversed(path[1:]))
        return replace(self._routine(path[0]), callers=callers)

    def _routine(self, routine: int) -> RoutineName:
        """The routine's name; its address where there is none."""
        known = self._known.get(routine)
        if known is None:
            known = self._known[routine] = RoutineName(f"{routine:#x}", "[unknown]")
        return known


def _dso(cache: DsoCache, path: bytes) -> Dso | None:
    if not path.startswith(b"/"):
        return None
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return cache.get(os.getpid(), MapsLine(0, 1, True, 0, status.st_dev, status.st_ino, path))


def _add(profile: InputProfile, record: InputRecord, names: Names, blocks: bool, by_thread: bool) -> None:
    rate = record.ticks_per_second
    for row in record.points:
        identity = names.of(row.routine)
        routine = profile.routine(replace(identity, thread=row.thread) if by_thread else identity)
        routine.add(_point(row, blocks, rate))
        routine.by_thread[row.thread] = routine.by_thread.get(row.thread, 0) + row.calls
    for totals in record.threads.values():
        profile.first += totals.first
        profile.induced += totals.induced
        profile.external += totals.external
        profile.threads += totals.threads
    profile.seen_read_bytes += record.seen_read_bytes
    profile.seen_sent_bytes += record.seen_sent_bytes
    profile.all_read_bytes = total(profile.all_read_bytes, record.all_read_bytes)
    profile.all_sent_bytes = total(profile.all_sent_bytes, record.all_sent_bytes)


def _point(row: PointRow, blocks: bool, ticks_per_second: int) -> Point:
    def ns(ticks: int) -> int:
        return ticks * 10**9 // ticks_per_second if ticks_per_second else 0

    return Point(
        trms=row.trms,
        rms=row.rms,
        calls=row.calls,
        trms_sum=row.trms_sum,
        rms_sum=row.rms_sum,
        induced=row.induced_sum,
        external=row.external_sum,
        cost_sum=row.blocks_sum if blocks else ns(row.ticks_sum),
        cost_max=row.blocks_max if blocks else ns(row.ticks_max),
        self_cost=row.self_blocks if blocks else ns(row.self_ticks),
        time_sum_ns=ns(row.ticks_sum),
        time_max_ns=ns(row.ticks_max),
        unfinished=row.unfinished,
        inner_cost=row.inner_blocks if blocks else ns(row.inner_ticks),
    )


def _note_what_is_missing(profile: InputProfile, records: Iterable[InputRecord]) -> None:
    for record in records:
        who = f"process {record.pid} ({visible(record.command, 60)})"
        if record.rows_lost:
            profile.note(f"{who}: {record.rows_lost} activations found no room in its record")
        if record.flags & Lacking.OUT_OF_MEMORY:
            profile.note(f"{who}: there was no memory for what it reads; part of its input was not counted")
        if record.flags & Lacking.TOO_DEEP:
            profile.note(f"{who}: calls deeper than a million count as their caller's")
        if record.flags & Lacking.ROUNDED:
            profile.note(f"{who}: more than 65,536 sizes in a thread; further ones are rounded, within 1 %")
        if record.flags & Lacking.NO_BLOCKS:
            profile.note("built without -fsanitize-coverage=trace-pc, so cost is time, not basic blocks")
