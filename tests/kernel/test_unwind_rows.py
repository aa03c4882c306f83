# SPDX-License-Identifier: Apache-2.0
"""Frames as hand-written assembly has them (OpenSSL's): the CFA in any register, or in memory above rsp."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

import profiling
from parprof.commands.spawn import Child
from parprof.symbols.symbolizer import Symbolizer

pytestmark = pytest.mark.beside

ASSEMBLY = """
    .text
    .globl by_register, by_memory, below
    .type by_register, @function
    .type by_memory, @function
    .type below, @function
by_register:
    .cfi_startproc
    mov %rsp, %r11
    .cfi_def_cfa_register %r11
    push %rbp
    .cfi_offset %rbp, -16
    push %rbx
    .cfi_offset %rbx, -24
    xor %ebp, %ebp
    and $-64, %rsp
    sub $320, %rsp
1:  dec %rdi
    jnz 1b
    mov -8(%r11), %rbp
    mov -16(%r11), %rbx
    mov %r11, %rsp
    .cfi_def_cfa_register %rsp
    ret
    .cfi_endproc
    .size by_register, . - by_register
by_memory:
    .cfi_startproc
    mov %rsp, %rax
    .cfi_def_cfa_register %rax
    push %rbp
    .cfi_offset %rbp, -16
    push %rbx
    .cfi_offset %rbx, -24
    xor %ebp, %ebp
    and $-64, %rsp
    sub $320, %rsp
    mov %rax, 152(%rsp)
    .cfi_escape 0x0f, 6, 0x77, 0x98, 0x01, 0x06, 0x23, 8    # *(rsp + 152) + 8
    xor %eax, %eax
    xor %r11d, %r11d
    call below
    mov 152(%rsp), %rsi
    .cfi_def_cfa %rsi, 8
    mov -16(%rsi), %rbx
    mov -8(%rsi), %rbp
    mov %rsi, %rsp
    .cfi_def_cfa_register %rsp
    ret
    .cfi_endproc
    .size by_memory, . - by_memory
below:
    .cfi_startproc
1:  dec %rdi
    jnz 1b
    ret
    .cfi_endproc
    .size below, . - below
    .section .note.GNU-stack, "", @progbits
"""
PROGRAM = """
#include <time.h>
void by_register(long), by_memory(long);
__attribute__((noinline)) void outer(void (*f)(long)) { f(3000000); __asm__ volatile(""); }
int main(int c, char **v)
{
    while (clock() < 1.5 * CLOCKS_PER_SEC)
        outer(v[1][0] == 'r' ? by_register : by_memory);
    return 0;
}
"""
TRUE_PATHS = {"register": ("main", "outer", "by_register"), "memory": ("main", "outer", "by_memory", "below")}


@pytest.mark.parametrize("where", TRUE_PATHS)
def test_the_frame_is_found_without_rsp_and_rbp(where: str, tmp_path: Path) -> None:
    program = tmp_path / "rows"
    (tmp_path / "a.S").write_text(ASSEMBLY)
    (tmp_path / "b.c").write_text(PROGRAM)
    sources = [str(tmp_path / "a.S"), str(tmp_path / "b.c")]
    subprocess.run(["gcc", "-O2", "-fomit-frame-pointer", "-o", str(program), *sources], check=True)
    with profiling.traced_session(997) as session:
        child = Child([str(program), where])
        session.watch(child.pid, follow=True, stop=True)
        child.release()
        profiling.run_until(session, lambda: child.poll() is not None)
        session.finish()
        assert child.wait() == 0
        target = [target for target in session.targets.values() if target.pid == child.pid][-1]
        paths = Counter[tuple[str, ...]]()
        with Symbolizer() as symbolizer:
            for key, count in session.facts.items():
                path = []
                for address, is_return in reversed(session.kernel.stacks.get(key.user).frames):
                    found = target.find(address, key.epoch)
                    path.append(symbolizer.frames(*found, is_return)[-1].name if found else "?")
                paths[tuple(path)] += count.samples
        right = sum(count for path, count in paths.items() if path[-len(TRUE_PATHS[where]) :] == TRUE_PATHS[where]
                    and path[0] == "_start")  # fmt: skip
        assert right > 1000
        # the rest: the dynamic linker, and clock(3)
        assert right >= 0.97 * sum(paths.values()), paths.most_common(5)
