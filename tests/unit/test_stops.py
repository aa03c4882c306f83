# SPDX-License-Identifier: Apache-2.0
"""Which programs are stopped at exec, and what the kernel tells of mappings by itself."""

from __future__ import annotations

import os
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.files.dso import Dso
from parprof.kernel.file_tables import FoundMapping
from parprof.kernel.stacks import RECORD_MAPPED, StackTable
from parprof.process.loadmap import LoadMap, Mapping
from parprof.session.stops import Stops
from parprof.unwind.placing import Placer

PROGRAM = 77


class Plain:
    """Stands in for what the kernel is told."""

    def __init__(self) -> None:
        self.programs: set[int] = set()

    def add(self, program: int) -> None:
        self.programs.add(program)

    def remove(self, program: int) -> None:
        self.programs.discard(program)


def ended(**facts: Any) -> Any:
    """A target after its end."""
    known = {
        "program": PROGRAM, "stops": True, "has_started": True, "plan": SimpleNamespace(agents=[]),
        "language": None, "was_trusted": False,
    }  # fmt: skip
    return SimpleNamespace(**(known | facts))


INTERESTING = (
    {"plan": SimpleNamespace(agents=["libgomp"])},
    {"language": object()},
)


def test_a_plain_life_is_enough() -> None:
    plain = Plain()
    Stops(plain).judge(ended())  # type: ignore[arg-type]
    assert plain.programs == {PROGRAM}


@pytest.mark.parametrize("facts", [*INTERESTING, {"has_started": False}, {"stops": False}, {"program": 0}])
def test_what_is_not_trusted(facts: dict[str, Any]) -> None:
    plain = Plain()
    Stops(plain).judge(ended(**facts))  # type: ignore[arg-type]
    assert not plain.programs


def test_the_kernel_is_not_told_what_it_knows() -> None:
    plain = Plain()
    Stops(plain).judge(ended(was_trusted=True))  # type: ignore[arg-type]
    assert not plain.programs


@pytest.mark.parametrize("facts", INTERESTING)
def test_trust_ends(facts: dict[str, Any]) -> None:
    plain = Plain()
    stops = Stops(plain)  # type: ignore[arg-type]
    stops.judge(ended())
    stops.judge(ended(**facts))
    assert not plain.programs
    stops.judge(ended())
    assert plain.programs  # and may come back


def record(start: int, end: int, offset: int, device: tuple[int, int], inode: int) -> bytes:
    number = device[0] << 20 | device[1]
    return struct.pack("<IIQQQQII", RECORD_MAPPED, 1 << 31, start, end, offset, inode, number, 0)


def test_found_mappings_travel_with_the_stacks() -> None:
    table = StackTable()
    table.add([record(0x7F0000001000, 0x7F0000002000, 0x1000, (254, 3), 338944)])
    found = FoundMapping(1 << 31, 0x7F0000001000, 0x7F0000002000, 0x1000, os.makedev(254, 3), 338944)
    assert table.take_mappings() == [found]
    assert table.take_mappings() == []


@pytest.mark.parametrize(
    ("names", "path"),
    [
        ([b"libz.so", b"lib", b"usr", b"/", b"/"], b"/usr/lib/libz.so"),
        ([b"a", b"/"] + [b"/"] * 14, b"/a"),
        ([b"memfd:x"] * 16, b""),  # in no file system that one could look into
        ([b"x" * 63, b"/"], b""),  # cut off
        ([b"x" * 62, b"/"], b"/" + b"x" * 62),
        ([b"f"] + [b"d"] * 15, b""),  # deeper than the record
        ([b"", b"/"], b""),
        ([b"../../etc", b"/"], b""),
    ],
)
def test_found_files_say_where_they_are(names: list[bytes], path: bytes) -> None:
    raw = record(0x1000, 0x2000, 0, (254, 3), 7) + b"".join(name.ljust(64, b"\0") for name in names)
    assert FoundMapping.parse(raw).path == path


def file(name: str) -> Dso:
    return Dso(("file", 1, hash(name), 0, 0), f"/{name}", problem="not there")


@given(st.permutations(range(8)))
def test_a_load_map_grows(order: list[int]) -> None:
    grown = LoadMap(1, {})
    for index in order:
        grown = LoadMap.of_mappings(1, [Mapping(index * 100, index * 100 + 50, 0, file(str(index)))]).keeping(
            grown
        )
    assert [mapping.start for mapping in grown.mappings] == [index * 100 for index in range(8)]
    assert grown.keeping(LoadMap.of_mappings(1, [Mapping(110, 120, 0, file("other"))])) is grown
    assert grown.of(2).pid == 2 and grown.of(2).mappings == grown.mappings
    assert grown.find(149) is not None and grown.find(150) is None


class Kernel:
    """Stands in for the maps of the unwinder."""

    def __init__(self) -> None:
        self.lists: dict[int, tuple[int, int]] = {}
        self.freed: list[int] = []
        self.store = SimpleNamespace(
            allocate=self.allocate, write=lambda *_: None, free=lambda i, _: self.freed.append(i)
        )
        self.next = 0

    def allocate(self, words: int) -> int:
        self.next += words
        return self.next - words

    def set_mapping_list(self, pid: int, word: int, count: int) -> None:
        if count:
            self.lists[pid] = word, count
        else:
            self.lists.pop(pid, None)


def test_a_forked_process_has_its_parents_load_map_until_both_are_gone() -> None:
    kernel = Kernel()
    builder = SimpleNamespace(
        prefetch=lambda _: None, expected=lambda _: False, table=lambda _: None, take_whole=set
    )
    placer = Placer(kernel, builder)  # type: ignore[arg-type]
    placer.update(LoadMap(1, {b"": Mapping(0x1000, 0x2000, 0, file("a"))}), wait=False)
    placer.inherit(1, 2)
    placer.inherit(3, 4)  # a parent without one
    assert kernel.lists[2] == kernel.lists[1] and 4 not in kernel.lists
    placer.forget(1)
    assert not kernel.freed and 2 in kernel.lists and 1 not in kernel.lists
    placer.update(LoadMap(2, {b"": Mapping(0x1000, 0x3000, 0, file("a"))}), wait=False)
    assert kernel.freed == [0]
    placer.forget(2)
    assert len(kernel.freed) == 2 and not kernel.lists
