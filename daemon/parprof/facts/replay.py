"""Processes and names as a file of facts has them: what samples mean where the programs never ran."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field

from parprof.facts.cores import CoresHeld
from parprof.facts.drain import Image
from parprof.facts.names import KernelPlace, Namer
from parprof.files.dso import Dso, FileKey
from parprof.kernel.stacks import Stack
from parprof.languages import Replayed, SavedLanguage
from parprof.model import Frame, Frames, StackMerge
from parprof.process.identity import Process
from parprof.runtimes import Agent
from parprof.symbols.kernel import UNNAMED
from parprof.symbols.symbolizer import NameRequest
from parprof.values import dataclass

CodePlace = tuple[Dso, int]
"""A file and an ELF virtual address in it."""


@dataclass(slots=True)
class RecordedImage:
    """A process image that is gone, with the answers that it gave: see `parprof.facts.drain.MeasuredImage`."""

    image: int
    process: Process
    agents: tuple[Agent, ...]
    runtime: str
    cores: int
    n_w_source: str
    ready_ns: int
    watched_seconds: float
    failures: tuple[str, ...]
    remarked: tuple[str, ...]
    language: Replayed | None
    places: Mapping[int, Mapping[int, CodePlace]]
    """By epoch, then by address: only those that samples have."""
    held: Mapping[int, CoresHeld] = field(default_factory=dict)
    """By the cores that it was allowed; empty: n was always ``cores``."""

    def parallel_cores(self, allowed: int | None = None) -> int:
        """n: cores that it could use."""
        known = None if allowed is None else self.held.get(allowed)
        return known.cores if known else self.cores

    def cores_held(self) -> Sequence[CoresHeld]:
        """How many cores it was allowed, and for how long."""
        return tuple(self.held.values()) or (CoresHeld(self.cores, self.cores, self.watched_seconds),)

    def find(self, address: int, epoch: int) -> CodePlace | None:
        """File and ELF address behind a sampled address."""
        return self.places.get(epoch, {}).get(address)

    def merge(self, user: int, stack: Stack) -> StackMerge | None:
        """What puts the frames of an interpreted language into a stack of that id; None if it has none."""
        return self.language.merge(user, stack) if self.language else None

    def saved_language(self, stacks: Mapping[int, Stack]) -> SavedLanguage | None:
        """What its interpreter's front end found of these stacks; None without one."""
        return self.language.saved(stacks) if self.language else None

    def language_counts(self) -> Mapping[str, int]:
        """What its interpreter's front end counts, by name."""
        return self.language.counts() if self.language else {}

    def jit_names(self, addresses: Iterable[int]) -> dict[int, str]:
        """None: `RecordedNames` has them."""
        return {}

    def watched_s(self) -> float:
        """For how long it was watched."""
        return self.watched_seconds

    def remarks(self) -> list[str]:
        """What the reader of a report must know of it."""
        return list(self.remarked)


class RecordedNames:
    """A `Namer` that says what another one said. What that was not asked is shown by file and address."""

    def __init__(self, notes: Iterable[str] = (), problems: Mapping[str, str] | None = None) -> None:
        self.named: dict[tuple[FileKey, int, bool], Frames] = {}
        """By key of the file, ELF virtual address, and whether that is a return address."""
        self.kernel: dict[KernelPlace, Frames] = {}
        self.jit: dict[tuple[int, int], str] = {}
        """By image and address."""
        self.notes = list(notes)
        self.problems = dict(problems or {})

    @property
    def uses_weights(self) -> bool:
        """They are of no use."""
        return False

    def name(self, weights: Mapping[NameRequest, int], total: int) -> Mapping[NameRequest, Frames]:
        """The frames at each place."""
        return {request: self._name(*request) for request in weights}

    def _name(self, dso: Dso, vaddr: int, is_return: bool) -> Frames:
        known = self.named.get((dso.key, vaddr, is_return))
        if known is not None:
            return known
        name = dso.name if dso.name.startswith("[") else f"{dso.name}+{vaddr:#x}"
        return (Frame(name, module=dso.name, address=vaddr),)

    def name_jit_code(self, image: Image, addresses: Collection[int]) -> Mapping[int, str]:
        """Functions in the anonymous memory of a process."""
        found = {address: self.jit.get((image.image, address), "") for address in addresses}
        return {address: name for address, name in found.items() if name}

    def name_kernel(
        self, places: Collection[KernelPlace], told: Mapping[int, Frame]
    ) -> Mapping[KernelPlace, Frames]:
        """The frames of addresses of the kernel, of all of which it is recorded what they were told."""
        return {place: self.kernel.get(place, UNNAMED) for place in places}

    def trim(self) -> None:
        """Nothing is held that could be given back."""


class RememberingNamer(RecordedNames):
    """Asks another namer, and keeps what it said: a recording of it that can be asked again."""

    def __init__(self, namer: Namer) -> None:
        super().__init__()
        self._namer = namer
        self.files: dict[FileKey, Dso] = {}

    @property
    def uses_weights(self) -> bool:
        """Whether the other one looks at its weights."""
        return self._namer.uses_weights

    def name(self, weights: Mapping[NameRequest, int], total: int) -> Mapping[NameRequest, Frames]:
        """The frames at each place."""
        found = self._namer.name(weights, total)
        for (dso, vaddr, is_return), frames in found.items():
            self.files[dso.key] = dso
            self.named[dso.key, vaddr, is_return] = frames
        self._listen()
        return found

    def name_jit_code(self, image: Image, addresses: Collection[int]) -> Mapping[int, str]:
        """Functions in the anonymous memory of a process."""
        found = self._namer.name_jit_code(image, addresses)
        self.jit.update({(image.image, address): name for address, name in found.items()})
        self._listen()
        return found

    def name_kernel(
        self, places: Collection[KernelPlace], told: Mapping[int, Frame]
    ) -> Mapping[KernelPlace, Frames]:
        """The frames of addresses of the kernel."""
        found = self._namer.name_kernel(places, told)
        self.kernel.update(found)
        return found

    def trim(self) -> None:
        """End the other's idle helpers."""
        self._namer.trim()

    def _listen(self) -> None:
        self.notes, self.problems = list(self._namer.notes), dict(self._namer.problems)
