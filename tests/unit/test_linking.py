# SPDX-License-Identifier: Apache-2.0
"""Functions behind programs: calls that lead where they should, and types as the kernel reads them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.kernel import linking
from parprof.kernel.linking import FIRST_NUMBER, defines, function_places, function_types, link

NAMES = ("walk_frame", "move_scope", "ask_memory")
EXIT = struct.pack("<BBhi", 0x95, 0, 0, 0)


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking, "SHARED_FUNCTIONS", {name: "walks" for name in NAMES})


def call(name: str) -> bytes:
    return struct.pack("<BBhi", 0x85, 0, 0, FIRST_NUMBER + NAMES.index(name))


def number(value: int) -> bytes:
    """r0 = value: tells code apart."""
    return struct.pack("<BBhi", 0xB7, 0, 0, value)


def test_a_program_that_calls_nothing_stays_as_it_is() -> None:
    helper = struct.pack("<BBhi", 0x85, 0, 0, 14)
    linked = link("on_sample", {"on_sample": helper + EXIT}, {"on_sample": [(8, "threads")]})
    assert linked.code == helper + EXIT
    assert linked.relocations == [(8, "threads")] and linked.functions == [("on_sample", 0)]


def test_what_is_called_stands_behind_the_program_once() -> None:
    codes = {
        "on_sample": call("move_scope") + number(1) + call("walk_frame") + call("move_scope") + EXIT,
        "move_scope": number(2) + EXIT,
        "walk_frame": call("ask_memory") + EXIT,
        "ask_memory": number(3) + EXIT,
    }
    relocations: dict[str, list[tuple[int, str]]] = {name: [] for name in codes}
    relocations["ask_memory"] = [(0, "configs")]
    linked = link("on_sample", codes, relocations)
    assert linked.functions == [("on_sample", 0), ("move_scope", 5), ("walk_frame", 7), ("ask_memory", 9)]
    assert linked.relocations == [(8 * 9, "configs")]
    assert {at: target for at, target in calls(linked.code)} == {0: 5, 2: 7, 3: 5, 7: 9}
    assert len(linked.code) == 8 * 11


def calls(code: bytes) -> Iterator[tuple[int, int]]:
    """Instructions that call a function of the program's own, and where that begins."""
    for at in range(len(code) // 8):
        opcode, registers, _, distance = struct.unpack_from("<BBhi", code, 8 * at)
        if opcode == 0x85 and registers >> 4 == 1:
            yield at, at + 1 + distance


@given(st.lists(st.lists(st.sampled_from(NAMES), max_size=4), min_size=4, max_size=4))
def test_each_call_leads_to_the_function_that_it_names(called: list[list[str]]) -> None:
    """Recursion too, which is for the verifier to refuse."""
    names = ["on_sample", *NAMES]
    codes = {name: number(at) + b"".join(map(call, called[at])) + EXIT for at, name in enumerate(names)}
    linked = link("on_sample", codes, {name: [] for name in names})
    starts = {start: name for name, start in linked.functions}
    for name, start in linked.functions:
        end = start + len(codes[name]) // 8
        assert linked.code[8 * start : 8 * start + 8] == number(names.index(name))
        found = [starts[target] for at, target in calls(linked.code) if start <= at < end]
        assert found == called[names.index(name)]


def read_types(btf: bytes) -> tuple[list[tuple[str, int, int, int, tuple[int, ...]]], bytes]:
    """The types of BTF, from number 1 on: name, kind, vlen, size or type, and what follows."""
    magic, version, _, header, type_at, type_bytes, text_at, text_bytes = struct.unpack_from("<HBBIIIII", btf)
    assert (magic, version, header, type_at) == (0xEB9F, 1, 24, 0)
    text = btf[header + text_at : header + text_at + text_bytes]
    assert len(btf) == header + text_at + text_bytes and text[:1] == text[-1:] == b"\0"
    out, at = [], header
    words = {1: 1, 2: 0, 4: 0, 12: 0, 13: 2}
    while at < header + type_bytes:
        name, info, size = struct.unpack_from("<III", btf, at)
        kind, vlen = info >> 24, info & 0xFFFF
        more = struct.unpack_from(f"<{words[kind]}I", btf, at + 12)
        out.append((text[name : text.index(b"\0", name)].decode(), kind, vlen, size, more))
        at += 12 + 4 * words[kind]
    return out, text


def test_the_kernel_is_told_what_each_function_is_given() -> None:
    types, _ = read_types(function_types(["on_sample", "walk_frame", "move_scope"], {"walks": 4711}))
    places = struct.unpack("<6I", function_places([("on_sample", 0), ("walk_frame", 9), ("move_scope", 30)]))
    assert places[::2] == (0, 9, 30)
    for name, number_of in zip(("on_sample", "walk_frame", "move_scope"), places[1::2], strict=True):
        found, kind, linkage, prototype, _ = types[number_of - 1]
        assert (found, kind, linkage) == (name, 12, 1), "a global function"
        _, kind, parameters, returned, (_, given) = types[prototype - 1]
        assert (kind, parameters) == (13, 1) and types[returned - 1][:2] == ("u64", 1)
        if name == "on_sample":
            assert given == returned
        else:
            assert types[given - 1][1] == 2, "a pointer"
            assert types[types[given - 1][3] - 1][:4] == ("walks", 4, 0, 4711)


def test_the_compiler_knows_the_numbers() -> None:
    assert defines()[1] == f"-DSHARED_move_scope={FIRST_NUMBER + 1:#x}"
