"""What every Go program keeps for its own tracebacks, also where it is stripped: ``.gopclntab``.

For each function its name, its source lines, and how far the stack pointer is from the return address at each
instruction. The formats of Go 1.16 to 1.17, 1.18 to 1.19, and 1.20 and later are known
(``src/debug/gosym/pclntab.go`` and ``src/runtime/symtab.go`` of Go). It is hostile, as all of a file is: what does not
fit is left out.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from parprof.files.elf import ElfFile
from parprof.values import dataclass

MAX_TABLE = 1 << 28
"""Bytes of a table that are read; a program of 200 MB has one of 60 MB."""
_MAX_NAME = 1024
_MAX_STEPS = 1 << 16
"""Places in one function at which a value changes."""
_HEADER = struct.Struct("<IBBBB")
_WORDS = struct.Struct("<8Q")
_TEXT_AT = 24
"""Where the header has the third of its words, the start of the code."""
_OLD_WORDS = struct.Struct("<7Q")
_MAGIC_1_16, _MAGIC_1_18, _MAGIC_1_20 = 0xFFFFFFFA, 0xFFFFFFF0, 0xFFFFFFF1
_TOP_FRAME, _WRITES_SP = 1, 2
_SHT_RELA, _RELATIVE = 4, 8
_RELA = struct.Struct("<QQq")


class GoFunction(NamedTuple):
    """A function. Addresses are ELF virtual ones, [start, end)."""

    start: int
    end: int
    record: int
    """Where the table has its description."""


class PcValue(NamedTuple):
    """A value that holds for the instructions from an address up to another one."""

    start: int
    end: int
    value: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where fields are in the description of a function; in 32-bit words from its second one."""

    has_start_line: bool
    wide_entries: bool


_LAYOUTS = {
    _MAGIC_1_16: _Layout(has_start_line=False, wide_entries=True),
    _MAGIC_1_18: _Layout(has_start_line=False, wide_entries=False),
    _MAGIC_1_20: _Layout(has_start_line=True, wide_entries=False),
}


class GoFunctions:
    """The functions of one Go program."""

    def __init__(self, data: bytes, text_start: int) -> None:
        """``data``: the section; ``text_start``: where its offsets count from where it does not say so itself.

        Raises:
            ValueError: it is of no format that we know.
        """
        self._data = data
        self._steps_left = len(data)
        magic, _, _, self._quantum, word = _HEADER.unpack_from(data) if len(data) >= 72 else (0, 0, 0, 0, 0)
        layout = _LAYOUTS.get(magic)
        if layout is None or word != 8 or not self._quantum:
            raise ValueError("no table of a Go program of a version that we know")
        self._layout = layout
        if layout.wide_entries:
            count, _, names, units, files, steps, functions = _OLD_WORDS.unpack_from(data, 8)
            self._text = 0
        else:
            count, _, text, names, units, files, steps, functions = _WORDS.unpack_from(data, 8)
            self._text = text or text_start
        size = 16 if layout.wide_entries else 8
        self._names, self._units, self._files, self._steps, self._functions = (
            names,
            units,
            files,
            steps,
            functions,
        )
        self._count = min(count, max(len(data) - functions, 0) // size)

    @cached_property
    def functions(self) -> list[GoFunction]:
        """All, in order of address."""
        wide = self._layout.wide_entries
        pairs = struct.Struct("<QQ" if wide else "<II")
        end = struct.Struct("<Q" if wide else "<I")
        last = self._functions + self._count * pairs.size
        entries = [
            (at + self._text, record) for at, record in pairs.iter_unpack(self._data[self._functions : last])
        ]
        raw = self._data[last : last + end.size]
        stop = end.unpack(raw)[0] + self._text if len(raw) == end.size else 0
        behind = [*(start for start, _ in entries[1:]), stop][: len(entries)]
        return [
            GoFunction(start, following, self._functions + record)
            for (start, record), following in zip(entries, behind, strict=True)
            if start < following
        ]

    def at(self, address: int) -> GoFunction | None:
        """The function around an address."""
        index = bisect_right(self._starts, address) - 1
        found = self.functions[index] if index >= 0 else None
        return found if found is not None and address < found.end else None

    @cached_property
    def _starts(self) -> list[int]:
        return [function.start for function in self.functions]

    def name(self, function: GoFunction) -> str:
        """What it is called, package and all; empty where that cannot be read."""
        return self._text_at(self._names + self._word(function, 0))

    def line(self, function: GoFunction, address: int) -> tuple[str, int]:
        """Source file and line of an instruction, of the innermost inlined function there; "" and 0: not known."""
        file = self._value(function, self._word(function, 4), address)
        line = self._value(function, self._word(function, 5), address)
        if file is None or line is None or line < 0:
            return "", 0
        raw = self._data[self._units + 4 * (self._word(function, 7) + file) :][:4]
        if len(raw) < 4 or raw == b"\xff\xff\xff\xff":
            return "", 0
        return self._text_at(self._files + int.from_bytes(raw, "little")), line

    def start_line(self, function: GoFunction) -> int:
        """The line that the function begins at; 0: not known."""
        if self._layout.has_start_line:
            return self._word(function, 8)
        return self.line(function, function.start)[1]

    def stack_depths(self, function: GoFunction) -> Iterator[PcValue]:
        """How many bytes are on the stack above the return address, from the function's start on.

        All functions together have no more steps than the table has bytes: damaged ones may share a long list.
        """
        for step in self._walk(function, self._word(function, 3)):
            self._steps_left -= 1
            if self._steps_left < 0:
                return
            yield step

    def is_outermost(self, function: GoFunction) -> bool:
        """Whether nobody called it, or only what was on another stack: where routines and threads begin, and what
        changes from a routine's stack to the scheduler's."""
        at = self._body(function) + 4 * (9 if self._layout.has_start_line else 8)
        flags = self._data[at + 1 : at + 2]
        return bool(flags and flags[0] & (_TOP_FRAME | _WRITES_SP))

    def _body(self, function: GoFunction) -> int:
        """Behind the entry, the first field."""
        return function.record + (8 if self._layout.wide_entries else 4)

    def _word(self, function: GoFunction, index: int) -> int:
        """A field: name, arguments, deferred return, stack, file, line, number of further tables, unit, first line."""
        at = self._body(function) + 4 * index
        return int.from_bytes(self._data[at : at + 4], "little")

    def _text_at(self, at: int) -> str:
        end = self._data.find(b"\0", at, at + _MAX_NAME)
        return self._data[at : end if end >= 0 else at].decode("utf-8", "replace")

    def _value(self, function: GoFunction, table: int, address: int) -> int | None:
        return next((s.value for s in self._walk(function, table) if s.start <= address < s.end), None)

    def _walk(self, function: GoFunction, table: int) -> Iterator[PcValue]:
        """The values of a table of changes: pairs of differences, of value (zigzag) and of address."""
        if not table:
            return
        data, at, value, address = self._data, self._steps + table, -1, function.start
        for number in range(_MAX_STEPS):
            change, at = _varint(data, at)
            if at < 0 or (not change and number):
                return
            value += -(change >> 1) - 1 if change & 1 else change >> 1
            distance, at = _varint(data, at)
            end = address + distance * self._quantum
            if at < 0 or end <= address:
                return
            yield PcValue(address, min(end, function.end), value)
            if end >= function.end:
                return
            address = end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where the next one is; -1: it goes beyond the end."""
    value = shift = 0
    while at < len(data) and shift < 35:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, -1


def go_functions(elf: ElfFile) -> GoFunctions | None:
    """The functions of a Go program; None if it is none, or of a version that we do not know.

    Raises:
        ElfError: the file cannot be read.
    """
    for name in (b".gopclntab", b".data.rel.ro.gopclntab"):
        section = elf.named_section(name)
        if section is not None and section.size <= MAX_TABLE:
            data = elf.read_whole(section)
            is_told = any(data[_TEXT_AT : _TEXT_AT + 8])
            try:
                return GoFunctions(data, 0 if is_told else _text_start(elf, section.address))
            except ValueError:
                return None
    return None


def _text_start(elf: ElfFile, table: int) -> int:
    """Where the program's Go code begins, if the loader is to write that into the table: else that of all code."""
    wanted = table + _TEXT_AT
    for section in elf.sections:
        if section.type != _SHT_RELA or section.size > MAX_TABLE:
            continue
        raw = elf.read_whole(section)
        for where, info, addend in _RELA.iter_unpack(raw[: len(raw) - len(raw) % _RELA.size]):
            if where == wanted and info & 0xFFFFFFFF == _RELATIVE:
                return int(addend)
    text = elf.named_section(b".text")
    return text.address if text is not None else 0
