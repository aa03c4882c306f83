"""Code objects are read from memory that may hold anything."""

from __future__ import annotations

import ctypes
import os
import struct

from hypothesis import given
from hypothesis import strategies as st

from parprof.kernel.stacks import CodeAt
from parprof.languages.cpython.functions import PythonStacks
from parprof.languages.cpython.layouts import DEBUG_OFFSETS_SIZE, LAYOUTS, debug_layout
from parprof.languages.cpython.memory import MAX_TEXT, Memory
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


def resolve(stacks: PythonStacks, digest: int, code: int, lines: int) -> str:
    stacks.resolve([(digest, (CodeAt(code, 0, lines >> 4 & 0xFFFFFFFF, True),))])
    found = stacks.stack(digest)
    assert found is not None and found[0][0] is not None
    return f"{found[0][0].name} {found[0][0].file}:{found[0][0].line}"


def make() -> PythonStacks:
    return PythonStacks(os.getpid(), CPython(LAYOUT, 0, TYPE, (), frozenset(), 0))


def test_a_function_and_another_one_at_its_address() -> None:
    planted, stacks = Planted(), make()
    lines = planted.table(b"\x80\x00")
    address = planted.put(planted.code(planted.text("f"), planted.text("a.py"), lines))
    assert resolve(stacks, 1, address, lines) == "f a.py:7"
    other = planted.table(b"\x80\x00")
    ctypes.memmove(address, planted.code(planted.text("g"), planted.text("b.py"), other, 9), 192)
    assert resolve(stacks, 2, address, other) == "g b.py:9"
    assert stacks.stack(1) != stacks.stack(2), "a stack keeps what it meant"
    assert resolve(stacks, 3, address, lines).startswith("[unknown")
    assert stacks.unresolved == 1


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
        assert resolve(stacks, digest, planted.put(raw), lines).startswith("[unknown")
    assert resolve(stacks, 99, 16, lines).startswith("[unknown")
    assert resolve(stacks, 100, (1 << 63) - 16, lines).startswith("[unknown")


def test_text_is_clipped_and_made_visible() -> None:
    planted, stacks = Planted(), make()
    head = struct.pack("<QQqqI", 1, 0, 1 << 30, -1, 1 << 2 | 1 << 5 | 1 << 6).ljust(48, b"\0")
    long = planted.put(head + b"x" * (MAX_TEXT + 16))
    lines = planted.table(b"")
    address = planted.put(planted.code(planted.text("a\nb"), long, lines))
    shown = resolve(stacks, 1, address, lines)
    assert shown.startswith("a\\x0ab xxx") and len(shown) < MAX_TEXT + 100


@given(st.binary(min_size=80, max_size=200))
def test_any_object_is_survived(raw: bytes) -> None:
    planted = Planted()
    address = planted.put(raw)
    with Memory(os.getpid()) as memory:
        memory.text(address, LAYOUT)
        memory.bytes(address, LAYOUT)


@given(st.binary(min_size=DEBUG_OFFSETS_SIZE, max_size=DEBUG_OFFSETS_SIZE))
def test_debug_offsets_are_not_believed_blindly(raw: bytes) -> None:
    assert debug_layout(LAYOUTS[13], raw) is None
    found = debug_layout(LAYOUTS[13], b"xdebugpy" + struct.pack("<Q", 0x30D00F0) + raw[16:])
    assert found is None or found.frame_size < 128


def test_a_process_that_is_gone() -> None:
    with Memory(1 << 22) as memory:
        assert memory.read(4096, 8) == b""
