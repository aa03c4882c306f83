"""What was counted, joined with what was sampled in the same seconds: per routine, and per arc (caller, callee).

A routine's CPU time per call is its sampled CPU time, with all that it calls, over its exact number of calls: so no
probe at its return is needed. The state of a call is that of the whole program at the entry (malony-1987 sec. 3.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Protocol

from parprof.attribution.concurrency import AtWork
from parprof.calls.counting import CountedSite
from parprof.calls.finder import NameAddresses
from parprof.calls.function import Function
from parprof.calls.times import Times
from parprof.cct.tree import CallingContextTree, Procedure
from parprof.cct.views import flat_view
from parprof.exporters.concurrency import FunctionLevels, by_function
from parprof.files.dso import Dso
from parprof.kernel.call_counts import Caller, Calls
from parprof.kernel.call_times import ArcTime, RoutineTime
from parprof.model import Frame, Profile
from parprof.values import dataclass

UNKNOWN_CALLER = "[unknown]"
_NO_TIME_S = 1e-9
"""What sums of floating point differ by is no time."""


@dataclass(slots=True)
class RoutineCalls:
    """How often a routine was called, and what it took."""

    function: Function
    calls: Calls = Calls()
    per_cpu: dict[int, Calls] = field(default_factory=dict)
    unsampled: int = 0
    """Of the calls: those of a time whose samples do not count."""
    at_work: AtWork = field(default_factory=lambda: AtWork.of(()))
    """With all that it calls, sampled."""
    own_cpu_s: float = 0.0
    """CPU time in the routine itself, sampled."""
    inlined_cpu_s: float = 0.0
    """CPU time in copies that are inlined into other functions, whose calls cannot be counted, as far as it is not of a
    call that is: one around it, or within it. Part of the others."""
    inlined_in: tuple[str, ...] = ()
    has_rest: bool = False
    """Its rest has code of its own, which is called where its beginning is inlined."""
    dear: bool = False
    """Some of its calls were counted where that is dear."""
    notes: list[str] = field(default_factory=list)
    times: RoutineTime | None = None
    """What its calls took, measured; None: that was not asked for, or cannot be."""
    frames: set[tuple[str, str, str]] = field(default_factory=set)
    """Name, module and file as samples and callers have it: debug information may know another alias."""

    @property
    def cpu_s(self) -> float:
        """With all that it calls, sampled."""
        return self.at_work.work_ns / 1e9

    @property
    def cpu_per_call_s(self) -> float | None:
        """Sampled CPU time by exact calls; None where either is missing."""
        calls = self.calls.all - self.unsampled
        counted_s = self.cpu_s - self.inlined_cpu_s
        return counted_s / calls if calls and counted_s > _NO_TIME_S else None


@dataclass(slots=True)
class Arc:
    """Calls of one routine by one function."""

    caller: Function
    callee: Function
    calls: Calls = Calls()
    lines: dict[int, int] = field(default_factory=dict)
    """Calls by line of the caller."""
    times: tuple[ArcTime, ArcTime] = (ArcTime(), ArcTime())
    """What they took, if that was measured: sequential ones, concurrent ones."""

    @property
    def line(self) -> int:
        """That of most calls; 0: not known."""
        return max(self.lines, key=lambda line: (self.lines[line], -line), default=0)


@dataclass(slots=True)
class CallProfile:
    """The result."""

    routines: list[RoutineCalls]
    """Most calls first."""
    arcs: list[Arc]
    profile: Profile
    """The samples of the same time."""
    counted_s: float
    """For how long calls were counted. Wall-clock time."""
    estimate: str = ""
    cost_s: float = 0.0
    """CPU time that counting took from the program, by the prices of this machine."""
    notes: list[str] = field(default_factory=list)


def make_result(
    sites: Mapping[int, CountedSite],
    by_site: Mapping[int, Mapping[int, Calls]],
    by_caller: Mapping[Caller, Calls],
    find: Mapping[int, Finds],
    resolve: NameAddresses,
    profile: Profile,
    counted_s: float,
    times: Times | None = None,
    unsampled: Mapping[int, int] = MappingProxyType({}),
) -> CallProfile:
    """Put it together. ``find``: by process image, what tells the file behind an address. ``unsampled``: by site, calls
    of a time whose samples are not in the profile."""
    names = _Names(sites.values(), resolve)
    routines: dict[Function, RoutineCalls] = {}
    for number, site in sites.items():
        function = names.routine(site)
        row = routines.setdefault(function, RoutineCalls(function))
        frame = names.frame(site)
        row.frames |= {(name, frame.module, frame.file) for name in (function.name, frame.name)}
        for note in site.routine.notes:
            if note not in row.notes:
                row.notes.append(note)
        row.has_rest = row.has_rest or site.copy.is_part
        row.unsampled += unsampled.get(number, 0)
        for cpu, calls in by_site.get(number, {}).items():
            row.calls = row.calls.plus(calls)
            row.per_cpu[cpu] = row.per_cpu.get(cpu, Calls()).plus(calls)
            row.dear = row.dear or not site.place.cheap
    if times is not None:
        for function, of_routine in times.of_routines(sites, names.routine).items():
            routines[function].times = of_routine
    arcs = _arcs(sites, by_site, by_caller, find, resolve, names, times)
    _join(routines, names, profile)
    return CallProfile(
        sorted(routines.values(), key=lambda row: (-row.calls.all, row.function.name)),
        sorted(arcs, key=lambda arc: (-arc.calls.all, arc.caller.name)),
        profile,
        counted_s,
    )


class Finds(Protocol):
    """What tells the file and ELF address behind an address: `parprof.session.target.Target`."""

    def find(self, address: int, epoch: int) -> tuple[Dso, int] | None:
        """None: nothing is there."""


class _Names:
    """The functions that are counted, as samples and lines know them."""

    def __init__(self, sites: Iterable[CountedSite], resolve: NameAddresses) -> None:
        entries = {(site.dso, site.copy.vaddr, False) for site in sites}
        self._frames = resolve(entries)

    def frame(self, site: CountedSite) -> Frame:
        """The function at the entry of a routine's copy."""
        return self._frames[site.dso, site.copy.vaddr, False][-1]

    def routine(self, site: CountedSite) -> Function:
        """The routine that a site belongs to."""
        frame = self.frame(site)
        return Function(site.routine.name, site.dso.name, frame.file, frame.start_line or frame.line)


def _arcs(
    sites: Mapping[int, CountedSite],
    by_site: Mapping[int, Mapping[int, Calls]],
    by_caller: Mapping[Caller, Calls],
    find: Mapping[int, Finds],
    resolve: NameAddresses,
    names: _Names,
    times: Times | None,
) -> list[Arc]:
    none = (ArcTime(), ArcTime())
    places: list[tuple[CountedSite, Calls, tuple[ArcTime, ArcTime], tuple[Dso, int, bool] | None]] = []
    for number, by_cpu in by_site.items():
        site = sites.get(number)
        if site is not None and site.place.knows_caller:
            total = Calls()
            for calls in by_cpu.values():
                total = total.plus(calls)
            places.append((site, total, none, (site.dso, site.place.vaddr, False)))
    for caller, calls in by_caller.items():
        site = sites.get(caller.site)
        if site is None:
            continue
        image = find.get(caller.image)
        at = image.find(caller.return_address, caller.epoch) if image is not None else None
        took = times.by_caller.get(tuple(caller), none) if times is not None else none
        places.append((site, calls, took, (*at, True) if at is not None else None))
    frames = resolve({place for _, _, _, place in places if place is not None})
    out: dict[tuple[Function, Function], Arc] = {}
    for site, calls, took, place in places:
        frame = _calling(frames[place], site) if place is not None else Frame(UNKNOWN_CALLER)
        from_function = Function(frame.name, frame.module, frame.file, frame.start_line)
        callee = names.routine(site)
        arc = out.setdefault((from_function, callee), Arc(from_function, callee))
        arc.calls = arc.calls.plus(calls)
        arc.times = arc.times[0].plus(took[0]), arc.times[1].plus(took[1])
        if frame.line:
            arc.lines[frame.line] = arc.lines.get(frame.line, 0) + calls.all
    return list(out.values())


def _calling(frames: Sequence[Frame], site: CountedSite) -> Frame:
    """Who calls, of the frames at an instruction: not the function itself, whose beginning is inlined there."""
    is_own = site.copy.is_part and frames[0].inlined and frames[0].name == site.routine.name
    return frames[1] if is_own else frames[0]


def _join(routines: Mapping[Function, RoutineCalls], names: _Names, profile: Profile) -> None:
    """Add what samples say of these routines."""
    levels: dict[Procedure, FunctionLevels] = by_function(profile.samples)
    totals = flat_view(CallingContextTree(profile.samples))
    inlined = _inlined(profile)
    for row in routines.values():
        keys = [key for key in totals if (key.name, key.module, key.file) in row.frames]
        for key in keys:
            row.own_cpu_s += totals[key].exclusive.work_ns / 1e9
        known = next((levels[key] for key in keys if key in levels), None)
        if known is not None:
            row.at_work = AtWork.of(known.inclusive)
        same = {(name, module) for name, module, _ in row.frames}
        found = next((inlined[key] for key in same if key in inlined), None)
        if found is not None:
            row.inlined_cpu_s = found.uncounted_ns / 1e9
            row.inlined_in = tuple(sorted(found.into_ns, key=lambda name: -found.into_ns[name]))


@dataclass(slots=True)
class _Inlined:
    """CPU time in inlined copies of a function."""

    into_ns: dict[str, float] = field(default_factory=dict)
    """By the function around them."""
    uncounted_ns: float = 0.0
    """Where no code of the function's own is on the call path, whose calls are counted."""


def _inlined(profile: Profile) -> dict[tuple[str, str], _Inlined]:
    """CPU time in inlined copies of functions."""
    out: dict[tuple[str, str], _Inlined] = {}
    for sample in profile.samples:
        work_ns = sample.metrics.work_ns
        if not work_ns:
            continue
        counted = {(frame.name, frame.module) for frame in sample.path if not frame.inlined}
        seen: set[tuple[str, str]] = set()
        around = ""
        for frame in sample.path:
            if frame.is_loop:
                continue
            if frame.inlined and (key := (frame.name, frame.module)) not in seen:
                seen.add(key)
                found = out.setdefault(key, _Inlined())
                found.into_ns[around] = found.into_ns.get(around, 0.0) + work_ns
                found.uncounted_ns += work_ns * (key not in counted)
            if not frame.inlined:
                around = frame.name
    return out
