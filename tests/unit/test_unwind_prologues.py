"""Rows for functions in assembly, which have no call frame information: from their prologue."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parprof.files.elf import ElfFile
from parprof.unwind.prologues import prologue_rows
from parprof.unwind.rows import RuleType, pack, pack_register
from parprof.unwind.table import build_table

RBX, R10, RCX, RDX = 5, 7, 11, 12
"""Their indexes in ``struct pt_regs`` (Linux, arch/x86/include/uapi/asm/ptrace.h)."""
FUNCTIONS = {
    "nothing": ("add $1, %rax\nret\n", [pack(RuleType.RSP, 8)]),
    "pushes": (
        "push %rbp\npush %rbx\nsub $24, %rsp\nnop\n",
        [
            pack(RuleType.RSP, 8),
            pack(RuleType.RSP, 16, 2),
            pack(RuleType.RSP, 24, 2),
            pack(RuleType.RSP, 48, 2),
        ],
    ),
    "aligned": (
        "sub $0x60, %rsp\nmov %rbp, 8(%rsp)\nmov %rsp, %rbx\nsub $0x1000, %rsp\nand $-64, %rsp\nsub $64, %rsp\nnop\n",
        [
            pack(RuleType.RSP, 8),
            pack(RuleType.RSP, 0x68),
            pack(RuleType.RSP, 0x68, 12),
            pack(RuleType.RSP, 0x1068, 12),
            pack_register(RBX, 0x68, False, 12),
        ],
    ),
    "by_rbp": (
        "push %rbp\nmov %rsp, %rbp\nand $-32, %rsp\nnop\n",
        [pack(RuleType.RSP, 8), pack(RuleType.RSP, 16, 2), pack(RuleType.RBP, 16, 2)],
    ),
    "lost_base": (
        "mov %rsp, %rbx\nand $-32, %rsp\nmov %rax, %rbx\nnop\n",
        [pack(RuleType.RSP, 8), pack_register(RBX, 8, False), 0],
    ),
    "half_lost_base": (
        "mov %rsp, %rbx\nand $-32, %rsp\nmov $5, %ebx\nnop\n",
        [pack(RuleType.RSP, 8), pack_register(RBX, 8, False), 0],
    ),
    "by_rcx": (
        "mov %rsp, %rcx\nand $-32, %rsp\nnop\n",
        [pack(RuleType.RSP, 8), pack_register(RCX, 8, False)],
    ),
    "by_rdx": (
        "mov %rsp, %rdx\nand $-32, %rsp\nnop\n",
        [pack(RuleType.RSP, 8), pack_register(RDX, 8, False)],
    ),
    "frame_pointer": (
        "push %rbp\nmov %rsp, %rbp\npush $1\nsub $24, %rsp\n1: push (%rax)\ndec %rcx\njg 1b\ncall *%rdx\nleave\nret\n",
        [pack(RuleType.RSP, 8), pack(RuleType.RSP, 16, 2), pack(RuleType.RBP, 16, 2)],
    ),
    "frame_pointer_reused": (
        "push %rbp\nmov %rsp, %rbp\npush %rbx\nmov %rdi, %rbp\nnop\n",
        [
            pack(RuleType.RSP, 8),
            pack(RuleType.RSP, 16, 2),
            pack(RuleType.RBP, 16, 2),
            pack(RuleType.RSP, 24, 2),
        ],
    ),
    "by_r10": (
        "push %rbp\nmov %rsp, %r10\nand $-32, %rsp\nnop\n",
        [pack(RuleType.RSP, 8), pack(RuleType.RSP, 16, 2), pack_register(R10, 16, False, 2)],
    ),
    "unknown": ("mov %rax, %rsp\nnop\n", [pack(RuleType.RSP, 8), 0]),
    "unaligned": ("sub $4, %rsp\nnop\n", [pack(RuleType.RSP, 8), 0]),
}


def assemble(text: str, path: Path) -> ElfFile:
    source = path / "code.s"
    source.write_text(text)
    subprocess.run(["gcc", "-shared", "-nostdlib", "-o", str(path / "code.so"), str(source)], check=True)
    fd = os.open(path / "code.so", os.O_RDONLY)
    return ElfFile(lambda offset, size: os.pread(fd, size, offset), os.fstat(fd).st_size, "code.so")


def function(name: str, body: str) -> str:
    return f".p2align 4\n.globl {name}\n.type {name}, @function\n{name}:\n{body}\n.size {name}, .-{name}\n"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_of_prologues(name: str, tmp_path: Path) -> None:
    body, rules = FUNCTIONS[name]
    elf = assemble(".text\n" + function(name, body), tmp_path)
    symbol = next(elf.symbols())
    rows = prologue_rows(elf.read(symbol.value, symbol.size), symbol.value)
    assert [rule for _, rule in rows] == rules
    assert rows[0][0] == symbol.value and rows == sorted(set(rows))


def test_tables_have_them_where_frames_are_not_described(tmp_path: Path) -> None:
    """Between functions that are described, and up to their beginning."""
    described = ".cfi_startproc\npush %rbx\n.cfi_def_cfa_offset 16\nnop\npop %rbx\nret\n.cfi_endproc"
    long_body = FUNCTIONS["aligned"][0] + "1: add $1, %rax\njmp 1b\n" + ".fill 80, 1, 0x90\n"
    text = (
        ".text\n" + function("first", described) + function("bare", long_body) + function("last", described)
    )
    elf = assemble(text, tmp_path)
    at = {symbol.name: symbol for symbol in elf.symbols()}
    table = build_table(elf)
    assert table.rule(at["first"].value) == pack(RuleType.RSP, 8)
    assert table.rule(at["bare"].value) == pack(RuleType.RSP, 8)
    assert table.rule(at["bare"].value + at["bare"].size - 1) == FUNCTIONS["aligned"][1][-1]
    assert table.rule(at["last"].value) == pack(RuleType.RSP, 8)
    assert table.rule(at["last"].value + 1) == pack(RuleType.RSP, 16)
    addresses = [table.row(index)[0] for index in range(table.count)]
    assert addresses == sorted(set(addresses))


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=0, max_size=120))
def test_any_bytes_make_rows_in_order(code: bytes) -> None:
    rows = prologue_rows(code, 0x1000)
    assert [address for address, _ in rows] == sorted({address for address, _ in rows})
    assert all(0x1000 <= address < 0x1000 + len(code) and 0 <= rule < 1 << 32 for address, rule in rows)
