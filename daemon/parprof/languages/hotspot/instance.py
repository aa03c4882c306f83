"""The JVM of one process: what runs in the code that it made, found while it is there."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from parprof.files.dso import ANONYMOUS
from parprof.kernel.stacks import INTERRUPTED, METHOD, CodeAt, SentCode, Stack
from parprof.languages import FrameOrMark, Instance, SavedLanguage
from parprof.languages.hotspot.client import Asked, JvmReader
from parprof.languages.hotspot.code import INTERPRETER
from parprof.languages.hotspot.methods import JavaRow
from parprof.languages.hotspot.stepping import step
from parprof.model import CallerStep, Frame, Frames, StackMerge, StackRow
from parprof.patterns import regex

SAVED_AS = "[hotspot]"
"""In place of the name of a file that is the interpreter."""
_FRESH_S = 5.0
"""What was read is asked for again after so long: code comes and goes."""
_MOST_WORDS = 1 << 12
"""Asked for at once."""
_MOST_KNOWN = 1 << 17
_MOST_STACKS = 1 << 16
_LEAST_PAUSE_S, _PAUSE_PER_AGE, _MOST_PAUSE_S = 0.005, 0.05, 1.0
"""Between looks: a JVM says where its code is when it has begun to run. That takes it some tenths of a second, and
seconds where it hardly gets a core: a look is late by no more than this share of what it took."""
_INTERPRETED = (Frame(INTERPRETER, module=ANONYMOUS),)
_MADE = (Frame("[code of the JVM]", module=ANONYMOUS),)
"""What ran before the JVM was known: a few tenths of a second, in which it begins."""
_OF_JAVA = regex(r"\[|Interpreter\Z|(?:javax?|jdk|sun|com\.sun)\.")
_JavaFrames = tuple[Frames, ...]
"""By word of a stack; empty where the native frame is all there is."""


class HotSpotInstance(Instance):
    """A JVM in one process image."""

    COUNTERS = ("java_unnamed",)
    """Addresses in code that HotSpot made of which nothing could be read."""
    structure = "jvm"

    def __init__(self, pid: int, symbols: Mapping[str, int], reader: JvmReader) -> None:
        """``symbols``: the addresses of what HotSpot says of itself, in the process."""
        self.pid = pid
        self._symbols = symbols
        self._reader = reader
        self._fd = -1
        with suppress(OSError):
            self._fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        now = time.monotonic()
        self._asked = Asked(reader, f"{pid} {now}", symbols, self._fd)
        self._begun_s, self._next_look_s = now, 0.0
        self._facts: Mapping[str, int | tuple[int, ...]] = {}
        self._known: dict[int, Frames] = {}
        """By word: as it was when it was read last."""
        self._read_s: dict[int, float] = {}
        self._stacks: dict[int, _JavaFrames] = {}
        """By stack id: as it was when the stack came."""
        self._likely_stacks: dict[int, _JavaFrames] = {}
        """The same of those that came without being looked up: as they were shown."""
        self.unnamed = 0
        if self.is_open:
            reader.join()

    def kernel_facts(self) -> Mapping[str, int | tuple[int, ...]]:
        """What the programs in the kernel must know; empty: not yet."""
        now = time.monotonic()
        if now >= self.due_s:
            self._facts = self._asked.facts()
            pause_s = _PAUSE_PER_AGE * (now - self._begun_s)
            self._next_look_s = time.monotonic() + min(max(pause_s, _LEAST_PAUSE_S), _MOST_PAUSE_S)
        return self._facts

    @property
    def due_s(self) -> float:
        """When `kernel_facts` is to be asked again."""
        is_over = self._facts or not self.is_open or self._asked.problem
        return math.inf if is_over else self._next_look_s

    def has_code(self, address: int) -> bool:
        """Whether an address is in the memory that HotSpot keeps its code in."""
        return any(0 <= address - start < size for start, size in self._heaps())

    def _heaps(self) -> Iterable[tuple[int, int]]:
        starts, sizes = self._facts.get("heap", ()), self._facts.get("heap_size", ())
        assert isinstance(starts, tuple) and isinstance(sizes, tuple)
        return zip(starts, sizes, strict=True)

    def for_child(self, pid: int) -> HotSpotInstance:
        """The same for a forked child."""
        return HotSpotInstance(pid, self._symbols, self._reader)

    def take(self, functions: Iterable[SentCode]) -> None:
        """Nothing is sent of these."""

    def resolve(self, stacks: Iterable[tuple[int, tuple[CodeAt, ...]]]) -> None:
        """There are no frames beside the native ones."""

    def resolve_words(self, stacks: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Look up the functions at the words of stacks that came just now, (id, words)."""
        came = [(digest, words) for digest, words in stacks if digest not in self._stacks]
        heaps = list(self._heaps())
        now = time.monotonic()
        wanted: dict[int, None] = {}
        for _, words in came:
            for word in words:
                key = word & ~INTERRUPTED
                if now - self._read_s.get(key, -_FRESH_S) >= _FRESH_S and _is_java(key, heaps):
                    wanted[key] = None
        self._read(list(wanted), now)
        for digest, words in came:
            self._stacks[digest] = tuple(self._known.get(word & ~INTERRUPTED, ()) for word in words)
        while len(self._stacks) > _MOST_STACKS:  # what their words were last is known all the same
            del self._stacks[next(iter(self._stacks))]

    def _read(self, words: Sequence[int], now: float) -> None:
        if not self.is_open:
            return
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
            self._read_s.clear()
        for at in range(0, len(words), _MOST_WORDS):
            some = words[at : at + _MOST_WORDS]
            for word, rows in zip(some, self._asked.rows(some), strict=True):
                self._read_s[word] = now
                if rows:
                    self._known[word] = _frames(word, rows)
                else:
                    self.unnamed += word not in self._known

    def asleep(self, tid: int) -> tuple[bytes, int]:
        """There are no frames beside the native ones."""
        return b"", 3

    def step(self, pc: int, sp: int, rbp: int | None, read_word: Callable[[int], int]) -> CallerStep | None:
        """From a frame in code that HotSpot made to its caller's."""
        return step(self._facts, pc, sp, rbp, read_word) if self._facts else None

    def is_servant(self, digest: int) -> bool:
        """Whether nothing of a program's is on a stack: what HotSpot and Java's library do by themselves."""
        names = (frame.name for frames in self._stacks.get(digest, ()) for frame in frames)
        return not any(not _OF_JAVA.match(name) for name in names)

    def awaits_end(self, digest: int) -> bool:
        """Whether the thread of a stack waits for the end of another."""
        for frames in self._stacks.get(digest, ()):
            for frame in frames:
                if not frame.name.startswith(("[", "java.lang.Object.wait")):
                    return frame.name.startswith("java.lang.Thread.join")
        return False

    def merge(self, digest: int, stack: Stack) -> StackMerge | None:
        """What puts the names of Java's functions in place of their addresses; None if there are none."""
        return java_merge(self._of(digest, stack))

    def _of(self, digest: int, stack: Stack) -> _JavaFrames:
        found = self._stacks.get(digest) or self._likely_stacks.get(digest)
        if found is None and self._facts:
            found = tuple(self._likely(word, is_return) for word, is_return in stack.frames)
            if any(found) and len(self._likely_stacks) < _MOST_STACKS:
                self._likely_stacks[digest] = found
        return found or ()

    def _likely(self, word: int, is_return: bool) -> Frames:
        """What is at a word of a stack that came before the JVM was known, or is the outer part of another."""
        known = self._known.get(word) or (() if is_return else self._known.get(word + 1, ()))
        if known:
            return known
        start, size = self._facts["interpreter"], self._facts["interpreter_size"]
        assert isinstance(start, int) and isinstance(size, int)
        if 0 <= word - start < size:
            return _INTERPRETED
        return _MADE if self.has_code(word) else ()

    @property
    def problem(self) -> str:
        """Why its functions have no names (any more)."""
        return self._asked.problem

    def saved(self, stacks: Mapping[int, Stack]) -> SavedLanguage:
        """What is known of these stacks, for a file of facts."""
        found = ((digest, self._of(digest, stack)) for digest, stack in stacks.items())
        known = {digest: as_saved(frames) for digest, frames in found if any(frames)}
        return SavedLanguage((), frozenset((SAVED_AS,)), known, self.unnamed)

    def counts(self) -> Mapping[str, int]:
        """By `COUNTERS`."""
        return {"java_unnamed": self.unnamed}

    @property
    def is_open(self) -> bool:
        """Whether `close` is still to be called."""
        return self._fd >= 0

    def close(self) -> None:
        """Close the process's memory; what was found stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._reader.leave()


def _is_java(word: int, heaps: Sequence[tuple[int, int]]) -> bool:
    return bool(word & METHOD) or any(0 <= word - start < size for start, size in heaps)


def _frames(word: int, rows: Sequence[JavaRow]) -> Frames:
    last = len(rows) - 1
    return tuple(
        Frame(name, file, line, first, ANONYMOUS, address=word & ~METHOD, inlined=at < last)
        for at, (name, file, line, first) in enumerate(rows)
    )


def java_merge(found: _JavaFrames) -> StackMerge | None:
    """What puts these in place of native frames."""
    if not any(found):
        return None

    def merge_rows(rows: list[StackRow], whole: bool) -> tuple[list[Frame], bool]:
        out: list[Frame] = []
        for at, (_, _, native) in enumerate(rows):
            out.extend((found[at] if at < len(found) else ()) or native)
        return out, whole

    return merge_rows


def as_saved(found: _JavaFrames) -> tuple[FrameOrMark, ...]:
    """The frames of a stack, those of each word closed by a mark: it is the last one's, or stands alone."""
    out: list[FrameOrMark] = []
    for frames in found:
        out += [(frame, at == len(frames) - 1) for at, frame in enumerate(frames)] or [(None, True)]
    return tuple(out)


def from_saved(saved: Iterable[FrameOrMark]) -> _JavaFrames:
    """The inverse of `as_saved`."""
    out: list[Frames] = []
    here: list[Frame] = []
    for frame, is_last in saved:
        if frame is not None:
            here.append(frame)
        if is_last:
            out.append(tuple(here))
            here = []
    return tuple(out)
