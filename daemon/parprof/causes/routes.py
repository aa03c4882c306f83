"""Call paths as routes through the program's own code: what is not the program's is left out, recursion is folded.

There may be millions of frames on paths, but only hundreds of different ones: what can be said of a frame is found
once (`FrameFacts`). And few steps of few paths are ever looked at: a route keeps only where its steps are on the path,
and makes them when it is asked.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from parprof.attribution.waiting import is_wait
from parprof.by_frame import ByFrame
from parprof.causes.ownership import SCRIPT, Owner, Ownership, is_of_stripped, runs_others_work
from parprof.causes.preparing import loaded, prepared
from parprof.cct.tree import Procedure
from parprof.model import Frame, Path
from parprof.patterns import regex
from parprof.values import dataclass

_BEGINS = regex(r"(?:std::|_\w*)?(?:sys.*)?__rust_begin_short_backtrace")
"""By which Rust marks where its own functions end, at the root of a thread, and a program's begin, if these have
frames."""
_NO_THREAD = regex(r"\[|_?main\Z|MAIN__|_start\Z|<module>|runtime\.")
"""Where paths begin that are of no thread's function: the program's entry, or a stack that was cut short."""
_LAUNCHER = "JavaMain"
"""By which a program's main function is run in a thread of its own that nothing of the program's starts: Java's, for
the sake of its stack."""
_PLUMBING = 4
"""Frames at most by which a thread begins before its function."""
_PART = regex(
    r"(.+?)(?:\._omp_(?:cpy)?fn\.\d+|\.omp_outlined\S*|\.(?:(?:constprop|isra|part)\.\d|(?:cold|lto_priv)\b)\S*)+"
)
"""Names of what compilers make of a part of a function, or of a copy of it."""

_OF_TEAM = regex(r"(?:.*/)?lib(?:gomp|omp|iomp)")
"""Files of OpenMP's runtimes: what a team runs is a piece of the function that has it run."""
_RUNS_PIECES = regex(r"(?:.*/)?lib(?:gomp|i?omp|opencilk|cilk|tbb)")
_TEAMS = regex(r"_*(?:GOMP|gomp|kmpc?)_")
"""Files, and functions that may be in any file, of runtimes that run pieces of functions on threads of their own."""
_GLUE = regex(r"(?:\S+ )?[\w.$]*\$\$Lambda\b")
"""What a JVM makes of a lambda, between who calls it and what it does: no library's."""
_CREATION = regex(r"_*(?:GI_+)?(?:pthread_create\w*|thrd_create|PyThread_start_new_thread)")


class RouteStep(NamedTuple):
    """A procedure, or a loop, on a route."""

    procedure: Procedure
    owner: Owner
    line: int
    start_line: int
    is_called_back: bool = False
    """Whether frames that are not the program's lie between this and its caller, and no event loop, pool or framework
    is among them, nor is it a script that a program has an interpreter for, as servers have for what they serve."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameFacts:
    """What can be said of a frame by itself."""

    frame: Frame
    """Kept: else its id may come to mean another one."""
    procedure: Procedure
    number: int
    """Of the procedure: quicker to compare."""
    owner: Owner
    """A loop's is that of the function before it on the path."""
    is_loop: bool


class FrameBook(ByFrame[FrameFacts]):
    """The facts of all frames, each found once."""

    def __init__(self, ownership: Ownership) -> None:
        """Know none yet. ``ownership`` says whose they are."""
        super().__init__()
        self.scripts: set[FrameFacts] = set()
        """Those of an interpreter's code."""
        self.creations: set[FrameFacts] = set()
        """Those of functions that start threads."""
        self.schedulers: set[FrameFacts] = set()
        """Those of event loops, pools and frameworks."""
        self._loops: set[FrameFacts] = set()
        self._numbers: dict[Procedure, int] = {}
        self._ownership = ownership

    def number(self, procedure: Procedure) -> int:
        """That of a procedure: quicker to compare."""
        return self._numbers.setdefault(procedure, len(self._numbers))

    def owners(self, facts: list[FrameFacts]) -> list[Owner]:
        """Whose code each frame is."""
        if self._loops.isdisjoint(facts):
            return [fact.owner for fact in facts]
        out: list[Owner] = []
        last = Owner.SYSTEM
        for fact in facts:
            if not fact.is_loop:
                last = fact.owner
            out.append(last)
        return out

    def _find(self, frame: Frame) -> FrameFacts:
        procedure = _as_written(frame)
        facts = FrameFacts(frame, procedure, self.number(procedure), self._ownership.of(frame), frame.is_loop)
        if frame.module == SCRIPT:
            self.scripts.add(facts)
        if facts.owner is not Owner.PROGRAM and runs_others_work(frame):
            self.schedulers.add(facts)
        if _CREATION.fullmatch(frame.name):
            self.creations.add(facts)
        if frame.is_loop:
            self._loops.add(facts)
        return facts


@dataclass(frozen=True, slots=True)
class Route:
    """A call path as steps through the program's own code."""

    book: FrameBook
    path: Path = ()
    owner: Owner = Owner.SYSTEM
    """Of all steps."""
    spans: Sequence[int] = ()
    """For each step two places on the path: where the procedure comes first, and, if it recurs, last."""
    numbers: Sequence[int] = ()
    """For each step that of its procedure in the book."""
    prefix: tuple[RouteStep, ...] = ()
    """Steps before those on the path."""
    region: int = -1
    """Which step is the code of a parallel region or a thread's function; -1: none."""
    is_started: bool = False
    """Whether that is a function which a thread was started with, no piece of one that goes on beside it."""
    innermost: str = ""
    """The outermost foreign function that the last step called, if any."""
    is_rooted: bool = True
    """Whether the call path begins at the program's entry, as far as is known."""
    is_script: bool = False
    prepares: str = ""
    """What the last step imports or has compiled, as `prepared` says it; empty if it does not."""
    is_launched: bool = False
    """Whether it is of a main thread that is not the process's first one."""
    is_of_library: bool = False
    """Whether a library does this in a thread of its own, and who created that is left out."""

    @property
    def length(self) -> int:
        """How many steps there are."""
        return len(self.prefix) + len(self.numbers)

    @property
    def inside_from(self) -> int:
        """The first step whose caller calls it in a region that begins there or above, or has threads begin with it;
        `length` if there is none."""
        return self.region + (not self.is_started) if self.region >= 0 else self.length

    def procedure(self, at: int) -> Procedure:
        """Of a step."""
        at -= len(self.prefix)
        if at < 0:
            return self.prefix[at].procedure
        return self.book.of(self.path[self.spans[2 * at]]).procedure

    def number(self, at: int) -> int:
        """Of a step's procedure: quicker to compare."""
        at -= len(self.prefix)
        if at < 0:
            return self.book.number(self.prefix[at].procedure)
        return self.numbers[at]

    def begins_like(self, other: Route, steps: int) -> bool:
        """Whether its first steps are, by frame and line, those of another route of the same finder."""
        if self.prefix != other.prefix:
            return False
        ends = 2 * (steps - len(self.prefix))
        if ends <= 0:
            return True
        spans = self.spans[:ends]
        return spans == other.spans[:ends] and self.path[: spans[-1] + 1] == other.path[: spans[-1] + 1]

    def step(self, at: int) -> RouteStep:
        """The steps are counted from 0, the program's entry."""
        at -= len(self.prefix)
        if at < 0:
            return self.prefix[at]
        first, last = self.spans[2 * at], self.spans[2 * at + 1]
        called_back = at > 0 and first == last and first > self.spans[2 * at - 1] + 1
        if called_back:
            between = self.book.along(self.path[self.spans[2 * at - 1] + 1 : first])
            is_foreign = any(
                not fact.is_loop and fact.owner is not Owner.PROGRAM and not _GLUE.match(fact.procedure.name)
                for fact in between
            )
            is_run = self.path[first].module == SCRIPT != self.path[self.spans[2 * at - 1]].module
            called_back = is_foreign and not is_run and self.book.schedulers.isdisjoint(between)
        frame = self.path[first]
        procedure = self.book.of(frame).procedure
        return RouteStep(procedure, self.owner, self.path[last].line, frame.start_line, called_back)


def steps_in_common(routes: Sequence[Route], least: int) -> int:
    """How many steps all of some routes of one finder begin with, in regions and out of them alike. Fewer than
    ``least`` need not be right."""
    first = routes[0]
    steps = first.length
    for route in routes:
        if steps < max(least, 1):
            break
        steps = min(steps, route.length)
        if not route.begins_like(first, steps):
            steps = bisect_left(range(1, steps), True, key=lambda n: not route.begins_like(first, n))  # noqa: B023
    inside = {route.inside_from for route in routes}  # others may come there without a region
    return min(steps, *inside) if len(inside) > 1 else steps


class RouteFinder:
    """Finds the routes of call paths."""

    def __init__(
        self,
        ownership: Ownership,
        *,
        joins_libraries: bool = False,
        shows_libraries: Collection[str] = (),
        partly_named: Collection[str] = (),
    ) -> None:
        """Know no frames yet; ``ownership`` says whose they are.

        ``joins_libraries``: what libraries do in threads of their own is the creators' work. ``shows_libraries``:
        files, the routes of whose programs go on through libraries. ``partly_named``: files in which functions without
        a name are parts of those that call them and have one.
        """
        self._partly_named = partly_named
        self._book = FrameBook(ownership)
        self._joins_libraries = joins_libraries
        self._shows_libraries = shows_libraries

    def find(self, path: Path, physical: Path, *, is_of_thread: bool = False) -> Route:
        """The route of a logical call path. ``physical``: the stack that it is of, if that differs. ``is_of_thread``:
        whether a thread that the program has started runs it, not its first one."""
        book = self._book
        facts = book.along(path)
        owners = book.owners(facts)
        nearest = min(owners, default=Owner.SYSTEM)
        if nearest is Owner.SYSTEM:
            return Route(book, innermost=path[-1].name if path else "", is_rooted=False)
        created = -1
        if not book.creations.isdisjoint(facts):
            created = max(at for at, fact in enumerate(facts) if fact in book.creations)
            if not self._joins_libraries and _is_of_library(owners[created + 1 :]):
                return Route(book, innermost=path[-1].name, is_rooted=False, is_of_library=True)
        farthest = nearest
        if self._shows_libraries and self._is_of_nameless(facts, owners):
            farthest = Owner.LIBRARY
        own: Sequence[int] = range(len(owners))
        if max(owners) > farthest:
            own = [at for at, owner in enumerate(owners) if owner <= farthest]
        called = own[-1] + 1
        begins = created + 1
        if created < 0 and (begins := _root_of_thread(path, physical)) < 0:
            begins = _shared_from(path, physical)
        is_dropped = False
        if self._partly_named:
            is_of_team = created < 0 and any(_OF_TEAM.match(frame.module) for frame in physical)
            named = self._without_nameless(own, facts, -1 if is_of_team else begins)
            is_dropped = begins in own and begins not in named
            own = named
        is_started = created >= 0 or self._is_started(path, physical, begins)
        spans, numbers = _steps(own, [facts[at].number for at in own])
        if begins < 0 and is_of_thread and _is_whole_thread([path[at].name for at in (0, own[0])]):
            begins = own[0]
        region = -1
        is_launched = any(path[at].name == _LAUNCHER for at in range(max(created, 0), own[0]))
        if is_launched:
            begins = -1
        if 0 <= begins <= own[-1]:
            there = max(bisect_left(own, begins) + (not is_dropped), 1)
            region = min(_innermost_function([facts[at] for at in own[:there]]), len(spans) // 2 - 1)
        is_script = not book.scripts.isdisjoint(facts)
        if is_of_thread:
            begun = (at + 1 for at in range(called, len(path) - 1) if _BEGINS.match(path[at].name))
            called = next(begun, called)
        while called < len(path) and facts[called].is_loop:
            called += 1
        return Route(
            book,
            path,
            nearest,
            spans,
            numbers,
            region=region,
            is_started=is_started and region >= 0,
            innermost=path[called].name if called < len(path) else "",
            is_rooted=not path[0].name.startswith("["),
            is_script=is_script,
            is_launched=is_launched,
            prepares=prepared(path, called) if is_script else self._loaded(physical or path),
        )

    def _is_started(self, path: Path, physical: Path, begins: int) -> bool:
        """Whether a thread was started with the function at ``begins`` on a logical call path; -1: there is none.
        Bodies of regions and tasks, which runtimes call, are pieces of the functions that they are written in."""
        at = next((at for at, one in enumerate(physical) if begins >= 0 and _is_same(path[begins], one)), -1)
        if at < 0 or physical[at].name != path[begins].name:
            return False
        before = self._book.along(physical[:at])
        return all(
            fact.owner is Owner.SYSTEM
            and not (_RUNS_PIECES.match(fact.frame.module) or _TEAMS.match(fact.frame.name))
            for fact in before
        )

    def _loaded(self, stack: Path) -> str:
        """What a thread loads that sleeps, by its stack: logical paths leave out what a runtime does itself."""
        if not is_wait(stack[-1].name):
            return ""
        owners = self._book.owners(self._book.along(stack))
        return loaded(stack[max(at for at, owner in enumerate(owners) if owner is Owner.PROGRAM or not at) :])

    def _is_of_nameless(self, facts: list[FrameFacts], owners: list[Owner]) -> bool:
        files = self._shows_libraries
        return all(
            owner is not Owner.PROGRAM or fact.is_loop or fact.frame.module in files
            for fact, owner in zip(facts, owners, strict=True)
        )

    def _without_nameless(self, own: Sequence[int], facts: list[FrameFacts], begins: int) -> list[int]:
        """Without functions that have no name, where one has been met in the same file that does: but what a thread
        does, from frame ``begins`` on, is no part of who created it. What a team does is: -1."""
        out: list[int] = []
        named: set[str] = set()
        is_before = begins >= 0
        for at in own:
            if is_before and at >= begins:
                is_before = False
                named.clear()
            frame = facts[at].frame
            is_of_one = frame.module in self._partly_named and not frame.is_loop
            is_nameless = is_of_one and is_of_stripped(frame.name, frame.file)
            if is_of_one and not is_nameless and frame.name != "main":  # which tells nothing of what it calls
                named.add(frame.module)
            if not is_nameless or frame.module not in named:
                out.append(at)
        return out


def _steps(own: Sequence[int], numbers: Sequence[int]) -> tuple[array[int], array[int]]:
    """`Route.spans` and `Route.numbers`. ``own``: places on a path; ``numbers``: of the procedures there."""
    if len(set(numbers)) == len(numbers):
        places = array("q", own)
        spans = places + places
        spans[::2] = spans[1::2] = places
        return spans, array("i", numbers)
    kept = _without_recursion(numbers)
    return array("q", [own[at] for at in kept]), array("i", [numbers[at] for at in kept[::2]])


def _without_recursion(numbers: Sequence[int]) -> Sequence[int]:
    """Where each procedure that is left comes first and last, one after the other.

    What a procedure calls before it calls itself again is left out: it goes on from its last instance.

    >>> _without_recursion([7, 8, 9, 8, 5])
    [0, 0, 1, 3, 4, 4]
    """
    last = dict(zip(numbers, range(len(numbers)), strict=True))
    out: list[int] = []
    at = 0
    while at < len(numbers):
        end = last[numbers[at]]
        out += (at, end)
        at = end + 1
    return out


def _innermost_function(facts: Sequence[FrameFacts]) -> int:
    """Which step of these frames' route is the last one that is no loop."""
    spans = _without_recursion([fact.number for fact in facts])
    at = len(spans) // 2 - 1
    while at > 0 and facts[spans[2 * at]].is_loop:
        at -= 1
    return at


def _as_written(frame: Frame) -> Procedure:
    """The procedure that its author wrote."""
    procedure = Procedure(frame.name, frame.module, frame.file, frame.is_loop)
    return procedure._replace(name=_author_name(frame))


def _author_name(frame: Frame) -> str:
    """The function that its author wrote, for a part of one that a compiler made."""
    match = None if frame.is_loop else _PART.fullmatch(frame.name)
    return match[1] if match else frame.name


def _shared_from(path: Path, physical: Path) -> int:
    """Where on a logical path the piece of parallel work begins that its thread runs; -1: it is in none.

    From there to the leaf both paths agree: before it are the thread's plumbing on one, on the other the code that
    created the work. It is asked where the thread's first function is not known, as in the first thread.
    """
    if not physical:
        return -1
    same = 0
    for ours, theirs in zip(reversed(path), reversed(physical), strict=False):
        if ours is not theirs and not _is_same(ours, theirs):
            break
        same += 1
    if not same or same == len(path) == len(physical):
        return -1
    return len(path) - same


def _root_of_thread(path: Path, physical: Path) -> int:
    """Where on a logical call path its thread's first function is; -1: that is where it begins.

    Their leaves may differ: what was inlined there is folded on the logical path. Functions that were inlined into the
    thread's have its address, and another name; so has the body of a region, which may stand for the function that it
    is written in.
    """
    if not physical or not path or _is_same(path[0], physical[0]):
        return -1
    for theirs in physical[:_PLUMBING]:
        for at in range(len(path) - 1, -1, -1):
            if _is_same(path[at], theirs) and _author_name(path[at]) == _author_name(theirs):
                return at
    return -1


def _is_whole_thread(begins: Iterable[str]) -> bool:
    """Whether a path that a thread has in common with its stack is all that it does: who created it was not seen, as
    where we attached later. A routine of Go is on any thread, the first one, too.

    ``begins``: the path's first function, and the program's first on it.
    """
    return not any(map(_NO_THREAD.match, begins))


def _is_of_library(owners: Sequence[Owner]) -> bool:
    """Whether a library does this in a thread of its own: who happened to start that has nothing to do with it.

    ``owners``: of what the thread runs.
    """
    return Owner.PROGRAM not in owners and Owner.LIBRARY in owners


def _is_same(one: Frame, other: Frame) -> bool:
    if one.address or other.address:
        return (one.module, one.address) == (other.module, other.address)
    return one.name == other.name
