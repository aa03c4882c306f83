# SPDX-License-Identifier: Apache-2.0
"""Which functions `parprof calls` counts, where it probes them, and what it makes of the counts."""

from __future__ import annotations

import io
import json
import random
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.calls.cedar import CalleeCalls, callee_calls
from parprof.calls.counting import CallCounting, CountedSite
from parprof.calls.estimate import Estimate, Look, estimate
from parprof.calls.exits import Exits
from parprof.calls.finder import FunctionFinder
from parprof.calls.placing import MAX_CALLS, CallPlace, References, place
from parprof.calls.report import advice, as_json, notes, print_result
from parprof.calls.result import CallProfile, make_result
from parprof.calls.search import (
    MAX_ROUTINES,
    Copy,
    Found,
    FoundFunction,
    found_from_json,
    list_functions,
    nearest,
    search,
)
from parprof.calls.times import Times
from parprof.calls.wanted import in_every_symbol, matches, parse_wanted, without_arguments, without_scopes
from parprof.errors import UsageError
from parprof.files.dso import ANONYMOUS, Dso
from parprof.files.dso_cache import DsoCache
from parprof.files.elf import ElfError, ElfFile, Symbol
from parprof.kernel.call_counts import (
    CALL_DEAR,
    CALL_KNOWS_CALLER,
    CALL_LANDS,
    CALL_LEAVES,
    CALL_ROUTINE_SHIFT,
    CALL_TIMED,
    Caller,
    CallProbe,
    Calls,
)
from parprof.kernel.call_times import ArcTime, CallTime, RoutineTime
from parprof.kernel.engine import BpfKernel
from parprof.metrics import Metrics
from parprof.model import Frame, PathSample, ProcessInfo, Profile
from parprof.probes.cheap_sites import ProbeSite
from parprof.process.loadmap import LoadMap, Mapping
from parprof.runtimes import Agent
from parprof.runtimes.cilk5 import Cilk5
from parprof.runtimes.cilkplus import CilkPlus
from parprof.runtimes.libgomp import Libgomp
from parprof.runtimes.opencilk import OpenCilk
from parprof.symbols.names import readable

SOURCE = """
#define PLAIN __attribute__((noinline, noclone))
volatile long sink;
static PLAIN void direct(long x) { sink = x; }
static PLAIN void tail(long x) { sink = x + 1; }
static PLAIN void taken(long x) { sink = x + 2; }
static PLAIN void in_data(long x) { sink = x + 3; }
static void (*const table[])(long) __attribute__((used)) = { in_data };
PLAIN void visible(long x) { sink = x + 4; }
static PLAIN long pushes(long x) { direct(x); tail(x); direct(x + sink); return x + sink; }
static PLAIN void twice(long x) { direct(x); tail(x); }
static __attribute__((noinline)) long scaled(long x, long by)
{ for (long i = 0; i < by; i++) sink += x; return sink; }
PLAIN void many(void);
static PLAIN void often(long x) { sink = x + 5; }
static PLAIN void never(long x) { sink = x + 6; }
void other(void) __attribute__((alias("many")));
#define FOUR(x) often(x); often(x + 1); often(x + 2); often(x + 3);
#define SIXTEEN(x) FOUR(x) FOUR(x + 4) FOUR(x + 8) FOUR(x + 12)
PLAIN void many(void) { SIXTEEN(0) SIXTEEN(16) SIXTEEN(32) SIXTEEN(48) SIXTEEN(64) }
void (*volatile pointer)(long);
int main(int count, char **a)
{
	pointer = taken;
	pointer(count);
	taken(count);
	visible(count);
	twice(pushes(count));
	for (int i = 0; i < count; i++)
		scaled(i, 2);
	for (int i = 0; i < count; i++)
		scaled(i, sink);
	many();
	((void (*)(long))table[0])(1);
	if (sink == 77)
		never(1);
	return 0;
}
"""
ASSEMBLY = """
	.text
	.type prefixed, @function
prefixed: mov %rdi, sink(%rip)
	ret
	.size prefixed, . - prefixed
	.type looped, @function
looped:	dec %rdi
	jnz looped
	.byte 0xe9
	.long looped - . - 4
	.size looped, . - looped
	.type conditional, @function
conditional: mov %rdi, sink(%rip)
	ret
	.size conditional, . - conditional
	.type hidden, @function
hidden: mov %rdi, sink(%rip)
	ret
	.size hidden, . - hidden
	.type nopped, @function
nopped:	.byte 0x0f, 0x1f, 0x44, 0, 0
	ret
	.size nopped, . - nopped
	.globl turning
	.type turning, @function
turning: dec %rdi
	jnz turning
	ret
	.size turning, . - turning
	.type walking, @function
walking: dec %rdi
	.byte 0x0f, 0x85		# jnz with a distance of four bytes
	.long walking - . - 4
	ret
	.size walking, . - walking
	.type more, @function
more:	ret
	.size more, . - more
	.globl growing
	.type growing, @function
growing: cmp sink(%rip), %rsp	# as Go begins, with a way round to more stack
	jbe 1f
	sub $24, %rsp
	add $24, %rsp
	ret
1:	mov %rax, 8(%rsp)
	call more
	mov 8(%rsp), %rax
	.byte 0xe9
	.long growing - . - 4
	.size growing, . - growing
	.type caller, @function
caller:	.byte 0x67, 0xe8
	.long prefixed - . - 4
	call looped
	call walking
	call hidden
	test %rdi, %rdi
	.byte 0x48, 0xb8, 0xe8		# mov $imm64, %rax: its bytes are those of a call of hidden
	.long hidden - . - 4
	.byte 0, 0, 0
	call nopped
	.byte 0x0f, 0x84
	.long conditional - . - 4
	ret
	.size caller, . - caller
	.globl main
	.type main, @function
main:	call caller
	ret
	.size main, . - main
	.bss
sink:	.quad 0
	.section .note.GNU-stack, "", @progbits
"""
COMPILE = ["gcc", "-O2", "-fcf-protection=none", "-x"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("calls") / "program"
    subprocess.run([*COMPILE, "c", "-", "-o", out, "-O3"], input=SOURCE, text=True, check=True)
    return out


@pytest.fixture(scope="module")
def assembled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("calls") / "assembled"
    subprocess.run([*COMPILE, "assembler", "-", "-o", out], input=ASSEMBLY, text=True, check=True)
    return out


def look_for(path: Path, *patterns: str, nop5_is_cheap: bool = False) -> Found:
    with ElfFile.open(str(path)) as elf:
        found = search(elf, patterns, [], nop5_is_cheap=nop5_is_cheap)
    assert found_from_json(json.loads(json.dumps(found))) == found
    return found


def the_copy(path: Path, name: str, **options: bool) -> Copy:
    (routine,) = look_for(path, name, **options).routines
    (copy,) = routine.copies
    return copy


def disassembled(path: Path, target: str) -> list[int]:
    """The addresses of direct calls and jumps to a function, as objdump has them."""
    text = subprocess.run(["objdump", "-d", path], capture_output=True, text=True, check=True).stdout
    lines = [line for line in text.splitlines() if line.endswith(f"<{target}>")]
    return [int(line.split(":")[0], 16) for line in lines if "call" in line or "jmp" in line]


# where probes go


def test_cheap_entries_are_probed() -> None:
    made = place(ProbeSite(16, True, "a push"), References([1, 2]))
    assert made.places == (CallPlace(16, True, False),)


def test_dear_entries_are_not_where_all_calls_are_direct() -> None:
    entry = ProbeSite(16, False, "a mov")
    assert place(entry, References([1, 2])).places == (CallPlace(1, True, True), CallPlace(2, True, True))
    for references in (None, References(), References([1], "its address is taken"),
                       References(list(range(MAX_CALLS + 1)))):  # fmt: skip
        assert place(entry, references).places == (CallPlace(16, False, False),)


def test_a_nop_of_five_bytes_is_as_cheap_as_the_kernel_makes_it() -> None:
    entry = ProbeSite(16, False, "a nop")
    assert place(entry, References([1]), has_nop5=True, nop5_is_cheap=True).places[0].cheap
    assert place(entry, References([1]), has_nop5=True).places == (CallPlace(1, True, True),)


def test_procedures_of_fortran_go_by_their_own_names(tmp_path: Path) -> None:
    """GNU Fortran's symbols of those that are in no module end in ``_``; nobody writes that."""
    source = """
    void relax(int) __asm__("relax_");
    volatile int sink;
    __attribute__((noinline)) void relax(int x) { sink = x; }
    __attribute__((noinline)) void other_(int x) { sink = x + 1; }
    int main(int count, char **a) { relax(count); other_(count); return 0; }
    """
    out = tmp_path / "fortran"
    subprocess.run([*COMPILE, "c", "-", "-o", out, "-g"], input=source, text=True, check=True)
    for asked in ("relax", "RELAX", "relax_"):
        assert [routine.name for routine in look_for(out, asked).routines] == ["relax_"]
    assert not look_for(out, "other").routines, "another function of C"


def test_turns_of_a_loop_to_the_first_instruction_are_no_calls(assembled: Path) -> None:
    """It is counted where it is called, if all such places are known, else nowhere."""
    turning, walking = the_copy(assembled, "turning"), the_copy(assembled, "walking")
    assert not turning.places and "a loop in it goes back to its first instruction" in turning.why
    assert [one.vaddr for one in walking.places] == disassembled(assembled, "walking")[:1]
    with ElfFile.open(str(assembled)) as elf:
        (timed,) = search(elf, ["turning"], [], nop5_is_cheap=False, times=True).routines[0].copies
    assert not timed.places and timed.exits.untimed


def test_who_gets_more_stack_and_begins_anew_was_called_once(assembled: Path) -> None:
    """As functions of Go do: the place is behind the question whether there is enough."""
    (place,) = the_copy(assembled, "growing").places
    with ElfFile.open(str(assembled)) as elf:
        assert elf.read(place.vaddr, 4) == b"\x48\x83\xec\x18", "the sub"


@pytest.mark.parametrize("name", ["direct", "tail", "never", "visible"])
def test_calls_are_found_where_a_disassembler_sees_them(compiled: Path, name: str) -> None:
    copy = the_copy(compiled, name)
    assert [one.vaddr for one in copy.places] == disassembled(compiled, name)
    assert all(one.knows_caller and one.cheap for one in copy.places)


@pytest.mark.parametrize(
    ("name", "why"),
    [("taken", "taken"), ("in_data", "taken"), ("often", "80 places"), ("pushes", "call on every way in")],
)
def test_in_doubt_the_entry_is_probed(compiled: Path, name: str, why: str) -> None:
    copy = the_copy(compiled, name)
    assert [(one.knows_caller, one.cheap) for one in copy.places] == [(False, name == "pushes")]
    if name != "pushes":
        assert copy.places[0].vaddr == copy.vaddr
    assert why in copy.why


def test_what_other_files_may_call_is_probed_at_its_entry(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    code = "long x; void f(long a) { x = a; }"
    subprocess.run([*COMPILE, "c", "-", "-shared", "-fPIC", "-o", library], input=code, text=True, check=True)
    copy = the_copy(library, "f")
    assert copy.places == (CallPlace(copy.vaddr, False, False),) and "other files" in copy.why


def test_functions_that_the_dynamic_linker_chooses_are_told_of() -> None:
    """The C library has a memcpy for programs of old, too, which has calls of its own: none, as a rule."""
    program = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with program as child, DsoCache() as cache:
        try:
            assert child.stdin and child.stdout
            child.stdin.write(b"\n")
            child.stdin.flush()
            assert child.stdout.read(1) == b"\n"  # then the C library is mapped
            load_map = LoadMap.read(child.pid, None, cache)
            wanted = [parse_wanted(text) for text in ("memcpy", "strlen", "usleep", "mem*")]
            with FunctionFinder(wanted, lambda places: {}, lambda: False) as finder:
                names = {one.name for _, file in finder.find(load_map) for one in file.routines}
                told = finder.missing()
        finally:
            child.kill()
    assert {"memcpy", "usleep", "memfrob"} <= names
    assert [one.split()[0] for one in told] == ["memcpy", "strlen"] and all("(IFUNC)" in one for one in told)


def test_functions_that_are_made_at_run_time_are_told_to_be_out_of_reach() -> None:
    """Of JavaScript and Java: no file has them, so that they might be `inlined everywhere` is no help."""

    def told(size: int) -> str:
        made = Dso(("label", ANONYMOUS), ANONYMOUS, problem="no file")
        load_map = LoadMap.of_mappings(1, [Mapping(0x10000, 0x10000 + size, 0, made)])
        with FunctionFinder([parse_wanted("hot")], lambda places: {}, lambda: False) as finder:
            assert not finder.find(load_map)
            (why,) = finder.missing()
        return why

    assert "made at run time (JIT" in told(1 << 20) and "`parprof attach`" in told(1 << 20)
    assert "JIT" not in told(1 << 12), "a page for calls through pointers (libffi) is no compiler's"


def test_of_a_stripped_program_it_is_said_before_near_names_of_its_libraries(
    tmp_path: Path,
) -> None:
    stripped = tmp_path / "stripped"
    source = '#include <stdio.h>\nint main(void) { puts("ready"); fflush(stdout); return getchar(); }'
    subprocess.run([*COMPILE, "c", "-", "-s", "-o", stripped], input=source, text=True, check=True)
    with (
        subprocess.Popen([stripped], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child,
        DsoCache() as cache,
    ):
        try:
            assert child.stdout and child.stdout.readline() == b"ready\n"
            load_map = LoadMap.read(child.pid, None, cache)
            asked = [parse_wanted("getchars"), parse_wanted("get_chart_row")]
            with FunctionFinder(asked, lambda places: {}, lambda: False) as finder:
                finder.find(load_map)
                near, far = finder.missing()
        finally:
            child.kill()
    for why in (near, far):
        assert "stripped has no names" in why and "stripped+0x" in why and "did you mean" not in why
    assert "; its libraries have getchar" in near and "libraries" not in far


def test_only_instructions_are_probed(assembled: Path) -> None:
    """A probe in the middle of one breaks the program."""
    assert "prefix" in the_copy(assembled, "prefixed").why
    assert "conditional" in the_copy(assembled, "conditional").why
    hidden = the_copy(assembled, "hidden")
    assert [one.vaddr for one in hidden.places] == disassembled(assembled, "hidden")
    assert len(hidden.places) == 1


def test_a_loop_to_the_beginning_is_no_call(assembled: Path) -> None:
    copy = the_copy(assembled, "looped")
    assert not copy.places[0].knows_caller or len(copy.places) == 1


def test_nops_of_five_bytes_are_seen(assembled: Path) -> None:
    copy = the_copy(assembled, "nopped", nop5_is_cheap=True)
    assert copy.places == (CallPlace(copy.vaddr, True, False),)
    assert the_copy(assembled, "nopped").places[0].knows_caller


# which functions


def test_copies_of_a_function_are_one_routine(compiled: Path) -> None:
    symbols = subprocess.run(["nm", compiled], capture_output=True, text=True, check=True).stdout
    copies = [line for line in symbols.splitlines() if " t scaled" in line]
    assert len(copies) == 2, "the compiler made a copy for the constant argument"
    (routine,) = look_for(compiled, "scaled").routines
    assert routine.name == "scaled" and len(routine.copies) == 2


def test_aliases_count_once(compiled: Path) -> None:
    (routine,) = look_for(compiled, "many", "other").routines
    assert len(routine.copies) == 1


def test_patterns_and_addresses(compiled: Path) -> None:
    found = look_for(compiled, "t*l", "direct")
    assert {routine.name for routine in found.routines} == {"tail", "direct"}
    assert found.answered == (0, 1)
    with ElfFile.open(str(compiled)) as elf:
        inside = the_copy(compiled, "twice").vaddr + 1
        (routine,) = search(elf, [], [inside]).routines
        assert routine.name == "twice"
        assert inside - 1 in list_functions(elf)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("Step", ["lib/engine.Step", "main.(*Machine).Step", "runtime.step"]),
        ("Machine.Step", ["main.(*Machine).Step"]),
        ("step", ["runtime.step", "lib/engine.Step", "main.(*Machine).Step"]),
        ("Sort", ["slices.Sort[...]"]),
        ("Stop", []),
    ],
)
def test_a_method_without_its_package_suggests_its_whole_name(asked: str, meant: list[str]) -> None:
    """As Go writes names, and as people do."""
    go = ["main.(*Machine).Step", "slices.Sort[...]", "lib/engine.Step", "lib/engine.Stepper", "runtime.step"]
    found = nearest(asked, [Symbol(name, 16 * at, 16, 1, 2) for at, name in enumerate(go)])
    assert list(found) == meant


def test_a_function_of_ocaml_s_without_its_module_suggests_its_whole_name() -> None:
    names = ["camlSolver__relax_12", "camlSolver__relaxed_13", "camlStdlib__List__map_40", "caml_relax"]
    symbols = [Symbol(name, 16 * at, 16, 1, 2) for at, name in enumerate(names)]
    assert nearest("relax", symbols) == ("Solver.relax",)
    assert nearest("List.map", symbols) == ("Stdlib.List.map",)


def test_a_program_that_mostly_sleeps_calls_no_faster_when_nobody_counts() -> None:
    """Half of its CPU time is counting's, which is a twentieth of the time that passes."""
    made = estimate(Look(1.0, 0.1, 1000, 0, 50_000.0, 0.0))
    assert made.share == pytest.approx(1)
    assert made.calls_per_s == pytest.approx(1000 / 0.95)
    assert made.call_ns == pytest.approx(50_000)


def test_the_nearest_names_are_suggested(compiled: Path) -> None:
    found = look_for(compiled, "scaledd")
    assert not found.routines and found.suggestions[0][1][0] == "scaled"


@pytest.mark.parametrize(
    ("asked", "symbol"),
    [
        ("twice", "_Z5twiceIiET_S0_"),
        ("ns::pair::swap", "_ZN2ns4pairIiLi3EE4swapERS1_"),
        ("pair<int, 3>::swap", "_ZN4pairIiLi3EE4swapERS0_"),
        ("swap", "_ZN2ns4pairIiLi3EE4swapERS1_"),
        ("operator<<", "_ZN2nslsIiEERSoS1_RKT_"),
        ("main.gen", "main.gen[go.shape.int_0]"),
        ("take", "_ZN3abcB5cxx114takeB5cxx11Ev"),
        ("work", "__fields_MOD_work"),
        ("fields::work", "__fields_MOD_work"),
        ("Solver.Step.relax", "camlSolver__Step__relax_1203"),
        ("Solver.relax", "camlSolver.relax_12"),
        ("*.relax", "camlSolver__relax_12"),
    ],
)
def test_a_function_is_meant_without_its_types_and_its_compilers_marks(asked: str, symbol: str) -> None:
    """Of templates, Go's generic functions, methods, and those of Fortran's and OCaml's modules."""
    assert matches(asked, symbol, readable(symbol))
    assert in_every_symbol(asked) in symbol


@pytest.mark.parametrize(
    ("asked", "symbol"),
    [
        ("twice", "_ZN5twiceIiE3runEv"),
        ("pair::swap", "_ZN4pairIiE5swapsEv"),
        ("Debug", "_ZN59_$LT$sc..Mode$u20$as$u20$core..fmt..Debug$GT$3fmt17h0123456789abcdefE"),
        ("operator", "_ZN2nslsIiEERSoS1_RKT_"),
        ("Step", "main.(*Machine).Step"),
        ("fields", "__fields_MOD_work"),
    ],
)
def test_another_function_is_not_meant(asked: str, symbol: str) -> None:
    assert not matches(asked, symbol, readable(symbol))


MANGLED = """
_ZN5Stack4pushEi _ZN5StackC1Ev _ZN5StackD2Ev _ZNSsC1EPKc _ZNSs6appendEPKc _ZNSo3putEc _ZN12_GLOBAL__N_14workEv
_Z4twiceILi12EEvv _Z3runi.Frame.actor _Z7sessionPZ7sessioniE17_Z7sessioni.Frame.actor _ZN1AnwEm _ZN1AcvbEv
_ZThn16_N3Two4pushEv _ZZ4mainENKUlvE_clEv _ZN3abcB5cxx114takeEv _Z3sumIJiliEEDaDpT_
_Z5shareRKSt10shared_ptrIN2ns5ThingEE
_ZN2sc68_$LT$impl$u20$core..fmt..Debug$u20$for$u20$sc..Mode$GT$3fmt17h0123456789abcdefE
_ZN4tail6worker28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE
_RNvNtCs1234_7mycrate3foo3bar _RNCNvC7mycrate4work0B3_ _RINvNtC7mycrate4deep4goesxE _RNvC7mycrateu8gdel_5qa
_RNvMs_NtC7mycrate4poolNtB4_4Pool5spawn _RNvXs_C7mycrateNtB4_4PoolNtB4_5Trait4work
plain solve.constprop.0 main.(*Machine).Step
""".split()
"""C++'s, Rust's two, Go's and C's."""


def test_what_is_sure_of_a_symbol_is_in_it() -> None:
    """By whatever form of its name, and whatever part of it, a function is asked for."""
    with ElfFile.open("/usr/lib/x86_64-linux-gnu/libstdc++.so.6") as elf:
        symbols = [*MANGLED, *sorted({one.name for one in elf.symbols()})]
    sure = 0
    for symbol in symbols:
        name = readable(symbol)
        bare = without_arguments(name)
        for form in (symbol, name, bare, without_scopes(bare), f"*{name[3:-3]}*", f"{bare[:-2]}?*"):
            if matches(form, symbol, name):
                assert in_every_symbol(form) in symbol, (form, symbol)
                sure += form != symbol and bool(in_every_symbol(form))
    assert sure > len(symbols)


def test_of_a_large_program_only_symbols_that_may_be_meant_are_demangled(
    compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of node took longer than a file may take, where others used the cores."""
    demangled: list[str] = []

    def noted(symbol: str) -> str:
        demangled.append(symbol)
        return readable(symbol)

    monkeypatch.setattr("parprof.calls.search.readable", noted)
    with ElfFile.open(str(compiled)) as elf:
        assert [one.name for one in search(elf, ["tail", "*irect"], []).routines] == ["direct", "tail"]
    assert set(demangled) == {"direct", "tail"}


def function(name: str, *code: str) -> str:
    return f".type {name}, @function\n{name}:\n" + "\n".join(code) + f"\n.size {name}, . - {name}\n"


def assemble(path: Path, *functions: str) -> Path:
    source = ".section .note.GNU-stack\n.text\n" + "".join(functions)
    subprocess.run([*COMPILE, "assembler", "-", "-shared", "-o", path], input=source, text=True, check=True)
    return path


def test_parts_count_only_where_the_beginning_has_no_code(tmp_path: Path) -> None:
    names = ("whole", "whole.part.0", "whole.cold", "rest.part.0", "same", "same2")
    path = assemble(tmp_path / "parts.so", *(function(name, "ret") for name in names))
    (whole,) = look_for(path, "whole").routines
    assert [copy.symbol for copy in whole.copies] == ["whole"] and not whole.notes, (
        "nobody goes on to its part"
    )
    (rest,) = look_for(path, "rest").routines
    assert [copy.symbol for copy in rest.copies] == ["rest.part.0"] and "inlined" in rest.notes[0]


def test_parts_are_counted_where_others_than_the_function_go_on_to_them(tmp_path: Path) -> None:
    """Where gcc inlines the beginning: those calls were missing, and cpu/call too large by as much."""
    path = assemble(
        tmp_path / "parts.so",
        function("whole", "test %edi, %edi", "je 1f", "jmp whole.part.0", "1: ret"),
        function("whole.part.0", "push %rbx", "pop %rbx", "ret"),
        function("one", "call whole.part.0", "ret"),
        function("other", "nop", "jmp whole.part.0"),
    )
    for times in (False, True):
        with ElfFile.open(str(path)) as elf:
            (whole,) = search(elf, ["whole"], [], times=times).routines
            begins = {one.name: one.value for one in elf.symbols()}
        part = whole.copies[1]
        assert part.symbol == "whole.part.0" and part.exits.untimed
        assert [one.vaddr for one in part.places] == [begins["one"], begins["other"] + 1]
        assert all(one.knows_caller for one in part.places)
        assert whole.notes == (
            "where its beginning is inlined, only calls that go on to its rest are counted",
        )


def test_a_call_goes_on_in_the_rest_of_the_function(tmp_path: Path) -> None:
    """By a jump to it, which is no tail call: no time was left of such calls."""
    path = assemble(
        tmp_path / "parts.so",
        function("whole", "push %rbx", "pop %rbx", "test %edi, %edi", "je 1f", "jmp whole.part.0", "1: ret"),
        function("whole.part.0", "nop", "test %esi, %esi", "js 1f", "ret", "1: jmp whole.part.0.cold"),
        function("whole.part.0.cold", "nop", "jmp other"),
        function("other", "ret"),
    )
    with ElfFile.open(str(path)) as elf:
        (routine,) = search(elf, ["whole"], [], times=True).routines
        begins = {one.name: one.value for one in elf.symbols()}
    (whole,) = routine.copies
    at = (begins["whole"] + 8, begins["whole.part.0"] + 5, begins["whole.part.0.cold"] + 1)
    assert whole.exits == Exits(at)


def test_thousands_of_matches_are_counted_but_not_looked_at(tmp_path: Path) -> None:
    source = ".section .note.GNU-stack\n.text\n" + "".join(
        f".globl f{i}\n.type f{i}, @function\nf{i}: ret\n" for i in range(3000)
    )
    path = tmp_path / "thousands.so"
    subprocess.run([*COMPILE, "assembler", "-", "-shared", "-o", path], input=source, text=True, check=True)
    found = look_for(path, "f?*", "f?")
    assert found.matched >= 3000 and len(found.routines) == MAX_ROUTINES


def test_of_a_name_with_other_arguments_its_overloads_are_named() -> None:
    """What `std::string` stands for is too long to remember; names that look like it were those of libraries."""
    symbols = [
        Symbol(name, 16, 16, 1, 2)
        for name in ("_ZN2ns4overEi", "_ZN2ns4overERKSs", "_ZNSs4overEi", "over_all")
    ]
    assert nearest("ns::over(long)", symbols) == ("ns::over(int)", "ns::over(std::string const&)")
    assert nearest("over(long)", symbols)[:1] == ("ns::over(int)",)


def test_stripped_files_name_nothing(compiled: Path, tmp_path: Path) -> None:
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-s", compiled, "-o", stripped], check=True)
    assert not look_for(stripped, "direct").routines


def test_functions_that_are_inlined_everywhere_are_known_by_debug_information(tmp_path: Path) -> None:
    source = (
        "static inline int squared(int x) { return x * x; }\nint around(int x) { return squared(x + 1); }\n"
    )
    path = tmp_path / "inlined.so"
    for debug, known in (("-g", (0,)), ("-g0", ())):
        compile_it = ["gcc", "-O2", debug, "-x", "c", "-", "-shared", "-fPIC", "-o", path]
        subprocess.run(compile_it, input=source, text=True, check=True)
        found = look_for(path, "squared", "around", "square*", "nowhere")
        assert found.answered == (1,) and found.inlined == known


def test_a_function_without_a_name_is_found_by_its_address(compiled: Path, tmp_path: Path) -> None:
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-s", compiled, "-o", stripped], check=True)
    begin = the_copy(compiled, "twice").vaddr
    with ElfFile.open(str(stripped)) as elf:
        found = search(elf, [], [begin + 1, 8])
    (routine,) = found.routines
    assert (routine.name, routine.copies[0].vaddr, found.answered) == (f"+{begin:#x}", begin, (0,))
    assert routine.copies[0].places[0].vaddr - begin < 16


def test_damaged_files_do_no_harm(compiled: Path) -> None:
    content, generator = compiled.read_bytes(), random.Random(17)
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(generator.choice((1, 8, 64))):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        try:
            elf = ElfFile(lambda at, size, raw=bytes(damaged): raw[at : at + size], len(damaged), "damaged")
            search(elf, ["*"], [0x1000])
        except ElfError:
            pass


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=6), max_leaves=20))  # fmt: skip
def test_nonsense_of_a_child_is_refused(raw: Any) -> None:
    try:
        found_from_json(raw)
    except ValueError:
        pass


def test_what_one_asks_for() -> None:
    assert parse_wanted("a b.c:12").line == 12
    assert parse_wanted("0x40aF").address == 0x40AF
    assert parse_wanted("f(int)").name == "f(int)"
    for text in ("", " ", "a\nb", "x" * 5000):
        with pytest.raises(UsageError, match="-f"):
            parse_wanted(text)


# the estimate


def test_an_estimate_leaves_out_what_counting_took() -> None:
    made = estimate(Look(0.25, 0.25, 500, 0, 900.0, 5000.0))
    assert made.calls_per_s == pytest.approx(2004, rel=0.01) and made.percent == pytest.approx(0.18, rel=0.01)
    assert "1 routine, 2,004 calls/s x 0.9 us = 0.2 % of a core" in made.text(1)
    dear = estimate(Look(0.25, 0.25, 0, 500, 900.0, 5000.0))
    assert dear.call_ns == pytest.approx(5000)
    assert estimate(Look(0.25, 0.0, 0, 0, 900.0, 5000.0)) == Estimate(0.0, 900.0, 0.0)


def test_an_estimate_is_a_bound_where_all_that_was_seen_is_counting() -> None:
    """What is left for the program itself is less than the error of a price: it may be a hundredth of that."""
    for samples in ((), (60, 0.04)):
        made = estimate(Look(0.05, 0.05, 50_000, 0, 1000.0, 5000.0, *samples))
        assert made.is_bound and "run at least " in made.slowdown
        assert "1 routine, at least " in made.text(1)
    told = estimate(Look(0.05, 0.05, 36_500, 0, 1000.0, 5000.0))
    assert not told.is_bound and "run 3.7 times as long" in told.slowdown


# the result

MODULE = "program"
DSO = Dso(("file", 1, 2, 3, 4), f"/{MODULE}", problem="no file")


def counted_site(
    number: int, name: str, vaddr: int, *, knows: bool = False, timed_as: int | None = None, symbol: str = ""
) -> CountedSite:
    copy = Copy(symbol or name, 0x1000, "", (CallPlace(vaddr, True, knows),))
    return CountedSite(number, DSO, FoundFunction(name, (copy,), ("a note",)), copy, copy.places[0], timed_as)


class Image:
    def find(self, address: int, epoch: int) -> tuple[Dso, int] | None:
        return (DSO, address) if address else None


def resolve(places: Any) -> dict[Any, tuple[Frame, ...]]:
    names = {0x1000: "f", 0x2000: "main", 0x3000: "sweep", 0x2004: "main"}
    return {one: (Frame(names[one[1]], "s.c", one[1] & 0xFF, 1, MODULE, address=one[1]),) for one in places}


def made(
    samples: list[PathSample] | None = None, times: Times | None = None, unsampled: int = 0, symbol: str = ""
) -> CallProfile:
    sites = {
        0: counted_site(0, "f", 0x1000, timed_as=5 if times else None, symbol=symbol),
        1: counted_site(1, "f", 0x2000, knows=True),
    }
    by_site = {0: {0: Calls(3, 1), 1: Calls(0, 6, 2)}, 1: {1: Calls(5, 0)}}
    by_caller = {
        Caller(0, 0x3000, 0, 1): Calls(0, 7, 2), Caller(0, 0x2004, 0, 1): Calls(2, 0), Caller(0, 0, 0, 1): Calls(1, 0)
    }  # fmt: skip
    profile = Profile(ProcessInfo(1, "x"), 2.0, 499, samples or [], lost={"calls": 3, "callers": 4})
    return make_result(sites, by_site, by_caller, {1: Image()}, resolve, profile, 2.0, times, {1: unsampled})


def test_calls_add_up_by_routine_arc_and_cpu() -> None:
    result = made()
    (row,) = result.routines
    assert row.calls == Calls(8, 7, 2) and row.per_cpu == {0: Calls(3, 1), 1: Calls(5, 6, 2)}
    arcs = {arc.caller.name: arc.calls for arc in result.arcs}
    assert arcs == {"main": Calls(7, 0), "sweep": Calls(0, 7, 2), "[unknown]": Calls(1, 0)}


def test_cpu_time_per_call_is_sampled_time_by_exact_calls() -> None:
    f = Frame("f", "s.c", 3, 1, MODULE, address=0x1000)
    g = Frame("g", "s.c", 9, 8, MODULE, address=0x1100)
    around = Frame("around", "s.c", 30, 28, MODULE, address=0x1200)
    inlined = Frame("f", "s.c", 3, 1, MODULE, address=0x1200, inlined=True)
    work = Metrics(work_ns=3e6, samples=1)
    levels = (3e6, 3e6)
    result = made([
        PathSample((f, g), work, levels=levels), PathSample((f, f), work, levels=levels),
        PathSample((around, inlined), work, levels=levels),
    ])  # fmt: skip
    (row,) = result.routines
    assert row.own_cpu_s == pytest.approx(6e-3) and row.inlined_cpu_s == pytest.approx(3e-3)
    assert row.cpu_per_call_s == pytest.approx(6e-3 / 15), (
        "inlined copies have no calls: their time is left out"
    )
    assert row.inlined_in == ("around",)


def test_what_is_inlined_around_a_call_or_within_it_is_time_of_that_call() -> None:
    """Recursion of which a compiler inlines some levels, in `main` or in itself: 3,000,000 calls took "0.0 ns" each."""
    f = Frame("f", "s.c", 3, 1, MODULE, address=0x1000)
    main = Frame("main", "s.c", 30, 28, MODULE, address=0x1200)
    inlined = Frame("f", "s.c", 3, 1, MODULE, address=0x1200, inlined=True)
    work = Metrics(work_ns=3e6, samples=1)
    paths = ((main, inlined, f), (main, f, inlined), (f, inlined, f))
    result = made([PathSample(path, work, levels=(3e6, 3e6)) for path in paths])
    (row,) = result.routines
    assert row.inlined_cpu_s == 0.0 and row.cpu_per_call_s == pytest.approx(9e-3 / 15)
    assert row.inlined_in == ("f", "main")
    assert "f is inlined into f, main: calls there cannot be counted" in notes(result)


def test_where_the_beginning_is_inlined_calls_are_counted_that_go_on() -> None:
    """They are in the table, with that caller: it is not said that they cannot be counted."""
    main = Frame("main", "s.c", 30, 28, MODULE, address=0x1200)
    inlined = Frame("f", "s.c", 3, 1, MODULE, address=0x1200, inlined=True)
    rest = Frame("f", "s.c", 4, 1, MODULE, address=0x1000)
    work = Metrics(work_ns=3e6, samples=1)
    result = made([PathSample((main, inlined, rest), work, levels=(3e6, 3e6))], symbol="f.part.0")
    assert "f begins inlined in main: calls that end there cannot be counted" in notes(result)


def test_calls_that_samples_did_not_meet_have_no_cpu_time() -> None:
    inlined = Frame("f", "s.c", 3, 1, MODULE, address=0x1200, inlined=True)
    main = Frame("main", "s.c", 30, 28, MODULE, address=0x1200)
    (row,) = made([PathSample((main, inlined), Metrics(work_ns=3e6, samples=1), levels=(3e6, 3e6))]).routines
    assert row.cpu_per_call_s is None, "not 0.0: samples met inlined copies alone"


def test_calls_of_a_time_without_samples_have_no_part_in_cpu_time_per_call() -> None:
    """Those of the look."""
    f = Frame("f", "s.c", 3, 1, MODULE, address=0x1000)
    samples = [PathSample((f,), Metrics(work_ns=3e6, samples=1), levels=(3e6, 3e6))]
    (row,) = made(samples, unsampled=5).routines
    assert row.calls.all == 15 and row.cpu_per_call_s == pytest.approx(3e-3 / 10)


def test_the_report_says_what_was_lost_and_guessed() -> None:
    result = made()
    text = io.StringIO()
    print_result(result, text)
    for expected in ("advice: f ", "<- sweep", "3 calls are not counted", "without their caller", "guessed at 2",
                     "a note"):  # fmt: skip
        assert expected in text.getvalue()
    loaded = as_json(result)
    json.dumps(loaded, allow_nan=False)
    (row,) = loaded["routines"]
    assert row["sequential"]["entries"] == 8 and row["concurrent"]["entries"] == 7
    assert row["concurrent"]["per_cpu"] == [1, 6] and row["callees"]["other"] == {"count": 0}
    assert {"caller", "callee", "sequential", "concurrent"} <= loaded["arcs"][0].keys()


def test_what_is_noted_of_many_routines_is_told_once_and_long_names_are_cut() -> None:
    result = made()
    (row,) = result.routines
    for name in ("g", "h", "i", "j"):
        copy = replace(row, function=replace(row.function, name=name * 300), notes=["the same of all"])
        result.routines.append(copy)
    (told,) = [text for text in notes(result) if text.endswith("the same of all")]
    assert " and 1 more: " in told and len(told) < 400


def test_times_are_joined_with_their_routine_and_arcs() -> None:
    took = CallTime(
        4,
        8_000_000,
        5_000_000,
        6_000_000,
        4_000_000,
        8_000_000,
        8_000_000,
        6_000_000,
        8_000_000,
        5_000_000,
        3_000_000,
    )
    of_f = RoutineTime(took, took, 10_000_000, 7_000_000, open=1, unseen=2, unwound=3, unseen_within=1)
    times = Times({5: of_f}, {(0, 0x3000, 0, 1): (ArcTime(), ArcTime(7, 70_000, 7_000))})
    result = made(times=times)
    (row,) = result.routines
    assert row.times == of_f
    arcs = {arc.caller.name: arc.times[1] for arc in result.arcs}
    assert arcs["sweep"] == ArcTime(7, 70_000, 7_000) and arcs["main"] == ArcTime()
    loaded = as_json(result)
    assert loaded["routines"][0]["times"]["elapsed_s"] == 0.01
    assert loaded["routines"][0]["times"]["threads_inside"] == 1.6
    assert loaded["routines"][0]["times"]["sequential"]["elapsed_per_call_s"] == 0.002
    assert [arc["concurrent"].get("elapsed_s") for arc in loaded["arcs"] if arc["caller"] == "sweep"] == [
        7e-5
    ]
    text = io.StringIO()
    print_result(result, text)
    for expected in (
        "longest",
        "1.6",
        "10 ms",
        "2 calls ended unseen: their times are missing",
        "1 call within it ended unseen: direct and direct cpu have what that took",
        "3 calls were left by",
        "1 thread is in it",
    ):
        assert expected in text.getvalue(), expected
    assert as_json(made())["routines"][0]["times"] is None, "nobody asked for them"
    assert "what is left" not in text.getvalue()
    drowned = took._replace(first_ns=1_000_000)
    result = made(times=times._replace(by_routine={5: RoutineTime(drowned, drowned)}))
    assert any("timing took most of the time of f" in note for note in as_json(result)["notes"])


class _Finder:
    times = True


class _Process:
    pid, image, load_map = 1, 1, None

    def __init__(self, *agents: Agent) -> None:
        self.agents = agents


def timed_as(copy: Copy, *agents: Agent) -> tuple[int | None, list[str]]:
    counting = CallCounting(cast(BpfKernel, None), cast(FunctionFinder, _Finder()))
    routine = FoundFunction(copy.symbol, (copy,), ())
    return counting._number_of_timed(_Process(*agents), DSO, routine, copy), counting.notes


def test_samples_that_a_trap_held_back_are_at_the_probe_or_right_behind_it() -> None:
    counting = CallCounting(
        cast(BpfKernel, None), cast(FunctionFinder, _Finder()), {0: counted_site(0, "f", 0x1004)}
    )
    load_map = LoadMap.of_mappings(1, [Mapping(0x40_0000, 0x40_2000, 0, DSO)])
    bias = 0x40_0000
    places = counting.held_back_at(load_map)
    assert [at for at in range(0x2000) if bias + at in places] == [*range(0x1004, 0x1014)]
    assert 0x7000 not in places, "nothing is mapped there"


def test_what_cannot_be_timed_is_said_with_what_to_use_instead() -> None:
    fine = Copy("f", 0x1000, "", (CallPlace(0x1000, True, False),))
    assert timed_as(fine) == (0, [])
    number, (note,) = timed_as(fine._replace(exits=Exits(untimed="a conditional jump leaves it")))
    assert number is None and "a conditional jump leaves it" in note and "samples" in note
    for agent in (OpenCilk(), CilkPlus(), Cilk5()):
        number, (note,) = timed_as(fine, agent)
        assert number is None and agent.name in note and "parprof record" in note
    assert timed_as(fine, Libgomp())[0] == 0


def test_where_nothing_was_called_it_is_said_what_that_may_mean() -> None:
    """Compilers put copies of a function into its callers, and its own code is there for other files alone."""
    result = made()
    result.routines[0].calls = Calls()
    assert advice(result).startswith(
        "none of the functions was called at its own code"
    ) and "copies of them" in advice(result)
    assert "children that it forks" in advice(result), "who counts a shell or a pool of workers"
    result.routines.clear()
    assert advice(result) == "nothing was counted: none of the functions was found, or could be probed"


def test_the_first_sentence() -> None:
    result = made()
    assert "f was called 15 times" in advice(result) and "53 % of them while nothing else runs" in advice(
        result
    )
    result.counted_s = 1e-4
    assert "f is called 150,000/s" in advice(result)
    result.routines[0].calls = Calls()
    assert advice(result).startswith("none of the functions was called")


def test_names_that_a_program_chose_cannot_steer_the_terminal() -> None:
    result = made()
    result.arcs[0].caller = type(result.arcs[0].caller)("evil\x1b[2J")
    text = io.StringIO()
    print_result(result, text)
    assert "\x1b" not in text.getvalue()


def test_cedars_records() -> None:
    assert callee_calls(Calls(1, 0), [Calls(7, 5)]) == CalleeCalls(ss=7, sc=5)
    assert callee_calls(Calls(0, 4), [Calls(1, 5)]) == CalleeCalls(cs=5, other=1)
    assert callee_calls(Calls(), [Calls(1, 5)]) == CalleeCalls(other=6)


def test_cookies_of_calls() -> None:
    assert CallProbe("f", 0, 4095).cookie == 4095
    assert CallProbe("f", 0, 1, dear=True, knows_caller=True).cookie == 1 | CALL_DEAR | CALL_KNOWS_CALLER
    assert CallProbe("f", 0, 1, leaves=True, routine=7).cookie == 1 | CALL_LEAVES | 7 << CALL_ROUTINE_SHIFT
    assert CallProbe("f", 0, 0, timed=True, lands=True).cookie == CALL_TIMED | CALL_LANDS
    assert CallProbe("f", 0, 1).moves and not CallProbe("f", 0, 1).returns, "never a return probe"
