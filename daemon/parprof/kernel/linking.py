"""Functions that several programs call, put behind the code of each, with what the kernel wants to know of their types.

BCC makes one piece of code of each program, with all functions in it wherever they are called, and the verifier follows
each copy on each way that leads there: most of what a start took. A function in `SHARED_FUNCTIONS` is compiled by
itself. Who calls it calls the number that stands for it, as if it were a helper of the kernel's; here that becomes a
call. BTF tells the kernel that it is a global function: then the verifier looks at it once, whoever calls it, and takes
nothing for granted of what it is given.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from parprof.values import dataclass

SHARED_FUNCTIONS: dict[str, str] = {
    "walk_frame": "walks",
    "jvm_rule": "walks",
    "python_frame": "walks",
    "own_gil": "interpreters",
    "mix_window": "walks",
    "mix_words": "walks",
    "mix_user_words": "walks",
    "go_behind": "walks",
    "compare_frames": "walks",
    "send_function": "walks",
    "maple_child": "maple_scratch",
    "next_closures": "walks",
    "hash_captured": "walks",
    "hash_frames": "walks",
    "move_scope": "layout_thread_change",
    "change_loiterers": "layout_thread_change",
    "cut_dearest": "layout_thread_change",
    "insert_thread": "layout_thread_change",
    "ask_memory": "layout_look",
    "count_workers": "layout_look",
    "look_at_cpu": "layout_look",
    "find_queued": "layout_look",
    "look_beside": "layout_look",
    "end_innermost": "call_threads",
    "end_open_calls": "call_threads",
    "kind_polled": "layout_poll_look",
    "epoll_step": "layout_poll_look",
    "look_at_polled": "layout_poll_look",
    "look_at_epoll": "layout_poll_look",
    "look_at_ring": "layout_poll_look",
}
"""Their names, each with the map of whose values it gets one: a pointer is all that they are given."""
FIRST_NUMBER = 0x7F000000
"""Helpers of the kernel's have numbers of some hundred."""
_CALL, _PSEUDO_CALL = 0x85, 1
_MAGIC, _HEADER_BYTES = 0xEB9F, 24
_INTEGER, _POINTER, _STRUCTURE, _FUNCTION, _PROTOTYPE = 1, 2, 4, 12, 13
_GLOBAL = 1


@dataclass(frozen=True)
class Linked:
    """A program and the functions that it calls."""

    code: bytes
    relocations: list[tuple[int, str]]
    """Byte offsets of the instructions that load a map's descriptor, and the map's name."""
    functions: list[tuple[str, int]]
    """Names, the program's own first, and at which instruction each begins."""


def defines() -> list[str]:
    """The numbers that stand for the functions, for the compiler."""
    return [f"-DSHARED_{name}={FIRST_NUMBER + at:#x}" for at, name in enumerate(SHARED_FUNCTIONS)]


def link(
    name: str, codes: Mapping[str, bytes], relocations: Mapping[str, Sequence[tuple[int, str]]]
) -> Linked:
    """Put behind a program what it calls, and what that calls.

    ``codes``, ``relocations``: of the program and of all shared functions, by name.
    """
    shared = tuple(SHARED_FUNCTIONS)
    starts: dict[str, int] = {}
    code = bytearray()
    loads: list[tuple[int, str]] = []
    calls: list[tuple[int, str]] = []
    wanted = [name]
    for one in wanted:  # which grows meanwhile
        starts[one] = len(code) // 8
        loads += [(len(code) + at, map_name) for at, map_name in relocations[one]]
        for at in range(0, len(codes[one]), 8):
            opcode, _, _, immediate = struct.unpack_from("<BBhi", codes[one], at)
            if opcode == _CALL and 0 <= immediate - FIRST_NUMBER < len(shared):
                called = shared[immediate - FIRST_NUMBER]
                calls.append((len(code) + at, called))
                if called not in wanted:
                    wanted.append(called)
        code += codes[one]
    for at, called in calls:
        distance = starts[called] - at // 8 - 1
        struct.pack_into("<BBhi", code, at, _CALL, _PSEUDO_CALL << 4, 0, distance)
    return Linked(bytes(code), loads, list(starts.items()))


def function_types(names: Sequence[str], sizes: Mapping[str, int]) -> bytes:
    """BTF of a program's functions: of types the least that the kernel asks for.

    ``names``: as in `Linked.functions`. ``sizes``: bytes of each map's values.
    """
    strings = bytearray(b"\0")
    types = bytearray()
    count = 0

    def text(value: str) -> int:
        strings.extend(value.encode() + b"\0")
        return len(strings) - len(value) - 1

    def add(name: int, kind: int, detail: int, size_or_type: int, *more: int) -> int:
        nonlocal count
        types.extend(struct.pack(f"<III{len(more)}I", name, kind << 24 | detail, size_or_type, *more))
        count += 1
        return count

    number = add(text("u64"), _INTEGER, 0, 8, 64)
    argument = text("given")
    for name in names:
        given = number
        if name in SHARED_FUNCTIONS:
            map_name = SHARED_FUNCTIONS[name]
            given = add(0, _POINTER, 0, add(text(map_name), _STRUCTURE, 0, sizes[map_name]))
        add(text(name), _FUNCTION, _GLOBAL, add(0, _PROTOTYPE, 1, number, argument, given))
    header = struct.pack("<HBBIIIII", _MAGIC, 1, 0, _HEADER_BYTES, 0, len(types), len(types), len(strings))
    return header + bytes(types) + bytes(strings)


def function_places(functions: Sequence[tuple[str, int]]) -> bytes:
    """Where which function of `function_types` begins: an array of ``struct bpf_func_info``."""
    out, count = bytearray(), 1
    for name, start in functions:
        count += 4 if name in SHARED_FUNCTIONS else 2
        out += struct.pack("<II", start, count)
    return bytes(out)
