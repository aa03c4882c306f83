# SPDX-License-Identifier: Apache-2.0
"""parprof.loops: graphs against brute force, compiled functions with known loops, hostile code."""

from __future__ import annotations

import itertools
import random
import re
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiled import compile_once
from parprof.files.elf import EM_X86_64, ElfFile
from parprof.loops import machinecode
from parprof.loops.flowgraph import NONE, DepthFirst, dominators, natural_loops, predecessors_in
from parprof.loops.nest import LoopNest, find_loops
from parprof.loops.noreturn import ReturningCalls
from parprof.loops.reducible import components, loops_of

Edges = list[list[int]]
LIBGOMP = Path("/usr/lib/x86_64-linux-gnu/libgomp.so.1")
LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")


@st.composite
def graphs(draw: st.DrawFn) -> Edges:
    """Any graph of up to 12 nodes; multiple edges too."""
    size = draw(st.integers(1, 12))
    return draw(st.lists(st.lists(st.integers(0, size - 1), max_size=3), min_size=size, max_size=size))


def reach(graph: Edges, start: int, without: int = NONE) -> set[int]:
    """Nodes that ``start`` leads to, itself included, on ways that do not touch ``without``."""
    out: set[int] = set()
    pending = [start]
    while pending:
        node = pending.pop()
        if node != without and node not in out:
            out.add(node)
            pending += graph[node]
    return out


def dominates(graph: Edges, above: int, node: int) -> bool:
    return node not in reach(graph, 0, without=above)


def brute_force_loops(graph: Edges) -> dict[int, set[int]]:
    """Header -> nodes, by definition."""
    loops: dict[int, set[int]] = {}
    alive = reach(graph, 0)
    for source, header in {(s, t) for s in alive for t in graph[s]}:
        if dominates(graph, header, source):
            body = {n for n in alive if n != header and source in reach(graph, n, without=header)}
            loops.setdefault(header, {header}).update(body)
    return loops


@given(graphs())
def test_dominators_are_those_of_the_definition(graph: Edges) -> None:
    alive = reach(graph, 0)
    walk = DepthFirst(graph, 0)
    for node, idom in enumerate(dominators(walk, predecessors_in(graph, walk))):
        strict = {d for d in alive if d != node and node in alive and dominates(graph, d, node)}
        assert (idom in strict and all(dominates(graph, d, idom) for d in strict)) if strict else idom == NONE


@given(graphs())
def test_natural_loops_are_those_of_the_definition(graph: Edges) -> None:
    found = natural_loops(graph, 0)
    expected = brute_force_loops(graph)
    bodies: list[set[int]] = [set() for _ in found.headers]
    for node, loop in enumerate(found.innermost):
        while loop != NONE:
            bodies[loop].add(node)
            loop = found.parents[loop]
    assert dict(zip(found.headers, bodies, strict=True)) == expected
    assert all(parent < loop for loop, parent in enumerate(found.parents))
    assert found.reached == [node in reach(graph, 0) for node in range(len(graph))]
    cyclic = any(a in reach(graph, b) for a in reach(graph, 0) for b in graph[a])
    assert bool(found.headers or found.irreducible) == cyclic


@given(graphs())
def test_components_lead_to_each_other(graph: Edges) -> None:
    numbers = components(graph)
    for a, b in itertools.product(range(len(graph)), repeat=2):
        assert (numbers[a] == numbers[b]) == (a in reach(graph, b) and b in reach(graph, a))


@given(graphs(), st.integers(0, 2))
def test_every_cycle_is_in_a_loop_once_side_entries_are_bent(graph: Edges, doubt: int) -> None:
    forest, bent = loops_of(graph, 0, lambda source, target: target == source + doubt)
    natural = natural_loops(graph, 0)
    if not natural.irreducible:
        assert (forest, bent) == (natural, 0)
    assert forest.reached == natural.reached
    if not forest.irreducible:
        for node in reach(graph, 0):
            if any(node in reach(graph, target) for target in graph[node]) and forest.reached[node]:
                assert forest.innermost[node] != NONE
    assert set(natural.headers) <= set(forest.headers) or natural.irreducible


def test_graphs_of_thousands_of_nodes_take_no_recursion_and_little_time() -> None:
    size = 20_000
    chain: Edges = [[node + 1] for node in range(size - 1)] + [[0]]
    to_exit: Edges = [[node + 1, size - 1] for node in range(size - 1)] + [[]]
    nest: Edges = [[node + 1, max(size - 2 - node, 0)] for node in range(size - 1)] + [[]]
    begin = time.process_time()
    assert natural_loops(chain, 0).headers == [0]
    assert natural_loops(to_exit, 0).headers == []
    assert len(natural_loops(nest, 0).headers) == size // 2
    assert time.process_time() - begin < 10


# machine code


class Memory:
    """As much of an ElfFile as code needs, without a file."""

    machine = EM_X86_64
    symbol_tables: tuple[()] = ()

    def __init__(self, code: bytes, base: int = 0x1000) -> None:
        self.code, self.base = code, base

    def read(self, vaddr: int, size: int) -> bytes:
        at = vaddr - self.base
        return self.code[at : at + size] if 0 <= at < len(self.code) else b""

    def code_end(self, vaddr: int) -> int:
        return self.base + len(self.code) if self.read(vaddr, 1) else 0

    def lookup(self, names: object) -> dict[str, object]:
        return {}

    def section_data(self, name: bytes, limit: int) -> bytes:
        return b""


def loops_in(code: bytes) -> LoopNest:
    return find_loops(cast(ElfFile, Memory(code)), 0x1000, len(code))


# name -> (assembly, depth of the loops in the order of their headers)
SNIPPETS: dict[str, tuple[str, list[int]]] = {
    "none": ("test %edi, %edi; je 1f; inc %eax; 1: ret", []),
    "counted": ("1: inc %eax; dec %edi; jne 1b; ret", [0]),
    "loop_instruction": ("mov %edi, %ecx; 1: inc %eax; loop 1b; ret", [0]),
    "forever": ("1: pause; jmp 1b", [0]),
    "two": ("1: dec %edi; jne 1b; 2: dec %esi; jne 2b; ret", [0, 0]),
    "nested": ("1: mov %esi, %ecx; 2: dec %ecx; jne 2b; dec %edi; jne 1b; ret", [0, 1]),
    "two_latches": ("1: dec %edi; je 1b; dec %esi; jne 1b; ret", [0]),
    "rotated": ("jmp 2f; 1: inc %eax; 2: dec %edi; jne 1b; ret", [0]),
    "over_prefix": ("1: cmp $0, %edi; je 2f+1; 2: lock incl (%rsi); dec %edi; jne 1b; ret", [0]),
    "tail_recursion": ("dec %edi; jne tail_recursion; ret", [0]),
    "leaves": ("1: dec %edi; jne other; ret", []),
    "two_entries": ("test %edi, %edi; je 2f; 1: inc %eax; 2: dec %esi; jne 1b; ret", [0]),
    "returns": ("test %edi, %edi; je 3f; 1: cmp $3, %esi; je 2f; ret; 2: call other; 3: inc %esi; jmp 1b", [0]),
    "no_return": ("test %edi, %edi; je 3f; 1: cmp $3, %esi; je 2f; ret; 2: call abort@PLT; 3: inc %esi; jmp 1b", []),
    "no_plt": (
        "test %edi, %edi; je 3f; 1: cmp $3, %esi; je 2f; ret; 2: call *abort@GOTPCREL(%rip); 3: inc %esi; jmp 1b", [],
    ),
    "own_no_return": ("test %edi, %edi; je 3f; 1: cmp $3, %esi; je 2f; ret; 2: call dies; 3: inc %esi; jmp 1b", []),
    "dies": ("push %rax; test %edi, %edi; je 1f; call other; 1: call exit@PLT; ud2", []),
    "other": ("mov %edi, %eax; ret", []),
    "handler": ("test %edi, %edi; je 9f; 9: ret; 1: dec %edi; jne 1b; 2: dec %esi; je 2b; jmp 9b", [0, 0]),
}  # fmt: skip


@pytest.fixture(scope="module")
def snippets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ElfFile]:
    need("gcc")
    pytest.importorskip("capstone", reason="capstone is not installed")
    text = [".text"]
    for name, (code, _) in SNIPPETS.items():
        body = code.replace("; ", "\n")
        text += [f".globl {name}", f".type {name}, @function", f"{name}:", body, f".size {name}, . - {name}"]
    directory = tmp_path_factory.mktemp("snippets")
    (directory / "a.s").write_text("\n".join(text) + '\n.section .note.GNU-stack,"",@progbits\n')
    subprocess.run(["gcc", "-shared", "-Wl,-Bsymbolic", "-o", "a.so", "a.s"], check=True, cwd=directory)
    with ElfFile.open(str(directory / "a.so")) as elf:
        yield elf


@pytest.mark.parametrize("name", SNIPPETS)
def test_loops_of_assembly(snippets: ElfFile, name: str) -> None:
    symbol = snippets.lookup([name])[name][0]
    nest = find_loops(snippets, symbol.value, symbol.size)
    ordered = sorted(nest.loops, key=lambda loop: loop.header)
    assert [loop.depth for loop in ordered] == SNIPPETS[name][1]
    end = symbol.value + symbol.size
    for loop in nest.loops:
        assert nest.chain(loop.header)[-1] == loop
        assert loop.branches
        assert all(loop in nest.chain(branch) for branch in loop.branches)
        assert symbol.value <= loop.header < end
    assert nest.chain(end) == nest.chain(symbol.value - 1) == ()


# what compilers make


def need(program: str) -> None:
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")


SWITCHES = """
int work(int);
int switched(const unsigned char *p, int n) { int s = 0;
  for (int i = 0; i < n; i++)
    switch (p[i]) { case 0: s += work(3); break; case 1: s *= 7; break; case 2: s ^= work(n); break;
      case 3: s -= i; break; case 4: s <<= 2; break; case 5: s += p[s & 3]; break; case 8: return s; default: s--; }
  return s; }
int forward(int n) {
  switch (n) { case 0: n += work(3); break; case 1: n *= 7; break; case 2: n ^= work(n); break;
    case 3: n -= work(9); break; case 4: n <<= 2; break; case 5: n += work(n & 3); break; default: n--; }
  switch (work(n)) { case 0: n += work(4); break; case 1: n *= 9; break; case 2: n ^= work(n); break;
    case 3: n -= work(5); break; case 4: n <<= 1; break; case 5: n += work(n & 7); break; default: n--; }
  return n; }
int interpreter(const unsigned char *p, int s) {
  static const void *const t[] = {&&a,&&b,&&c,&&d};
  goto *t[*p++];
  a: s += work(3); goto *t[*p++];
  b: s *= 3; goto *t[*p++];
  c: s ^= work(s); goto *t[*p++];
  d: return s; }
"""


@pytest.mark.parametrize("pic", ["-fPIC", "-fno-pie"])
@pytest.mark.parametrize("level", ["-O0", "-O1", "-O2", "-O3", "-Os"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_jump_tables(tmp_path: Path, compiler: str, level: str, pic: str) -> None:
    need(compiler)
    pytest.importorskip("capstone", reason="capstone is not installed")
    text = SWITCHES + 'int work(int n) { __asm__(""); return n; }'
    link = ["-shared"] if pic == "-fPIC" else ["-no-pie", "-nostdlib", "-Wl,-e,0"]
    compile_once(
        [compiler, level, pic, *link, "-fno-inline", "-x", "c", "-", "-o", tmp_path / "a"], text=text
    )
    with ElfFile.open(str(tmp_path / "a")) as elf:
        nests = {s.name: find_loops(elf, s.value, s.size) for s in elf.symbols()}
    assert [loop.depth for loop in nests["switched"].loops] == [0]
    inside = sum(bool(nests["switched"].chain(at)) for at in nests["switched"].addresses)
    assert inside > 0.4 * len(nests["switched"].addresses)
    assert not nests["forward"].loops
    if level != "-O0" or (compiler, pic) == ("gcc", "-fno-pie"):
        assert len(nests["interpreter"].loops) == 1


def test_calls_of_methods_and_handlers_do_not_hide_loops(tmp_path: Path) -> None:
    need("g++")
    pytest.importorskip("capstone", reason="capstone is not installed")
    (tmp_path / "a.cc").write_text(
        "int work(int) noexcept(false);\n"
        "struct S { ~S(); int x; };\n"
        "int loop(int n) { int s = 0; for (int i = 0; i < n; i++) {"
        " try { S a; s += work(i); } catch (int e) { s += e; } s ^= i; } return s; }\n"
    )
    for level in ("-O0", "-O2"):
        subprocess.run(["g++", level, "-fPIC", "-shared", "-o", "a.so", "a.cc"], check=True, cwd=tmp_path)
        with ElfFile.open(str(tmp_path / "a.so")) as elf:
            symbol = elf.lookup(["_Z4loopi"])["_Z4loopi"][0]
            nest = find_loops(elf, symbol.value, symbol.size)
        assert [loop.depth for loop in nest.loops] == [0], level


@pytest.mark.parametrize("path", [LIBGOMP, LIBC])
def test_libraries_take_less_than_a_millisecond_a_function(path: Path) -> None:
    pytest.importorskip("capstone", reason="capstone is not installed")
    if not path.exists():
        pytest.skip(f"{path} is not installed")
    with ElfFile.open(str(path)) as elf:
        functions = {s.value: s for s in elf.symbols() if s.size}
        begin = time.process_time()
        calls = ReturningCalls(elf)
        nests = [find_loops(elf, s.value, s.size, calls) for s in functions.values()]
        seconds = time.process_time() - begin
    with_loops = sum(bool(nest.loops) for nest in nests)
    assert with_loops > len(nests) / 20
    assert seconds < 0.003 * len(nests)  # measured: 0.0002


# hostile code


@settings(max_examples=200)
@given(st.binary(min_size=1, max_size=600))
def test_random_bytes_are_harmless(code: bytes) -> None:
    pytest.importorskip("capstone", reason="capstone is not installed")
    begin = time.process_time()
    nest = loops_in(code)
    for at in range(0x1000, 0x1000 + len(code)):
        for inner, outer in itertools.pairwise(reversed(nest.chain(at))):
            assert inner.parent == outer.index
    assert time.process_time() - begin < 2


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.sampled_from([0x70, 0x74, 0x75, 0xEB, 0xE2, 0x90, 0xC3]), st.integers(0, 255)),
        min_size=1,
    )
)
def test_random_jumps_are_harmless(jumps: list[tuple[int, int]]) -> None:
    pytest.importorskip("capstone", reason="capstone is not installed")
    code = b"".join(bytes(jump) if jump[0] not in (0x90, 0xC3) else bytes(jump[:1]) * 2 for jump in jumps)
    begin = time.process_time()
    nest = loops_in(code)
    innermost = dict(nest.instructions())
    for address in nest.addresses:
        chain = nest.chain(address)
        assert (chain[-1].index if chain else NONE) == innermost.get(address, NONE)
    assert time.process_time() - begin < 2


HOSTILE_BYTES = 1 << 18


def ladder(rng: random.Random) -> bytes:
    distances = (rng.randrange(-2000, 2000) * 6 for _ in range(HOSTILE_BYTES // 6))
    return b"".join(b"\x0f\x84" + struct.pack("<i", distance) for distance in distances)


def jumps_through_tables(rng: random.Random) -> bytes:
    base = 0x1000
    table = b"".join(struct.pack("<Q", base + 7 * rng.randrange(1 << 14)) for _ in range(1 << 14))
    jumps = b"".join(
        b"\xff\x24\xc5" + struct.pack("<I", base + (1 << 17) + 8 * rng.randrange(1 << 14))
        for _ in range(18_000)
    )
    return jumps.ljust(1 << 17, b"\x90") + table


HOSTILE: dict[str, Callable[[random.Random], bytes]] = {
    "random": lambda rng: rng.randbytes(HOSTILE_BYTES),
    "short jumps": lambda rng: bytes(b for _ in range(1 << 16) for b in (0x74, rng.randrange(256) & 0xFE)),
    "long jumps": lambda rng: b"".join(
        b"\x0f\x84" + struct.pack("<i", 6 * (rng.randrange(43_000) - i - 1)) for i in range(43_000)
    ),
    "ladder": ladder,
    "one exit": lambda _: b"".join(
        b"\x0f\x84" + struct.pack("<i", HOSTILE_BYTES - 6 * (i + 1) - 4) for i in range(43_000)
    ),
    "deep nest": lambda _: (
        b"\x90" * 30_000 + b"".join(b"\x0f\x84" + struct.pack("<i", -(7 * i + 6 + 1)) for i in range(30_000))
    ),
    "jumps through tables": jumps_through_tables,
    "calls": lambda rng: (
        b"".join(b"\xe8" + struct.pack("<i", 5 * (rng.randrange(50_000) - i - 1)) for i in range(50_000))
        + b"\xeb\x80"
    ),
}
"""Functions of the largest size that is looked at, each bad in its way."""


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_functions_take_bounded_time(kind: str) -> None:
    pytest.importorskip("capstone", reason="capstone is not installed")
    code = HOSTILE[kind](random.Random(8))[:HOSTILE_BYTES]
    begin = time.process_time()
    nest = loops_in(code)
    assert time.process_time() - begin < 8  # measured: at most 1.5
    assert nest.notes or nest.loops or kind in ("one exit", "calls")


def test_functions_that_cannot_be_used_say_why() -> None:
    pytest.importorskip("capstone", reason="capstone is not installed")
    elf = cast(ElfFile, Memory(b"\xc3" * 64))
    for vaddr, size in ((0x1000, 0), (0x1000, 65), (0x1000, 1 << 40), (0, 8), (1 << 63, 8), (0x1000, -1)):
        nest = find_loops(elf, vaddr, size)
        assert not nest.loops and len(nest.notes) == 1
        assert nest.chain(vaddr) == ()
    assert re.search("x86-64", find_loops(_other_machine(), 0x1000, 8).notes[0])


def _other_machine() -> ElfFile:
    elf = Memory(b"\xc3" * 64)
    elf.machine = 183
    return cast(ElfFile, elf)


def test_without_capstone_there_are_no_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machinecode, "disassembler", lambda **_: None)
    nest = loops_in(b"\xeb\xfe")
    assert not nest.loops and "capstone" in nest.notes[0]
