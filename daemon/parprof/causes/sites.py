"""The subtrees in which one and the same thing goes wrong: as large as possible, as small as necessary.

The search goes down from the root. A place is divided among what it calls while its parts differ: where some of them
lose nothing, or others lose in another way. A place whose parts are all alike is a site, with one exception: what a
function merely calls one after the other are sites of their own, unless a loop or a parallel region holds them
together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from parprof.attribution.effort import lost_ns
from parprof.causes.evidence import Evidence, Place
from parprof.causes.tallies import Tally
from parprof.causes.tickers import ThreadLabel
from parprof.cct.tree import Procedure
from parprof.metrics import STOLEN, Metrics
from parprof.patterns import regex
from parprof.values import dataclass

_FLOOR_SHARE = 0.005
"""What loses less than this of all effort is looked at only as a part of something else."""

_ALIKE = 0.3
"""Parts whose shares of idleness and of overhead differ by no more than this are alike."""

_CONSIDERABLE_SHARE = 0.1
_CONSIDERABLE_SAMPLES = 15
"""Only parts with at least so much of a place's effort can make it uneven."""

_MOST = 0.85
"""A callee with this share of what a place loses stands for it."""

_MORE = 0.6
"""In plain code, which calls one thing after the other, this share is enough; the rest is a site of its own."""

_SHARED = 0.1
"""A function that does this share of its work for others is a helper: what it loses here is its caller's."""

ALONE = 0.9
"""From here on a thread counts as alone: no other one worked for more than a tenth of the time."""

_SOLO = 0.7
"""As much alone, what one thread does is another thing than what several do, though these are alone at times, too."""

_MOST_OF_LINE = 0.8
"""Of a line's work, and of its time: as much is one thread's, which is alone, if the line is taken from the rest of its
function."""

_SINGLE = 0.95
"""One thread did a place's work if it did this share of it."""

_IN_REGION = 0.3
"""Of the work at a place, from which on it is in a parallel region."""

_PLUMBING = regex(
    r".*(?:lambda|\{closure|closure\$|operator\(\)|_FUN\b|_M_invoke|_M_run|call_once|__invoke|<(?:lambda|genexpr|\w+comp)>)"
)
"""Functions without a name that says anything."""
_COMPREHENSION = regex(r"(?:\A|\.)<(?:list|dict|set)comp>\Z")
"""No functions from Python 3.12 on."""


def unused_ns(metrics: Metrics) -> float:
    """Core time in which nothing was done, neither of use nor overhead."""
    return metrics.idleness_ns + metrics.stall_ns


def is_counted(metrics: Metrics) -> bool:
    """Whether most of a loss is no estimate from samples: how long nobody worked is known exactly."""
    return metrics.stall_ns >= 0.5 * lost_ns(metrics) > 0


def effort_ns(metrics: Metrics) -> float:
    """Core time that is accounted for: all useful work, and all that was lost."""
    return metrics.effort_ns


def alone(metrics: Metrics, cores: int) -> float:
    """How far threads worked alone, 0 to 1: 1 where no other one ever worked, 0 where all cores were busy."""
    most = metrics.work_ns * (cores - 1)
    return min(idle_ns(metrics) / most, 1.0) if most else 0.0


def idle_ns(metrics: Metrics) -> float:
    """Core time that a thread's work did not fill, whoever had the cores."""
    return metrics.idleness_ns + metrics[STOLEN]


def sample_ns(total: Metrics) -> float:
    """For how much of a thread's time one sample stands. ``total``: of a program that has samples."""
    return (total.work_ns + total.spin_ns) / total.samples


def mostly_spins(metrics: Metrics, cores: int) -> bool:
    """Whether it is by spinning, not by sleep, that threads waited while nobody worked."""
    return metrics.spin_ns * cores >= 0.5 * metrics.stall_ns


def mostly_in(site: Place, amount_of: Callable[[Tally], float], least_share: float) -> Place | None:
    """Where most of an amount is, at a place or below it, in the one function that has so large a share of that,
    whoever calls it."""
    amounts: dict[Procedure, float] = {}
    largest: dict[Procedure, tuple[float, Place]] = {}
    for place in site.walk():
        if amount := amount_of(place.own):
            function = place.function.procedure
            amounts[function] = amounts.get(function, 0.0) + amount
            if function not in largest or amount > largest[function][0]:
                largest[function] = amount, place
    most = max(amounts, key=lambda function: amounts[function], default=None)
    return None if most is None or amounts[most] < least_share * sum(amounts.values()) else largest[most][1]


def share_of_first(tally: Tally) -> float:
    """The share of the work that the busiest thread did."""
    total = tally.metrics.work_ns
    return max((each.work_ns for each in tally.threads.values()), default=0.0) / total if total else 0.0


def is_single(tally: Tally, cores: int) -> bool:
    """Whether one thread did the work. Where threads cannot be told apart: whether it was mostly done alone."""
    if not knows_threads(tally):
        return alone(tally.metrics, cores) >= ALONE
    return share_of_first(tally) >= _SINGLE


def workers(tally: Tally) -> list[ThreadLabel]:
    """The threads that did some of the work worth the name."""
    least = 0.02 * tally.metrics.work_ns
    return [thread for thread, metrics in tally.threads.items() if metrics.work_ns > least]


def all_alone(tally: Tally, cores: int) -> bool:
    """Whether each thread was alone for most of its work, not only the one that had most of it."""
    return all(alone(tally.threads[thread], cores) >= 0.5 for thread in workers(tally))


def knows_threads(tally: Tally) -> bool:
    """Whether threads can be told apart: the daemon does not keep their numbers, nor do files of before."""
    return any(number for _, number, _ in tally.threads)


@dataclass(slots=True, eq=False)
class LossSite:
    """Where a program loses: a place, or what is left of it without the sites below it."""

    place: Place
    tally: Tally
    region: Place | None
    """The parallel region, or the thread's function, that it is in."""
    is_mixed: bool = False
    """Whether some of it is in such a region, and some is not."""
    whole: bool = True
    """Whether all of the place belongs to it."""
    lines: frozenset[int] = frozenset()
    """The lines of the function that it is; empty: all of them."""
    part: str = ""
    """Which part of the function it is, where that is divided by lines."""
    by_line: Mapping[int, Tally] = field(default_factory=dict)
    """The tallies of the function's lines, where these are not all of the place's."""

    def move(self, place: Place) -> None:
        """Tell of it at another place."""
        if place is not self.place:
            self.place, self.lines, self.by_line = place, frozenset(), {}

    @property
    def function(self) -> Place:
        """The function to name."""
        return self.place.function

    @property
    def lost_ns(self) -> float:
        """Core time lost here."""
        return lost_ns(self.tally.metrics)


def together(sites: Sequence[LossSite]) -> LossSite:
    """Those of one function as one, told of where most is lost; of equals, whatever was met first, at the place whose
    callers' names come last."""
    first = max(
        sites, key=lambda site: (site.lost_ns, [place.procedure.name for place in site.place.chain()])
    )
    regions = (site.region for site in (first, *sites) if site.region is not None)
    tally = Tally()
    for site in sites:
        tally.merge(site.tally)
    return replace(
        first,
        tally=tally,
        is_mixed=any(site.is_mixed for site in sites) or len({site.region is None for site in sites}) > 1,
        region=next(regions, None),  # that around the place, if it is in one
        lines=frozenset().union(*(site.lines for site in sites)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """A place to tell of, or what is left of it without the callees that are ``followed``."""

    place: Place
    tally: Tally
    region: Place | None
    followed: Sequence[Place]

    @property
    def whole(self) -> bool:
        """Whether that is all of it."""
        return not self.followed


class SiteSearch:
    """Finds the sites of one program."""

    def __init__(self, evidence: Evidence, cores: int) -> None:
        self._evidence = evidence
        self._cores = cores
        total = evidence.root.all.metrics
        self._floor_ns = max(_FLOOR_SHARE * effort_ns(total), 1.0)

    def sites(self) -> list[list[LossSite]]:
        """All of them, those of one function together, but for parts of it that lose in different ways, and for what it
        does where threads are started with it."""
        places = list(self._search())
        rests = {id(one.place): one.followed for one in places if one.followed and len(one.place.by_line) > 1}
        by_line = self._evidence.lines_without(rests)
        found: dict[tuple[tuple[Procedure, ...], bool, str], list[LossSite]] = {}
        for one in places:
            for site in self._narrowed(one, by_line.get(id(one.place), one.place.by_line)):
                function = site.function
                found.setdefault((_identity(function), function.is_started, site.part), []).append(site)
        return list(found.values())

    def _search(self) -> Iterator[_Found]:
        pending: list[tuple[Place, Place | None]] = [(self._evidence.root, None)]
        while pending:
            place, region = pending.pop()
            is_region = place.all.in_region_ns >= _IN_REGION * place.all.metrics.work_ns > 0
            if is_region and not self._hides_threads(place):  # a thread that runs routines is none's
                region = place
            elif place.all.within_region_ns < _IN_REGION * place.all.metrics.work_ns:
                region = None  # serial code of a function in which regions begin, too
            kids = [kid for kid in place.children.values() if lost_ns(kid.all.metrics) >= self._floor_ns]
            followed = self._followed(place, region, kids)
            pending += [(kid, region) for kid in followed]
            rest = place.all if not followed else _without(place, followed)
            if place.parent is not None and lost_ns(rest.metrics) >= self._floor_ns:
                yield _Found(place, rest, region, followed)

    def _followed(self, place: Place, region: Place | None, kids: list[Place]) -> list[Place]:
        """The callees to go on with; none where the place is a site."""
        if not kids or place.parent is None:
            return kids
        if self._has_regions_below(place):
            return kids
        if self._is_uneven(place):
            return [kid for kid in kids if not self._is_helper(kid)]
        if in_the_way := self._in_the_way(place, kids):
            return in_the_way
        mine = lost_ns(place.all.metrics)
        if len(kids) == 1:
            return kids if self._stands_for(kids[0], place, region, mine) else []
        if place.procedure.is_loop or region is not None:
            return self._dominant(place, kids, mine)
        together = sum(lost_ns(kid.all.metrics) for kid in kids)
        mine -= sum(place.own.prepares.values())  # an import at the top of a script is yet another thing
        apart = [kid for kid in kids if not self._is_shared(kid)]
        return kids if together >= _MOST * mine and len(apart) == len(kids) else []

    def _in_the_way(self, place: Place, kids: list[Place]) -> list[Place]:
        """Of what several routines run, the one callee in which there is one at a time: it keeps them waiting."""
        if not self._hides_threads(place) or self._is_one_at_a_time(place):
            return []
        mine = lost_ns(place.all.metrics)
        most = [kid for kid in kids if lost_ns(kid.all.metrics) >= _MOST * mine]
        return [kid for kid in most if kid.procedure.is_loop or self._is_one_at_a_time(kid)]

    def _is_one_at_a_time(self, place: Place) -> bool:
        return self._hides_threads(place) and self._evidence.company.is_one_at_a_time(place.procedure)

    def _hides_threads(self, place: Place) -> bool:
        return self._evidence.company.hides_threads(place.all.threads)

    def _dominant(self, place: Place, kids: list[Place], mine: float) -> list[Place]:
        """In what takes turns, or one thread does alone, the one callee that threads are alone in; and the one in which
        they sleep, where that is what is lost."""
        asleep = is_counted(place.all.metrics)
        is_one = self._is_solo(place.all) or self._is_beside_others(place.all)
        if not (asleep or is_one or self._takes_turns(place.all)):
            return []
        return [kid for kid in kids if lost_ns(kid.all.metrics) >= _MOST * mine and not self._is_shared(kid)]

    def _stands_for(self, kid: Place, place: Place, region: Place | None, mine: float) -> bool:
        """Whether an only callee says more than its caller."""
        least = _MOST if place.procedure.is_loop or region is not None else _MORE
        if lost_ns(kid.all.metrics) < least * mine or self._is_shared(kid) or self._is_detail(kid, place):
            return False
        if self._is_one_at_a_time(place) and not self._is_one_at_a_time(kid):  # a helper of others, too
            return False
        if (
            kid.procedure.is_loop
            or (self._takes_turns(place.all) and not self._is_share(kid, place))
            or (region is not None and self._is_solo(place.all))
            or is_counted(place.all.metrics)
            or self._is_beside_others(place.all)
        ):
            return True
        if place.procedure.is_loop:
            return False
        return place is not region or bool(_PLUMBING.match(place.procedure.name))

    def _is_detail(self, kid: Place, place: Place) -> bool:
        """Whether a callee is a part of how its caller does it: nameless, or handed to a library; but what threads run
        is told apart in there, where most is lost in one of the things that happen in it."""
        is_plumbing = bool(_PLUMBING.match(kid.procedure.name))
        mine = lost_ns(kid.all.metrics)
        most = any(lost_ns(below.all.metrics) >= _MOST * mine for below in kid.children.values())
        if is_plumbing and most and self._is_of_threads(kid.all):
            return False
        if kid.all.called_back_ns > 0.5 * kid.all.metrics.work_ns:
            return True
        if _COMPREHENSION.search(kid.procedure.name) and most:
            return False
        if not is_plumbing or _PLUMBING.match(place.procedure.name):
            return False
        return not (most and self._is_uneven(kid))

    def _is_of_threads(self, tally: Tally) -> bool:
        return knows_threads(tally) and not is_single(tally, self._cores)

    def _is_share(self, kid: Place, place: Place) -> bool:
        """Whether it is what all threads do in their shares of a place's work, of which one has much more to do: how
        that is shared out is said at the place."""
        is_all = kid.all.metrics.work_ns >= _SINGLE * place.all.metrics.work_ns
        return is_all and not all_alone(place.all, self._cores)

    def _takes_turns(self, tally: Tally) -> bool:
        return not is_single(tally, self._cores) and alone(tally.metrics, self._cores) >= 0.7

    def _is_beside_others(self, tally: Tally) -> bool:
        """Whether one thread does it, while others work at times: no loop to run in parallel, but what it makes."""
        return (
            knows_threads(tally)
            and is_single(tally, self._cores)
            and alone(tally.metrics, self._cores) < ALONE
        )

    def _is_shared(self, kid: Place) -> bool:
        """Whether a function does much of its work for other callers than this one, which may be called in several
        ways itself, as by the main thread of a server and by the others. Where a thread begins there is no caller."""
        function = kid.procedure
        if function.is_loop or kid.parent is None:
            return False
        everywhere = self._evidence.functions.get(function, 0.0)
        here, uncalled = (
            self._evidence.calls.get((function, caller.procedure), 0.0)
            for caller in (kid.parent.function, self._evidence.root)
        )
        return everywhere - uncalled - here > _SHARED * everywhere

    def _is_helper(self, kid: Place) -> bool:
        """Whether a function calls nothing of the program's and does much of its work for others."""
        if kid.all.in_region_ns or not self._is_shared(kid):
            return False
        return all(place.procedure.is_loop for place in kid.walk() if place is not kid)

    def _has_regions_below(self, place: Place) -> bool:
        """Whether most of it happens in parallel regions that begin in what it calls."""
        below = place.regions_ns - place.all.in_region_ns
        loops = [kid for kid in place.children.values() if kid.procedure.is_loop]
        while loops:
            loop = loops.pop()
            below -= loop.all.in_region_ns
            loops += [kid for kid in loop.children.values() if kid.procedure.is_loop]
        return below >= 0.5 * place.all.metrics.work_ns > 0

    def _is_uneven(self, place: Place) -> bool:
        """Whether its parts lose in different ways, some of them nothing."""
        parts = [kid.all for kid in place.children.values()]
        own = place.own.metrics
        merely_spins = not own.work_ns and own.stall_ns > 0 and mostly_spins(own, self._cores)
        if own and not merely_spins:  # for what the other parts do: that is no way of its own to lose
            parts.append(place.own)
        least = max(_CONSIDERABLE_SHARE * effort_ns(place.all.metrics), 1.0)
        large = [part for part in parts if effort_ns(part.metrics) >= least]
        sampled = [part for part in large if part.metrics.samples >= _CONSIDERABLE_SAMPLES]
        shares = [
            (
                alone(part.metrics, self._cores),
                part.metrics.overhead_ns / max(part.metrics.work_ns, 1.0),
                part.metrics.stall_ns / effort_ns(part.metrics),
            )
            for part in large
            if part.metrics.samples >= _CONSIDERABLE_SAMPLES or is_counted(part.metrics)
        ]
        if any(max(column) - min(column) > _ALIKE for column in zip(*shares, strict=True)):
            return True
        return any(map(self._is_solo, sampled)) and not all(is_single(part, self._cores) for part in sampled)

    def _is_solo(self, part: Tally) -> bool:
        """Whether one thread alone does this, while the others have nothing to do."""
        return (
            knows_threads(part) and is_single(part, self._cores) and alone(part.metrics, self._cores) >= _SOLO
        )

    def _narrowed(self, found: _Found, by_line: Mapping[int, Tally]) -> list[LossSite]:
        """Without the lines that lose nothing: a function is rarely all of one kind. ``by_line``: what it is."""
        plain = LossSite(found.place, found.tally, found.region, whole=found.whole, by_line=by_line)
        if len(by_line) < 2:
            return [plain]
        if parts := self._by_lines(plain):
            return parts
        losing = _lines_of(plain, [line for line, tally in by_line.items() if _loses(tally.metrics)])
        return [losing if losing.lost_ns >= 0.9 * plain.lost_ns else plain]

    def _by_lines(self, site: LossSite) -> list[LossSite]:
        """The parts of a function that calls libraries one after the other, as scripts do: what is imported or
        compiled, what one thread does alone, and the rest, in which several work. None where it is all of one kind."""
        if site.region is not None or site.place.procedure.is_loop:
            return []
        lines: dict[str, list[int]] = {"prepares": [], "alone": [], "rest": []}
        for line, tally in site.by_line.items():
            part = "rest"
            if self._is_left_alone(tally):
                prepares = sum(tally.prepares.values()) >= 0.5 * unused_ns(tally.metrics)
                part = "prepares" if prepares else "alone"
            lines[part].append(line)
        parts = {part: _lines_of(site, those, part) for part, those in lines.items()}
        least = _CONSIDERABLE_SHARE * effort_ns(site.place.all.metrics)
        if effort_ns(parts["rest"].tally.metrics) < least:
            return []
        if all(lost_ns(parts[part].tally.metrics) < self._floor_ns for part in ("prepares", "alone")):
            return []
        return [one for one in parts.values() if one.lost_ns >= self._floor_ns]

    def _is_left_alone(self, part: Tally) -> bool:
        """Whether one thread does this alone, but for a little that others do at times, as those that a library
        starts."""
        if not knows_threads(part) or not part.metrics.work_ns:
            return False
        first = max(part.threads.values(), key=lambda metrics: metrics.work_ns)
        return share_of_first(part) >= _MOST_OF_LINE and alone(first, self._cores) >= _MOST_OF_LINE


def _identity(function: Place) -> tuple[Procedure, ...]:
    """Which function a place is of: several in one file may share a name that says nothing, as lambdas do. Those who
    call them tell them apart."""
    out = [function.procedure]
    while (
        _PLUMBING.match(out[-1].name) and function.parent is not None and function.parent.parent is not None
    ):
        function = function.parent.function
        out.append(function.procedure)
    return tuple(out)


def _loses(metrics: Metrics) -> bool:
    return lost_ns(metrics) >= 0.15 * effort_ns(metrics)


def _lines_of(site: LossSite, lines: Iterable[int], part: str = "") -> LossSite:
    """Some lines of a function, with all that they call. ``part``: what they are called; else they are all that counts
    of it."""
    those = frozenset(lines)
    tally = Tally()
    for line in those:
        tally.merge(site.by_line[line])
    return replace(site, tally=tally, whole=site.whole and not part, lines=those, part=part)


def _without(place: Place, followed: Iterable[Place]) -> Tally:
    """What is left of a place without some of its callees: their samples are elsewhere."""
    out = Tally()
    gone = {id(kid) for kid in followed}
    out.merge(place.own)
    for kid in place.children.values():
        if id(kid) not in gone:
            out.merge(kid.all)
    return out
