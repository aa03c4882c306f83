# SPDX-License-Identifier: Apache-2.0
"""Where functions are left, whether their calls can be timed, and what is made of the times."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from parprof.calls.exits import Exits, find_landings
from parprof.calls.search import Found, found_from_json, search
from parprof.calls.timed import arc_times_json, times_json
from parprof.files.elf import ElfFile
from parprof.kernel.call_times import ArcTime, CallTime, RoutineTime, _open_time

SOURCE = """
#include <stdlib.h>
#include <setjmp.h>
#define PLAIN __attribute__((noinline, noclone))
volatile long sink;
jmp_buf back;
PLAIN long several(long x) { if (x > 3) { sink = x; return 1; } if (x > 1) return x * sink; sink++; return sink; }
PLAIN void next(long x) { sink = x + 2; }
PLAIN void tail(long x) { sink = x; next(x + sink); }
PLAIN void through(void (*f)(long), long x) { sink++; f(x); }
PLAIN void library(void *x) { sink = 1; free(x); }
PLAIN long branches(long x)
{
	switch (x) {
	case 0: sink = 5; break; case 1: sink ^= 9; break; case 2: sink *= 3; break; case 3: return sink - 1;
	case 4: sink |= 8; break; case 5: sink += x; break; case 6: sink <<= 1; break; default: sink = x;
	}
	return sink + x;
}
PLAIN void never(void) { sink = 1; longjmp(back, 1); }
__attribute__((cold)) PLAIN void rare(long x) { sink = x; abort(); }
PLAIN long with_cold(long x) { if (__builtin_expect(x == 77, 0)) { sink = 3; rare(x); } return sink + x; }
int main(int count, char **a)
{
	several(count); tail(count); through(next, count); library(a[count]); branches(count); with_cold(count);
	if (!setjmp(back))
		never();
	return 0;
}
"""
ASSEMBLY = """
	.text
	.globl main
	.macro function name
	.type \\name, @function
\\name:
	.endm
	.macro done name
	.size \\name, . - \\name
	.endm
	function conditional
	test %rdi, %rdi
	.byte 0x0f, 0x84
	.long other - . - 4
	ret
	done conditional
	function other
	mov %rdi, %rax
	ret
	done other
	function single
	ret
	done single
	function looped
	dec %rdi
	jnz looped
	ret
	done looped
	function nameless
	mov %rdi, %rax
	jmp 1f
	done nameless
1:	ret
	function misaligned
	mov %rdi, %rax
	jmp . + 3
	.byte 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0
	ret
	done misaligned
	function repeated
	mov %rdi, %rax
	repz ret
	done repeated
	function main
	call conditional
	call restarted
	ret
	done main
	function restarted
	cmp $4, %rdi
	jb 2f
	mov %rdi, %rax
	ret
2:	inc %rdi
	jmp restarted
	done restarted
	.section .note.GNU-stack, "", @progbits
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("times") / "program"
    subprocess.run(["gcc", "-O2", "-x", "c", "-", "-o", out], input=SOURCE, text=True, check=True)
    return out


@pytest.fixture(scope="module")
def assembled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("times") / "assembled"
    subprocess.run(["gcc", "-x", "assembler", "-", "-o", out], input=ASSEMBLY, text=True, check=True)
    return out


def look_for(path: Path, *patterns: str) -> Found:
    with ElfFile.open(str(path)) as elf:
        found = search(elf, patterns, [], times=True)
    assert found_from_json(json.loads(json.dumps(found))) == found
    return found


def exits_of(path: Path, name: str) -> Exits:
    (routine,) = look_for(path, name).routines
    (copy,) = routine.copies
    (place,) = copy.places
    assert not place.knows_caller or copy.exits.untimed, "the return address is on top of the stack there"
    return copy.exits


def leaving(path: Path, name: str) -> list[int]:
    """The addresses of a function's returns and of its jumps elsewhere, as objdump has them."""
    text = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", f"--disassemble={name}", path],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    out = []
    for address, words in re.findall(r"^ +([0-9a-f]+):\t(.*)$", text, re.M):
        is_own = f"<{name}" in words
        if words.startswith(("ret", "repz ret")) or (words.startswith("jmp") and not is_own):
            out.append(int(address, 16))
    return out


@pytest.mark.parametrize("name", ["several", "next", "tail", "through", "library", "with_cold", "main"])
def test_exits_are_what_a_disassembler_sees(compiled: Path, name: str) -> None:
    exits = exits_of(compiled, name)
    assert not exits.untimed and list(exits.vaddrs) == leaving(compiled, name)


def test_the_jumps_of_a_switch_are_no_exits(compiled: Path) -> None:
    exits = exits_of(compiled, "branches")
    returns = [
        one for one in leaving(compiled, "branches")
        if "ret" in subprocess.run(
            ["objdump", "-d", f"--start-address={one}", f"--stop-address={one + 1}", compiled],
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()[-1]
    ]  # fmt: skip
    assert not exits.untimed and list(exits.vaddrs) == returns
    assert len(leaving(compiled, "branches")) > len(returns), "there is such a jump"


def test_a_function_that_never_returns_has_no_exits(compiled: Path) -> None:
    assert exits_of(compiled, "never") == Exits()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("conditional", "a conditional jump leaves it"),
        ("single", "at one instruction"),
        ("nameless", "jumps to code without a name"),
        ("misaligned", "cannot be disassembled"),
    ],
)
def test_in_doubt_a_function_is_not_timed(assembled: Path, name: str, why: str) -> None:
    exits = exits_of(assembled, name)
    assert why in exits.untimed and not exits.vaddrs


def test_turns_of_a_loop_to_the_entry_are_neither_timed_nor_counted(assembled: Path) -> None:
    (routine,) = look_for(assembled, "looped").routines
    (copy,) = routine.copies
    assert not copy.places and "its turns look like calls" in copy.why
    assert copy.exits.untimed and not copy.exits.vaddrs


def test_what_is_not_timed_is_counted_where_it_would_be_without(assembled: Path) -> None:
    """Go's functions go back to their first instruction when they have grown the stack: that is no call."""
    (routine,) = look_for(assembled, "restarted").routines
    (copy,) = routine.copies
    assert copy.exits.untimed
    with ElfFile.open(str(assembled)) as elf:
        (counted,) = search(elf, ("restarted",), []).routines
    assert copy.places == counted.copies[0].places
    assert [place.knows_caller for place in copy.places] == [True]


PARTED = """
long sink;
__attribute__((cold, noinline)) static void rare(long x) { sink ^= x; }
long parted(long x, long *a)
{
	for (long i = 0; i < x; i++) {
		if (__builtin_expect(a[i] == 77, 0)) { rare(i); rare(i + x); sink += a[i]; }
		sink += a[i] * 3;
	}
	if (__builtin_expect(sink == 9, 0)) { rare(x); rare(sink); return sink * x; }
	return sink + x;
}
"""


def test_parts_of_a_function_are_its_own_though_names_are_stripped(tmp_path: Path) -> None:
    whole, stripped = tmp_path / "whole.so", tmp_path / "stripped.so"
    command = [
        "gcc",
        "-O2",
        "-freorder-blocks-and-partition",
        "-shared",
        "-fPIC",
        "-x",
        "c",
        "-",
        "-o",
        whole,
    ]
    subprocess.run(command, input=PARTED, text=True, check=True)
    subprocess.run(["strip", "-s", whole, "-o", stripped], check=True)
    symbols = subprocess.run(["nm", whole], capture_output=True, text=True, check=True).stdout
    assert " parted.cold" in symbols, "the compiler has split it"
    exits = exits_of(stripped, "parted")
    assert exits.vaddrs and exits == exits_of(whole, "parted")


def test_a_return_with_a_prefix_is_probed_at_it(assembled: Path) -> None:
    assert list(exits_of(assembled, "repeated").vaddrs) == leaving(assembled, "repeated")


def test_where_exceptions_and_longjmp_land() -> None:
    for library, functions in (("libc.so.6", 2), ("libstdc++.so.6", 1)):
        path = next(Path("/lib/x86_64-linux-gnu").glob(library), None) or next(
            Path("/usr/lib/x86_64-linux-gnu").glob(library)
        )
        with ElfFile.open(str(path)) as elf:
            found = find_landings(elf, list(elf.symbols()))
            assert len(found) >= functions
            first = {elf.read(vaddr, 2) for vaddr in found}
        if library == "libc.so.6":
            assert first == {b"\xff\xe2"}, "the jump of longjmp"


def test_without_being_asked_nobody_looks_for_exits(compiled: Path) -> None:
    with ElfFile.open(str(compiled)) as elf:
        found = search(elf, ["tail"], [])
    assert not found.landings and found.routines[0].copies[0].exits == Exits()


class _Word:
    """A struct open_time."""

    def __init__(self, word: int, any_ns: int) -> None:
        self.word, self.any_ns = word, any_ns


def test_what_is_open_counts_until_now() -> None:
    assert _open_time(_Word(0, 70), 1000) == (70, 0)
    assert _open_time(_Word((320 >> 4) << 16 | 2, 70), 1000) == (70 + 680, 2)
    assert _open_time(_Word((320 >> 4) << 16 | 1, 70), 300) == (70, 1), "another CPU's clock is ahead"


def test_times_of_images_add_up() -> None:
    one = RoutineTime(CallTime(1, 10, longest_ns=10), inside_ns=10, directly_ns=5, unseen=1)
    two = RoutineTime(
        CallTime(2, 6, longest_ns=4), inside_ns=6, directly_ns=6, open=1, unwound=2, unseen_within=3
    )
    both = one.plus(two)
    assert both.sequential.ended == 3 and both.sequential.longest_ns == 10
    assert (both.inside_ns, both.directly_ns, both.open, both.unseen, both.unwound) == (16, 11, 1, 1, 2)
    assert both.unseen_within == 3


def test_what_timing_took_is_taken_off_elapsed_time() -> None:
    took = CallTime(2, first_ns=50, first_gross_ns=100, direct_ns=30, direct_gross_ns=90)
    times = RoutineTime(took, inside_ns=80, directly_ns=60)
    assert times.elapsed_ns == 40 and times.direct_ns == 20
    assert RoutineTime(inside_ns=80, open=1).elapsed_ns == 80, "of nothing that ended one can tell"
    loaded = times_json(times)
    assert loaded["elapsed_s"] == 4e-8 and loaded["sequential"]["elapsed_per_call_s"] == 0.0
    assert loaded["concurrent"]["elapsed_per_call_s"] is None


def test_arcs_without_times_have_none() -> None:
    assert arc_times_json(ArcTime()) == {}
    assert arc_times_json(ArcTime(2, 3000, 1000)) == {"elapsed_s": 3e-6, "cpu_s": 1e-6}
