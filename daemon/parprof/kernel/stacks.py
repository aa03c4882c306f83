"""Stacks as the kernel sends them: native frames, and behind them the Python frames of the thread."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

_HEADER = struct.Struct("<IHHQIHH")
_INTERRUPTED = 1 << 63
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


class _Record(NamedTuple):
    native: bytes
    end: int
    python: bytes
    python_end: int


class StackTable:
    """All stacks of a session by their hash. Few are ever asked for twice, so they are kept as bytes."""

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}
        self._fresh: list[tuple[int, int]] = []

    def __contains__(self, digest: int) -> bool:
        return digest in self._records

    def add(self, records: Iterable[bytes]) -> None:
        """Keep what came out of the ring buffer."""
        for raw in records:
            _, depth, end, digest, image, python_depth, python_end = _HEADER.unpack_from(raw)
            middle = _HEADER.size + 8 * depth
            python = raw[middle : middle + 16 * python_depth]
            self._records[digest] = _Record(raw[_HEADER.size : middle], end, python, python_end)
            if python_depth:
                self._fresh.append((image, digest))

    def get(self, digest: int) -> Stack:
        """The stack of that hash; an empty one if it never came."""
        record = self._records.get(digest)
        if record is None:
            return Stack()
        words = struct.unpack(f"<{len(record.native) // 8}Q", record.native)
        if record.end >= len(STACK_ENDS):  # a kernel stack, whose addresses have the bit set
            frames = tuple((w, i > 0) for i, w in enumerate(words))
        else:
            frames = tuple((w & ~_INTERRUPTED, i > 0 and not w & _INTERRUPTED) for i, w in enumerate(words))
        return Stack(
            frames, _name(STACK_ENDS, record.end), _python(record), _name(PYTHON_ENDS, record.python_end)
        )

    def take_fresh(self) -> list[tuple[int, int, tuple[CodeAt, ...]]]:
        """(image, hash, Python frames) of the stacks with such frames that came since the last call."""
        fresh, self._fresh = self._fresh, []
        return [(image, digest, _python(self._records[digest])) for image, digest in fresh]


def _python(record: _Record) -> tuple[CodeAt, ...]:
    return tuple(
        CodeAt(code & ~PYTHON_ENTRY, place & 0xFFFFFFFF, place >> 32, bool(code & PYTHON_ENTRY))
        for code, place in struct.iter_unpack("<QQ", record.python)
    )


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else ""
