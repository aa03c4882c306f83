# SPDX-License-Identifier: Apache-2.0
"""parprof.probes.cheap_sites on hand-written functions and on the OpenMP libraries of this machine."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parprof.files.disassembler import disassembler
from parprof.files.elf import ElfFile, Symbol
from parprof.probes.cheap_sites import cheap_probe_site, is_emulated, tail_jump_site

LIBGOMP = Path("/usr/lib/x86_64-linux-gnu/libgomp.so.1")
LIBOMP = Path("/usr/lib/x86_64-linux-gnu/libomp.so.5")

# name -> (code with the label "here" at the site, cheap?, arguments intact?); no label: the first instruction
ENTRIES: dict[str, tuple[str, bool, bool]] = {
    "push": ("here: push %rbp; pop %rbp; ret", True, True),
    "push_r12": ("here: push %r12; pop %r12; ret", True, True),
    "cet_push": ("endbr64; here: push %rbx; pop %rbx; ret", True, True),
    "late_push": ("endbr64; mov %rdi, %rax; here: push %rbx; pop %rbx; ret", True, True),
    "clobbering": ("endbr64; mov (%rdi), %edi; here: push %rbx; pop %rbx; ret", True, False),
    "patchable": ("here: nop; sub $8, %rsp; add $8, %rsp; ret", True, True),
    "branch": ("test %rdi, %rdi; here: je 1f; mov $1, %eax; 1: ret", True, True),
    "far_branch": ("test %rdi, %rdi; here: jne push; ret", True, True),
    "tail": ("endbr64; here: jmp push", True, True),
    "calls": ("here: call push; ret", True, True),
    "loop_behind": ("test %edi, %edi; here: je 2f; 1: dec %edi; jne 1b; 2: ret", True, True),
    "leaf": ("mov %edi, %eax; ret", False, True),
    "makes_room": ("sub $8, %rsp; je 1f; 1: add $8, %rsp; ret", False, True),
    "sets_rsp": ("mov %rsi, %rsp; je 1f; 1: ret", False, True),
    "lea_rsp": ("lea -8(%rsp), %rsp; push %rbx; ret", False, True),
    "and_esp": ("and $-16, %esp; push %rbx; ret", False, True),
    "leaves_frame": ("leave; push %rbx; ret", False, True),
    "spins": ("1: pause; cmpl $0, (%rdi); jne 1b; ret", False, True),
    "loops_to_entry": ("dec %edi; test %esi, %esi; je 1f; jmp loops_to_entry; 1: ret", False, True),
    "loops_to_site": ("test %esi, %esi; 1: je 2f; dec %esi; jmp 1b; 2: ret", False, True),
    "indirect_call": ("call *%rax; ret", False, True),
    "switch": ("cmp $3, %edi; ja 1f; jmp *(%rsi,%rdi,8); 1: ret", False, True),
    "got_tail": ("test %edi, %edi; here: je 1f; jmp *far(%rip); 1: ret", True, True),
    "counted": ("mov %edi, %ecx; jrcxz 1f; push %rbx; pop %rbx; 1: ret", False, True),
    "system": ("mov $39, %eax; syscall; push %rbx; pop %rbx; ret", False, True),
    "short_branch": ("test %edi, %edi; .byte 0x66; je 1f; push %rbx; pop %rbx; 1: ret", False, True),
}
# name -> (code with the label "here" at the slow path, is it a stub?)
STUBS: dict[str, tuple[str, bool]] = {
    "lock": (
        "endbr64; xor %eax, %eax; lock cmpxchg %edx, (%rdi); jne 1f; ret; 1: mov %eax, %esi; here: jmp push",
        True,
    ),
    "two_jumps": ("test %edi, %edi; je 1f; jmp push; 1: jmp leaf", False),
    "no_return": ("endbr64; jmp push", False),
    "conditional": ("test %edi, %edi; jne push; ret", False),
    "with_frame": ("push %rbx; pop %rbx; test %edi, %edi; je 1f; jmp push; 1: ret", False),
    "with_call": ("test %edi, %edi; je 1f; call leaf; jmp push; 1: ret", False),
    "through_register": ("test %edi, %edi; je 1f; jmp *%rax; 1: ret", False),
    "inner_jump": ("test %edi, %edi; jmp 1f; nop; 1: je 2f; here: jmp push; 2: ret", True),
    "traps": ("test %edi, %edi; je 1f; here: jmp push; 1: ret; ud2", False),
}


@pytest.fixture(scope="module")
def functions(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[ElfFile, dict[str, Symbol], dict[str, int]]]:
    """The functions above in a shared library, and where their labels are."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    pytest.importorskip("capstone", reason="capstone is not installed")
    text = [".data", "far: .quad 0", ".text"]
    sources = {name: code for table in (ENTRIES, STUBS) for name, (code, *_) in table.items()}
    for name, code in sources.items():
        body = code.replace("here:", f"site_{name}:").replace("; ", "\n")
        text += [
            f".globl {name}",
            f".type {name}, @function",
            f"{name}:",
            body,
            f".size {name}, . - {name}",
            "int3",
        ]
        text += [f".globl site_{name}", f".hidden {name}"] if "here:" in code else [f".hidden {name}"]
    here = tmp_path_factory.mktemp("code")
    (here / "code.s").write_text("\n".join(text) + '\n.section .note.GNU-stack,"",@progbits\n')
    subprocess.run(["gcc", "-shared", "-nostdlib", "code.s", "-o", "code.so"], cwd=here, check=True)
    with ElfFile.open(str(here / "code.so")) as elf:
        sites = {
            name: found[0].value
            for name, found in elf.lookup(f"site_{n}" for n in {**ENTRIES, **STUBS}).items()
        }
        yield elf, {symbol.name: symbol for symbol in elf.symbols()}, sites


@pytest.mark.parametrize("name", ENTRIES)
def test_entry(functions: tuple[ElfFile, dict[str, Symbol], dict[str, int]], name: str) -> None:
    elf, symbols, sites = functions
    _, cheap, intact = ENTRIES[name]
    symbol = symbols[name]
    site = cheap_probe_site(elf, symbol.value, symbol.size)
    assert site.cheap == cheap, site.why
    assert site.vaddr == sites.get(f"site_{name}", symbol.value)
    assert site.arguments_intact == intact
    assert not cheap or is_emulated(elf.read(site.vaddr, 16))


@pytest.mark.parametrize("name", STUBS)
def test_stub(functions: tuple[ElfFile, dict[str, Symbol], dict[str, int]], name: str) -> None:
    elf, symbols, sites = functions
    site = tail_jump_site(elf, symbols[name].value, symbols[name].size)
    assert (site is not None) == STUBS[name][1]
    if site is not None:
        assert site.cheap
        assert site.vaddr == sites[f"site_{name}"]


def test_unknown_size(functions: tuple[ElfFile, dict[str, Symbol], dict[str, int]]) -> None:
    elf, symbols, _ = functions
    assert cheap_probe_site(elf, symbols["cet_push"].value, 0).cheap
    assert not cheap_probe_site(elf, symbols["branch"].value, 0).cheap
    assert tail_jump_site(elf, symbols["lock"].value, 0) is None


def test_damaged_sizes(functions: tuple[ElfFile, dict[str, Symbol], dict[str, int]]) -> None:
    elf, symbols, _ = functions
    for size in (1, 2, 1 << 20, 1 << 63):
        for address in (0, symbols["branch"].value, 1 << 62):
            assert not cheap_probe_site(elf, address, size).cheap
            assert tail_jump_site(elf, address, size) is None


def test_without_capstone(
    functions: tuple[ElfFile, dict[str, Symbol], dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    elf, symbols, sites = functions
    disassembler.cache_clear()
    monkeypatch.setitem(sys.modules, "capstone", None)
    try:
        assert cheap_probe_site(elf, symbols["cet_push"].value, symbols["cet_push"].size).cheap
        site = cheap_probe_site(elf, symbols["branch"].value, symbols["branch"].size)
        assert (site.vaddr, site.cheap) == (symbols["branch"].value, False)
        assert "capstone" in site.why
        assert tail_jump_site(elf, symbols["lock"].value, symbols["lock"].size) is None
    finally:
        disassembler.cache_clear()


def test_random_code_is_no_crash(functions: tuple[ElfFile, dict[str, Symbol], dict[str, int]]) -> None:
    elf, symbols, _ = functions
    chance = random.Random(3)
    symbol = symbols["lock"]
    for _ in range(300):
        code = chance.randbytes(chance.randint(1, 200))
        fake = ElfFile(elf._read, elf._size, "random")
        fake.read = lambda vaddr, size, code=code: code[:size]  # type: ignore[method-assign,misc]
        cheap_probe_site(fake, symbol.value, len(code))
        tail_jump_site(fake, symbol.value, len(code))


@pytest.mark.parametrize(
    ("code", "emulated"),
    [
        ("55", True),
        ("4154", True),
        ("4055", False),
        ("6655", False),
        ("90", True),
        ("f390", False),
        ("6690", False),
        ("eb05", True),
        ("e900000000", True),
        ("e800000000", True),
        ("7405", True),
        ("0f8500000000", True),
        ("660f8500000000", False),
        ("f30f1efa", False),
        ("ffe0", False),
        ("c3", False),
        ("", False),
        ("0f", False),
    ],
)
def test_is_emulated(code: str, emulated: bool) -> None:
    assert is_emulated(bytes.fromhex(code)) == emulated


GOMP_NOT_PUSHING = (
    "GOMP_barrier GOMP_barrier_cancel GOMP_loop_end GOMP_loop_end_cancel GOMP_sections_end "
    "GOMP_sections_end_cancel GOMP_taskwait_depend GOMP_critical_start "
    "GOMP_critical_name_start GOMP_atomic_start omp_set_lock"
).split()
GOMP_STUBS = (
    "GOMP_critical_start GOMP_critical_name_start GOMP_atomic_start omp_set_lock GOMP_barrier".split()
)
GOMP_PUSHING = (
    "GOMP_parallel GOMP_task GOMP_taskwait GOMP_taskgroup_end GOMP_ordered_start omp_set_nest_lock".split()
)
OMP = (
    "__kmp_invoke_microtask __kmpc_fork_call __kmpc_barrier __kmpc_omp_taskwait __kmpc_end_taskgroup "
    "__kmpc_critical __kmpc_set_lock omp_set_lock __kmpc_ordered __kmpc_reduce __kmpc_omp_task "
    "__kmpc_omp_task_with_deps"
).split()


def library(path: Path, names: list[str]) -> Iterator[tuple[ElfFile, Symbol]]:
    """Each definition of these names, so that every version of a function is looked at."""
    pytest.importorskip("capstone", reason="capstone is not installed")
    if not path.exists():
        pytest.skip(f"{path} is not installed")
    with ElfFile.open(str(path)) as elf:
        found = elf.lookup(names)
        if missing := set(names) - found.keys():
            pytest.skip(f"{path} has no {', '.join(sorted(missing))}")
        for symbols in found.values():
            for symbol in symbols:
                yield elf, symbol


@pytest.mark.parametrize("name", GOMP_NOT_PUSHING + GOMP_PUSHING)
def test_libgomp(name: str) -> None:
    for elf, symbol in library(LIBGOMP, [name]):
        site = cheap_probe_site(elf, symbol.value, symbol.size)
        assert site.cheap, site.why
        assert is_emulated(elf.read(site.vaddr, 16))
        assert symbol.value <= site.vaddr < symbol.value + symbol.size
        if name in GOMP_PUSHING:
            assert site.arguments_intact


@pytest.mark.parametrize("name", GOMP_STUBS)
def test_libgomp_slow_paths(name: str) -> None:
    for elf, symbol in library(LIBGOMP, [name]):
        site = tail_jump_site(elf, symbol.value, symbol.size)
        assert site is not None
        assert elf.read(site.vaddr, 1) in (b"\xe9", b"\xeb")


@pytest.mark.parametrize("name", OMP)
def test_libomp(name: str) -> None:
    for elf, symbol in library(LIBOMP, [name]):
        site = cheap_probe_site(elf, symbol.value, symbol.size)
        assert site.cheap, site.why
