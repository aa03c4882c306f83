"""Samples as a tree of the program's own code, with what tells one kind of loss from another: who ran it, when others
had nothing to do, and what the others did meanwhile.

Frames that are not the program's are left out: what they cost is their callers'. Recursive calls are folded into the
first one. Everything is iterative: paths may be thousands deep.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from parprof.causes.ownership import SCRIPT, Owner, Ownership
from parprof.cct.tree import Procedure
from parprof.metrics import Metrics, add_to
from parprof.model import Frame, Path, PathSample

Thread = tuple[int, int, str]
"""Process, number and name of a thread; files of before have no numbers."""

_PART = re.compile(
    r"(.+?)(?:\._omp_(?:cpy)?fn\.\d+|\.omp_outlined\S*|\.(?:constprop|isra|part|cold|lto_priv)\b\S*)+"
)
"""Names of what compilers make of a part of a function, or of a copy of it."""
_LEADING_SHARE = 0.8
"""A call path without a beginning is given that of the others which go on as it does, if so many of them agree."""

_LEAST_SHARE = 0.001
"""Places with less of all effort than this are not told apart from their callers."""

_CREATION = re.compile(r"_*(?:GI_+)?(?:pthread_create\w*|thrd_create|PyThread_start_new_thread)")


@dataclass(slots=True)
class Tally:
    """What some samples add up to."""

    metrics: Metrics = field(default_factory=Metrics)
    threads: dict[Thread, Metrics] = field(default_factory=dict)
    called_back_ns: float = 0.0
    """Work that a library called this place for, as a sort does a comparison."""
    runtime: dict[str, Metrics] = field(default_factory=dict)
    """By kind of overhead and name of the runtime's, or the system's, function that ran innermost."""
    in_region_ns: float = 0.0
    """Work on behalf of a parallel region, task or thread that begins at this place."""

    def add(self, metrics: Metrics, thread: Thread, runtime: str) -> None:
        """Add samples of one thread."""
        self.metrics.add(metrics)
        add_to(self.threads, thread, metrics)
        if runtime:
            add_to(self.runtime, runtime, metrics)

    def merge(self, other: Tally) -> None:
        """Add all of another one."""
        self.metrics.add(other.metrics)
        for thread, metrics in other.threads.items():
            add_to(self.threads, thread, metrics)
        for name, metrics in other.runtime.items():
            add_to(self.runtime, name, metrics)
        self.in_region_ns += other.in_region_ns
        self.called_back_ns += other.called_back_ns


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
    children: dict[Procedure, Place] = field(default_factory=dict)
    regions_ns: float = 0.0
    """Work on behalf of regions that begin here or below."""

    def child(self, procedure: Procedure, owner: Owner) -> Place:
        """The place of a callee, made if need be."""
        place = self.children.get(procedure)
        if place is None:
            place = self.children[procedure] = Place(procedure, owner, parent=self)
        return place

    @property
    def function(self) -> Place:
        """The function that a loop is in; a function itself."""
        place = self
        while place.procedure.is_loop and place.parent is not None:
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


@dataclass(frozen=True, slots=True)
class _Step:
    procedure: Procedure
    owner: Owner
    line: int
    start_line: int
    is_called_back: bool = False
    """Whether frames that are not the program's lie between this and its caller."""


@dataclass(frozen=True, slots=True)
class _Route:
    """A call path as steps through the program's own code."""

    steps: tuple[_Step, ...]
    region: int = -1
    """Which step is the code of a parallel region or a thread's function; -1: none."""
    innermost: str = ""
    """The outermost foreign function that the last step called, if any."""
    is_rooted: bool = True
    """Whether the call path begins at the program's entry, as far as is known."""
    is_script: bool = False


class Evidence:
    """A program's samples as places. ``root`` is nameless and stands for the program."""

    def __init__(self, samples: Iterable[PathSample]) -> None:
        self.root = Place(Procedure())
        self.unnamed = Tally()
        """Samples in which nothing of the program's own was found."""
        self.scripts = False
        """Whether any code of an interpreter was seen."""
        self.functions: dict[Procedure, float] = defaultdict(float)
        """Work by function, itself and what it calls."""
        self._ownership = Ownership()
        self._routes: dict[tuple[Path, Path], _Route] = {}
        rows = [(sample, self._route(sample.path, sample.physical)) for sample in samples]
        prefixes = _prefixes(rows)
        self._grow([(sample, _rooted(route, prefixes)) for sample, route in rows])
        for place in reversed(list(self.root.walk())):  # callees before their callers
            place.regions_ns += place.all.in_region_ns
            if place.parent is not None:
                place.parent.regions_ns += place.regions_ns

    def _grow(self, rows: list[tuple[PathSample, _Route]]) -> None:
        """Make the places, from the root on, where there is enough to look at: there may be millions of paths."""
        for _, route in rows:
            self.scripts |= route.is_script
        least_ns = _LEAST_SHARE * sum(sample.metrics.effort_ns for sample, _ in rows)
        pending = [(self.root, 0, rows)]
        while pending:
            place, depth, here = pending.pop()
            further: dict[Procedure, list[tuple[PathSample, _Route]]] = defaultdict(list)
            effort: dict[Procedure, float] = defaultdict(float)
            for row in here:
                self._charge(place, depth, *row)
                sample, route = row
                if depth < len(route.steps):
                    procedure = route.steps[depth].procedure
                    further[procedure].append(row)
                    effort[procedure] += sample.metrics.effort_ns + sample.metrics.spin_ns
            for procedure, those in further.items():
                if effort[procedure] >= least_ns:
                    owner = those[0][1].steps[depth].owner
                    pending.append((place.child(procedure, owner), depth + 1, those))
                else:
                    for sample, route in those:
                        place.own.add(sample.metrics, *_who(sample, route))

    def _charge(self, place: Place, depth: int, sample: PathSample, route: _Route) -> None:
        """Charge samples to the place that they go through at this depth."""
        metrics = sample.metrics
        thread, runtime = _who(sample, route)
        place.all.add(metrics, thread, runtime)
        if not route.steps:
            self.unnamed.add(metrics, thread, runtime)
        if depth == len(route.steps):
            place.own.add(metrics, thread, runtime)
        if not depth:
            return
        step = route.steps[depth - 1]
        if step.start_line and not place.start_line:
            place.start_line = step.start_line
        place.by_line.setdefault(step.line, Tally()).add(metrics, thread, runtime)
        if depth - 1 == route.region:
            place.all.in_region_ns += metrics.work_ns
        elif step.is_called_back:
            place.all.called_back_ns += metrics.work_ns
        if not step.procedure.is_loop:
            self.functions[step.procedure] += metrics.work_ns

    def _route(self, path: Path, physical: Path) -> _Route:
        key = path, physical
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = self._find_route(path, physical)
        return route

    def _find_route(self, path: Path, physical: Path) -> _Route:
        owners = self._owners(path)
        nearest = min(owners, default=Owner.SYSTEM)
        if nearest is Owner.SYSTEM:
            return _Route((), innermost=path[-1].name if path else "", is_rooted=False)
        begins = _region_begins(path, physical)
        if _is_of_library(path, owners):
            return _Route((), innermost=path[-1].name, is_rooted=False)
        steps: list[_Step] = []
        region, last = -1, -1
        seen: dict[Procedure, int] = {}
        for at, (frame, owner) in enumerate(zip(path, owners, strict=True)):
            if owner is not nearest:
                continue
            procedure = _as_written(frame)
            known = seen.get(procedure)
            if known is not None:  # recursion, of which the innermost loops are the first instance's
                for gone in steps[known + 1 :]:
                    seen.pop(gone.procedure, None)
                del steps[known + 1 :]
                steps[known] = _Step(procedure, owner, frame.line, steps[known].start_line)
            else:
                seen[procedure] = len(steps)
                called_back = bool(steps) and at > last + 1
                steps.append(_Step(procedure, owner, frame.line, frame.start_line, called_back))
            last = at
            if 0 <= begins <= at and region < 0:
                region = _function_at(steps, len(steps) - 1)
        innermost = next((frame.name for frame in path[last + 1 :] if not frame.is_loop), "")
        rooted = bool(path) and not path[0].name.startswith("[")
        script = any(frame.module == SCRIPT for frame in path)
        return _Route(tuple(steps), min(region, len(steps) - 1), innermost, rooted, script)

    def _owners(self, path: Path) -> list[Owner]:
        out: list[Owner] = []
        last = Owner.SYSTEM
        for frame in path:
            if not frame.is_loop:
                last = self._ownership.of(frame)
            out.append(last)
        return out


def _who(sample: PathSample, route: _Route) -> tuple[Thread, str]:
    """Whose samples they are, and what they were in besides the program."""
    origin = sample.origin
    runtime = f"{origin.overhead}:{route.innermost}" if route.innermost else ""
    return (origin.pid, origin.tid, origin.thread), runtime


def _as_written(frame: Frame) -> Procedure:
    """The procedure that its author wrote."""
    procedure = Procedure(frame.name, frame.module, frame.file, frame.is_loop)
    match = None if frame.is_loop else _PART.fullmatch(procedure.name)
    return procedure._replace(name=match[1]) if match else procedure


def _function_at(steps: list[_Step], at: int) -> int:
    while at > 0 and steps[at].procedure.is_loop:
        at -= 1
    return at


def _region_begins(path: Path, physical: Path) -> int:
    """Where on a logical path the piece of parallel work begins that its thread runs; -1: it is in none.

    From there to the leaf both paths agree: before it are the thread's plumbing on one, on the other the code that
    created the work.
    """
    created = [at for at, frame in enumerate(path) if _CREATION.fullmatch(frame.name)]
    if created:
        return created[-1] + 1
    if not physical:
        return -1
    same = 0
    for ours, theirs in zip(reversed(path), reversed(physical), strict=False):
        if not _is_same(ours, theirs):
            break
        same += 1
    if not same or same == len(path) == len(physical):
        return -1
    return len(path) - same


def _is_of_library(path: Path, owners: Sequence[Owner]) -> bool:
    """Whether a library does this in a thread of its own: who happened to start that has nothing to do with it."""
    created = [at for at, frame in enumerate(path) if _CREATION.fullmatch(frame.name)]
    if not created or Owner.PROGRAM in owners[created[-1] + 1 :]:
        return False
    return Owner.LIBRARY in owners[created[-1] + 1 :]


def _is_same(one: Frame, other: Frame) -> bool:
    if one.address or other.address:
        return (one.module, one.address) == (other.module, other.address)
    return one.name == other.name


def _prefixes(rows: Iterable[tuple[PathSample, _Route]]) -> dict[Procedure, tuple[_Step, ...]]:
    """By procedure: the steps that lead to it from the program's entry, where they are nearly always the same."""
    counted: dict[Procedure, Counter[tuple[_Step, ...]]] = defaultdict(Counter)
    lost = {route.steps[0].procedure for _, route in rows if route.steps and not route.is_rooted}
    if not lost:
        return {}
    for sample, route in rows:
        if route.is_rooted:
            for at, step in enumerate(route.steps):
                if at and step.procedure in lost:
                    counted[step.procedure][route.steps[:at]] += sample.metrics.samples
    out: dict[Procedure, tuple[_Step, ...]] = {}
    for procedure, found in counted.items():
        prefix, samples = found.most_common(1)[0]
        if samples >= _LEADING_SHARE * found.total():
            out[procedure] = prefix
    return out


def _rooted(route: _Route, prefixes: dict[Procedure, tuple[_Step, ...]]) -> _Route:
    """A route whose beginning was lost, as other samples have it."""
    if route.is_rooted or not route.steps:
        return route
    prefix = prefixes.get(route.steps[0].procedure)
    if prefix is None:
        return route
    region = route.region + len(prefix) if route.region >= 0 else -1
    return _Route((*prefix, *route.steps), region, route.innermost, True, route.is_script)
