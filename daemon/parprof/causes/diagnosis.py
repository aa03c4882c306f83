"""What is told of a site: the kind of its loss, what was seen, what helps."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from enum import Enum, StrEnum, auto

from parprof.causes.company import Company
from parprof.causes.sites import LossSite
from parprof.causes.upstream import Sleep
from parprof.metrics import Metrics
from parprof.model import Frame, PathSample, ProcessInfo
from parprof.patterns import regex
from parprof.values import dataclass

_OPENMP = regex(r"(?:mpi\+)?lib(?:gomp|omp|iomp)")
_MPI = regex(r"(?:.*\+)?mpi(?:\+|\Z)")
_OF_OPENMP = regex(
    r"_*(?:GOMP|gomp|kmpc?)_|.*(?:\._omp_(?:cpy)?fn\.|\.omp_(?:outlined|task))|\[lib(?:gomp|omp)"
)
"""Names of functions that only a program has which uses it: the runtime's, and outlined ones."""


class Kind(StrEnum):
    """What can go wrong. The names are those of the JSON report."""

    SERIAL = "serial"
    IMBALANCE = "imbalance"
    LOCK = "lock"
    STARVED = "starved"
    STALL = "stall"
    OVERHEAD = "overhead"
    OVERSUBSCRIBED = "oversubscribed"
    BUSY_MACHINE = "busy_machine"
    SERIAL_PROGRAM = "serial_program"

    @property
    def words(self) -> str:
        """For people."""
        return _WORDS[self]


_WORDS = {
    Kind.SERIAL: "serial code",
    Kind.IMBALANCE: "imbalance",
    Kind.LOCK: "lock",
    Kind.STARVED: "too little work at a time",
    Kind.STALL: "blocked",
    Kind.OVERHEAD: "too fine",
    Kind.OVERSUBSCRIBED: "too many threads",
    Kind.BUSY_MACHINE: "busy machine",
    Kind.SERIAL_PROGRAM: "single-threaded",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """The program that a site is in."""

    cores: int
    runtime: str
    """``none`` also where the program merely has loaded one."""
    total: Metrics
    has_scripts: bool
    elapsed_s: float = 0.0
    """How long it ran; 0: not known."""
    program: str = ""
    """What was run, by its path or name."""
    withheld_s: float = math.inf
    """Core time that others had, or a quota withheld, in all of the run; infinite: not known."""
    is_stripped: bool = False
    """Nothing of the program itself has a name."""
    company: Company | None = None
    """What ran beside what, if anybody looked."""
    sleeps: tuple[Sleep, ...] = ()
    """Which threads slept by themselves, for a time, a file or the network."""
    processes: Mapping[int, ProcessInfo] = field(default_factory=dict)
    """Those of the job by PID, as far as they are known."""

    @property
    def is_openmp(self) -> bool:
        """Whether remedies can be in OpenMP's words."""
        return bool(_OPENMP.match(self.runtime))

    @property
    def has_tasks(self) -> bool:
        """Whether a runtime hands out tasks to whichever thread is free: how threads share a place is chance, too."""
        return "onetbb" in self.runtime

    @property
    def is_mpi(self) -> bool:
        """Whether processes may be ranks of an MPI program."""
        return bool(_MPI.match(self.runtime))


class Told(Enum):
    """How many sites of one kind are told: each by itself; or, where it is whole processes that something is true of,
    once for all of them, without a place."""

    BY_SITE = auto()
    IN_TURN = auto()
    """They run one after the other."""
    CROWDED = auto()
    """They are too many for the cores."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A kind, and what to tell the reader of it."""

    kind: Kind
    what: str
    """What was seen, with its figures."""
    remedy: str
    is_likely: bool = True
    """False where nothing speaks for this kind but that no other one fits."""
    is_creators: bool = False
    """Whether to name who creates these pieces of work and waits for them, not what they do."""
    is_loading: bool = False
    """Whether it is of no function's making, but that files of a program are not in memory yet: told once, without a
    place, for all where it is so."""
    told: Told = Told.BY_SITE


def runtime_in_use(runtime: str, samples: Iterable[PathSample]) -> str:
    """A program's runtime; ``none`` for one of OpenMP that no sample is in, nor in what it runs: many programs merely
    load one with a library."""
    parts = runtime.split("+")
    if not any(map(_OPENMP.match, parts)):
        return runtime
    seen: set[int] = set()
    for sample in samples:
        for path in (sample.path, sample.physical):
            if id(path) in seen:
                continue
            seen.add(id(path))
            for frame in path:  # paths share most of their frames
                if id(frame) not in seen:
                    seen.add(id(frame))
                    if _is_of_openmp(frame):
                        return runtime
    return "+".join(part for part in parts if not _OPENMP.match(part)) or "none"


def _is_of_openmp(frame: Frame) -> bool:
    return bool(_OPENMP.match(os.path.basename(frame.module)) or _OF_OPENMP.match(frame.name))


Judged = tuple[LossSite, Diagnosis]
"""A site, and what it is."""

Test = Callable[[LossSite, Setting], Diagnosis | None]
