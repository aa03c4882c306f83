"""The probes of a session that count calls: placed in each process image as its files become known."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import field
from operator import itemgetter
from typing import Protocol

from parprof.calls.exits import GOROUTINES
from parprof.calls.finder import FunctionFinder
from parprof.calls.moment import Moment
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

_START_SECONDS = 1.0
"""In which a new image of a process maps what it starts with."""
_READINGS, _AT_ONCE_S = 4, 0.001
"""Of a moment: so many, unless one takes no longer than that."""
_HELD_BACK_BYTES = 16
"""A sample that a trap held back is taken at the instruction that is probed or at the next, which is no farther."""


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
    def has_started(self) -> bool:
        """Whether it has all libraries that it starts with, for which it is stopped: it runs while others are met."""

    stops_at_loads: bool
    """It is stopped at each file that it loads later, too, until that has its probes."""

    @property
    def agents(self) -> Sequence[Agent]:
        """What is known of its parallel runtimes."""


@dataclass(frozen=True, slots=True)
class CountedSite:
    """A place that is probed in a process, in all images of it that map the file."""

    number: int
    dso: Dso
    routine: FoundFunction
    copy: Copy
    place: CallPlace
    timed_as: int | None = None
    """The number under which its routine is timed; None: it is not."""

    def untimed(self) -> CountedSite:
        """The same, only counted."""
        return CountedSite(self.number, self.dso, self.routine, self.copy, self.place)


@dataclass(slots=True)
class CallCounting(Closing):
    """Places the probes, and knows what their numbers mean."""

    kernel: BpfKernel
    finder: FunctionFinder
    sites: dict[int, CountedSite] = field(default_factory=dict)
    """By number."""
    notes: list[str] = field(default_factory=list)
    _numbers: dict[tuple[int, FileKey, int, int], int] = field(default_factory=dict)
    """Of places in files of processes; kept when a file is unloaded, and taken again when it comes back."""
    _placed: set[tuple[int, FileKey, int, int]] = field(default_factory=set)
    """Those that are probed now, or cannot be."""
    _sets: dict[tuple[int, FileKey], list[ProbeSet]] = field(default_factory=dict)
    """By process and file: they go with the file, and hold over an exec, for the next image's code has them, too."""
    _next: int = 0
    _begun: tuple[Moment, Moment] | None = None
    _timed: dict[tuple[int, FileKey, int], int] = field(default_factory=dict)
    _landings: set[tuple[int, FileKey]] = field(default_factory=set)
    _unloaded: dict[tuple[int, str], FileKey] = field(default_factory=dict)
    """By process and path: the file that was mapped from there, and is no more."""
    _images: dict[int, tuple[int, float, set[FileKey]]] = field(default_factory=dict)
    """Of each process the image that was followed last, since when, and the files that it was seen with."""

    def follow(self, target: Counted) -> None:
        """Probe what has come with the load map of a process image and is not probed yet.

        Raises:
            UsageError: too many functions are meant.
        """
        if target.load_map is None:
            return
        image, _, met = self._images.get(target.pid, (target.image, 0.0, set()))
        met = set(met) if image == target.image and target.has_started else set()
        self._follow_image(target, target.load_map)
        found = self.finder.find(target.load_map)
        fresh = self._fresh(target, found)
        before = Moment.now(target.pid) if self._begun is None else None
        for dso, probes in self._landing_probes(target, found):
            try:
                self._attach(target, dso, probes)
            except ProbeAttachError as error:
                self._note(str(error))
        for dso, sites in _by_file(fresh):
            placed = self._place(target, dso, sites)
            if placed:
                self.sites.update((site.number, site) for site in placed)
                came_later = bool(met) and dso.key not in met and not target.stops_at_loads
                self._note_loaded(target.pid, dso, came_later)
        if self.sites and before is not None:
            self._begun = before, self.moment(target.pid)

    def _place(self, target: Counted, dso: Dso, sites: Sequence[CountedSite]) -> list[CountedSite]:
        """Probe places in one file; those that are probed.

        The kernel takes all probes of a request or none. So where it refuses an instruction the two halves are tried.
        """
        try:
            ends = [probe for site in sites for probe in _exit_probes(site)]
            self._attach(target, dso, [*ends, *map(_probe, sites)])
        except ProbeAttachError as error:
            if not error.is_of_place:
                self._note(str(error))
                return []
        else:
            return list(sites)
        if len(sites) > 1:
            half = len(sites) // 2
            return [
                *self._place(target, dso, sites[:half]), *self._place(target, dso, sites[half:])
            ]  # fmt: skip
        (site,) = sites
        if site.timed_as is None:
            self._note(
                f"{site.copy.symbol} cannot be counted: the kernel refuses a probe where it would be "
                "counted (on an instruction with a `lock` prefix, say); count what calls it"
            )
            return []
        self._note(
            f"{site.copy.symbol} is not timed: the kernel refuses a probe where it is entered or left; samples tell "
            "its CPU time, or time what calls it"
        )
        return self._place(target, dso, [site.untimed()])

    def _attach(self, target: Counted, dso: Dso, probes: Sequence[CallProbe]) -> None:
        """Place probes in one file.

        Raises:
            ProbeAttachError: the kernel refused.
        """
        placed = self.kernel.calls.attach(probes, target.pid)
        self.kernel.breaker.guard(target.pid, Cost.CALL, placed)
        self._sets.setdefault((target.pid, dso.key), []).append(placed)

    def _follow_image(self, target: Counted, load_map: LoadMap) -> None:
        """Take the probes out of files that are mapped no more; of a new image, look which of them are in its code.

        Placing them anew after an exec would count each call twice. What a new image has not mapped yet is waited for.
        """
        image, since_s, seen = self._images.get(target.pid, (target.image, -math.inf, set()))
        if image != target.image:
            since_s, seen = time.monotonic(), set()
        for dso in load_map.dsos():
            if dso.key not in seen and since_s > 0:
                self._forget_missing(target.pid, dso, load_map)
            seen.add(dso.key)
        self._images[target.pid] = target.image, since_s, seen
        if time.monotonic() - since_s >= _START_SECONDS:
            self._forget_unloaded(target.pid, load_map)

    def _forget_missing(self, pid: int, dso: Dso, load_map: LoadMap) -> None:
        """Take the probes out of a file if the process's code does not have them.

        That is so after an exec by another thread than the first: to the kernel these probes are that one's.
        """
        site = next((one for one in self.sites.values() if one.dso.key == dso.key), None)
        if (pid, dso.key) not in self._sets or site is None or dso.elf is None:
            return
        vaddr = site.place.vaddr
        with suppress(OSError), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            if os.pread(memory.fileno(), 1, load_map.bias(dso) + vaddr) == dso.elf.read(vaddr, 1):
                self._forget(pid, {dso.key})

    def _forget_unloaded(self, pid: int, load_map: LoadMap) -> None:
        """Take the probes out of files that are mapped no more.

        Who overwrites such a file and loads it again would get them in the middle of other instructions.
        """
        mapped = {dso.key for dso in load_map.dsos()}
        gone = {key for of, key in self._sets if of == pid and key not in mapped}
        self._forget(pid, gone)
        for dso in {site.dso.key: site.dso for site in self.sites.values() if site.dso.key in gone}.values():
            self._unloaded[pid, dso.path] = dso.key
            self._note(
                f"{dso.path} was unloaded: its calls until then are counted, and its probes went with it"
            )

    def _forget(self, pid: int, files: Set[FileKey]) -> None:
        """Take the probes out of files; when they are met again they are probed anew."""
        for key in files:
            for probes in self._sets.pop((pid, key), ()):
                probes.close()
        self._placed = {one for one in self._placed if one[0] != pid or one[1] not in files}
        self._landings -= {(pid, key) for key in files}

    def _note_loaded(self, pid: int, dso: Dso, is_new: bool) -> None:
        """Say of a file that was loaded while the process ran that its first calls may be missing."""
        before = self._unloaded.pop((pid, dso.path), None)
        if before is not None:
            what = "loaded again" if before == dso.key else "replaced by another file"
            self._note(f"{dso.path} was {what}: its functions are counted from their new probes on")
        elif is_new:
            self._note(f"{dso.path} was loaded later: its functions are counted from their probes on")

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
                    if not copy.places:
                        self._note(f"{copy.symbol} cannot be counted: {copy.why}; count what calls it")
                    for place in copy.places:
                        key = (target.pid, dso.key, copy.vaddr, place.vaddr)
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
                        out.append(CountedSite(number, dso, routine, copy, place, timed_as))
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
            instead = "" if copy.exits.untimed == GOROUTINES else ", or time what calls it"
            self._note(
                f"{copy.symbol} is not timed: {copy.exits.untimed}; samples tell its CPU time{instead}"
            )
            return None
        number = self._timed.setdefault((target.pid, dso.key, routine.copies[0].vaddr), len(self._timed))
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
            if one.landings and (target.pid, dso.key) not in self._landings:
                self._landings.add((target.pid, dso.key))
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
            {
                (site.dso.key, site.routine.copies[0].vaddr): site.routine for site in self.sites.values()
            }.values()
        )

    def moment(self, pid: int) -> Moment:
        """Now: the one of some readings that took the least time.

        What was counted and what the program used are read one after the other. Where others have the CPUs we may get
        none in between, for longer than a look lasts.
        """
        readings = []
        for _ in range(_READINGS):
            begun_s = time.monotonic()
            read = Moment.now(pid, *self.hits())
            readings.append((time.monotonic() - begun_s, read))
            if readings[-1][0] <= _AT_ONCE_S:
                break
        return min(readings, key=itemgetter(0))[1]

    def begun(self) -> Moment:
        """When counting began: behind the first probes, or before, where most calls came while these were placed."""
        assert self._begun is not None
        before, behind = self._begun
        return behind if 2 * behind.calls <= sum(self.hits()) else before

    def held_back_at(self, load_map: LoadMap) -> set[int]:
        """Addresses at which samples are taken that a trap has held back, as interrupts are off in it."""
        dsos = {site.dso.key: site.dso for site in self.sites.values()}
        biases = {key: load_map.bias(dso) for key, dso in dsos.items()}
        probed = (biases[site.dso.key] + site.place.vaddr for site in self.sites.values())
        return {address + behind for address in probed for behind in range(_HELD_BACK_BYTES)}

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
