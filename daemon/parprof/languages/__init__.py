"""Languages that bring stacks of their own: their functions in what the unwinder sees. A folder for each.

A front end has three parts, as in the OpenTelemetry profiler:

- its `Loader` recognises the language's interpreter among the files that a process maps, and looks at each file once;
- its `Data` are what the interpreter in that file keeps where, the same for all processes that map it;
- its `Instance` is the interpreter of one process: what the programs in the kernel are told of it, the functions
  that they found, and how these are put into native stacks.

`parprof.languages.front_ends` has the table of them. The session and the profile know nothing but these three, so a
second language is a folder here, a line in the table, and the program in bpf/ that collects its frames.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from parprof.files.dso import Dso
from parprof.kernel.stacks import CodeAt, SentCode, Stack
from parprof.model import CallerStep, Frame, StackMerge
from parprof.process.loadmap import LoadMap
from parprof.resources import Closing
from parprof.values import dataclass

FrameOrMark = tuple[Frame | None, bool]
"""A frame of a language, None for a mark; and whether it is the outermost of its activation of the interpreter."""


@dataclass(frozen=True, slots=True)
class SavedLanguage:
    """What an instance found, for a file of facts: enough to put the same frames into the same native stacks."""

    loops: tuple[tuple[int, int], ...]
    """[start, end) of the machine code of the interpreter loop."""
    modules: frozenset[str]
    """Names of the files that are the interpreter."""
    stacks: Mapping[int, tuple[FrameOrMark, ...]]
    """By stack id: the language's frames, innermost first."""
    unresolved: int
    """Frames whose function could not be read."""

    def of(self, digests: Iterable[int]) -> SavedLanguage:
        """The same, of these stacks."""
        return replace(self, stacks={one: self.stacks[one] for one in digests if one in self.stacks})


class Replayed(Protocol):
    """An interpreter of which no more is left than what was saved of it."""

    def merge(self, digest: int, stack: Stack) -> StackMerge | None:
        """As `Instance.merge`."""

    def counts(self) -> Mapping[str, int]:
        """As `Instance.counts`."""

    def saved(self, stacks: Mapping[int, Stack]) -> SavedLanguage | None:
        """As `Instance.saved`."""


class UnknownBuild(Exception):
    """An interpreter of which it is not known where it keeps things: the text says which, to be shown."""


class Loader(ABC):
    """Recognises one language."""

    name: str
    """Of the language, such as ``cpython``."""
    counters: tuple[str, ...] = ()
    """What `Instance.counts` has, by name."""

    @abstractmethod
    def may_be(self, dso: Dso, is_program: bool) -> bool:
        """Whether it is worth while to look into a file. ``is_program``: it is the first that the process maps."""

    @abstractmethod
    def load(self, dso: Dso) -> Data | None:
        """What is known of the interpreter in a file; None if there is none.

        Raises:
            UnknownBuild: there is one, but none that we know.
            ElfError: the file cannot be read.
        """


class Data(ABC):
    """The interpreter in one file. Addresses are those in the file."""

    @abstractmethod
    def attach(self, load_map: LoadMap, dso: Dso) -> Instance:
        """The interpreter of a process, which maps the file."""


class Instance(Closing):
    """The interpreter of one process image. Closed when the process is watched no more; what it found stays."""

    structure = "interpreter"
    """Of the programs in the kernel: what they must know."""

    @abstractmethod
    def kernel_facts(self) -> Mapping[str, int | tuple[int, ...]]:
        """What the programs in the kernel must know, by field of `structure`; empty: it is not known yet."""

    @property
    def due_s(self) -> float:
        """When `kernel_facts` is to be asked again, in terms of `time.monotonic`."""
        return math.inf

    def has_code(self, address: int) -> bool:
        """Whether an address is in memory that the language keeps code in, mapped as far as we know or not."""
        return False

    @property
    def problem(self) -> str:
        """Why less is known of its functions than could be; empty: nothing is in the way."""
        return ""

    @abstractmethod
    def for_child(self, pid: int) -> Instance:
        """The same for a forked child, which begins with its parent's memory."""

    @abstractmethod
    def take(self, functions: Iterable[SentCode]) -> None:
        """Keep what the kernel sent of functions, for the stacks that come next."""

    @abstractmethod
    def resolve(self, stacks: Iterable[tuple[int, tuple[CodeAt, ...]]]) -> None:
        """Look up the functions of stacks that came just now, (id, frames), while the process has them in memory."""

    def resolve_words(self, stacks: Iterable[tuple[int, Sequence[int]]]) -> None:
        """The same where native frames, (id, words), are the language's own, and known in this process only."""

    @abstractmethod
    def asleep(self, tid: int) -> tuple[bytes, int]:
        """The language's frames of a thread that sleeps, and how their walk ended: as in `RawStack`.

        ``tid``: as in the process's own PID namespace.
        """

    def step(self, pc: int, sp: int, rbp: int | None, read_word: Callable[[int], int]) -> CallerStep | None:
        """From a frame in code that the language made to its caller's; None: it made none there.

        ``read_word`` raises OSError where nothing is.
        """
        return None

    def keep(self, stacks: Container[int]) -> None:
        """Of other stacks than these, by id, nothing need be known any more: they are resolved anew if they come."""

    def is_servant(self, digest: int) -> bool:
        """Whether the thread of a stack that was resolved is one that the language has for itself."""
        return False

    @abstractmethod
    def awaits_end(self, digest: int) -> bool:
        """Whether the thread of a stack that was resolved waits for the end of another: who ends is to blame."""

    @abstractmethod
    def merge(self, digest: int, stack: Stack) -> StackMerge | None:
        """How the language's frames get into a stack; None if it has none that were resolved."""

    def saved(self, stacks: Mapping[int, Stack]) -> SavedLanguage | None:
        """What is known of these stacks, by id, for a file of facts; None where the language has no way to replay it.

        It is all that `merge` would say of them, also of those that it was not asked about.
        """
        return None

    @abstractmethod
    def counts(self) -> Mapping[str, int]:
        """What the reader of a report may want to know, by `Loader.counters`."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether `close` is still to be called."""
