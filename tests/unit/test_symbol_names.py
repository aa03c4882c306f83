# SPDX-License-Identifier: Apache-2.0
"""Names and symbol tables, of programs and of the kernel, without a worker."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.files.elf import ElfFile
from parprof.model import Frame
from parprof.symbols.kernel import KernelSymbolizer
from parprof.symbols.names import readable, without_clone_suffixes, without_return_type
from parprof.symbols.table import find_functions


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("main._omp_fn.0", "main._omp_fn.0"),
        ("main._omp_fn.0.cold", "main._omp_fn.0"),
        ("f.constprop.0.isra.0", "f"),
        ("f.part.0.cold", "f"),
        ("f.lto_priv.0", "f"),
        ("f.llvm.123", "f"),
        (".omp_outlined.", ".omp_outlined."),
        ("f.cold", "f"),
        ("f.coldest", "f.coldest"),
        ("f.partial.1", "f.partial.1"),
        ("f.part.12", "f"),
        ("main.part", "main.part"),  # Go's, as the next two
        ("main.part.func1", "main.part.func1"),
        ("main.llvm", "main.llvm"),
        (".cold", ".cold"),
        (".omp_task_entry.", ".omp_task_entry."),
        ("main.omp_outlined_debug__", "main.omp_outlined_debug__"),
    ],
)
def test_clone_suffixes(name: str, shown: str) -> None:
    assert without_clone_suffixes(name) == shown


@pytest.mark.parametrize(
    ("mangled", "shown"),
    [
        ("_ZN2ns4workIdEET_S1_i", "ns::work<double>(double, int)"),
        ("_ZlsRSoRK1A", "operator<<(std::ostream&, A const&)"),
        ("_ZN3foocvT_IiEEv", "foo::operator int<int>()"),
        ("_ZN1AnwEm", "A::operator new(unsigned long)"),
        ("_Z1fIiEPFvcEi", "void (*f<int>(int))(char)"),
        (
            "_ZZ3fooIiEvT_ENKUlT_E_clIiEEDaS1_",
            "foo<int>(int)::{lambda(auto:1)#1}::operator()<int>(int) const",
        ),
        ("_ZN12_GLOBAL__N_13runIiEEvT_", "(anonymous namespace)::run<int>(int)"),
        ("_Z3fooIiEDTptfp_1xEPT_", "foo<int>(int*)"),
        ("_ZThn16_N1B1fEv", "non-virtual thunk to B::f()"),
        ("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE", "core::fmt::Formatter::pad"),
        ("_ZN1A3runEv._omp_fn.0", "A::run()._omp_fn.0"),
        ("_RNvCsjrHSEGnQ3l9_6scoped5merge", "scoped::merge"),
        (
            "_RNvMs0_NtNtNtCs7TUy_3std3sys6thread4unixNtB5_6Thread3new",
            "<std::sys::thread::unix::Thread>::new",
        ),
        ("_RNCNvCsjrHSEGnQ3l9_6scoped4main0", "scoped::main::{closure#0}"),
        ("_RNvCsjrHSEGnQ3l9_6scoped5merge.llvm.123", "scoped::merge"),
        (
            "_ZN91_$LT$core..slice..iter..Iter$LT$T$GT$$u20$as$u20$core..iter..traits..iterator..Iterator$GT$4next17h"
            "23529540072c1e72E",
            "<core::slice::iter::Iter<T> as core::iter::traits::iterator::Iterator>::next",
        ),
        ("_ZN2sc4main28_$u7b$$u7b$closure$u7d$$u7d$17h56986ad5df00ac9eE", "sc::main::{{closure}}"),
        ("_ZN2sc5merge17h56986ad5df00ac9eE.llvm.77", "sc::merge"),
        ("_Reduce", "_Reduce"),
        ("_R", "_R"),
        ("_ZN1A3runEv.isra.0.cold", "A::run()"),
        ("_ZN2ns1SIlE3runEPZNS1_3runElE23_ZN2ns1SIlE3runEl.Frame.actor", "ns::S<long>::run(long)"),
        ("_Z7sessionPZ7sessioniE17_Z7sessioni.Frame.destroy", "session(int)"),
        (
            "_ZZ4mainENUliE_clEPZZ4mainENKS_clEiE26_ZZ4mainENKUliE_clEi.Frame.actor.cold",
            "main::{lambda(int)#1}::operator()(int)",
        ),
        ("_Zx.Frame.actor", "_Zx.Frame.actor"),
        ("_Znonsense", "_Znonsense"),
        ("_Z", "_Z"),
        ("main", "main"),
        ("", ""),
    ],
)
def test_readable(mangled: str, shown: str) -> None:
    if mangled.startswith("_ZN1AnwEm") and readable(mangled) == mangled:
        pytest.skip("libstdc++.so.6 is not installed")
    assert readable(mangled) == shown


@pytest.mark.parametrize(
    "text", ["", "(", ")", "<", "a b c", "operator", "((((", "-> ->", "decltype (", "f(" * 500]
)
def test_return_types_of_nonsense(text: str) -> None:
    assert len(without_return_type(text)) <= len(text)


@given(
    st.lists(
        st.sampled_from(
            "f ns :: Foo<int> ( ) (anonymous\\ namespace) decltype operator operator() ~ * & -> int void < > , "
            "[abi:cxx11] {lambda(int)#1} \\  const".split(" ")
        ).map(lambda part: part.replace("\\", " ").replace("  ", " ")),
        max_size=12,
    ).map("".join)
)
def test_names_without_templates_take_a_short_way_to_the_same(text: str) -> None:
    short = without_return_type(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parprof.symbols.names._PLAIN", re.compile(r"(?!)"))
        assert without_return_type(text) == short


TABLE_SOURCE = """
.text
.globl first, alias, _under, last
.type first, @function; .type alias, @function; .type _under, @function; .type sizeless, @function
.type inner, @function; .type last, @function
first: alias: _under: .skip 32
.size first, 32; .size alias, 32; .size _under, 32
.skip 16
sizeless: .skip 32
last: .skip 64
inner = last + 16
.size inner, 8; .size last, 48
.section .note.GNU-stack,"",@progbits
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ElfFile]:
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    here = tmp_path_factory.mktemp("table")
    (here / "table.s").write_text(TABLE_SOURCE)
    subprocess.run(["gcc", "-shared", "-nostdlib", "table.s", "-o", "table.so"], cwd=here, check=True)
    with ElfFile.open(str(here / "table.so")) as elf:
        yield elf


def test_table(table: ElfFile) -> None:
    first = table.lookup(["first"])["first"][0].value
    offsets = {
        0: "first",
        31: "first",
        32: "",
        47: "",
        48: "sizeless",
        79: "sizeless",
        80: "last",
        95: "last",
        96: "inner",
        103: "inner",
        104: "last",
        127: "last",
        128: "",
        100000: "",
        -1: "",
    }
    found = find_functions(table, (first + offset for offset in offsets))
    names = {offset: found[first + offset].name if first + offset in found else "" for offset in offsets}
    names = {offset: "first" if name == "alias" else name for offset, name in names.items()}
    assert names == offsets
    assert find_functions(table, ()) == {}


def test_start_code_does_not_cover_code_without_a_name(tmp_path: Path) -> None:
    """As in a program that GHC has made: its functions are local symbols that are gone, behind those of crtbegin.o."""
    body = "x = x * x + 1; " * 20
    source = f"int work(int x) {{ {body} return x; }} int main(int c, char **v) {{ return work(c); }}"
    (tmp_path / "a.c").write_text(source)
    program = tmp_path / "a"
    subprocess.run(["gcc", "-O0", tmp_path / "a.c", "-o", program], check=True)
    with ElfFile.open(str(program)) as elf:
        known = elf.lookup({"work", "frame_dummy", "main"})
        work, begun, main = (known[name][0].value for name in ("work", "frame_dummy", "main"))
    assert begun < work < main
    subprocess.run(["objcopy", "--strip-symbol=work", "--strip-symbol=main", program], check=True)
    with ElfFile.open(str(program)) as elf:
        assert {address: one.name for address, one in find_functions(elf, [begun, begun + 4]).items()} == {
            begun: "frame_dummy",
            begun + 4: "frame_dummy",
        }
        far = begun + 128
        assert find_functions(elf, [far]) == {}


KALLSYMS = """\
ffffffff81000000 T _stext
ffffffff81000100 t do_work
ffffffff81000100 T do_work_alias
ffffffff81000300 D some_data
ffffffff81000200 W wake\x1bup
ffffffffc0001000 t helper\t[module]
ffffffffc0001800 t bpf_prog_1234\t[bpf]
nonsense

zzzz T odd
"""


def test_kernel_symbols(tmp_path: Path) -> None:
    path = tmp_path / "kallsyms"
    path.write_text(KALLSYMS)
    kernel = KernelSymbolizer(path)
    base = 0xFFFFFFFF81000000
    expected = {
        base + 0x50: ("_stext", "[kernel]"),
        base + 0x1FF: ("do_work", "[kernel]"),
        base + 0x340: ("wake\\x1bup", "[kernel]"),
        0xFFFFFFFFC0001010: ("helper", "[module]"),
        0xFFFFFFFFC0001810: ("bpf_prog_1234", "[bpf]"),
        0x1000: ("[kernel]", "[kernel]"),
        0xFFFFFFFFF0000000: ("[kernel]", "[kernel]"),
    }
    found = kernel.resolve((address, False) for address in expected)
    assert {a: (f[0].name, f[0].module) for (a, _), f in found.items()} == expected
    path.unlink()  # remembered
    # no address: it would tell everybody who gets the profile where the kernel is (KASLR)
    assert kernel.frames(base + 0x50, False)[0] == Frame("_stext", module="[kernel]", address=0)
    path.write_text(KALLSYMS)
    assert kernel.frames(base + 0x100, True)[0].name == "_stext"
    assert kernel.frames(base + 0x200, True)[0].name == "do_work"
    assert kernel.frames(base + 0x200, False)[0].name == "wake\\x1bup"


def test_hidden_kernel_symbols(tmp_path: Path) -> None:
    (tmp_path / "kallsyms").write_text("0000000000000000 T _stext\n0000000000000000 t do_work\n")
    kernel = KernelSymbolizer(tmp_path / "kallsyms")
    assert kernel.frames(0xFFFFFFFF81000010, True)[0].name == "[kernel]"
    assert "kptr_restrict" in kernel.problem
    kernel = KernelSymbolizer(tmp_path / "none")
    assert kernel.frames(1, False)[0].name == "[kernel]"
    assert "No such file" in kernel.problem
