"""Rows for code that nothing describes, followed from where it returns."""

from __future__ import annotations

import subprocess
from bisect import bisect_right
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parprof.files.elf import ElfFile
from parprof.loops.machinecode import decode
from parprof.unwind.returns import rows_of
from parprof.unwind.rows import PT_REGS, RuleType, pack, pack_kept, pack_register, unpack
from parprof.unwind.table import build_table

BASE = 0x1000
AT_RETURN = pack(RuleType.RSP, 8)


def rsp(offset: int, rbp: int = 0) -> int:
    return pack(RuleType.RSP, offset, rbp)


def machine_code(text: str, directory: Path) -> bytes:
    (directory / "code.s").write_text(text)
    made, raw = directory / "code.o", directory / "code.raw"
    subprocess.run(["gcc", "-c", "-o", str(made), str(directory / "code.s")], check=True)
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", str(made), str(raw)], check=True)
    return raw.read_bytes()


def rules(text: str, directory: Path) -> list[int]:
    """The rule before each instruction."""
    code = machine_code(text, directory)
    rows = rows_of(code, BASE)
    starts, found = rows[::2], rows[1::2]
    out = []
    for address, _, _, _ in decode(code, BASE, 0):
        at = bisect_right(starts, address) - 1
        out.append(found[at] if at >= 0 else 0)
    return out


CASES = {
    "nothing": ("add $1, %rax\nret\n", [AT_RETURN] * 2),
    "pushes": (
        "push %rbp\npush %rbx\nsub $24, %rsp\nnop\nadd $24, %rsp\npop %rbx\npop %rbp\nret\n",
        [rsp(8), rsp(16, 2), rsp(24, 2), rsp(48, 2), rsp(48, 2), rsp(24, 2), rsp(16, 2), rsp(8)],
    ),
    "rbp in a slot": (
        "sub $40, %rsp\nmov %rbp, 8(%rsp)\nxor %ebp, %ebp\nmov 8(%rsp), %rbp\nadd $40, %rsp\nret\n",
        [rsp(8), rsp(48), rsp(48, 5), rsp(48, 5), rsp(48), rsp(8)],
    ),
    "another value of rbp in a slot": (
        "push %rbp\nsub $32, %rsp\nmov %rbp, 8(%rsp)\nmov 8(%rsp), %rbp\nadd $32, %rsp\npop %rbp\nret\n",
        [rsp(8), rsp(16, 2), *[rsp(48, 2)] * 3, rsp(16, 2), rsp(8)],
    ),
    "frame pointer": (
        "push %rbp\nmov %rsp, %rbp\nand $-32, %rsp\nnop\nleave\nret\n",
        [rsp(8), rsp(16, 2), rsp(16, 2), *[pack(RuleType.RBP, 16, 2)] * 2, rsp(8)],
    ),
    "a stack that was kept in a register": (
        "mov %rsp, %rdx\nand $-64, %rsp\nsub $64, %rsp\nnop\nmov %rdx, %rsp\nret\n",
        [rsp(8), rsp(8), *[pack_register(PT_REGS["rdx"], 8, False)] * 3, rsp(8)],
    ),
    "a stack that was kept on the stack": (
        "push %rbx\nmov %rsp, %rax\nsub $96, %rsp\nand $-64, %rsp\nmov %rax, 88(%rsp)\nnop\n"
        "mov 88(%rsp), %rsp\npop %rbx\nret\n",
        [rsp(8), rsp(16), rsp(16), rsp(112), *[pack_kept(RuleType.RSP_DEREF, 88, 16)] * 3, rsp(16), rsp(8)],
    ),
    "a stack that was kept below rbp": (
        "push %rbp\nmov %rsp, %rax\nand $-32, %rsp\nmov %rax, (%rsp)\nmov %rsp, %rbp\nlea -96(%rbp), %rsp\nnop\n"
        "mov %rbp, %rsp\npop %rsp\npop %rbp\nret\n",
        [
            rsp(8),
            rsp(16, 2),
            rsp(16, 2),
            *[pack_kept(RuleType.RSP_DEREF, 0, 16, 2)] * 2,
            *[pack_kept(RuleType.RBP_DEREF, 0, 16, 2)] * 3,
            pack_kept(RuleType.RSP_DEREF, 0, 16, 2),
            rsp(16, 2),
            rsp(8),
        ],
    ),
    "two ways to the end": (
        "push %rbx\ntest %eax, %eax\nje 1f\nsub $16, %rsp\nnop\nadd $16, %rsp\n1: pop %rbx\nret\n",
        [rsp(8), rsp(16), rsp(16), rsp(16), rsp(32), rsp(32), rsp(16), rsp(8)],
    ),
    "a loop": ("push %rbx\n1: sub $1, %rdi\njne 1b\npop %rbx\nret\n", [rsp(8), *[rsp(16)] * 3, rsp(8)]),
    "a part behind the return": (
        "push %rbx\ntest %eax, %eax\nje 2f\n1: pop %rbx\nret\n2: push %rcx\npop %rcx\njmp 1b\n",
        [rsp(8), *[rsp(16)] * 3, rsp(8), rsp(16), rsp(24), rsp(16)],
    ),
    "a call at the end, as a jump": ("push %rbx\npop %rbx\njmp 0x5000\n", [rsp(8), rsp(16), rsp(8)]),
    "nobody knows": ("mov %rax, %rsp\npush %rbx\nhlt\n", [0] * 3),
    "unaligned": ("sub $12, %rsp\nnop\nadd $12, %rsp\nret\n", [rsp(8), 0, 0, rsp(8)]),
}


@pytest.mark.parametrize("name", CASES)
def test_rules(name: str, tmp_path: Path) -> None:
    text, expected = CASES[name]
    assert [hex(rule) for rule in rules(text, tmp_path)] == [hex(rule) for rule in expected]


def test_a_call_that_does_not_return_says_nothing_of_what_follows(tmp_path: Path) -> None:
    found = rules(
        "1: push %rbx\ncall 0x5000\n.p2align 4\n2: push %rbx\npush %rcx\npop %rcx\npop %rbx\nret\n.p2align 4\n"
        "call 1b\nret\n",
        tmp_path,
    )
    assert found[:2] == [rsp(8), rsp(16)]
    assert rsp(24) in found and rsp(32) not in found


def test_agrees_with_what_a_compiler_says(tmp_path: Path) -> None:
    """Of code that is described: nearly all of it is followed as the compiler describes it."""
    source = Path(__file__).parents[1] / "workloads" / "omp_truth.c"
    made = tmp_path / "omp_truth.so"
    subprocess.run(["gcc", "-O2", "-fopenmp", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    same = other = unknown = 0
    with ElfFile.open(str(made)) as elf:
        table = build_table(elf)
        text = elf.named_section(b".text")
        assert text is not None
        code = elf.read(text.address, text.size)
    rows = rows_of(code, text.address)
    starts, found = rows[::2], rows[1::2]
    for address, _, _, _ in decode(code, text.address, 0):
        at = bisect_right(starts, address) - 1
        mine, described = found[at] if at >= 0 else 0, table.rule(address)
        if not described:
            continue
        unknown += not mine
        if mine and unpack(mine).type is unpack(described).type:
            same += unpack(mine).cfa == unpack(described).cfa
            other += unpack(mine).cfa != unpack(described).cfa
    assert same > 1000
    assert other <= 0.02 * same and unknown <= 0.02 * same, (same, other, unknown)


def test_tables_have_what_is_not_described(tmp_path: Path) -> None:
    """Of a stripped file, where nothing says how many functions are there; up to the code's end."""
    described = "{0}: .cfi_startproc\npush %rbx\n.cfi_def_cfa_offset 16\npop %rbx\nret\n.cfi_endproc\n"
    bare = CASES["pushes"][0] + ".fill 40, 1, 0x90\n"
    (tmp_path / "code.s").write_text(
        ".text\n.globl first\n" + described.format("first") + bare + described.format("last") + bare
    )
    made = tmp_path / "code.so"
    subprocess.run(
        ["gcc", "-shared", "-nostdlib", "-s", "-o", str(made), str(tmp_path / "code.s")], check=True
    )
    with ElfFile.open(str(made)) as elf:
        table = build_table(elf)
        first = elf.lookup(["first"])["first"][0].value
        code = elf.named_section(b".text")
        assert code is not None
        kernel = machine_code(CASES["pushes"][0], tmp_path)
        at = elf.read(first, code.size).find(kernel) + first
        behind = elf.read(first, code.size).rfind(kernel) + first
    assert table.rule(first + 1) == rsp(16)
    assert first < at < behind
    for begin in (at, behind):
        assert table.rule(begin + len(kernel) - 1) == rsp(8)
        assert table.rule(begin + 2) == rsp(24, 2)
    addresses = [table.row(index)[0] for index in range(table.count)]
    assert addresses == sorted(set(addresses))


@settings(max_examples=300, deadline=None)
@example(bytes.fromhex("70030000c2000050"))  # which ends in the midst of a function
@given(st.binary(min_size=0, max_size=400))
def test_any_bytes_make_rows_in_order(code: bytes) -> None:
    rows = rows_of(code, BASE)
    addresses = rows[::2]
    assert addresses == sorted(set(addresses))
    assert all(BASE <= address < BASE + len(code) for address in addresses)
    for rule in rows[1::2]:
        unpack(rule)


MOVES = (
    "push %rbx",
    "push %rbp",
    "pop %rbx",
    "pop %rbp",
    "sub $16, %rsp",
    "add $8, %rsp",
    "lea -8(%rsp), %rsp",
    "nop",
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(MOVES), max_size=20))
def test_what_a_function_does_is_undone(tmp_path_factory: pytest.TempPathFactory, moves: list[str]) -> None:
    """Whatever comes before a return, the caller is as far as what is done from there on to the return says."""
    height = 8
    expected = [height]
    for move in reversed(moves):
        height -= {"push": 8, "pop": -8, "sub": 16, "add": -8, "lea": 8, "nop": 0}[move.split()[0]]
        expected.append(height)
    found = rules("\n".join([*moves, "ret\n"]), tmp_path_factory.mktemp("code"))
    for rule, wanted in zip(found, reversed(expected), strict=True):
        assert (unpack(rule).cfa == wanted) if rule else (wanted < 8 or "rbp" in " ".join(moves))
