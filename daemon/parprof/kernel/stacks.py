"""Stacks as the kernel sends them: native frames, and behind them the Python frames of the thread."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

_HEADER = struct.Struct("<IHHQIHHHxxxxxx")
_CONTEXT = struct.Struct("<IIQQQ")
RECORD_CONTEXT = 11
CONTEXT_UNKNOWN = 2
"""The work was created, but where was not seen. Ids of contexts that were seen are odd."""
INTERRUPTED = 1 << 63
PYTHON_ENTRY = 1 << 63
STACK_ENDS = (
    "complete",
    "no_mapping",
    "no_table",
    "bad_row",
    "unreadable",
    "too_deep",
    "zero",
    "frame_pointers",
)
"""How the walk of a user stack ended, by number (``enum stack_end``); only the first is a whole stack."""
PYTHON_ENDS = ("complete", "unreadable", "too_deep", "no_state")
"""The same for a thread's Python frames (``enum python_end``); "no_state": it never ran Python."""


class CodeAt(NamedTuple):
    """A Python frame: the address of its code object and the index of its instruction there.

    ``lines`` are bits 4 to 35 of the address of its line table: memory is reused, and where both are the same it
    is the same code object. ``is_entry``: it is the outermost frame that its C activation of the interpreter
    loop runs; without ``code`` it is nothing but that mark.
    """

    code: int
    instruction: int
    lines: int
    is_entry: bool


@dataclass(frozen=True, slots=True)
class Stack:
    """A physical stack, leaf first: (address, whether it is a return address). ``end``: one of STACK_ENDS."""

    frames: tuple[tuple[int, bool], ...] = ()
    end: str = ""
    python: tuple[CodeAt, ...] = ()
    python_end: str = ""
    cut: int = 0
    """So many innermost frames belong to the work that another context created; 0: all of them."""


@dataclass(frozen=True, slots=True)
class Context:
    """Where a piece of work was created: the creator's stack, and the context of the creator's own work (or 0)."""

    stack: int
    parent: int
    image: int


class RawStack(NamedTuple):
    """A stack as it was sent. ``native``: 64-bit words, leaf first, of which `INTERRUPTED` marks those that are no
    return addresses; ``python``: pairs of words."""

    native: bytes
    end: int
    python: bytes
    python_end: int
    cut: int

    @property
    def words(self) -> tuple[int, ...]:
        """The words of ``native``."""
        return struct.unpack(f"<{len(self.native) // 8}Q", self.native)


class StackTable:
    """All stacks of a session by their hash. Few are ever asked for twice, so they are kept as bytes."""

    def __init__(self) -> None:
        self._records: dict[int, RawStack] = {}
        self._fresh: list[tuple[int, int]] = []
        self._contexts: dict[int, Context] = {}
        self._used: dict[int, int] = {}
        self._leaving: set[int] = set()
        """Stacks that the kernel sends again when it sees them: they go with the next `trim` if it does not."""

    def __contains__(self, digest: int) -> bool:
        return digest in self._records

    def add(self, records: Iterable[bytes]) -> None:
        """Keep what came out of the ring buffer."""
        for raw in records:
            if raw[0] == RECORD_CONTEXT:
                _, image, identity, stack, parent = _CONTEXT.unpack_from(raw)
                self._contexts[identity] = Context(stack, parent, image)
                continue
            _, depth, end, digest, image, python_depth, python_end, cut = _HEADER.unpack_from(raw)
            middle = _HEADER.size + 8 * depth
            python = raw[middle : middle + 16 * python_depth]
            self._records[digest] = RawStack(raw[_HEADER.size : middle], end, python, python_end, cut)
            self._leaving.discard(digest)
            if python_depth:
                self._fresh.append((image, digest))

    def raw(self, digest: int) -> RawStack | None:
        """The stack of that hash as it was sent; None if it never came."""
        return self._records.get(digest)

    def get(self, digest: int) -> Stack:
        """The stack of that hash; an empty one if it never came."""
        record = self._records.get(digest)
        if record is None:
            return Stack()
        words = record.words
        if record.end >= len(STACK_ENDS):  # a kernel stack, whose addresses have the bit set
            frames = tuple((w, i > 0) for i, w in enumerate(words))
        else:
            frames = tuple((w & ~INTERRUPTED, i > 0 and not w & INTERRUPTED) for i, w in enumerate(words))
        return Stack(
            frames, _name(STACK_ENDS, record.end), _python(record), _name(PYTHON_ENDS, record.python_end),
            record.cut,
        )  # fmt: skip

    def touch(self, digests: Iterable[int], now: int) -> None:
        """These stacks were sampled in the period of that number: `trim` keeps them for a while."""
        for digest in digests:
            self._used[digest] = now

    def trim(self, before: int, limit: int) -> list[int]:
        """Begin to forget stacks that were not sampled since a period, if there are more than ``limit``.

        Those of contexts stay. Returns the hashes of the others, which the kernel must send again from now on: they
        go with the next call, since samples that were counted before that may still mean them.
        """
        for digest in self._leaving:
            if self._used.get(digest, -1) < before:
                self._records.pop(digest, None)
                self._used.pop(digest, None)
        self._leaving.clear()
        if len(self._records) <= limit:
            return []
        kept = {context.stack for context in self._contexts.values()}
        self._leaving.update(d for d in self._records if self._used.get(d, -1) < before and d not in kept)
        return list(self._leaving)

    def forget(self, images: Collection[int]) -> None:
        """These process images are gone: so are the contexts in them, whose stacks `trim` may now forget."""
        self._contexts = {key: one for key, one in self._contexts.items() if one.image not in images}

    def context(self, identity: int) -> Context | None:
        """The context of that id; None if it is 0, unknown, or never came."""
        return self._contexts.get(identity)

    def take_fresh(self) -> list[tuple[int, int, tuple[CodeAt, ...]]]:
        """(image, hash, Python frames) of the stacks with such frames that came since the last call."""
        fresh, self._fresh = self._fresh, []
        return [(image, d, _python(self._records[d])) for image, d in fresh if d in self._records]


def _python(record: RawStack) -> tuple[CodeAt, ...]:
    return tuple(
        CodeAt(code & ~PYTHON_ENTRY, place & 0xFFFFFFFF, place >> 32, bool(code & PYTHON_ENTRY))
        for code, place in struct.iter_unpack("<QQ", record.python)
    )


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else ""
