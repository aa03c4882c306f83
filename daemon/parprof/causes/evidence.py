"""Samples as a tree of the program's own code, with what tells one kind of loss from another: who ran it, when others
had nothing to do, and what the others did meanwhile.

Frames that are not the program's are left out: what they cost is their callers'. Recursive calls are folded into the
first one. Everything is iterative: paths may be thousands deep.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from parprof.attribution.waiting import is_wait
from parprof.causes.barriers import is_barrier
from parprof.causes.company import Company, runs_routines
from parprof.causes.gil import beside
from parprof.causes.ownership import Owner, Ownership, nameless_files, partly_named, script_folders
from parprof.causes.routes import Route, RouteFinder, RouteStep, steps_in_common
from parprof.causes.sleepers import with_sleepers
from parprof.causes.tallies import SampleRoute, Tally
from parprof.causes.tickers import ThreadLabel
from parprof.causes.upstream import sleeps_of
from parprof.cct.tree import Procedure
from parprof.metrics import WAIT
from parprof.model import OTHERS, Frame, Interval, PathSample
from parprof.patterns import regex
from parprof.values import dataclass

_LEADING_SHARE = 0.8
"""A call path without a beginning is given that of the others which go on as it does, if so many of them agree."""

_MOST_WORK = 0.5
"""Of all work: libraries that do more than this in threads of their own do it for the program."""

_LEAST_WORK = 0.01
"""Of the time that a thread slept: one that worked for less is no consumer of what others make."""

_MACHINE = regex(r"(?:\A|/)lib(?:jvm|coreclr|clrgc(?:exp)?|clrjit|mono(?:sgen)?-[\d.]+)\.so")
"""Virtual machines of languages: threads of theirs in which nothing of the program's ever runs compile its functions
and collect its garbage. These wait for something to do as well, but not for what the program makes."""

_NO_THREADS = OTHERS[-1].name
"""What lies in no thread: it would be a process of its own, which lost."""
_LEAST_SHARE = 0.001
"""Places with less of all effort than this are not told apart from their callers."""


class Callee(NamedTuple):
    """What a place calls, or a loop of it. The body of a region and the function that it is written in are one place:
    what both call is told apart, as one is in parallel and the other is not, also where no line tells them apart. A
    function that threads are started with is another place where it is called."""

    procedure: Procedure
    is_in_region: bool
    """Whether its caller calls it in a region that begins there or above, or has threads begin with it. Not said of
    loops: one may hold both a region and code beside it."""

    @classmethod
    def of(cls, route: Route, depth: int) -> Callee:
        """The step of a route at this depth."""
        procedure = route.procedure(depth)
        return cls(procedure, not procedure.is_loop and depth >= route.inside_from)


@dataclass(slots=True, eq=False)
class Place:
    """A procedure of the program, or a loop of one, in its calling context."""

    procedure: Procedure
    owner: Owner = Owner.PROGRAM
    start_line: int = 0
    parent: Place | None = None
    all: Tally = field(default_factory=Tally)
    """Of it and all that it calls."""
    by_line: dict[int, Tally] = field(default_factory=dict)
    """The same by its own line: running or calling."""
    own: Tally = field(default_factory=Tally)
    """What was not in other code of the program."""
    children: dict[Callee, Place] = field(default_factory=dict)
    is_started: bool = False
    """Whether threads are started with this function here: nobody calls it."""
    regions_ns: float = 0.0
    """Work on behalf of regions that begin here or below."""

    def child(self, callee: Callee, owner: Owner) -> Place:
        """The place of a callee, made if need be."""
        place = self.children.get(callee)
        if place is None:
            place = self.children[callee] = Place(callee.procedure, owner, parent=self)
        return place

    @property
    def function(self) -> Place:
        """The function that a loop is in; a function itself."""
        place = self
        while place.procedure.is_loop and place.parent is not None:
            place = place.parent
        return place

    @property
    def root(self) -> Place:
        """What stands for the whole program."""
        place = self
        while place.parent is not None:
            place = place.parent
        return place

    def chain(self) -> list[Place]:
        """From below the root to this."""
        out: list[Place] = []
        place: Place | None = self
        while place is not None and place.parent is not None:
            out.append(place)
            place = place.parent
        return out[::-1]

    def walk(self) -> Iterator[Place]:
        """This and all below."""
        pending = [self]
        while pending:
            place = pending.pop()
            yield place
            pending += place.children.values()


class Evidence:
    """A program's samples as places. ``root`` is nameless and stands for the program."""

    def __init__(
        self, samples: Sequence[PathSample], cores: int = 1, intervals: Sequence[Interval] = ()
    ) -> None:
        """``cores``: n, by which core time is time. ``intervals``: what of the samples was when, if that is known."""
        self.root = Place(Procedure())
        self.unnamed = Tally()
        """Samples in which nothing of the program's own was found, but not time that is no thread's."""
        self.scripts = False
        """Whether any code of an interpreter was seen."""
        self.is_stripped = False
        """Whether nothing of the program itself has a name."""
        self.functions: dict[Procedure, float] = defaultdict(float)
        """Work by function, itself and what it calls."""
        self.calls: dict[tuple[Procedure, Procedure], float] = defaultdict(float)
        """The same by function and who calls it, wherever that is called itself."""
        seen = _by_process(samples)
        rows, self.is_stripped = _rows(samples, cores, seen, intervals)
        found = beside(samples, [row.function for row in rows], intervals)
        for number, others in found.items():
            rows[number] = rows[number]._replace(beside=others)
        rows = _with_beginnings(rows)
        schedulers = {pid for pid, frames in seen.items() if runs_routines(frames)}
        self.company = Company(rows, cores, intervals, schedulers)
        """What ran beside what."""
        self.sleeps = sleeps_of((row.metrics, row.thread, row.function, row.route) for row in rows)
        """Which threads slept by themselves."""
        self._routes = rows
        self._grow(rows)
        for place in reversed(list(self.root.walk())):  # callees before their callers
            place.regions_ns += place.all.in_region_ns
            if place.parent is not None:
                place.parent.regions_ns += place.regions_ns

    def lines_without(self, gone: Mapping[int, Iterable[Place]]) -> dict[int, dict[int, Tally]]:
        """What is left of some places without callees that are ``gone``, by the places' ids and their own lines."""
        callees = {place: set(map(id, kids)) for place, kids in gone.items()}
        out: dict[int, dict[int, Tally]] = {place: {} for place in gone}
        known: dict[int, list[tuple[int, int]]] = {}
        for row in self._routes if gone else ():
            lines = known.get(id(row.route))
            if lines is None:
                lines = known[id(row.route)] = self._lines_on(row.route, callees)
            for place, line in lines:
                out[place].setdefault(line, Tally()).add(row)
        return out

    def _lines_on(self, route: Route, gone: Mapping[int, Collection[int]]) -> list[tuple[int, int]]:
        """The places, by id, that a route goes through, with its line there, but not on to callees that are ``gone``,
        which are told by id, too."""
        out: list[tuple[int, int]] = []
        place = self.root
        for depth in range(route.length + 1):
            below = place.children.get(Callee.of(route, depth)) if depth < route.length else None
            if depth and id(place) in gone and id(below) not in gone[id(place)]:
                out.append((id(place), route.step(depth - 1).line))
            if below is None:
                break
            place = below
        return out

    def _grow(self, rows: list[SampleRoute]) -> None:
        """Make the places, from the root on, where there is enough to look at: there may be millions of paths.

        What all rows of a place have in common, as all of a program have `main`, is gone along at once.
        """
        self.scripts = any(row.route.is_script for row in rows)
        least_ns = _LEAST_SHARE * sum(row.metrics.effort_ns for row in rows)
        pending = [(self.root, 0, rows)] if rows else []
        while pending:
            place, depth, here = pending.pop()
            crowd = _Crowd(here, depth)
            self._charge(place, depth, crowd)
            while depth < crowd.shared:
                route = here[0].route
                place = place.child(Callee.of(route, depth), route.step(depth).owner)
                depth += 1
                self._charge(place, depth, crowd)
            own = [row for row in here if row.route.length == depth]
            for callee, those in _by_callee(here, depth).items():
                if sum(row.effort_ns for row in those) >= least_ns:
                    owner = those[0].route.step(depth).owner
                    pending.append((place.child(callee, owner), depth + 1, those))
                else:
                    own += those
            place.own = Tally.of(own)

    def _charge(self, place: Place, depth: int, crowd: _Crowd) -> None:
        """Charge all samples that go through a place to it. It is at this depth of their routes."""
        place.all = crowd.tally.copy()
        if not depth:
            self.unnamed = Tally.of(
                row for row in crowd.rows if not row.route.length and row.route.innermost != _NO_THREADS
            )
            return
        region = depth - 1
        place.all.within_region_ns = sum(work for at, work in crowd.regions.items() if 0 <= at <= region)
        place.all.in_region_ns = crowd.regions.get(region, 0.0)
        place.is_started = region in crowd.started
        work_ns = place.all.metrics.work_ns
        if depth <= crowd.shared:
            step = crowd.rows[0].route.step(region)
            place.start_line = step.start_line
            place.by_line[step.line] = crowd.tally.copy()
            if step.is_called_back:
                place.all.called_back_ns = work_ns - place.all.in_region_ns
        else:
            self._charge_lines(place, region, crowd.rows)
        if not place.procedure.is_loop:
            self.functions[place.procedure] += work_ns
            if place.parent is not None:
                self.calls[place.procedure, place.parent.function.procedure] += work_ns

    def _charge_lines(self, place: Place, at: int, rows: list[SampleRoute]) -> None:
        """Charge samples to the lines of a place, which is step ``at`` of their routes."""
        by_line: dict[int, list[SampleRoute]] = defaultdict(list)
        for row in rows:
            step = row.route.step(at)
            by_line[step.line].append(row)
            place.start_line = place.start_line or step.start_line
            if step.is_called_back and at != row.route.region:
                place.all.called_back_ns += row.metrics.work_ns
        place.by_line = {line: Tally.of(those) for line, those in by_line.items()}


class _Crowd:
    """The samples that go through one place, and on from there as far as all go the same way."""

    def __init__(self, rows: list[SampleRoute], depth: int) -> None:
        """``rows``: one at least. ``depth``: the place's, on their routes."""
        self.rows = rows
        self.tally = Tally.of(rows)
        self.regions: dict[int, float] = defaultdict(float)
        """Work by the step that begins a region, a task or a thread; -1: none does."""
        for row in rows:
            self.regions[row.route.region] += row.metrics.work_ns
        routes = {id(row.route): row.route for row in rows}
        self.started = {route.region for route in routes.values() if route.is_started}
        """Which of these steps are functions that threads are started with."""
        self.shared = steps_in_common(list(routes.values()), depth)
        """How many steps all have in common, from the first one on; not known if fewer than lead to this place."""


def _by_callee(rows: Iterable[SampleRoute], depth: int) -> dict[Callee, list[SampleRoute]]:
    """Those that go on to a step ``depth``, by what that calls."""
    by_number: dict[tuple[int, bool], list[SampleRoute]] = {}
    for row in rows:
        route = row.route
        if depth < route.length:
            key = route.number(depth), depth >= route.inside_from
            by_number.setdefault(key, []).append(row)
    out: dict[Callee, list[SampleRoute]] = {}
    for those in by_number.values():
        callee = Callee.of(those[0].route, depth)
        out[callee] = out[callee] + those if callee in out else those
    return out


def _rows(
    samples: Sequence[PathSample],
    cores: int,
    seen: Mapping[int, Collection[Frame]],
    intervals: Sequence[Interval],
) -> tuple[list[SampleRoute], bool]:
    """Each sample with its route; and whether nothing of the program itself has a name. ``seen``: see `_by_process`.

    What a library does in threads of its own is as a rule not the work of who happened to start them, by an import,
    say. Where it is most of what the program does, the program had it done: compressors, encoders. And a program of
    which nothing has a name is told by the libraries that it calls: often it is but a few lines around them.
    """
    frames = {id(frame): frame for here in seen.values() for frame in here}.values()
    ownership = Ownership(script_folders(frames))
    shows = nameless_files(seen, ownership)
    is_stripped = bool(shows) and all(
        frame.module in shows for frame in frames if ownership.of(frame) is Owner.PROGRAM
    )
    named = partly_named(frames, ownership, shows_libraries=bool(shows))
    samples = with_sleepers(samples, cores, ownership, intervals)
    rows = _rows_by(RouteFinder(ownership, shows_libraries=shows, partly_named=named), samples)
    whole = sum(row.metrics.work_ns for row in rows)
    of_libraries = sum(row.metrics.work_ns for row in rows if row.route.is_of_library)
    if of_libraries > _MOST_WORK * whole:
        finder = RouteFinder(ownership, joins_libraries=True, shows_libraries=shows, partly_named=named)
        rows = _rows_by(finder, samples)
    return rows, is_stripped


def _by_process(samples: Sequence[PathSample]) -> dict[int, Collection[Frame]]:
    """What was seen to run in each process, each frame once: far fewer are made than paths go through."""
    paths = {(one.origin.pid, id(one.path)): one.path for one in samples}
    out: dict[int, dict[int, Frame]] = defaultdict(dict)
    for (pid, _), path in paths.items():
        out[pid].update(zip(map(id, path), path, strict=True))
    return {pid: frames.values() for pid, frames in out.items()}


def _rows_by(finder: RouteFinder, samples: Sequence[PathSample]) -> list[SampleRoute]:
    routes: dict[tuple[int, int, bool], Route] = {}
    """By the ids of paths, which the samples keep: most are shared, and to compare them takes long."""
    threads: dict[ThreadLabel, ThreadLabel] = {}
    idlers = _idlers(samples)
    machines = _of_machines(samples)
    out: list[SampleRoute] = []
    for sample in samples:
        is_of_thread = sample.origin.tid not in (0, sample.origin.pid)
        key = id(sample.path), id(sample.physical), is_of_thread
        route = routes.get(key)
        if route is None:
            route = routes[key] = finder.find(sample.path, sample.physical, is_of_thread=is_of_thread)
        thread = _thread(sample)
        innermost = _team_wait(sample) or route.innermost
        if sample.path and is_wait(sample.path[-1].name) and innermost != sample.path[-1].name:
            innermost = f"{innermost} {sample.path[-1].name}"
        runtime = f"{sample.origin.overhead}:{innermost}" if innermost else ""
        label = threads.setdefault(thread, thread)
        metrics = sample.metrics
        effort_ns = metrics.effort_ns + metrics.spin_ns
        if route.length:
            machines.discard(label)
        out.append(SampleRoute(metrics, label, runtime, route, effort_ns, label in idlers))
    if not machines:
        return out
    return [row._replace(is_idler=True) if row.thread in machines else row for row in out]


def _thread(sample: PathSample) -> ThreadLabel:
    return sample.origin.pid, sample.origin.tid, sample.origin.thread


def _of_machines(samples: Sequence[PathSample]) -> set[ThreadLabel]:
    """The threads that were seen in a language's virtual machine."""
    paths = {id(one.path): one.path for one in samples}
    modules = {frame.module for path in paths.values() for frame in path}
    theirs = set(filter(_MACHINE.search, modules))
    if not theirs:
        return set()
    through = {key for key, path in paths.items() if any(frame.module in theirs for frame in path)}
    return {_thread(one) for one in samples if id(one.path) in through}


def _idlers(samples: Sequence[PathSample]) -> set[ThreadLabel]:
    """The threads that slept nearly all the time."""
    worked: dict[ThreadLabel, float] = defaultdict(float)
    slept: dict[ThreadLabel, float] = defaultdict(float)
    for sample in samples:
        thread = _thread(sample)
        worked[thread] += sample.metrics.work_ns + sample.metrics.spin_ns
        slept[thread] += sample.metrics[WAIT]
    return {
        thread for thread, wait in slept.items() if wait and thread[1] and worked[thread] < _LEAST_WORK * wait
    }


def _team_wait(sample: PathSample) -> str:
    """The runtime's function in which a thread of a team slept when nobody worked; empty if it did not.

    Libraries may lie between that and the program.
    """
    if not sample.metrics.stall_ns:
        return ""
    called = (frame.name for frame in reversed(sample.path) if not is_wait(frame.name))
    innermost = next(called, "")
    return innermost if is_barrier(innermost) else ""


def _with_beginnings(rows: list[SampleRoute]) -> list[SampleRoute]:
    """Routes whose beginning was lost get that of the others, where these are nearly always the same."""
    lost = {row.route.procedure(0) for row in rows if row.route.length and not row.route.is_rooted}
    if not lost:
        return rows
    prefixes = _prefixes(rows, lost)
    return [row._replace(route=_rooted(row.route, prefixes)) for row in rows]


def _prefixes(rows: Iterable[SampleRoute], lost: set[Procedure]) -> dict[Procedure, tuple[RouteStep, ...]]:
    """By procedure: the steps that lead to it from the program's entry, where they are nearly always the same."""
    counted: dict[Procedure, Counter[tuple[RouteStep, ...]]] = defaultdict(Counter)
    for row in rows:
        route = row.route
        if not route.is_rooted:
            continue
        for at in range(1, route.length):
            procedure = route.procedure(at)
            if procedure in lost:
                counted[procedure][tuple(map(route.step, range(at)))] += row.metrics.samples
    out: dict[Procedure, tuple[RouteStep, ...]] = {}
    for procedure, found in counted.items():
        prefix, samples = found.most_common(1)[0]
        if samples >= _LEADING_SHARE * found.total():
            out[procedure] = prefix
    return out


def _rooted(route: Route, prefixes: dict[Procedure, tuple[RouteStep, ...]]) -> Route:
    """A route whose beginning was lost, as other samples have it."""
    if route.is_rooted or not route.length:
        return route
    prefix = prefixes.get(route.procedure(0))
    if prefix is None:
        return route
    region = route.region + len(prefix) if route.region >= 0 else -1
    return replace(route, prefix=prefix, region=region, is_rooted=True)
