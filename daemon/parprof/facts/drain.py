"""What has been drained from the kernel, with all that is needed to make call paths of it.

From here on data flow one way: who makes rows of a drain asks neither the kernel nor the session for anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from parprof.facts.cores import CoresHeld
from parprof.files.dso import Dso
from parprof.kernel.stacks import Stack, StackTable
from parprof.languages import SavedLanguage
from parprof.model import Count, SampleKey, StackMerge
from parprof.process.identity import Process
from parprof.runtimes import Agent
from parprof.values import dataclass


class Image(Protocol):
    """A process image that samples are of: `parprof.session.target.Target` while it is watched, or a recorded one."""

    @property
    def image(self) -> int:
        """Its id, as in `SampleKey`."""

    @property
    def process(self) -> Process:
        """Which process it is."""

    @property
    def agents(self) -> Sequence[Agent]:
        """Those of the parallel runtimes that it uses."""

    @property
    def runtime(self) -> str:
        """Their names, for labels; ``none`` without one."""

    def parallel_cores(self, allowed: int | None = None) -> int:
        """n: cores that it could use; with ``allowed``: when it was allowed so many, rather than now."""

    def find(self, address: int, epoch: int) -> tuple[Dso, int] | None:
        """File and ELF address behind an address that was sampled in an epoch of its load map; None: no code."""

    def merge(self, user: int, stack: Stack) -> StackMerge | None:
        """What puts the frames of an interpreted language into a stack of that id; None if it has none."""

    def jit_names(self, addresses: Iterable[int]) -> Mapping[int, str]:
        """Names of code that a JIT compiler made; addresses without one are left out."""


class MeasuredImage(Image, Protocol):
    """A process image at the end of a measurement: also what a report says of it."""

    @property
    def n_w_source(self) -> str:
        """Where n_w comes from: see `parprof.session.sources.Source`."""

    @property
    def ready_ns(self) -> int:
        """Time that its working threads waited for a CPU."""

    @property
    def failures(self) -> Sequence[str]:
        """What could not be probed."""

    def saved_language(self, stacks: Mapping[int, Stack]) -> SavedLanguage | None:
        """What its interpreter's front end found of these stacks; None without one."""

    def language_counts(self) -> Mapping[str, int]:
        """What its interpreter's front end counts, by name."""

    def watched_s(self) -> float:
        """For how long it was watched."""

    def cores_held(self) -> Sequence[CoresHeld]:
        """How many cores it was allowed, and for how long: never empty."""

    def remarks(self) -> list[str]:
        """What the reader of a report must know of it: its failures, and what was done without."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Samples by what they were counted under, and what the numbers in there mean."""

    facts: Mapping[SampleKey, Count]
    stacks: StackTable
    """The stacks and contexts that the facts name; one table for all drains of a session."""
    images: Mapping[int, Image]
    """By id. Samples may be of others, which are gone."""
    thread_names: Mapping[tuple[int, int], str]
    """By image and thread id."""
    events: tuple[str, ...]
    """Names of the perf events, the clock first."""
    frequency_hz: int
    """Samples of the clock a second and CPU."""
    by_cores: Mapping[SampleKey, Mapping[int, Count]] = field(default_factory=dict)
    """How the samples of each key divide by what their process was allowed to use at the time. Only of processes for
    which that has changed, and then all of theirs."""
