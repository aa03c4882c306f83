"""The probes of a session that count calls: placed in each process image as its files become known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from parprof.calls.finder import FunctionFinder
from parprof.calls.placing import CallPlace
from parprof.calls.search import MAX_ROUTINES, Copy, Routine
from parprof.errors import ProbeAttachError, UsageError
from parprof.files.dso import Dso
from parprof.kernel.call_counts import MAX_SITES, CallProbe
from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import Cost
from parprof.kernel.uprobes import ProbeSet
from parprof.probes.plan import file_of
from parprof.process.loadmap import LoadMap
from parprof.resources import Closing


class Counted(Protocol):
    """A process image, as far as counting goes: `parprof.session.target.Target`."""

    @property
    def pid(self) -> int:
        """Its process."""

    image: int

    @property
    def load_map(self) -> LoadMap | None:
        """What it maps now."""


@dataclass(frozen=True, slots=True)
class CountedSite:
    """A place that is probed in one process image."""

    number: int
    image: int
    dso: Dso
    routine: Routine
    copy: Copy
    place: CallPlace


@dataclass(slots=True)
class CallCounting(Closing):
    """Places the probes, and knows what their numbers mean."""

    kernel: BpfKernel
    finder: FunctionFinder
    sites: dict[int, CountedSite] = field(default_factory=dict)
    """By number."""
    notes: list[str] = field(default_factory=list)
    _placed: set[tuple[int, object, int, int]] = field(default_factory=set)
    _sets: list[ProbeSet] = field(default_factory=list)
    _next: int = 0

    def follow(self, target: Counted) -> None:
        """Probe what has come with the load map of a process image and is not probed yet.

        Raises:
            UsageError: too many functions are meant.
        """
        if target.load_map is None:
            return
        fresh = self._fresh(target, target.load_map)
        if not fresh:
            return
        try:
            probes = self.kernel.calls.attach([_probe(site) for site in fresh], target.pid)
        except ProbeAttachError as error:
            self._note(str(error))
            return
        self.kernel.breaker.guard(target.pid, Cost.CALL, probes)
        self._sets.append(probes)
        for site in fresh:
            self.sites[site.number] = site

    def _fresh(self, target: Counted, load_map: LoadMap) -> list[CountedSite]:
        found = self.finder.find(load_map)
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
                        number = self._next
                        if number >= MAX_SITES:
                            self._note(f"more than {MAX_SITES} places would have to be probed: some are not")
                            return out
                        self._next += 1
                        self._placed.add(key)
                        out.append(CountedSite(number, target.image, dso, routine, copy, place))
        return out

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def routines(self) -> list[Routine]:
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
        self.follow(target)

    def detach(self) -> None:
        """Take the probes away; what was counted stays. It does not wait."""
        for probes in self._sets:
            probes.close()
        self._sets.clear()

    def close(self) -> None:
        """Take the probes away, and end the search."""
        self.detach()
        self.finder.close()


def _probe(site: CountedSite) -> CallProbe:
    elf = site.dso.elf
    offset = elf.file_offset(site.place.vaddr) if elf is not None else None
    if offset is None:
        raise ProbeAttachError(f"{site.routine.name}: its code is not in the file {site.dso.path}")
    return CallProbe(
        file_of(site.dso),
        offset,
        site.number,
        dear=not site.place.cheap,
        knows_caller=site.place.knows_caller,
    )


def sites_of(sites: Iterable[CountedSite], routine: str) -> list[CountedSite]:
    """Those of a routine."""
    return [site for site in sites if site.routine.name == routine]
