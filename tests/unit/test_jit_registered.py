# SPDX-License-Identifier: Apache-2.0
"""What JIT compilers tell debuggers of: the list in memory, the objects, their tables, and where these are placed."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.files.dso import ANONYMOUS, Dso
from parprof.files.elf import ElfFile
from parprof.jit import reader as reader_module
from parprof.jit import registered as registered_module
from parprof.jit.objects import ObjectFacts, look_into, made_name
from parprof.jit.reader import NOTHING_MADE, JitReader, MadeCode
from parprof.jit.registered import RegisteredCode
from parprof.jit.registry import MAX_BYTES, MAX_OBJECT_BYTES, MAX_OBJECTS, registered_objects
from parprof.jit.tables import CodeSection, rows_of
from parprof.probes.file_facts import REGISTERS_CODE, find_facts, from_json, to_json
from parprof.process.loadmap import LoadMap, Mapping
from parprof.unwind.placing import Placer
from parprof.unwind.rows import RuleType, pack
from parprof.unwind.table import UnwindTable

SOURCES = Path(__file__).resolve().parents[1] / "workloads/jit"
CODE, FRAMES = 0x7F00_0000_1000, 0x7F00_0000_4000
HEAD = 0x1000


# the list


def memory_of(entries: list[tuple[int, int, int, int]], version: int = 1) -> Callable[[int, int], bytes]:
    """Reads a list of (address of the entry, of the next one, of the object, its size)."""
    raw = {at: struct.pack("<QQQQ", following, 0, where, size) for at, following, where, size in entries}
    raw[HEAD] = struct.pack("<IIQQ", version, 1, 0, entries[0][0] if entries else 0)

    def read(address: int, size: int) -> bytes:
        if len(raw.get(address, b"")) < size:
            raise OSError(14, "not mapped")
        return raw[address][:size]

    return read


def test_the_list_is_followed_to_its_end() -> None:
    found = registered_objects(memory_of([(0x20, 0x30, 0x9000, 64), (0x30, 0, 0x8000, 32)]), HEAD)
    assert found == [(0x9000, 64), (0x8000, 32)]
    assert registered_objects(memory_of([]), HEAD) == []


@pytest.mark.parametrize(
    ("entries", "number"),
    [
        ([(0x20, 0x30, 1, 9), (0x30, 0x20, 2, 9)], 2),  # in a circle
        ([(0x20, 0x40, 1, 9)], 1),  # into nowhere
        ([(0x20, 0x30, 1, MAX_OBJECT_BYTES + 1), (0x30, 0, 2, 9)], 1),
        ([(0x20, 0x30, 1, 0), (0x30, 0, 2, 1 << 63)], 0),
    ],
)
def test_a_list_that_makes_no_sense_ends(entries: list[tuple[int, int, int, int]], number: int) -> None:
    assert len(registered_objects(memory_of(entries), HEAD)) == number


def test_there_are_bounds() -> None:
    long = [(0x10000 + 32 * at, 0x10020 + 32 * at, at, 9) for at in range(MAX_OBJECTS + 9)]
    assert len(registered_objects(memory_of(long), HEAD)) == MAX_OBJECTS
    large = [(0x10000 + 32 * at, 0x10020 + 32 * at, at, MAX_OBJECT_BYTES) for at in range(99)]
    assert len(registered_objects(memory_of(large), HEAD)) == MAX_BYTES // MAX_OBJECT_BYTES
    assert registered_objects(memory_of([(0x20, 0, 1, 9)], version=2), HEAD) == []


# objects


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An object as LLVM registers it: relocatable, with the addresses of its sections."""
    out = tmp_path_factory.mktemp("jit") / "outer.o"
    subprocess.run(["gcc", "-O2", "-c", SOURCES / "outer.c", "-o", out], check=True)
    data = bytearray(out.read_bytes())
    elf = ElfFile.open(str(out))
    text, frames = elf.named_section(b".text"), elf.named_section(b".eh_frame")
    begin, size = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 58)[0]
    for number, section in enumerate(elf.sections):
        for wanted, address in ((text, CODE), (frames, FRAMES)):
            if section == wanted:
                struct.pack_into("<Q", data, begin + number * size + 16, address)
    elf.close()
    return bytes(data)


def test_an_object_says_what_is_where(compiled: bytes) -> None:
    facts = look_into(compiled)
    ((start, size, name),) = facts.functions
    assert (start, name) == (CODE, "made_outer") and 10 < size < 500
    assert facts.code == ((CODE, CODE + size),)
    assert [address for address, _ in facts.frames] == [FRAMES]


def test_what_has_no_place_is_left_out(compiled: bytes) -> None:
    plain = compiled.replace(struct.pack("<Q", CODE), bytes(8))
    assert look_into(plain).functions == () and look_into(plain).code == ()
    beyond = compiled.replace(struct.pack("<Q", CODE), struct.pack("<Q", (1 << 47) - 8))
    assert look_into(beyond).code == ()
    assert look_into(b"") == look_into(b"no object") == ObjectFacts()


@given(st.data())
def test_a_damaged_object_does_no_harm(compiled: bytes, data: st.DataObject) -> None:
    raw = bytearray(compiled)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    facts = look_into(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    for start, size, name in facts.functions:
        assert 0 <= start < start + size <= 1 << 47 and len(name) <= 1 << 14


def test_names_of_python() -> None:
    mangled = (
        "_ZN5numba2np8arrayobj11ol_np_empty12_3clocals_3e4implB2v8B42c8tJTIeFIjxB2IKSgI4CrvQClcaMQ5hEEUSJJgA_3dEx"
        "18class_28float64_29"
    )
    assert made_name(mangled) == "numba.np.arrayobj.ol_np_empty.<locals>.impl"
    assert made_name("_ZN8__main__10nn_descentB3v20B4dZIxEd") == "__main__.nn_descent"
    assert made_name("_ZN3abc3defEi") == "abc::def(int)"


# tables

PUSHED = b"\x53\x48\x83\xec\x10" + b"\x90" * 40 + b"\x48\x83\xc4\x10\x5b\xc3"
"""push rbx; sub $16, rsp; ... add $16, rsp; pop rbx; ret."""


def test_code_without_frames_is_followed() -> None:
    table = UnwindTable(rows_of([], [CodeSection(PUSHED, CODE + 64)], CODE, CODE + 4096))
    assert table.rule(64) == pack(RuleType.RSP, 8)
    assert table.rule(64 + 20) == pack(RuleType.RSP, 32)
    assert table.rule(64 + len(PUSHED) - 1) == pack(RuleType.RSP, 8)
    assert table.rule(0) == table.rule(64 + len(PUSHED) + 1) == 0
    assert rows_of([], [CodeSection(PUSHED, CODE + 5000)], CODE, CODE + 4096) == b""
    assert rows_of([], [CodeSection(PUSHED, CODE)], CODE, CODE + (1 << 33)) == b""


# a process


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    out = tmp_path_factory.mktemp("loads")
    options = ["-O2", "-fomit-frame-pointer", "-fno-pic", "-mcmodel=large", "-fcf-protection=none", "-c"]
    subprocess.run(["gcc", "-O2", "-no-pie", SOURCES / "loads.c", "-o", out / "loads"], check=True)
    subprocess.run(["gcc", *options, SOURCES / "outer.c", "-o", out / "outer.o"], check=True)
    subprocess.run(
        ["gcc", *options, "-fno-asynchronous-unwind-tables", SOURCES / "inner.c", "-o", out / "inner.o"],
        check=True,
    )
    return [str(out / "loads"), "60", str(out / "outer.o"), str(out / "inner.o")]


def test_files_tell_where_their_list_is(program: list[str]) -> None:
    with ElfFile.open(program[0]) as elf:
        facts = find_facts(elf, "loads")
        assert facts.code_list == elf.lookup(["__jit_debug_descriptor"])["__jit_debug_descriptor"][0].value
    assert REGISTERS_CODE in {function.name for function in facts.functions}
    assert from_json(json.loads(json.dumps(to_json(facts)))) == facts


@contextmanager
def running(program: list[str]) -> Iterator[tuple[int, int]]:
    """Its process id, and where its list is."""
    with ElfFile.open(program[0]) as elf:
        head = elf.lookup(["__jit_debug_descriptor"])["__jit_debug_descriptor"][0].value
    with subprocess.Popen(program) as process:
        try:
            yield process.pid, head
        finally:
            process.kill()


def spans_of(pid: int) -> tuple[tuple[int, int], ...]:
    lines = (line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    made = (line[0].split("-") for line in lines if "x" in line[1] and len(line) == 5)
    return tuple((int(start, 16), int(end, 16)) for start, end in made)


def looked_at(reader: JitReader, pid: int, head: int, known: MadeCode = NOTHING_MADE) -> MadeCode:
    return reader.look(pid, [head], spans_of(pid), known).result(30)


def test_what_a_process_has_registered_is_found(program: list[str]) -> None:
    with running(program) as (pid, head), JitReader() as reader:
        end = time.monotonic() + 30
        made = NOTHING_MADE
        while len(made.objects) < 2 and time.monotonic() < end:
            time.sleep(0.05)
            made = looked_at(reader, pid, head, made)
        assert looked_at(reader, pid, head, made) is made, "nothing is new"
        found = {one.name: one for facts in made.objects.values() for one in facts.functions}
        assert found.keys() == {"made_outer", "made_inner"}
        for start, size, name in found.values():
            begin = max(low for low in made.tables if low <= start)
            rules = [made.tables[begin].rule(at - begin) for at in range(start, start + size)]
            assert all(rules), name
    with JitReader() as reader:
        assert looked_at(reader, os.getpid(), 8) is NOTHING_MADE, "there is no list"


def test_one_whose_memory_never_answers_keeps_nobody_waiting(
    program: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process can have whoever reads its memory wait, with userfaultfd; here the reading itself does."""
    plain, hangs, goes_on = reader_module.registered_objects, threading.Event(), threading.Event()

    def registered(read: Any, head: int) -> Any:
        if head == 1:
            hangs.set()
            goes_on.wait(60)
        return plain(read, head)

    monkeypatch.setattr(reader_module, "registered_objects", registered)
    for module in (reader_module, registered_module):
        monkeypatch.setattr(module, "HUNG_SECONDS", 2.0)
    placing, _ = placer()
    with running(program) as (pid, head), JitReader() as reader:
        time.sleep(0.8)  # until there is code
        hung, well = RegisteredCode(os.getpid(), reader, placing), RegisteredCode(pid, reader, placing)
        hung.follow(map_of(os.getpid(), CODE), [1])
        assert hangs.wait(30)
        began = map_of(pid, *(start for start, _ in spans_of(pid)))
        end = time.monotonic() + 30
        while not well._made.objects and time.monotonic() < end:
            well.follow(began, [head])
            hung.follow(map_of(os.getpid(), CODE), [1])
            time.sleep(0.02)
        assert well._made.objects
        assert hung._is_hung and not hung.is_waiting
        goes_on.set()


# in the kernel's store


class StandInStore:
    """Knows what is allocated."""

    def __init__(self) -> None:
        self.pieces: dict[int, int] = {}
        self.next = 1

    def allocate(self, words: int) -> int:
        start, self.next = self.next, self.next + words
        self.pieces[start] = words
        return start

    def write(self, start: int, data: bytes) -> None:
        assert any(
            at <= start and 8 * start + len(data) <= 8 * (at + words) for at, words in self.pieces.items()
        )

    def free(self, start: int, words: int) -> None:
        assert self.pieces.pop(start) == words


def placer() -> tuple[Placer, StandInStore]:
    store = StandInStore()
    kernel: Any = SimpleNamespace(store=store, set_mapping_list=lambda *told: None, file_tables=None)
    builder: Any = SimpleNamespace(
        prefetch=lambda files: None, expected=lambda dso: False, table=lambda dso: None, take_whole=set
    )
    return Placer(kernel, builder), store


def map_of(pid: int, *starts: int) -> LoadMap:
    anonymous = Dso(("label", ANONYMOUS), ANONYMOUS, problem="no file")
    return LoadMap.of_mappings(pid, [Mapping(start, start + 4096, 0, anonymous) for start in starts])


TABLE = UnwindTable(rows_of([], [CodeSection(PUSHED, CODE)], CODE, CODE + 4096))


def test_tables_of_made_code_come_and_go() -> None:
    placing, store = placer()
    first = map_of(7, CODE, FRAMES)
    placing.update(first, wait=False)
    placing.show_made(first, {CODE: TABLE})
    assert len(store.pieces) == 2, "the list and the table"
    placing.show_made(first, {CODE: TABLE, FRAMES: TABLE})
    assert len(store.pieces) == 3, "the first one was made anew"
    placing.inherit(7, 8)
    placing.forget(7)
    assert len(store.pieces) == 3, "the child has them"
    placing.update(map_of(8, CODE), wait=False)
    assert len(store.pieces) == 2, "one of them is not mapped any more"
    placing.update(map_of(8, CODE, FRAMES), wait=False)
    assert len(store.pieces) == 2, "what is mapped there now is something else"
    placing.forget(8)
    assert not store.pieces


def test_a_table_of_what_is_not_mapped_any_more() -> None:
    placing, store = placer()
    placing.show_made(map_of(7, FRAMES), {CODE: TABLE})
    assert len(store.pieces) == 1, "the list"
    placing.forget(7)
    assert not store.pieces


class StandInReader:
    """Answers at once, with what it is told."""

    def __init__(self) -> None:
        self.made = NOTHING_MADE

    def look(self, *asked: object) -> Any:
        return SimpleNamespace(done=lambda: True, result=lambda: self.made)


def test_the_newest_code_has_the_name(compiled: bytes) -> None:
    placing, _ = placer()
    reader: Any = StandInReader()
    code = RegisteredCode(7, reader, placing)
    facts = look_into(compiled)
    ((start, size, _),) = facts.functions
    other = facts._replace(functions=(facts.functions[0]._replace(name="later"),))
    for made, name in (({(1, 9): facts}, "made_outer"), ({(2, 9): other, (1, 9): facts}, "later")):
        reader.made = MadeCode(made)
        code._next_s = 0.0
        code.follow(map_of(7, CODE), [HEAD])
        code.pump()
        assert code.names([start, start + size - 1, start + size, start - 1]) == {
            start: name,
            start + size - 1: name,
        }
    assert code.rule(start) is None
    reader.made = MadeCode({}, ((CODE, CODE + 4096),), {CODE: TABLE})
    code._next_s = 0.0
    code.follow(map_of(7, CODE), [HEAD])
    code.pump()
    assert code.rule(CODE + 20) == pack(RuleType.RSP, 32)
    assert code.rule(CODE - 1) is code.rule(CODE + 4096) is None
    code.close()
    assert code.names([start]) == {start: "later"}
