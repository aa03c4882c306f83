"""Loops put into a profile that was made without them, such as one of the daemon's, which does not look for any.

What is looked at are the files that the process maps, by a child of our own, with the rights of whoever wants to know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from parprof.files.dso import Dso
from parprof.loops.kept import KeptLoops
from parprof.loops.scopes import LoopScopes
from parprof.metrics import ACTIVATIONS, Metrics
from parprof.model import Frame, Frames, Path, Profile
from parprof.profile.called import called
from parprof.symbols.symbolizer import NameRequest, Symbolizer

SECONDS = 10.0
"""How long to look for loops: of the time of whoever asks, after the measurement."""

_Place = tuple[str, str]
"""Name and build id of a file."""
_Step = tuple[NameRequest | None, Frames]
"""The frames at one address, innermost first, and where that is, if its file is known."""


def add_loops(profile: Profile, files: Sequence[Dso], symbolizer: Symbolizer) -> None:
    """Put the loops of hot functions into its call paths, and what there is to know of that into its notes.

    ``files``: what the process maps; who has none of them, by name and build id, has no loops.
    """
    samples = profile.samples
    if any(frame.is_loop for sample in samples for frame in (*sample.path, *sample.physical)):
        return
    with KeptLoops() as kept:
        for dso in files[:1]:  # the program itself
            kept.prepare(dso)  # beside the rest
        symbolizer.prepare()
        _add_loops(profile, _Finder(files), LoopScopes(symbolizer.resolve, kept, SECONDS))


def _add_loops(profile: Profile, finder: _Finder, scopes: LoopScopes) -> None:
    samples = profile.samples
    paths = {path: finder.steps(path) for sample in samples for path in (sample.path, sample.physical)}
    weights: Counter[NameRequest] = Counter()
    frames: dict[NameRequest, Frames] = {}
    for sample in samples:
        steps = paths[sample.physical or sample.path]
        frames.update((request, group) for request, group in steps if request is not None)
        for request in {request for request, _ in steps if request is not None}:
            weights[request] += sample.metrics.samples
    for steps in paths.values():  # those that only the logical path has
        frames.update((request, group) for request, group in steps if request is not None)
    total = sum(sample.metrics.samples for sample in samples)
    scopes.prepare({request: weights[request] for request in frames}, frames, total)
    profile.notes += scopes.notes
    made = {path: _with_loops(steps, scopes) for path, steps in paths.items()}
    for number, sample in enumerate(list(samples)):
        sample.path, sample.physical = made[sample.path], made[sample.physical]
        if sample.metrics[ACTIVATIONS]:
            _keep_calls(profile, number)


def _keep_calls(profile: Profile, number: int) -> None:
    """Calls are of the function, not of the loop in it where samples were: a row of their own, where that differs."""
    row = profile.samples[number]
    here = row.path, row.physical or row.path
    own = called(*here)
    if own is None or own == here:
        return
    path, physical = own
    if row.metrics.values.keys() == {ACTIVATIONS}:
        row.path, row.physical = path, physical if row.physical else ()
        return
    fresh = len(profile.samples)
    calls = replace(row, path=path, physical=physical if row.physical else (), metrics=Metrics(), levels=())
    profile.samples.append(calls)
    calls.metrics[ACTIVATIONS] = row.metrics[ACTIVATIONS]
    row.metrics[ACTIVATIONS] = 0
    for at, interval in enumerate(profile.intervals):
        part = interval.rows.get(number)
        if part is not None and part[ACTIVATIONS]:
            rest = part.copy()
            rest[ACTIVATIONS] = 0
            rows = {**interval.rows, number: rest, fresh: Metrics.of({ACTIVATIONS: part[ACTIVATIONS]})}
            profile.intervals[at] = replace(interval, rows=rows)


class _Finder:
    """Knows the files of a process by what profiles say of them."""

    def __init__(self, files: Iterable[Dso]) -> None:
        self._files: dict[_Place, Dso | None] = {}
        for dso in files:
            place = dso.name, dso.build_id
            known = self._files.get(place, dso)
            self._files[place] = dso if known is dso else None  # of two that look the same we know neither

    def steps(self, path: Path) -> list[_Step]:
        """Its addresses, leaf first. Frames without one, such as the kernel's, stand for themselves."""
        out: list[_Step] = []
        is_return = False
        for group in _groups(path):
            frame = group[-1]
            dso = self._files.get((frame.module, frame.build_id)) if frame.address else None
            out.append(((dso, frame.address, is_return) if dso is not None else None, group))
            is_return = is_return or bool(frame.address)
        return out


def _groups(path: Path) -> Iterable[Frames]:
    """What was inlined, with the function that it was inlined into; innermost first."""
    group: list[Frame] = []
    for frame in reversed(path):
        group.append(frame)
        if not frame.inlined:
            yield tuple(group)
            group = []
    if group:
        yield tuple(group)


def _with_loops(steps: list[_Step], scopes: LoopScopes) -> Path:
    out: list[Frame] = []
    for request, group in steps:
        found = group if request is None else scopes.scopes(request, group)
        # a loop without lines is an address, which tells its reader nothing
        out += [frame for frame in found if frame.line or not frame.is_loop]
    return tuple(reversed(out))
