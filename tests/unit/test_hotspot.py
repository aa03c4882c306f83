# SPDX-License-Identifier: Apache-2.0
"""What is read of JVMs: recordings of real ones (tests/recordings/jvm.py), and whatever else may be in a memory."""

from __future__ import annotations

import json
import os
import random
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.kernel.stacks import INTERRUPTED, MAX_BYTECODES, METHOD, METHOD_BITS, Stack, StackTable
from parprof.languages.front_ends import replayed
from parprof.languages.hotspot.client import Asked, JvmReader
from parprof.languages.hotspot.instance import HotSpotInstance, as_saved, from_saved
from parprof.languages.hotspot.layout import FACTS, PER_HEAP
from parprof.languages.hotspot.memory import JvmMemory, Unreadable
from parprof.languages.hotspot.numbers import CompressedNumbers, JavaLines
from parprof.languages.hotspot.stepping import step
from parprof.languages.hotspot.worker import HotSpotWorker, Jvm
from parprof.model import CallerStep, Frame

RECORDINGS = sorted((Path(__file__).resolve().parents[1] / "recordings").glob("jvm-*.bytes"))
ROOTS = ["Phases.roots", "Phases.java", 19, 18]


class RecordedMemory(JvmMemory):
    """What was read once, and nothing else."""

    def __init__(self, known: Mapping[int, bytes]) -> None:
        super().__init__(-1)
        self.known = dict(known)

    def read(self, address: int, size: int) -> bytes:
        data = self.known.get(address, b"")
        if len(data) < size:
            raise Unreadable(f"{address:#x}")
        return data[:size]


def load(file: Path) -> dict[str, Any]:
    content = json.loads(zlib.decompress(file.read_bytes()))
    content["bytes"] = {int(at, 16): bytes.fromhex(raw) for at, raw in content["bytes"].items()}
    assert isinstance(content, dict)
    return content


RECORDED = {file.stem: load(file) for file in RECORDINGS}


def test_two_versions_are_recorded() -> None:
    assert RECORDED.keys() == {"jvm-17", "jvm-25"}


@pytest.mark.parametrize("name", RECORDED)
def test_functions_of_a_real_jvm(name: str) -> None:
    recorded = RECORDED[name]
    jvm = Jvm(RecordedMemory(recorded["bytes"]), recorded["symbols"])
    facts = jvm.facts()
    assert facts is not None and len(facts["heap"]) == 3 and facts["segment_shift"] == 7
    rows = {what: [list(row) for row in jvm.rows(word)] for what, word in recorded["words"].items()}
    assert rows["interpreted"] == [ROOTS] and [row[:2] for row in rows["compiled"]] == [ROOTS[:2]]
    assert rows["inlined"][0] == ["Phases.lambda$serial$0", "Phases.java", 37, 37]
    assert rows["inlined"][1][0] == "Phases$$Lambda.accept"
    assert rows["interpreter"] == [["Interpreter", "", 0, 0]] and rows["nowhere"] == []
    assert rows["stub"][0][0].startswith("[StubRoutines")


@pytest.mark.parametrize("name", RECORDED)
def test_where_in_a_method_it_is_not_known(name: str) -> None:
    recorded = RECORDED[name]
    jvm = Jvm(RecordedMemory(recorded["bytes"]), recorded["symbols"])
    assert jvm.facts()
    word = recorded["words"]["interpreted"] | MAX_BYTECODES << METHOD_BITS
    assert [list(row) for row in jvm.rows(word)] == [["Phases.roots", "Phases.java", 18, 18]]


@pytest.mark.parametrize("name", RECORDED)
def test_a_jvm_that_has_not_begun(name: str) -> None:
    """Its library is mapped, and has not run: what it says of itself is not there, later the heaps are not."""
    recorded = RECORDED[name]
    memory = RecordedMemory({})
    jvm = Jvm(memory, recorded["symbols"])
    assert jvm.facts() is None and jvm.rows(recorded["words"]["compiled"]) == []
    memory.known = {address: bytes(len(raw)) for address, raw in recorded["bytes"].items()}
    assert jvm.facts() is None
    memory.known = recorded["bytes"]
    assert jvm.facts() is not None and jvm.rows(recorded["words"]["compiled"])


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("seed", range(24))
def test_a_memory_that_is_full_of_lies(name: str, seed: int) -> None:
    """Whatever the bytes are, there is an end, and nothing but rows."""
    recorded, chance = RECORDED[name], random.Random(seed)
    memory = RecordedMemory(recorded["bytes"])
    jvm = Jvm(memory, recorded["symbols"])
    if seed % 2:
        assert jvm.facts()
    lies = chance.sample(sorted(memory.known), len(memory.known) // (4 if seed % 2 else 400))
    for address in lies:
        raw = bytearray(memory.known[address])
        for _ in range(1 + len(raw) // 8):
            raw[chance.randrange(len(raw))] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
        memory.known[address] = bytes(raw)
    begun = time.process_time()
    jvm.facts()
    for word in recorded["words"].values():
        for at in range(-8, 9):
            for name_of, file, line, first in jvm.rows(max(word + at, 0)):
                assert name_of.isprintable() and file.isprintable() and line >= 0 and first >= 0
    assert time.process_time() - begun < 5


@given(st.binary(max_size=4096), st.booleans(), st.integers(-4, 5000))
def test_numbers_of_any_bytes(data: bytes, without_zero: bool, at: int) -> None:
    numbers = CompressedNumbers(data, without_zero=without_zero, at=at)
    with pytest.raises(Unreadable):
        for _ in range(len(data) + 2):
            assert 0 <= numbers.next() < 1 << 32


def encoded(value: int, *, without_zero: bool) -> bytes:
    """As HotSpot's UNSIGNED5 has it."""
    least = 1 if without_zero else 0
    low = 192 - least
    out = bytearray()
    for _ in range(4):
        if value < low:
            break
        value -= low
        out.append(low + least + value % 64)
        value //= 64
    out.append(value + least)
    return bytes(out)


@given(st.lists(st.integers(0, (1 << 32) - 1), max_size=20), st.booleans())
def test_numbers_come_back(values: Sequence[int], without_zero: bool) -> None:
    data = b"".join(encoded(value, without_zero=without_zero) for value in values)
    numbers = CompressedNumbers(data, without_zero=without_zero)
    assert [numbers.next() for _ in values] == list(values)


@given(st.binary(max_size=2048), st.booleans(), st.integers(-1, 1 << 16))
def test_lines_of_any_bytes(data: bytes, without_zero: bool, place: int) -> None:
    assert 0 <= JavaLines(data, without_zero=without_zero).line(place) < 1 << 31


def test_lines() -> None:
    """Three entries: two short ones, then one that is far away and before the others."""
    far = b"\xff" + encoded(2 * 40, without_zero=True) + encoded(2 * 6 - 1, without_zero=True)
    lines = JavaLines(bytes((0 << 3 | 7, 5 << 3 | 2)) + far + b"\0", without_zero=True)
    assert [lines.line(place) for place in (-1, 0, 4, 5, 44, 45, 1000)] == [0, 7, 7, 9, 9, 3, 3]
    assert lines.first == 3


@pytest.fixture
def memory_file(tmp_path: Path) -> Iterator[int]:
    """A file that stands for a process's memory, with two pages of it."""
    file = tmp_path / "mem"
    file.write_bytes(bytes(4096) + bytes(range(256)) * 16 + b"text\0" * 819 + b"x")
    fd = os.open(file, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_memory(memory_file: int) -> None:
    memory = JvmMemory(memory_file)
    assert memory.read(4096 + 254, 4) == bytes((254, 255, 0, 1))
    assert memory.number(4096 + 1, 2) == 0x0201 and memory.number(4096 + 255, 1, signed=True) == -1
    assert memory.read(8190, 4) == b"\xfe\xffte" and memory.text(8192) == "text"
    for address, size in (
        (0, 1),
        (12288, 1),
        (1 << 47, 8),
        (-8, 8),
        (4096, 1 << 21),
        (4096, -1),
        (1 << 80, 8),
    ):
        with pytest.raises(Unreadable):
            memory.read(address, size)


class Answers(JvmReader):
    """Stands for the child: answers here, or fails."""

    def __init__(self, worker: HotSpotWorker | None, nonsense: object = None) -> None:
        super().__init__()
        self.nonsense = nonsense
        self.worker = worker
        self.asked: list[list[int]] = []

    def prepare(self) -> None:
        pass

    def ask(self, request: dict[str, Any], fds: Sequence[int], deadline: float) -> dict[str, Any]:
        self.asked.append(request["words"])
        if self.worker is None:
            return {"facts": self.nonsense, "rows": self.nonsense}
        answer = json.loads(json.dumps(self.worker.answer(request, list(fds))))
        assert isinstance(answer, dict)
        return answer


def instance(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[HotSpotInstance, Answers]:
    recorded = RECORDED[name]
    monkeypatch.setattr(
        "parprof.languages.hotspot.worker.JvmMemory", lambda fd: RecordedMemory(recorded["bytes"])
    )
    reader = Answers(HotSpotWorker())
    return HotSpotInstance(os.getpid(), recorded["symbols"], reader), reader


@pytest.mark.parametrize("name", RECORDED)
def test_names_get_into_stacks_and_stay(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    words = RECORDED[name]["words"]
    java, reader = instance(monkeypatch, name)
    assert java.due_s < 1e18
    facts = java.kernel_facts()
    assert facts["heap"] and java.due_s == float("inf")
    assert java.has_code(words["compiled"]) and not java.has_code(words["nowhere"])
    native = (words["compiled"], 0x401000, words["inlined"], words["interpreted"] | INTERRUPTED)
    java.resolve_words([(7, native), (8, native[:2])])
    assert sorted(reader.asked[-1]) == sorted((words["compiled"], words["inlined"], words["interpreted"]))
    count = len(reader.asked)
    java.resolve_words([(9, native)])
    assert len(reader.asked) == count  # nothing is asked again so soon
    frames = tuple((word & ~INTERRUPTED, at > 0) for at, word in enumerate(native))
    rows = [(at, is_return, (Frame("native", module="c"),)) for at, is_return in frames]
    merge = java.merge(7, Stack(frames, "complete"))
    assert merge is not None
    path, whole = merge(rows, True)
    assert whole and [frame.name for frame in path[:3]] == [
        "Phases.roots",
        "native",
        "Phases.lambda$serial$0",
    ]
    assert path[2].inlined and path[3].name == "Phases$$Lambda.accept" and path[-1].line == 19
    java.close()
    java.resolve_words([(10, native)])  # it has ended: what is known of it is
    assert java.merge(10, Stack(frames, "complete")) is not None
    saved = java.saved({7: Stack(frames, "complete"), 8: Stack(frames[:2], "complete"), 99: Stack()})
    again = replayed(saved).merge(7, Stack(frames, "complete"))
    assert saved.stacks.keys() == {7, 8} and again is not None and again(rows, True) == (path, True)


def test_what_came_before_the_jvm_was_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody wrote down whose frames the interpreter's are, but that they are its is known."""
    words = RECORDED["jvm-17"]["words"]
    java, _ = instance(monkeypatch, "jvm-17")
    assert java.merge(7, Stack(((words["interpreter"], True),), "complete")) is None
    java.kernel_facts()
    merge = java.merge(7, Stack(((words["interpreter"], True), (0x401000, True)), "complete"))
    assert merge is not None
    path, _ = merge([(0, True, (Frame("[anon]"),)), (1, True, (Frame("f"),))], True)
    assert [frame.name for frame in path] == ["Interpreter", "f"]
    java.close()


def test_what_is_saved_of_stacks_that_nobody_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of stacks that came before the JVM was known and differ in addresses that have no names one is asked about.

    Who reads the file may ask about another one.
    """
    words = RECORDED["jvm-17"]["words"]
    java, _ = instance(monkeypatch, "jvm-17")
    java.kernel_facts()
    saved = java.saved({7: Stack(((words["interpreter"], True), (0x401000, True)), "complete")})
    java.close()
    merge = replayed(saved).merge(7, Stack())
    assert merge is not None
    path, _ = merge([(0, True, (Frame("[anon]"),)), (1, True, (Frame("f"),))], True)
    assert [frame.name for frame in path] == ["Interpreter", "f"]


@pytest.mark.parametrize(
    "nonsense",
    [
        None,
        7,
        [],
        [[["f", "F.java", "x", 1]]],
        [7],
        {"heap": 1},
        dict.fromkeys(FACTS, 1),
        {**dict.fromkeys(FACTS, 1), **dict.fromkeys(PER_HEAP, [1, 2])},
        {**dict.fromkeys(FACTS, -1), **dict.fromkeys(PER_HEAP, [1, 2, 3])},
    ],
)
def test_a_child_that_says_nonsense(nonsense: object) -> None:
    asked = Asked(Answers(None, nonsense), "1", {}, 0)
    assert asked.facts() == {} and asked.rows([1, 2]) == [[], []]


FRAMES = st.lists(st.lists(st.sampled_from([Frame("f"), Frame("g", "G.java", 3, 1)]), max_size=3), max_size=6)


@given(FRAMES)
def test_saved_frames_come_back(found: list[list[Frame]]) -> None:
    frames = tuple(map(tuple, found))
    assert from_saved(as_saved(frames)) == frames


def test_stacks_of_a_jvm_are_told_from_others() -> None:
    stacks = StackTable()
    head = (1).to_bytes(4, "little") + (1).to_bytes(2, "little") + bytes(2)
    word = (METHOD | 5).to_bytes(8, "little")
    for digest, image in ((70, 3), (71, 0)):
        rest = digest.to_bytes(8, "little") + image.to_bytes(4, "little") + bytes(12)
        stacks.add([head + rest + word])
    assert stacks.take_own() == [(3, 70, (METHOD | 5,))] and stacks.take_own() == []
    raw, other = stacks.raw(70), stacks.raw(71)
    assert raw is not None and raw.is_own and other is not None and not other.is_own


HEAP, SEGMENTS, INTERPRETER, METHOD_AT, CONST = 0x10000, 0x90000, 0x18000, 0x70008, 0x71000
FACTS_OF_STEPS: dict[str, int | tuple[int, ...]] = {
    "heap": (HEAP, 0, 0),
    "heap_size": (0x10000, 0, 0),
    "segments": (SEGMENTS, 0, 0),
    "interpreter": INTERPRETER,
    "interpreter_size": 0x1000,
    "segment_shift": 7,
    "frame_words": 44,
    "const_method": 8,
    "bytecodes": 48,
}
SP, RBP = 0x50000, 0x50100


def stepped(pc: int, rbp: int | None, words: Mapping[int, int]) -> CallerStep | None:
    def read_word(address: int) -> int:
        if address not in words:
            raise OSError(14, f"{address:#x}")
        return words[address]

    return step(FACTS_OF_STEPS, pc, SP, rbp, read_word)


def test_a_step_from_compiled_code() -> None:
    """A block of 300 segments: the last ones lead back in two hops."""
    block = HEAP + (10 << 7)
    words = {
        SEGMENTS + 0x50: 0x46,
        SEGMENTS + 10: 0x3F00,
        block + 44: 0xFFFF_0000_0006,
        SP + 40: 0x1234,
        SP + 32: RBP,
    }
    assert stepped(HEAP + (0x50 << 7) + 9, None, words) == CallerStep(
        HEAP + (0x50 << 7) + 9, 0x1234, SP + 48, RBP
    )
    assert stepped(0xF000, None, {}) is None
    with pytest.raises(OSError):
        stepped(HEAP + 9, None, {})


@pytest.mark.parametrize("back", [0xFF, 3])
def test_a_step_from_no_block(back: int) -> None:
    words = {SEGMENTS + at: back for at in range(16)} | {RBP: 7, RBP + 8: 0x1234}
    assert stepped(HEAP + (2 << 7) + 1, None, words) is None
    assert stepped(HEAP + (2 << 7) + 1, RBP, words) == CallerStep(HEAP + (2 << 7) + 1, 0x1234, RBP + 16, 7)


@pytest.mark.parametrize(
    ("bytecode", "sender", "place", "sp"),
    [
        (CONST + 48 + 17, RBP + 64, 17, RBP + 64),
        (CONST, RBP + 17, MAX_BYTECODES, RBP + 16),
        (0, 0, MAX_BYTECODES, RBP + 16),
    ],
)
def test_a_step_from_the_interpreter(bytecode: int, sender: int, place: int, sp: int) -> None:
    frame = {RBP - 64: bytecode, RBP - 24: METHOD_AT, RBP - 8: sender, RBP: 7, RBP + 8: 0x1234}
    words = frame | {METHOD_AT + 8: CONST}
    word = INTERRUPTED | METHOD | place << METHOD_BITS | METHOD_AT
    assert stepped(INTERPRETER + 3, RBP, words) == CallerStep(word, 0x1234, sp, 7)
    assert stepped(INTERPRETER + 3, None, words) is None and stepped(INTERPRETER + 3, SP - 8, words) is None
    no_method = stepped(INTERPRETER + 3, RBP, frame | {RBP - 24: METHOD_AT + 1})
    assert no_method is not None and no_method.word == INTERPRETER + 3


def test_threads_that_serve_java(monkeypatch: pytest.MonkeyPatch) -> None:
    words = RECORDED["jvm-17"]["words"]
    java, _ = instance(monkeypatch, "jvm-17")
    java.kernel_facts()
    java.resolve_words([(1, [words["stub"], 0x401000]), (2, [words["stub"], words["compiled"]])])
    assert java.is_servant(1) and not java.is_servant(2) and not java.awaits_end(2)
    java.close()
