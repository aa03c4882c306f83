"""The probes of a session that count calls: placed in each process image as its files become known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Protocol

from parprof.calls.finder import FunctionFinder
from parprof.calls.placing import CallPlace
from parprof.calls.search import MAX_ROUTINES, Copy, Found, FoundFunction
from parprof.errors import ProbeAttachError, UsageError
from parprof.files.dso import Dso, FileKey
from parprof.kernel.call_counts import MAX_SITES, CallProbe
from parprof.kernel.call_times import MAX_ROUTINES as MAX_TIMED
from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import Cost
from parprof.kernel.uprobes import ProbeSet
from parprof.probes.plan import file_of
from parprof.process.loadmap import LoadMap
from parprof.resources import Closing
from parprof.runtimes import Agent
from parprof.values import dataclass


class Counted(Protocol):
    """A process image, as far as counting goes: `parprof.session.target.Target`."""

    @property
    def pid(self) -> int:
        """Its process."""

    image: int

    @property
    def load_map(self) -> LoadMap | None:
        """What it maps now."""

    @property
    def agents(self) -> Sequence[Agent]:
        """What is known of its parallel runtimes."""


@dataclass(frozen=True, slots=True)
class CountedSite:
    """A place that is probed in one process image."""

    number: int
    image: int
    dso: Dso
    routine: FoundFunction
    copy: Copy
    place: CallPlace
    timed_as: int | None = None
    """The number under which its routine is timed; None: it is not."""


@dataclass(slots=True)
class CallCounting(Closing):
    """Places the probes, and knows what their numbers mean."""

    kernel: BpfKernel
    finder: FunctionFinder
    sites: dict[int, CountedSite] = field(default_factory=dict)
    """By number."""
    notes: list[str] = field(default_factory=list)
    _numbers: dict[tuple[int, FileKey, int, int], int] = field(default_factory=dict)
    """Of places in files of process images; kept when a file is unloaded, and taken again when it comes back."""
    _placed: set[tuple[int, FileKey, int, int]] = field(default_factory=set)
    """Those that are probed now, or cannot be."""
    _sets: dict[tuple[int, FileKey], list[ProbeSet]] = field(default_factory=dict)
    """By process image and file: they go with the file."""
    _next: int = 0
    _timed: dict[tuple[int, FileKey, str], int] = field(default_factory=dict)
    _landings: set[tuple[int, FileKey]] = field(default_factory=set)
    _unloaded: dict[tuple[int, str], FileKey] = field(default_factory=dict)
    """By process image and path: the file that was mapped from there, and is no more."""

    def follow(self, target: Counted) -> None:
        """Probe what has come with the load map of a process image and is not probed yet.

        Raises:
            UsageError: too many functions are meant.
        """
        if target.load_map is None:
            return
        self._forget_unloaded(target.image, target.load_map)
        found = self.finder.find(target.load_map)
        fresh = self._fresh(target, found)
        for dso, probes in self._landing_probes(target, found):
            self._attach(target, dso, probes)
        for dso, sites in _by_file(fresh):
            try:
                ends = [probe for site in sites for probe in _exit_probes(site)]
                probes = [*ends, *map(_probe, sites)]
            except ProbeAttachError as error:
                self._note(str(error))
                continue
            if self._attach(target, dso, probes):
                self.sites.update((site.number, site) for site in sites)
                self._note_replaced(target.image, dso)

    def _attach(self, target: Counted, dso: Dso, probes: Sequence[CallProbe]) -> bool:
        """Place probes in one file; whether they are there."""
        try:
            placed = self.kernel.calls.attach(probes, target.pid)
        except ProbeAttachError as error:
            self._note(str(error))
            return False
        self.kernel.breaker.guard(target.pid, Cost.CALL, placed)
        self._sets.setdefault((target.image, dso.key), []).append(placed)
        return True

    def _forget_unloaded(self, image: int, load_map: LoadMap) -> None:
        """Take the probes out of files that are mapped no more.

        Who overwrites such a file and loads it again would get them in the middle of other instructions.
        """
        mapped = {dso.key for dso in load_map.dsos()}
        gone = {key for of, key in self._sets if of == image and key not in mapped}
        if not gone:
            return
        for key in gone:
            for probes in self._sets.pop((image, key)):
                probes.close()
        self._placed = {one for one in self._placed if one[0] != image or one[1] not in gone}
        self._landings -= {(image, key) for key in gone}
        for dso in {site.dso.key: site.dso for site in self.sites.values() if site.dso.key in gone}.values():
            self._unloaded[image, dso.path] = dso.key
            self._note(
                f"{dso.path} was unloaded: its calls until then are counted, and its probes went with it"
            )

    def _note_replaced(self, image: int, dso: Dso) -> None:
        before = self._unloaded.pop((image, dso.path), None)
        if before is not None:
            what = "loaded again" if before == dso.key else "replaced by another file"
            self._note(f"{dso.path} was {what}: its functions are counted from their new probes on")

    def _fresh(self, target: Counted, found: Sequence[tuple[Dso, Found]]) -> list[CountedSite]:
        if self.finder.too_many() > MAX_ROUTINES:
            raise UsageError(
                f"{self.finder.too_many():,} functions of one file are meant, of which {MAX_ROUTINES} can be "
                "counted: give a narrower pattern, or see with `parprof attach` which matter"
            )
        out: list[CountedSite] = []
        for dso, one in found:
            for routine in one.routines:
                for copy in routine.copies:
                    for place in copy.places:
                        key = (target.image, dso.key, copy.vaddr, place.vaddr)
                        if key in self._placed:
                            continue
                        number = self._numbers.get(key, self._next)
                        if number >= MAX_SITES:
                            self._note(f"more than {MAX_SITES} places would have to be probed: some are not")
                            return out
                        self._next = max(self._next, number + 1)
                        self._numbers[key] = number
                        self._placed.add(key)
                        timed_as = self._number_of_timed(target, dso, routine, copy)
                        out.append(CountedSite(number, target.image, dso, routine, copy, place, timed_as))
        return out

    def _number_of_timed(self, target: Counted, dso: Dso, routine: FoundFunction, copy: Copy) -> int | None:
        """Under which number the calls of a copy of a routine are timed; None: they are not, and it is said why."""
        if not self.finder.times:
            return None
        moving = next(
            (agent.name for agent in target.agents if not agent.return_probes or agent.has_closures), ""
        )
        if moving:
            self._note(
                f"calls are not timed: under {moving} one may end in another thread than it began in; "
                "`parprof record` tells the time of routines from samples"
            )
            return None
        if copy.exits.untimed:
            self._note(
                f"{copy.symbol} is not timed: {copy.exits.untimed}; samples tell its CPU time, or time what calls it"
            )
            return None
        number = self._timed.setdefault((target.image, dso.key, routine.name), len(self._timed))
        if number >= MAX_TIMED:
            self._note(f"more than {MAX_TIMED:,} routines would have to be timed: some are not")
            return None
        return number

    def _landing_probes(
        self, target: Counted, found: Sequence[tuple[Dso, Found]]
    ) -> list[tuple[Dso, list[CallProbe]]]:
        """Where threads go on after exceptions and longjmp: calls that these left have ended there."""
        out = []
        for dso, one in found:
            if one.landings and (target.image, dso.key) not in self._landings:
                self._landings.add((target.image, dso.key))
                offsets = (dso.elf.file_offset(vaddr) for vaddr in one.landings if dso.elf is not None)
                probes = [
                    CallProbe(file_of(dso), at, 0, dear=True, lands=True) for at in offsets if at is not None
                ]
                if probes:
                    out.append((dso, probes))
        return out

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def routines(self) -> list[FoundFunction]:
        """The routines that are counted, each once."""
        return list(
            {(site.dso.key, site.routine.name): site.routine for site in self.sites.values()}.values()
        )

    def hits(self) -> tuple[int, int]:
        """Calls so far: at cheap places, at dear ones."""
        cheap = dear = 0
        for number, by_cpu in self.kernel.calls.by_site().items():
            calls = sum(one.all for one in by_cpu.values())
            site = self.sites.get(number)
            if site is not None and site.place.cheap:
                cheap += calls
            else:
                dear += calls
        return cheap, dear

    def restart(self, target: Counted) -> None:
        """Count anew from now on, under new numbers.

        Raises:
            UsageError: too many functions are meant.
        """
        self.detach()
        self.sites.clear()
        self._placed.clear()
        self._numbers.clear()
        self.follow(target)

    def detach(self) -> None:
        """Take the probes away; what was counted stays. It does not wait."""
        for placed in self._sets.values():
            for probes in placed:
                probes.close()
        self._sets.clear()

    def close(self) -> None:
        """Take the probes away, and end the search."""
        self.detach()
        self.finder.close()


def _by_file(sites: Iterable[CountedSite]) -> list[tuple[Dso, list[CountedSite]]]:
    out: dict[FileKey, tuple[Dso, list[CountedSite]]] = {}
    for site in sites:
        out.setdefault(site.dso.key, (site.dso, []))[1].append(site)
    return list(out.values())


def _offset(site: CountedSite, vaddr: int) -> int:
    elf = site.dso.elf
    offset = elf.file_offset(vaddr) if elf is not None else None
    if offset is None:
        raise ProbeAttachError(f"{site.routine.name}: its code is not in the file {site.dso.path}")
    return offset


def _probe(site: CountedSite) -> CallProbe:
    return CallProbe(
        file_of(site.dso),
        _offset(site, site.place.vaddr),
        site.number,
        dear=not site.place.cheap,
        knows_caller=site.place.knows_caller,
        timed=site.timed_as is not None,
        routine=site.timed_as or 0,
    )


def _exit_probes(site: CountedSite) -> list[CallProbe]:
    if site.timed_as is None:
        return []
    return [
        CallProbe(
            file_of(site.dso),
            _offset(site, vaddr),
            site.number,
            dear=True,
            leaves=True,
            routine=site.timed_as,
        )
        for vaddr in site.copy.exits.vaddrs
    ]
