"""Stacks as the kernel sends them."""

from __future__ import annotations

import struct

from parprof.kernel.stacks import STACK_ENDS, StackTable


def record(end: int, *words: int, digest: int = 7) -> bytes:
    return struct.pack("<IHHQIHHHxxxxxx", 1, len(words), end, digest, 1, 0, 0, 0) + struct.pack(
        f"<{len(words)}Q", *words
    )


def test_only_return_addresses_are_marked_as_such() -> None:
    table = StackTable()
    table.add([record(0, 0x1000, 0x2000, 0x3000 | 1 << 63, 0x4000)])
    stack = table.get(7)
    assert stack.frames == ((0x1000, False), (0x2000, True), (0x3000, False), (0x4000, True))
    assert stack.end == "complete"


def test_kernel_addresses_keep_their_highest_bit() -> None:
    table = StackTable()
    table.add([record(len(STACK_ENDS), 0xFFFFFFFF81000000, 0xFFFFFFFF81000100)])
    stack = table.get(7)
    assert stack.frames == ((0xFFFFFFFF81000000, False), (0xFFFFFFFF81000100, True))
    assert stack.end == ""


def test_a_stack_that_never_came_is_empty() -> None:
    assert StackTable().get(7).frames == ()
