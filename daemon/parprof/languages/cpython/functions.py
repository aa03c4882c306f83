"""Code objects of a live process to names, files and lines.

They are read as soon as a stack shows them, while the process lives. Their memory may be freed and reused for
another function at any time, so each is looked at again whenever new stacks come, and each stack keeps what its
frames meant when it came.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from parprof.kernel.stacks import CodeAt
from parprof.languages.cpython.linetables import LineTable
from parprof.languages.cpython.memory import Memory
from parprof.languages.cpython.process import CPython
from parprof.model import Frame
from parprof.untrusted import visible

MODULE = "python"
_UNKNOWN = Frame("[unknown Python function]", module=MODULE)
_CODE_SIZE = 160
"""Bytes of a code object that hold all that is read of it."""
_MAX_FUNCTIONS = 1 << 16
_MAX_STACKS = 1 << 18
_MAX_TABLES = 1 << 26
"""Bytes of line tables read for one process; functions beyond have no lines."""


@dataclass(slots=True)
class _Function:
    identity: bytes
    name: str
    file: str
    first_line: int
    table: LineTable | None
    frames: dict[int, Frame] = field(default_factory=dict)

    def frame(self, instruction: int) -> Frame:
        known = self.frames.get(instruction)
        if known is None:
            line = self.table.line(instruction) if self.table else 0
            known = self.frames[instruction] = Frame(self.name, self.file, line, self.first_line, MODULE)
        return known


PythonFrame = tuple[Frame | None, bool]
"""A frame, innermost first in a stack, None for a mark; and whether it is the outermost of its activation."""


class PythonStacks:
    """The Python stacks of one process image."""

    def __init__(self, pid: int, python: CPython) -> None:
        """The image that is process ``pid`` now."""
        self.pid = pid
        self.python = python
        self.unresolved = 0
        """Frames whose code object could not be read any more."""
        self.mismatched: set[int] = set()
        """Stacks whose activations of the interpreter loop were not those of the Python frames."""
        self._memory = Memory(pid)
        self._functions: dict[tuple[int, int], _Function] = {}
        self._stacks: dict[int, tuple[PythonFrame, ...]] = {}
        self._table_bytes = 0

    def resolve(self, stacks: Iterable[tuple[int, tuple[CodeAt, ...]]]) -> None:
        """Look up the functions of (hash, frames) that came just now."""
        checked: dict[tuple[int, int], _Function | None] = {}
        for digest, frames in stacks:
            if digest in self._stacks or len(self._stacks) >= _MAX_STACKS:
                continue
            out: list[PythonFrame] = []
            for code, instruction, lines, is_entry in frames:
                key = code, lines
                if code and key not in checked:
                    checked[key] = self._function(key)
                function = checked[key] if code else None
                if function is not None:
                    out.append((function.frame(instruction), is_entry))
                else:
                    self.unresolved += bool(code)
                    out.append((_UNKNOWN if code else None, is_entry))
            self._stacks[digest] = tuple(out)

    def stack(self, digest: int) -> tuple[PythonFrame, ...] | None:
        """The Python frames of a stack that was resolved, innermost first."""
        return self._stacks.get(digest)

    def _function(self, key: tuple[int, int]) -> _Function | None:
        address, lines = key
        known = self._functions.get(key)
        raw = self._memory.read(address, _CODE_SIZE)
        if not raw:
            return known  # gone with its process; what it was is still the best guess
        layout = self.python.layout
        if struct.unpack_from("<Q", raw, layout.type)[0] != self.python.code_type:
            return None
        pointers = [struct.unpack_from("<Q", raw, at)[0] for at in (layout.name, layout.file, layout.lines)]
        if pointers[2] >> 4 & 0xFFFFFFFF != lines:
            return None
        identity = struct.pack("<3Q", *pointers)
        if known is not None and known.identity == identity:
            return known
        first_line = struct.unpack_from("<I", raw, layout.first_line)[0]
        name, file = (self._memory.text(pointer, layout) for pointer in pointers[:2])
        if name is None or file is None or first_line >= 1 << 31:
            return None
        if len(self._functions) >= _MAX_FUNCTIONS and key not in self._functions:
            del self._functions[next(iter(self._functions))]
        made = _Function(
            identity, visible(name), visible(file), first_line, self._lines(pointers[2], first_line)
        )
        self._functions[key] = made
        return made

    def _lines(self, address: int, first_line: int) -> LineTable | None:
        if self._table_bytes >= _MAX_TABLES:
            return None
        table = self._memory.bytes(address, self.python.layout)
        if table is None:
            return None
        self._table_bytes += len(table)
        return LineTable(self.python.layout.minor, table, first_line)

    def for_child(self, pid: int) -> PythonStacks:
        """The same for a forked child, whose functions are at the same addresses."""
        child = PythonStacks(pid, self.python)
        child._functions = dict(self._functions)
        return child

    @property
    def is_open(self) -> bool:
        """Whether `close` is still to be called."""
        return self._memory.is_open

    def close(self) -> None:
        """Close the process's memory; what was resolved stays."""
        self._memory.close()
