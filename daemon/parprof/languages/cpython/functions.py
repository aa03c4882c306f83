"""Code objects of a process to names, files and lines.

The kernel sends each as it was when a stack showed it first. What could not be sent is read from the process while it
lives. There the memory may be freed and reused for another function at any time, so each is looked at again whenever
new stacks come, and each stack keeps what its frames meant when it came.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterable
from dataclasses import field

from parprof.kernel.stacks import CodeAt, SentCode
from parprof.languages.cpython.layouts import CODE_SIZE, Layout
from parprof.languages.cpython.linetables import LineTable
from parprof.languages.cpython.memory import ImageMemory, Objects, SentObjects
from parprof.languages.cpython.process import CPython
from parprof.model import Frame
from parprof.untrusted import visible
from parprof.values import dataclass

MODULE = "python"
_UNKNOWN = Frame("[unknown Python function]", module=MODULE)
_TAG_FACTOR = 0x9E3779B1
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
    is_cut: bool
    """Of the table only the beginning is known."""
    frames: dict[int, Frame] = field(default_factory=dict)

    def frame(self, instruction: int) -> Frame:
        known = self.frames.get(instruction)
        if known is None:
            line = self.table.line(instruction) if self.table else 0
            known = self.frames[instruction] = Frame(self.name, self.file, line, self.first_line, MODULE)
        return known


PythonFrame = tuple[Frame | None, bool]
"""A frame, innermost first in a stack, None for a mark; and whether it is the outermost of its activation."""
_Found = tuple[_Function | Frame | None, int, bool]
"""The same before its line was looked up: the function and the instruction, or the frame."""


class _LookedUp(dict[CodeAt, _Found]):
    """What the frames of stacks that came at one time are, each function looked up once."""

    def __init__(self, function: Callable[[tuple[int, int]], _Function | None]) -> None:
        """``function`` looks up that of a code object by its address and tag."""
        super().__init__()
        self._function = function
        self._functions: dict[tuple[int, int], _Function | None] = {}
        self.unknown: set[CodeAt] = set()
        """Those whose code object could not be read any more."""

    def __missing__(self, frame: CodeAt) -> _Found:
        code, instruction, tag, is_entry = frame
        key = code, tag
        if code and key not in self._functions:
            self._functions[key] = self._function(key)
        function = self._functions[key] if code else None
        if code and function is None:
            self.unknown.add(frame)
        found: _Found = (function or (_UNKNOWN if code else None), instruction, is_entry)
        self[frame] = found
        return found


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
        self.memory = ImageMemory(pid)
        """Of the image, while it is open."""
        self._sent: dict[tuple[int, int], SentCode] = {}
        """What the kernel sent of functions that no stack was resolved with yet."""
        self._functions: dict[tuple[int, int], _Function] = {}
        self._found: dict[int, tuple[_Found, ...]] = {}
        """Stacks whose functions are known; their lines are looked up when somebody wants them."""
        self._stacks: dict[int, tuple[PythonFrame, ...]] = {}
        self._table_bytes = 0

    def take(self, functions: Iterable[SentCode]) -> None:
        """Keep what the kernel sent of functions until the stacks come that have them."""
        for sent in functions:
            if len(self._sent) >= _MAX_FUNCTIONS:
                del self._sent[next(iter(self._sent))]
            self._sent[sent.address, code_tag(sent.code, self.python.layout)] = sent

    def resolve(self, stacks: Iterable[tuple[int, tuple[CodeAt, ...]]]) -> None:
        """Look up the functions of (hash, frames) that came just now."""
        looked_up = _LookedUp(self._function)
        for digest, frames in stacks:
            if digest in self._found or len(self._found) >= _MAX_STACKS:
                continue
            self._found[digest] = tuple(map(looked_up.__getitem__, frames))
            if looked_up.unknown:
                self.unresolved += sum(map(looked_up.unknown.__contains__, frames))

    def keep(self, stacks: Container[int]) -> None:
        """Forget all other stacks than these: a service has new ones for as long as it runs."""
        self._found = {digest: found for digest, found in self._found.items() if digest in stacks}
        self._stacks = {digest: frames for digest, frames in self._stacks.items() if digest in stacks}

    def stack(self, digest: int) -> tuple[PythonFrame, ...] | None:
        """The Python frames of a stack that was resolved, innermost first."""
        known = self._stacks.get(digest)
        if known is None and (found := self._found.get(digest)) is not None:
            known = self._stacks[digest] = tuple(
                (one.frame(instruction) if isinstance(one, _Function) else one, is_entry)
                for one, instruction, is_entry in found
            )
            self._found[digest] = ()
        return known

    def _function(self, key: tuple[int, int]) -> _Function | None:
        known, sent = self._functions.get(key), self._sent.pop(key, None)
        made = self._made(key, sent.code, SentObjects(sent, self.python.layout)) if sent else None
        if made is None or made.is_cut:
            raw = self.memory.read(key[0], CODE_SIZE)
            if self._is_of(key, raw):
                if made is None and known is not None and known.identity == self._identity(raw):
                    return known
                made = self._made(key, raw, self.memory) or made
        if made is None:
            return known  # it is gone; what it was is still the best guess
        if len(self._functions) >= _MAX_FUNCTIONS and key not in self._functions:
            del self._functions[next(iter(self._functions))]
        self._functions[key] = made
        return made

    def _is_of(self, key: tuple[int, int], raw: bytes) -> bool:
        """Whether these bytes are a code object, that which a frame had."""
        layout = self.python.layout
        if not raw or struct.unpack_from("<Q", raw, layout.type)[0] != self.python.code_type:
            return False
        return code_tag(raw, layout) == key[1]

    def _identity(self, raw: bytes) -> bytes:
        layout = self.python.layout
        return b"".join(raw[at : at + 8] for at in (layout.name, layout.file, layout.lines))

    def _made(self, key: tuple[int, int], raw: bytes, objects: Objects) -> _Function | None:
        """The function of a code object; None if it is none."""
        if not self._is_of(key, raw):
            return None
        layout, identity = self.python.layout, self._identity(raw)
        at_name, at_file, at_lines = struct.unpack("<3Q", identity)
        first_line = struct.unpack_from("<I", raw, layout.first_line)[0]
        name, file = objects.text(at_name, layout), objects.text(at_file, layout)
        if name is None or file is None or first_line >= 1 << 31:
            return None
        table, is_cut = self._lines(objects, at_lines, first_line)
        return _Function(identity, visible(name), visible(file), first_line, table, is_cut)

    def _lines(self, objects: Objects, address: int, first_line: int) -> tuple[LineTable | None, bool]:
        """The line table, and whether there is more of it."""
        layout = self.python.layout
        if self._table_bytes >= _MAX_TABLES or (found := objects.bytes(address, layout)) is None:
            return None, False
        table, is_whole = found
        self._table_bytes += len(table)
        return LineTable(layout.minor, table, first_line, is_whole=is_whole), not is_whole

    def for_child(self, pid: int) -> PythonStacks:
        """The same for a forked child, whose functions are at the same addresses."""
        child = PythonStacks(pid, self.python)
        child._functions = dict(self._functions)
        return child

    @property
    def is_open(self) -> bool:
        """Whether `close` is still to be called."""
        return self.memory.is_open

    def close(self) -> None:
        """Close the process's memory; what was resolved stays."""
        self.memory.close()


def code_tag(code: bytes, layout: Layout) -> int:
    """Of a code object what frames have of it beside the address: `CodeAt.tag`, as ``read_tag`` in bpf/python.bpf.c."""
    (lines,), (file,) = (struct.unpack_from("<Q", code, at) for at in (layout.lines, layout.file))
    return int(lines >> 4 ^ (file >> 4) * _TAG_FACTOR) & 0xFFFFFFFF
