"""Code objects are read from memory that may hold anything."""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.kernel.stacks import CodeAt, SentCode
from parprof.languages.cpython.functions import PythonStacks
from parprof.languages.cpython.layouts import DEBUG_OFFSETS_SIZE, LAYOUTS, debug_layout
from parprof.languages.cpython.memory import MAX_TEXT, ImageMemory
from parprof.languages.cpython.process import CPython

LAYOUT = LAYOUTS[11]
TYPE = 0x1234560


class Planted:
    """Objects as CPython 3.11 lays them out, in our own memory."""

    def __init__(self) -> None:
        self.buffers: list[ctypes.Array[ctypes.c_char]] = []

    def put(self, raw: bytes) -> int:
        self.buffers.append(ctypes.create_string_buffer(raw, len(raw)))
        return ctypes.addressof(self.buffers[-1])

    def text(self, text: str) -> int:
        head = struct.pack("<QQqqI", 1, 0, len(text), -1, 1 << 2 | 1 << 5 | 1 << 6).ljust(
            LAYOUT.ascii_size, b"\0"
        )
        return self.put(head + text.encode().ljust(32, b"\0"))

    def table(self, table: bytes) -> int:
        return self.put(struct.pack("<QQqq", 1, 0, len(table), 0) + table.ljust(8, b"\0"))

    def code(self, name: int, file: int, lines: int, first_line: int = 7, kind: int = TYPE) -> bytes:
        raw = bytearray(192)
        struct.pack_into("<Q", raw, 8, kind)
        struct.pack_into("<I", raw, LAYOUT.first_line, first_line)
        for at, value in ((LAYOUT.name, name), (LAYOUT.file, file), (LAYOUT.lines, lines)):
            struct.pack_into("<Q", raw, at, value)
        return bytes(raw)


def resolve(stacks: PythonStacks, digest: int, address: int, code: bytes) -> str:
    stacks.resolve([(digest, (CodeAt(address, 0, tag(code), True),))])
    found = stacks.stack(digest)
    assert found is not None and found[0][0] is not None
    return f"{found[0][0].name} {found[0][0].file}:{found[0][0].line}"


def tag(code: bytes) -> int:
    """Of a code object what frames have of it, as the program in the kernel makes it."""
    lines, file = (struct.unpack_from("<Q", code, at)[0] for at in (LAYOUT.lines, LAYOUT.file))
    return (lines >> 4 ^ (file >> 4) * 0x9E3779B1) & 0xFFFFFFFF


def make() -> PythonStacks:
    return PythonStacks(os.getpid(), CPython(LAYOUT, 0, TYPE, (), frozenset(), 0))


def test_a_function_and_another_one_at_its_address() -> None:
    planted, stacks = Planted(), make()
    lines = planted.table(b"\x80\x00")
    first = planted.code(planted.text("f"), planted.text("a.py"), lines)
    address = planted.put(first)
    assert resolve(stacks, 1, address, first) == "f a.py:7"
    other = planted.code(planted.text("g"), planted.text("b.py"), planted.table(b"\x80\x00"), 9)
    ctypes.memmove(address, other, 192)
    assert resolve(stacks, 2, address, other) == "g b.py:9"
    assert stacks.stack(1) != stacks.stack(2), "a stack keeps what it meant"
    assert resolve(stacks, 3, address, first) == "f a.py:7", "it is known from before"
    never_seen = planted.code(planted.text("h"), planted.text("c.py"), lines)
    assert resolve(stacks, 4, address, never_seen).startswith("[unknown")
    assert stacks.unresolved == 1


def test_stacks_that_are_not_kept_are_resolved_anew() -> None:
    planted, stacks = Planted(), make()
    code = planted.code(planted.text("f"), planted.text("a.py"), planted.table(b"\x80\x00"))
    address = planted.put(code)
    for digest in (1, 2, 3):
        assert resolve(stacks, digest, address, code) == "f a.py:7"
    kept = stacks.stack(2)
    stacks.keep({2})
    assert stacks.stack(1) is None and stacks.stack(3) is None and stacks.stack(2) is kept
    assert resolve(stacks, 1, address, code) == "f a.py:7"


def test_a_module_at_the_address_of_the_one_before_is_told_by_its_file() -> None:
    planted, stacks = Planted(), make()
    name, lines = planted.text("<module>"), planted.table(b"\x80\x00")
    first, second = (planted.code(name, planted.text(file), lines) for file in ("a.py", "b.py"))
    address = planted.put(first)
    assert resolve(stacks, 1, address, first) == "<module> a.py:7"
    ctypes.memmove(address, second, 192)
    assert resolve(stacks, 2, address, second) == "<module> b.py:7"


def sent(address: int, planted: Planted, code: bytes) -> SentCode:
    """What the kernel sends of a function: its objects as they are now."""
    pointers = (struct.unpack_from("<Q", code, at)[0] for at in (LAYOUT.name, LAYOUT.file, LAYOUT.lines))
    objects = (next(b.raw for b in planted.buffers if ctypes.addressof(b) == at) for at in pointers)
    return SentCode(address, code[:160], *objects)


def test_a_function_that_is_gone_before_anybody_looks() -> None:
    planted, stacks = Planted(), make()
    code = planted.code(planted.text("f"), planted.text("a.py"), planted.table(b"\x80\x00"))
    address = 1 << 30
    stacks.take([sent(address, planted, code)])
    assert resolve(stacks, 1, address, code) == "f a.py:7"
    assert resolve(stacks, 2, address, code) == "f a.py:7"
    assert stacks.unresolved == 0


def test_what_was_sent_comes_before_what_is_in_memory_now() -> None:
    planted, stacks = Planted(), make()
    code = planted.code(planted.text("f"), planted.text("a.py"), planted.table(b"\x80\x00"))
    address = planted.put(code)
    now = sent(address, planted, code)
    ctypes.memmove(address, planted.code(planted.text("g"), planted.text("b.py"), 1 << 20), 192)
    stacks.take([now])
    assert resolve(stacks, 1, address, code) == "f a.py:7"


@pytest.mark.parametrize("minor, line", [(9, 0), (10, 0), (11, 0)])
def test_lines_beyond_what_was_sent_are_unknown_unless_they_are_still_there(minor: int, line: int) -> None:
    layout = replace(LAYOUT, minor=minor)
    planted = Planted()
    table = b"\x80\x00" * 40 if minor == 11 else b"\x02\x00" * 40
    code = planted.code(planted.text("f"), planted.text("a.py"), planted.table(table))
    address = planted.put(code)
    whole = sent(address, planted, code)
    cut = whole._replace(lines=whole.lines[: LAYOUT.bytes_text + 8])
    for gone, wanted in ((False, 7), (True, line)):
        stacks = PythonStacks(os.getpid(), CPython(layout, 0, TYPE, (), frozenset(), 0))
        if gone:
            ctypes.memset(address, 0, 192)
        stacks.take([cut])
        stacks.resolve([(1, (CodeAt(address, 0, tag(code), True), CodeAt(address, 30, tag(code), True)))])
        found = stacks.stack(1)
        assert found and [frame.line for frame, _ in found if frame] == [7, wanted]


@given(st.lists(st.binary(max_size=200), min_size=4, max_size=4))
def test_anything_that_is_sent_is_survived(raw: list[bytes]) -> None:
    stacks = make()
    function = SentCode(1 << 30, raw[0].ljust(160, b"\0")[:160], *raw[1:])
    stacks.take([function])
    stacks.resolve([(1, (CodeAt(1 << 30, 0, tag(function.code), True),))])
    assert stacks.stack(1)


def test_what_is_no_code_object() -> None:
    planted, stacks = Planted(), make()
    lines = planted.table(b"")
    text = planted.text("f")
    for digest, raw in enumerate(
        (
            planted.code(text, text, lines, kind=TYPE + 8),
            planted.code(0, text, lines),
            planted.code(text, lines, lines),
            planted.code(1 << 62, text, lines),
        )
    ):
        assert resolve(stacks, digest, planted.put(raw), raw).startswith("[unknown")
    assert resolve(stacks, 99, 16, raw).startswith("[unknown")
    assert resolve(stacks, 100, (1 << 63) - 16, raw).startswith("[unknown")


def test_text_is_clipped_and_made_visible() -> None:
    planted, stacks = Planted(), make()
    head = struct.pack("<QQqqI", 1, 0, 1 << 30, -1, 1 << 2 | 1 << 5 | 1 << 6).ljust(48, b"\0")
    long = planted.put(head + b"x" * (MAX_TEXT + 16))
    lines = planted.table(b"")
    code = planted.code(planted.text("a\nb"), long, lines)
    shown = resolve(stacks, 1, planted.put(code), code)
    assert shown.startswith("a\\x0ab xxx") and len(shown) < MAX_TEXT + 100


@given(st.binary(min_size=80, max_size=200))
def test_any_object_is_survived(raw: bytes) -> None:
    planted = Planted()
    address = planted.put(raw)
    with ImageMemory(os.getpid()) as memory:
        memory.text(address, LAYOUT)
        memory.bytes(address, LAYOUT)


@given(st.binary(min_size=DEBUG_OFFSETS_SIZE, max_size=DEBUG_OFFSETS_SIZE))
def test_debug_offsets_are_not_believed_blindly(raw: bytes) -> None:
    assert debug_layout(LAYOUTS[13], raw) is None
    found = debug_layout(LAYOUTS[13], b"xdebugpy" + struct.pack("<Q", 0x30D00F0) + raw[16:])
    assert found is None or found.frame_size < 128


@given(st.lists(st.integers(0, 200), min_size=71, max_size=71), st.sampled_from([0, 8, 16, 24]))
def test_offsets_beyond_what_is_read_are_not_believed(offsets: list[int], distance: int) -> None:
    """An interpreter may say anything of itself; what it says is used on each of its functions."""
    offsets[36] = offsets[33] + distance  # from the file name to the line table
    raw = b"xdebugpy" + struct.pack("<72Q", 0x30D00F0, *offsets)
    layout = debug_layout(LAYOUTS[13], raw)
    if layout is None:
        return
    stacks = PythonStacks(os.getpid(), CPython(layout, 0, 0, (), frozenset(), 0))
    stacks.take([SentCode(1 << 30, bytes(160), bytes(80), bytes(80), bytes(80))])
    stacks.resolve([(1, (CodeAt(1 << 30, 0, 0, True),))])
    planted = Planted()
    with ImageMemory(os.getpid()) as memory:
        memory.text(planted.put(bytes(600)), layout)
        memory.bytes(planted.put(bytes(600)), layout)


def test_a_process_that_is_gone() -> None:
    with ImageMemory(1 << 22) as memory:
        assert memory.read(4096, 8) == b""
