# SPDX-License-Identifier: Apache-2.0
"""What stripped Go programs keep for their own tracebacks: read back as written, and never trusted."""

from __future__ import annotations

import os
import struct
import tempfile
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parprof.files.elf import ElfFile
from parprof.files.go_functions import GoFunctions, PcValue, go_functions
from parprof.symbols.worker import DebugFile
from parprof.unwind.rows import Rule, RuleType, unpack
from parprof.unwind.table import build_table
from unwind_elf import CODE, elf_bytes, open_elf, uleb

GO_1_16, GO_1_18, GO_1_20 = 0xFFFFFFFA, 0xFFFFFFF0, 0xFFFFFFF1
FORMATS = (GO_1_16, GO_1_18, GO_1_20)
TOP_FRAME, WRITES_SP = 1, 2


@dataclass
class Function:
    name: str
    size: int
    depths: list[tuple[int, int]] = field(default_factory=list)
    """(bytes of code, bytes on the stack)"""
    lines: list[tuple[int, int]] = field(default_factory=list)
    start_line: int = 7
    flags: int = 0


def changes(values: list[tuple[int, int]]) -> bytes:
    """A table of values: what Go's linker writes."""
    out, last = bytearray(), -1
    for distance, value in values:
        change, last = value - last, value
        out += uleb(change << 1 if change >= 0 else (-change << 1) - 1) + uleb(distance)
    return bytes(out) + b"\0"


def pclntab(magic: int, functions: list[Function], text: int = CODE, file: str = "/src/app.go") -> bytes:
    """The section of a program with these functions, one behind the other from ``text`` on."""
    wide = magic == GO_1_16
    head = 8 + 8 * (7 if wide else 8)
    names, steps, described = bytearray(), bytearray(b"\0"), bytearray()
    pairs: list[tuple[int, int]] = []
    pair = "<QQ" if wide else "<II"
    index_size = len(functions) * struct.calcsize(pair) + (8 if wide else 4)
    at = 0
    for function in functions:
        tables = []
        for values in (function.depths, [(function.size, 0)], function.lines):
            tables.append(len(steps) if values else 0)
            steps += changes(values) if values else b""
        entry = at + text if wide else at
        pairs.append((entry, index_size + len(described)))
        described += struct.pack("<Q" if wide else "<I", entry)
        described += struct.pack("<IIIIIIII", len(names), 0, 0, *tables, 0, 0)
        if magic == GO_1_20:
            described += struct.pack("<i", function.start_line)
        described += bytes((0, function.flags, 0, 0))
        described += bytes(-len(described) % 8)
        names += function.name.encode() + b"\0"
        at += function.size
    index = b"".join(struct.pack(pair, *one) for one in pairs) + struct.pack(
        "<Q" if wide else "<I", at + (text if wide else 0)
    )
    units, files = struct.pack("<I", 0), file.encode() + b"\0"
    parts = [bytes(names), units, files, bytes(steps), index + bytes(described)]
    offsets, where = [], head
    for part in parts:
        offsets.append(where)
        where += len(part)
    counts = (len(functions), 1) if wide else (len(functions), 1, text)
    return (
        struct.pack("<IBBBB", magic, 0, 0, 1, 8)
        + struct.pack(f"<{len(counts) + 5}Q", *counts, *offsets)
        + b"".join(parts)
        + bytes(8)
    )


STEPS = st.lists(
    st.tuples(st.integers(1, 300), st.integers(0, 1 << 16).map(lambda n: 8 * n)), min_size=1, max_size=8
)
NAMES = st.from_regex(r"[a-z]{1,9}\.\(?\*?[A-Za-zäß]{1,30}\)?(\.func1)?", fullmatch=True)


@st.composite
def any_function(draw: st.DrawFn) -> Function:
    depths = draw(STEPS)
    size = sum(distance for distance, _ in depths)
    return Function(
        draw(NAMES),
        size,
        depths,
        [(size, draw(st.integers(1, 9999)))],
        flags=draw(st.sampled_from([0, 0, 0, 1, 2])),
    )


@given(st.sampled_from(FORMATS), st.lists(any_function(), min_size=1, max_size=12))
@settings(deadline=None)
def test_what_was_written_is_read(magic: int, functions: list[Function]) -> None:
    known = GoFunctions(pclntab(magic, functions), 0)
    assert len(known.functions) == len(functions)
    at = CODE
    for written, found in zip(functions, known.functions, strict=True):
        assert (found.start, found.end) == (at, at + written.size)
        assert known.at(at) == known.at(at + written.size - 1) == found
        assert known.name(found) == written.name
        assert known.line(found, at) == ("/src/app.go", written.lines[0][1])
        assert known.start_line(found) == (7 if magic == GO_1_20 else written.lines[0][1])
        assert known.is_outermost(found) == bool(written.flags)
        expected, here = [], at
        for distance, depth in written.depths:
            expected.append(PcValue(here, here + distance, depth))
            here += distance
        # two steps of the same value in a row are an end to the format, as a change of 0 is
        if all(a[1] != b[1] for a, b in zip(written.depths, written.depths[1:], strict=False)):
            assert list(known.stack_depths(found)) == expected
        at += written.size
    assert known.at(at) is None and known.at(CODE - 1) is None


@given(st.sampled_from(FORMATS), st.binary(max_size=400), st.data())
@settings(deadline=None, max_examples=300)
def test_damaged_tables_end(magic: int, noise: bytes, data: st.DataObject) -> None:
    whole = bytearray(pclntab(magic, [Function("main.main", 64, [(16, 0), (48, 32)], [(64, 3)])] * 4))
    where = data.draw(st.integers(8, len(whole)))
    whole[where : where + len(noise)] = noise
    check(bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    check(struct.pack("<IBBBB", magic, 0, 0, 1, 8) + noise)


def check(raw: bytes) -> None:
    """All that anybody asks of a table, however damaged it is."""
    try:
        known = GoFunctions(raw, CODE)
    except ValueError:
        return
    for function in known.functions[:50]:
        known.name(function), known.line(function, function.start), known.start_line(function)
        known.is_outermost(function)
        assert sum(1 for _ in known.stack_depths(function)) <= 1 << 16
    try:
        build_table(open_elf(elf_bytes(b"", header=b"", sections=((b".gopclntab", 0, raw),))))
    except Exception as error:
        assert type(error).__name__ in ("UnwindError", "ElfError"), error


def test_no_table_of_a_version_that_we_know() -> None:
    for magic in (0xFFFFFFFB, 0xFFFFFFF2, 0):
        with pytest.raises(ValueError, match="version"):
            GoFunctions(
                pclntab(GO_1_20, []).replace(struct.pack("<I", GO_1_20), struct.pack("<I", magic), 1), 0
            )


def stripped(magic: int = GO_1_20) -> bytes:
    functions = [
        Function("main.main", 0x40, [(0x10, 0), (0x20, 0x58), (0x10, 0)], [(0x20, 12), (0x20, 14)]),
        Function("runtime.goexit.abi0", 0x20, [(0x20, 0)], [(0x20, 99)], flags=TOP_FRAME),
        Function("runtime.mcall", 0x20, [(0x20, 8)], [(0x20, 50)], flags=WRITES_SP),
    ]
    return elf_bytes(b"", header=b"", sections=((b".gopclntab", 0, pclntab(magic, functions)),))


@pytest.mark.parametrize("magic", FORMATS)
def test_stacks_are_unwound_by_it_where_nothing_else_is_there(magic: int) -> None:
    table = build_table(open_elf(stripped(magic)))
    rules = {at: unpack(table.rule(CODE + at)) for at in (0, 0x0F, 0x10, 0x2F, 0x30, 0x40, 0x60, 0x7F)}
    plain, deep, end = Rule(RuleType.RSP, 0, 8), Rule(RuleType.RSP, 0, 0x60), Rule(RuleType.END, 0, 0)
    assert rules == {
        0: plain,
        0x0F: plain,
        0x10: deep,
        0x2F: deep,
        0x30: plain,
        0x40: end,
        0x60: end,
        0x7F: end,
    }
    assert table.rule(CODE + 0x80) == 0


def test_its_names_and_lines_are_those_of_stripped_programs() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(stripped())
        file.flush()
        known = DebugFile(os.dup(file.fileno()), True, None)
        try:
            assert known.resolve([CODE + 0x11, CODE + 0x45, CODE + 0x90]) == [
                [("main.main", "/src/app.go", 12, 7)],
                [("runtime.goexit.abi0", "/src/app.go", 99, 7)],
                [],
            ]
        finally:
            known.close()


def test_other_programs_have_none() -> None:
    with ElfFile.open("/proc/self/exe") as elf:
        assert go_functions(elf) is None
