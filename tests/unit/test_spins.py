"""Which loops only wait for other threads is told from their machine code; what is found is asked once and kept."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiled import compile_once
from parprof.files.dso import Dso
from parprof.files.dso_cache import DsoCache
from parprof.files.elf import ElfFile
from parprof.kernel.stacks import RawStack, StackTable
from parprof.loops.machinecode import read_code
from parprof.loops.nest import find_loops
from parprof.loops.spins import spin_loops
from parprof.model import Count, SampleKey, ThreadState
from parprof.probes import plan, spin_book
from parprof.probes.facts_worker import about_loop_at
from parprof.probes.file_facts import FileFacts, WaitLoop, find_facts, from_json, to_json
from parprof.probes.spin_book import MAX_LOOPS, SpinBook
from parprof.probes.wait_functions import SpinRules
from parprof.process.loadmap import LoadMap
from parprof.session.spins import SpinFinder
from parprof.session.waiting_loops import WaitingLoops

SOURCE = Path(__file__).with_name("spin_loops.c")
WAYS = [
    ("gcc", "-O1"), ("gcc", "-O2"), ("gcc", "-O3", "-mavx2"), ("gcc", "-Os"),
    ("gcc", "-O2", "-fPIC", "-fcf-protection"), ("clang", "-O1"), ("clang", "-O2"), ("clang", "-O3"),
]  # fmt: skip


def elf_of(path: Path) -> ElfFile:
    fd = os.open(path, os.O_RDONLY)
    return ElfFile(lambda offset, size: os.pread(fd, size, offset), os.fstat(fd).st_size, str(path))


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_loops_that_wait_are_told_from_those_that_work(way: tuple[str, ...], tmp_path: Path) -> None:
    output = tmp_path / "spin_loops.so"
    compile_once([*way, "-w", "-shared", "-fPIC", "-o", output, SOURCE])
    elf = elf_of(output)
    found = {
        symbol.name: spin_loops(elf, symbol.value, symbol.size)
        for symbol in elf.symbols()
        if symbol.size and symbol.name.startswith(("wait_", "work_"))
    }
    assert len(found) == 51
    assert {name for name, loops in found.items() if loops} == {
        name for name in found if name.startswith("wait_")
    }
    between = next(symbol for symbol in elf.symbols() if symbol.name == "give_up_after_each")
    code = read_code(elf, between.value, between.size)
    work = [at for at, name in zip(code.addresses, code.mnemonics, strict=True) if name == "sar"]
    given_up = spin_loops(elf, between.value, between.size)
    assert work and not any(start <= at < end for at in work for start, end in given_up)


@pytest.mark.parametrize("way", [way for way in WAYS if way != ("clang", "-O1")], ids=" ".join)
def test_who_looks_at_several_places_until_all_are_free_waits(way: tuple[str, ...], tmp_path: Path) -> None:
    output = tmp_path / "spin_loops.so"
    compile_once([*way, "-w", "-shared", "-fPIC", "-o", output, SOURCE])
    elf = elf_of(output)
    found = {}
    for symbol in (one for one in elf.symbols() if one.size and one.name.startswith("rounds_")):
        loops = find_loops(elf, symbol.value, symbol.size).loops
        outer = set() if symbol.name.startswith("rounds_wait_") else {loop.parent for loop in loops}
        headers = [loop.header for loop in loops if loop.index not in outer]
        spins = spin_loops(elf, symbol.value, symbol.size)
        found[symbol.name] = {any(start <= at < end for start, end in spins) for at in headers}
    assert len(found) == 6
    assert found == {name: {name.startswith("rounds_wait_")} for name in found}


def test_what_lies_behind_a_call_that_does_not_return_is_no_part_of_the_loop_before_it(
    tmp_path: Path,
) -> None:
    output = tmp_path / "spin_loops.so"
    compile_once(["gcc", "-O2", "-w", "-shared", "-fPIC", "-o", output, SOURCE])
    elf = elf_of(output)
    places = {one.name: one for one in elf.symbols() if one.name in ("wait_or_abort", "slow_path")}
    function = places["wait_or_abort"]
    ((start, end),) = spin_loops(elf, function.value, function.size)
    assert (start, end) == (places["slow_path"].value, function.value + function.size)


def test_functions_of_large_libraries_do_not_wait() -> None:
    """Of those of the C library, only locks do: it has thousands that work."""
    libc = elf_of(Path("/lib/x86_64-linux-gnu/libc.so.6"))
    functions = {symbol.value: symbol for symbol in libc.symbols() if 0 < symbol.size < 1 << 16}
    assert len(functions) > 1500
    waiting = {one.name for one in functions.values() if spin_loops(libc, one.value, one.size)}
    assert "pthread_spin_lock" in waiting
    assert {name for name in waiting if "pthread" not in name} == set()


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=1, max_size=200))
def test_any_bytes_are_looked_at(code: bytes) -> None:
    class Elf:
        machine = 62
        symbol_tables = ()

        def lookup(self, names: frozenset[str]) -> dict[str, list[Any]]:
            return {}

        def read(self, vaddr: int, size: int) -> bytes:
            return code[vaddr - 0x1000 : vaddr - 0x1000 + size]

    loops = spin_loops(Elf(), 0x1000, len(code))  # type: ignore[arg-type]
    assert all(0x1000 <= start < end <= 0x1000 + len(code) for start, end in loops)


class Answers:
    """Stands in for `FactsBook`: its child says of every place that it is the same loop."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.asked: list[int] = []

    def ask(self, dso: Dso, request: dict[str, Any]) -> Future[dict[str, Any]]:
        self.asked.append(request["address"])
        future: Future[dict[str, Any]] = Future()
        future.set_result(self.answer)
        return future


@pytest.fixture
def program(tmp_path: Path) -> Dso:
    """A file of our own, mapped nowhere but known: this interpreter's."""
    load_map = LoadMap.read(os.getpid(), None, DsoCache())
    return next(dso for dso in load_map.dsos() if dso.elf is not None and dso.content_name())


def test_a_place_is_asked_about_once_and_the_answer_kept(program: Dso, tmp_path: Path) -> None:
    answers = Answers({"spins": [0x2000, 0x2010], "in": "wait\nhere"})
    book = SpinBook(answers, tmp_path)  # type: ignore[arg-type]
    book.ask(program, 0x2004)
    book.ask(program, 0x2006)
    assert answers.asked == [0x2004]
    assert book.answered() == [program] and book.answered() == []
    assert (0x2000, 0x2010) in book.loops(program)
    again = SpinBook(answers, tmp_path)  # type: ignore[arg-type]
    assert (0x2000, 0x2010) in again.loops(program)
    assert again.found(program) == book.found(program) == {(0x2000, 0x2010): "wait\\x0ahere"}
    again.ask(program, 0x200F)
    assert answers.asked == [0x2004], "it is known"


def test_a_function_without_such_a_loop_is_asked_about_once_for_all_of_it(
    program: Dso, tmp_path: Path
) -> None:
    answers = Answers({"spins": [], "none": [0x2000, 0x2100]})
    book = SpinBook(answers, tmp_path)  # type: ignore[arg-type]
    book.ask(program, 0x2004)
    assert book.answered() == []
    again = SpinBook(answers, tmp_path)  # type: ignore[arg-type]
    for one in (book, again):
        one.ask(program, 0x20F8)
        assert answers.asked == [0x2004]
    again.ask(program, 0x2100)
    assert answers.asked == [0x2004, 0x2100]
    assert again.answered() == []
    again.ask(program, 0x2110)
    assert answers.asked[2:] == [0x2110], "the answer was about another function"


def test_reading_the_clock_is_no_waiting(tmp_path: Path) -> None:
    """Its loop looks like one that waits; the kernel moves the clock on within nanoseconds."""
    answers = Answers({"spins": [0x2000, 0x2010]})
    load_map = LoadMap.read(os.getpid(), None, DsoCache())
    clock = next(dso for dso in load_map.dsos() if dso.name == "[vdso]")
    book = SpinBook(answers, tmp_path)  # type: ignore[arg-type]
    book.ask(clock, 0x2004)
    assert answers.asked == [] and book.answered() == [] and not book.found(clock)


def loops_of(spun: list[int]) -> SimpleNamespace:
    """What a target has of `WaitingLoops`, with the addresses that it was told of."""
    return SimpleNamespace(note=spun.append, asked_about=set())


def test_samples_tell_who_waits_once_a_thread_was_found_in_a_loop() -> None:
    """Such loops are known of many files in which nobody ever waits."""
    made = plan.Plan(spin_ranges=[(0x2000, 0x2010)], spinning=["wait (program)"])
    loops = WaitingLoops(SimpleNamespace(plan=made))  # type: ignore[arg-type]
    loops.note(0x2010)
    assert not loops.are_told_by_samples and loops.remarks() == []
    loops.note(0x2004)
    assert loops.are_told_by_samples and loops.remarks()[0].startswith("loops in wait (program) only look")


def test_a_file_that_was_asked_about_has_a_thread_in_its_loop() -> None:
    """What was asked about is where its threads were found most: no sample has to come there again."""
    learned: list[object] = []
    made = plan.Plan(spinning=["wait (program)"])
    loops = WaitingLoops(SimpleNamespace(plan=made, learn_spins=learned.append))  # type: ignore[arg-type]
    loops.asked_about.add(("file", "asked"))
    loops.learn([("file", "another")], LoadMap(1, {}))
    assert not loops.are_told_by_samples and len(learned) == 1
    loops.learn([("file", "asked")], None)
    assert loops.are_told_by_samples and len(learned) == 1


@pytest.mark.parametrize(
    ("tids", "samples", "asked"), [((1, 2), 4, [0x2004]), ((1,), 99, []), ((1, 2), 2, [])]
)
def test_hot_places_are_asked_about_where_threads_may_wait_for_each_other(
    tids: tuple[int, ...], samples: int, asked: list[int], program: Dso, tmp_path: Path
) -> None:
    answers = Answers({})
    stacks = StackTable()
    stacks.put(7, RawStack(struct.pack("<Q", 0x7000_2004), 0, b"", 0, 0))
    finder = SpinFinder(stacks, SpinBook(answers, tmp_path))  # type: ignore[arg-type]

    class LoadMap:
        def find(self, address: int) -> tuple[Dso, int]:
            return program, address - 0x7000_0000

    target: Any = SimpleNamespace(ended=False, load_map=LoadMap(), loops=loops_of([]))
    facts = {
        SampleKey(1, tid, 0, ThreadState.WORKING, 1, 7, 0): Count(samples if tid == 1 else 1) for tid in tids
    }
    finder.look(facts, {1: target})
    assert answers.asked == asked


@pytest.mark.parametrize(
    ("state", "leaf", "asked"),
    [
        (ThreadState.SPINNING, "sched_yield", [0x200F]),
        (ThreadState.SPINNING, "getpid", []),
        (ThreadState.WORKING, "getpid", ["getpid"]),
    ],
)
def test_it_is_asked_about_who_gives_up_the_cpu(
    state: ThreadState, leaf: str, asked: list[Any], program: Dso, tmp_path: Path
) -> None:
    """The loop around a call of `sched_yield` is hit far less often than that."""
    libc = next(dso for dso in LoadMap.read(os.getpid(), None, DsoCache()).dsos() if dso.name == "libc.so.6")
    assert libc.elf is not None
    function = libc.elf.lookup([leaf])[leaf][0].value
    base = 1 << 40
    answers = Answers({})
    stacks = StackTable()
    stacks.put(7, RawStack(struct.pack("<QQ", base + function, 0x2010), 0, b"", 0, 0))
    finder = SpinFinder(stacks, SpinBook(answers, tmp_path))  # type: ignore[arg-type]

    class LoadMap_:
        def find(self, address: int) -> tuple[Dso, int]:
            return (libc, address - base) if address >= base else (program, address)

    spun: list[int] = []
    target: Any = SimpleNamespace(ended=False, load_map=LoadMap_(), loops=loops_of(spun))
    facts = {SampleKey(1, tid, 0, state, 1, 7, 0): Count(4) for tid in (1, 2)}
    finder.look(facts, {1: target})
    assert set(spun) == ({base + function} if state is ThreadState.SPINNING else set())
    assert answers.asked == [function if one == leaf else one for one in asked]


POOL = """
extern int sched_yield(void); extern void inner_thread(void); volatile int queue;
static void *blas_thread_server(void *nothing)
{ for (;;) { while (!queue) __asm__("nop; nop"); inner_thread(); queue = 0; } return nothing; }
void *first(void) { return blas_thread_server; }
void exec_blas(void) { queue = 1; inner_thread(); while (queue) __asm__("nop"); }
void wait_for_others(void) { while (queue) ; }
"""


@pytest.fixture
def pool_loops(tmp_path: Path) -> tuple[WaitLoop, ...]:
    """Of a library that is called as OpenBLAS is."""
    output = tmp_path / "libscipy_openblas64_-0123abcd.so"
    command = ["gcc", "-O2", "-w", "-shared", "-fPIC", "-x", "c", "-", "-o", str(output)]
    compile_once(command, text=POOL)
    assert find_facts(elf_of(output), "libother.so").pool_loops == ()
    return find_facts(elf_of(output), output.name).pool_loops


def test_where_a_pool_waits_is_known_before_anybody_is_seen_there(
    pool_loops: tuple[WaitLoop, ...], program: Dso, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {one.function for one in pool_loops} == {"blas_thread_server", "exec_blas"}
    facts = FileFacts(pool_loops=pool_loops)
    assert from_json(json.loads(json.dumps(to_json(facts)))) == facts
    load_map = LoadMap.read(os.getpid(), None, DsoCache())
    for module in (plan, spin_book):
        monkeypatch.setattr(module, "file_facts", lambda dso: facts if dso is program else FileFacts())
    book = SpinBook(Answers({}), tmp_path)  # type: ignore[arg-type]
    monkeypatch.setattr(plan, "SPINS", book)
    made = plan.Plan()
    monkeypatch.setattr(load_map, "dsos", lambda: [program])
    plan.plan_spins(made, load_map, SpinRules())
    bias = load_map.bias(program)
    told = {(bias + one.start, bias + one.end) for one in pool_loops}
    assert told == set(made.spin_ranges) and made.spinning == []
    stacks = StackTable()
    stacks.put(7, RawStack(struct.pack("<QQ", pool_loops[0].start, 0x2010), 0, b"", 0, 0))
    finder = SpinFinder(stacks, book)
    target: Any = SimpleNamespace(
        ended=False,
        load_map=SimpleNamespace(find=lambda address: (program, address)),
        loops=loops_of([]),
    )
    spinning = {SampleKey(1, tid, 0, ThreadState.SPINNING, 1, 7, 0): Count(4) for tid in (1, 2)}
    finder.look(spinning, {1: target})
    assert book.answered() == [program]
    plan.plan_spins(made, load_map, SpinRules())
    assert made.spinning == [f"{pool_loops[0].function} ({program.name})"], "now it is told"


def test_who_maps_a_file_is_told_of_the_loops_that_were_found_there(program: Dso) -> None:
    """Or of functions in it that the user says wait: by whom they were named does not matter."""
    told: list[tuple[str, set[Any]]] = []

    def target(name: str, *dsos: Dso) -> Any:
        load_map = SimpleNamespace(dsos=lambda: dsos)
        return SimpleNamespace(load_map=load_map, learn_spins=lambda found: told.append((name, found)))

    other = Dso(("label", "other"), "other", problem="none")
    targets = [target("both", other, program), target("other", other), SimpleNamespace(load_map=None)]
    nothing: Any = SimpleNamespace(answered=list)
    something: Any = SimpleNamespace(answered=lambda: [program])
    for book, named, expected in (
        (nothing, None, []),
        (nothing, nothing, []),
        (something, None, [("both", {program.key})]),
        (nothing, something, [("both", {program.key})]),
    ):
        told.clear()
        SpinFinder(StackTable(), book).tell(targets, named)
        assert told == expected


def test_samples_of_before_are_where_a_loop_was_found_since() -> None:
    stacks = StackTable()
    stacks.put(7, RawStack(struct.pack("<Q", 0x2004), 0, b"", 0, 0))
    made = plan.Plan(spin_ranges=[(0x2000, 0x2010)])
    targets: Any = {1: SimpleNamespace(loops=WaitingLoops(SimpleNamespace(plan=made)))}  # type: ignore[arg-type]
    finder = SpinFinder(stacks)
    key = SampleKey(1, 1, 0, ThreadState.WORKING, 1, 7, 0)
    assert finder.has_found(targets, key)
    assert not finder.has_found(targets, key._replace(image=2)), "of no target"
    assert not finder.has_found(targets, key._replace(user=8)), "without a stack"
    made.spin_ranges.clear()
    assert not finder.has_found(targets, key)


def test_the_address_that_was_hit_is_asked_about(program: Dso, tmp_path: Path) -> None:
    """A loop may be smaller than the blocks that samples are counted by, and begin inside of one."""
    answers = Answers({})
    stacks = StackTable()
    for number, address in enumerate((0x2001, 0x2006, 0x200E)):
        stacks.put(number, RawStack(struct.pack("<Q", address), 0, b"", 0, 0))
    finder = SpinFinder(stacks, SpinBook(answers, tmp_path))  # type: ignore[arg-type]
    load_map = SimpleNamespace(find=lambda address: (program, address))
    target: Any = SimpleNamespace(ended=False, load_map=load_map, loops=loops_of([]))
    facts = {
        SampleKey(1, tid, 0, ThreadState.WORKING, 1, stack, 0): Count(samples)
        for tid, stack, samples in ((1, 0, 1), (1, 1, 3), (2, 1, 3), (2, 2, 2))
    }
    finder.look(facts, {1: target})
    assert answers.asked == [0x2006]


def test_loops_beside_one_that_was_asked_about_need_no_child(program: Dso, tmp_path: Path) -> None:
    """All loops of a function are found at once. Threads are known to wait in those alone in which they were seen."""
    answers = Answers(
        {"spins": [0x2000, 0x2010], "in": "wait", "also": [[0x2040, 0x2048], [0x2050, 0x2060], [3], 7]}
    )
    book = SpinBook(answers, tmp_path)  # type: ignore[arg-type]
    book.ask(program, 0x2004)
    assert book.answered() == [program] and book.found(program) == {(0x2000, 0x2010): "wait"}
    other = SpinBook(Answers({}), tmp_path)  # type: ignore[arg-type]
    assert other.found(program) == book.found(program)
    for kept in (book, other):
        kept.ask(program, 0x2044)
        assert answers.asked == [0x2004]
        assert kept.answered() == [program] and kept.answered() == []
        assert kept.found(program) == {(0x2000, 0x2010): "wait", (0x2040, 0x2048): "wait"}
    again = SpinBook(Answers({}), tmp_path)  # type: ignore[arg-type]
    assert (0x2040, 0x2048) in again.found(program) and (0x2050, 0x2060) not in again.found(program)


@pytest.mark.parametrize("answer", [{}, {"spins": []}, {"spins": [5, 4]}, {"spins": ["a", 1]}, {"spins": 7}])
def test_no_loop_and_nonsense_are_nothing(answer: dict[str, Any], program: Dso, tmp_path: Path) -> None:
    book = SpinBook(Answers(answer), tmp_path)  # type: ignore[arg-type]
    before = book.loops(program)
    book.ask(program, 0x2004)
    assert book.answered() == [] and book.loops(program) == before


@pytest.mark.parametrize(
    "raw", [b"", b"[", b"7", b'[["a", 1], 3, [9, 8]]', b'[[1, 2], [1, 2, "f"], [2, 1, "f", 1]]', b"[" * 5000]
)
def test_a_spoilt_file_in_the_cache_is_nothing(raw: bytes, program: Dso, tmp_path: Path) -> None:
    book = SpinBook(Answers({"spins": [1, 2]}), tmp_path)  # type: ignore[arg-type]
    book.ask(program, 1)
    assert book.answered()
    (kept,) = (tmp_path / "spins").iterdir()
    assert json.loads(kept.read_bytes()) == [[1, 2, "", 1]]
    kept.write_bytes(raw)
    other = SpinBook(Answers({}), tmp_path)  # type: ignore[arg-type]
    assert len(other.loops(program)) <= MAX_LOOPS and (1, 2) not in other.loops(program)


def test_the_child_finds_the_function_around_an_address(tmp_path: Path) -> None:
    output = tmp_path / "spin_loops.so"
    compile_once(["gcc", "-O2", "-w", "-shared", "-fPIC", "-o", output, SOURCE])
    elf = elf_of(output)
    symbol = next(one for one in elf.symbols() if one.name == "wait_flag")
    (loop,) = spin_loops(elf, symbol.value, symbol.size)
    assert about_loop_at(elf, loop[0]) == {"spins": loop, "in": "wait_flag", "also": []}
    assert about_loop_at(elf, 0) == {"spins": [], "none": []}
    plain = next(one for one in elf.symbols() if one.name == "work_sum")
    around = plain.value, plain.value + plain.size
    assert about_loop_at(elf, plain.value + 4) == {"spins": [], "none": around}
    stripped = tmp_path / "stripped.so"
    subprocess.run(["strip", "-s", "-o", str(stripped), str(output)], check=True)
    assert about_loop_at(elf_of(stripped), loop[0])["spins"] == loop
