# SPDX-License-Identifier: Apache-2.0
"""Unwind tables of real files, row by row against ``readelf --debug-dump=frames-interp``."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from compiled import compile_once
from parprof.files.dso_cache import DsoCache
from parprof.files.elf import ElfFile
from parprof.process.loadmap import LoadMap
from parprof.unwind import emit
from parprof.unwind.eh_frame import FrameParser
from parprof.unwind.frames import frame_sections
from parprof.unwind.rows import RuleType, pack, unpack
from parprof.unwind.table import UnwindTable, build_table
from unwind_elf import CODE, eh_frame, elf_bytes, open_elf
from unwind_readelf import compare, readelf_rows

REALIGNED = """
#include <alloca.h>
#include <immintrin.h>
#include <stdio.h>
#include <string.h>
__attribute__((noinline)) void sink(void *p, long n) { volatile char *q = p; q[0] = (char)n; }
__attribute__((noinline)) double realigned(long n, double x) {
    __m256d v[4];
    char *p = alloca(n);
    memset(v, (int)n, sizeof v);
    sink(v, n);
    sink(p, n);
    return _mm256_cvtsd_f64(_mm256_add_pd(v[0], v[1])) + p[0] + x;
}
int main(int argc, char **argv) { puts(argv[0]); return (int)realigned(argc * 64, 1.5); }
"""
CXX = """
#include <algorithm>
#include <map>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>
static int depth(int n) { if (n > 40) throw std::runtime_error("deep"); return n ? depth(n + 1) + 1 : 0; }
int main(int argc, char **argv) {
    std::vector<std::string> words(argv, argv + argc);
    std::sort(words.begin(), words.end(), [](auto &a, auto &b) { return a.size() > b.size(); });
    std::map<std::string, int> counts;
    for (auto &word : words) counts[std::regex_replace(word, std::regex("[aeiou]+"), "_")]++;
    try { counts["x"] = depth(1); } catch (std::exception &error) { counts[error.what()]++; }
    return (int)counts.size();
}
"""
PLAIN = "int leaf(int); int twice(int x) { return leaf(x) + leaf(x + 1); } int leaf(int x) { return x; }\n"


def needs(*programs: str) -> None:
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")


def table_of(path: Path | str) -> UnwindTable:
    with ElfFile.open(str(path)) as elf:
        return build_table(elf)


def build(directory: Path, source: str, *options: str, compiler: str = "gcc", language: str = "c") -> Path:
    needs(compiler)
    out = directory / "program"
    command = [compiler, *options, "-x", language, "-", "-o", str(out)]
    try:
        compile_once(command, text=source)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{' '.join(command)}: {error.stderr[:200].decode(errors='replace')}")
    return out


def library(name: str) -> str:
    """The path of a library of this machine."""
    if name == "python":
        for path in (
            Path(sys.base_prefix) / "lib" / str(sysconfig.get_config_var("LDLIBRARY")),
            Path(sys.executable),
        ):
            if path.suffix != ".a" and path.is_file():
                return str(path.resolve())
    for directory in (
        "/lib/x86_64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/lib64",
        "/usr/lib",
    ):
        if os.path.exists(f"{directory}/{name}"):
            return f"{directory}/{name}"
    pytest.skip(f"there is no {name} here")


@pytest.mark.parametrize(
    "name",
    ["libc.so.6", "ld-linux-x86-64.so.2", "libgomp.so.1", "libomp.so.5", "libstdc++.so.6", "libcrypto.so.3", "python",
     "libm.so.6", "libgcc_s.so.1"],
)  # fmt: skip
def test_libraries_as_readelf_reads_them(name: str) -> None:
    needs("readelf")
    path = library(name)
    points, problems = compare(path, table_of(path))
    assert problems[:10] == []
    assert points > 500


def test_a_cxx_program_as_readelf_reads_it(tmp_path: Path) -> None:
    needs("readelf")
    program = build(tmp_path, CXX, "-O2", compiler="g++", language="c++")
    points, problems = compare(program, table_of(program))
    assert problems == []
    assert points > 1000


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_realigned_stack_as_readelf_reads_it(tmp_path: Path, compiler: str) -> None:
    needs("readelf")
    program = build(tmp_path, REALIGNED, "-O2", "-mavx2", compiler=compiler)
    table = table_of(program)
    assert compare(program, table)[1] == []
    kinds = Counter(unpack(table.row(index)[1]).type for index in range(table.count))
    assert kinds[RuleType.END] and kinds[RuleType.PLT]
    if compiler == "gcc":
        assert kinds[RuleType.R10] >= 2 and kinds[RuleType.RBP_DEREF] >= 1
    assert table.notes == {}


@pytest.mark.parametrize("options", [(), ("-gz=zlib",), ("-gz=zlib-gnu",), ("-gdwarf-4",), ("-gdwarf-3",)])
def test_debug_frame_as_readelf_reads_it(tmp_path: Path, options: tuple[str, ...]) -> None:
    needs("readelf")
    flags = [
        "-O2",
        "-g",
        "-fno-asynchronous-unwind-tables",
        "-fno-unwind-tables",
        "-shared",
        "-fPIC",
        "-nostdlib",
    ]
    program = build(tmp_path, PLAIN, *flags, *options)
    table = table_of(program)
    with ElfFile.open(str(program)) as elf:
        assert any(section.is_debug for section in frame_sections(elf))
        twice = elf.lookup(["twice"])["twice"][0].value
    assert unpack(table.rule(twice)).type is RuleType.RSP
    assert compare(program, table)[1] == []


@pytest.mark.parametrize("kind", ["-static", "-static-pie", "-pie"])
def test_static_files_and_files_without_section_headers(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what nothing describes is told by prologues where there are symbols, by returns where there are none
    monkeypatch.setattr("parprof.unwind.table.add_prologues", lambda rows, elf: rows)
    monkeypatch.setattr("parprof.unwind.table.add_returns", lambda rows, *_: (rows, 0))
    program = build(tmp_path, PLAIN + "int main(void) { return twice(3); }", "-O1", kind)
    whole = table_of(program)
    raw = bytearray(program.read_bytes())
    raw[40:48] = bytes(8)  # e_shoff
    raw[60:64] = bytes(4)  # e_shnum, e_shstrndx
    headless = tmp_path / "headless"
    headless.write_bytes(raw)
    assert whole.count > (5 if kind == "-pie" else 1000)
    if kind != "-static":  # has no PT_GNU_EH_FRAME: the program brings the section's address in its code
        bare = table_of(headless)
        rows = [bare.row(index) for index in range(bare.count)]
        assert len([rule for _, rule in rows if rule]) > 3
        assert all(whole.rule(address) == rule for address, rule in rows if rule)
        described = [whole.row(index) for index in range(whole.count) if bare.rule(whole.row(index)[0])]
        assert all(bare.rule(address) == rule for address, rule in described)


def test_no_call_frame_information(tmp_path: Path) -> None:
    flags = [
        "-O1",
        "-fno-asynchronous-unwind-tables",
        "-nostdlib",
        "-shared",
        "-fPIC",
        "-Wl,--build-id=0x1234",
    ]
    program = build(tmp_path, PLAIN, *flags)
    table = table_of(program)
    assert table.build_id == "1234"
    with ElfFile.open(str(program)) as elf:
        twice = elf.lookup(["twice"])["twice"][0].value
    assert table.rule(twice) == pack(RuleType.RSP, 8), "by its return"


def test_vdso() -> None:
    with DsoCache() as cache:
        dsos = [dso for dso in LoadMap.read(os.getpid(), None, cache).dsos() if dso.path == "[vdso]"]
        if not dsos or dsos[0].elf is None:
            pytest.skip("this process has no vDSO that we can read")
        elf = dsos[0].elf
        table = build_table(elf)
        gettime = elf.lookup(["__vdso_clock_gettime"])["__vdso_clock_gettime"][0].value
        assert table.count > 10
        assert table.build_id == elf.build_id
        assert unpack(table.rule(gettime)) == (RuleType.RSP, 0, 8)


def test_both_interpreters_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    path = library("libc.so.6")
    fast = table_of(path)
    ran = []

    def never_usual(cie: object) -> None:
        ran.append(cie)

    monkeypatch.setattr(emit, "usual_state", never_usual)
    exact = table_of(path)
    assert ran
    assert fast.rows == exact.rows and fast.notes == exact.notes


def test_rows_are_sorted_merged_and_of_8_bytes() -> None:
    table = table_of(library("libc.so.6"))
    rows = list(struct.iter_unpack("<II", table.rows))
    assert len(table.rows) == 8 * table.count
    assert all(
        before[0] < after[0] and before[1] != after[1] for before, after in zip(rows, rows[1:], strict=False)
    )
    assert rows[-1][1] == 0


def test_special_frames_of_libc() -> None:
    path = library("libc.so.6")
    table = table_of(path)
    kinds = Counter(rule >> 28 for _, rule in struct.iter_unpack("<II", table.rows))
    assert kinds[RuleType.SIGNAL] == 1  # __restore_rt
    assert kinds[RuleType.END] >= 1  # clone
    signal = next(pc for pc, rule in struct.iter_unpack("<II", table.rows) if rule >> 28 == RuleType.SIGNAL)
    needs("readelf")
    assert [row.start for row in readelf_rows(path) if row.signal] == [signal]


def test_gaps_that_the_c_library_leaves_are_known() -> None:
    needs("objdump")
    loader = library("ld-linux-x86-64.so.2")
    with ElfFile.open(loader) as elf:
        assert unpack(table_of(loader).rule(elf.entry)).type is RuleType.END
    path = library("libc.so.6")
    table = table_of(path)
    rows = (table.row(index) for index in range(table.count))
    gaps = [pc for pc, rule in rows if unpack(rule).type is RuleType.CLONE]
    assert 1 <= len(gaps) <= 2  # clone3, and clone in most versions
    for gap in gaps:
        bounds = f"--start-address={gap - 2}", f"--stop-address={gap + 16}"
        code = subprocess.run(
            ["objdump", "-d", *bounds, path], capture_output=True, text=True, check=True
        ).stdout
        assert "syscall" in code and "ret" in code


FORK = b"\x0f\x05\x48\x85\xc0"  # syscall; test %rax, %rax


def elf_with_gap(code: bytes, entry: int = 0) -> ElfFile:
    """A function of 16 bytes, a gap with this code, a function; the file's entry."""
    frames = eh_frame((CODE, 16, b""), (CODE + 16 + len(code), 16, b""))
    raw = bytearray(elf_bytes(frames, code_size=64))
    raw += bytes(max(0, CODE + 64 - len(raw)))
    raw[CODE + 16 : CODE + 16 + len(code)] = code
    raw[24:32] = struct.pack("<Q", entry)
    return open_elf(bytes(raw))


@pytest.mark.parametrize(
    ("code", "entry", "expected"),
    [
        (FORK + bytes(3), 0, [(16, RuleType.CLONE)]),
        (b"\x90" + FORK + bytes(2), 0, [(16, RuleType.NONE)]),
        (bytes(8), CODE + 16, [(16, RuleType.END)]),
        (bytes(8), CODE + 20, [(16, RuleType.NONE), (20, RuleType.END)]),
        (bytes(8), CODE + 8, [(16, RuleType.NONE)]),  # it has an FDE
        (bytes(8), 1 << 40, [(16, RuleType.NONE)]),
    ],
)
def test_what_a_gap_is(code: bytes, entry: int, expected: list[tuple[int, RuleType]]) -> None:
    table = build_table(elf_with_gap(code, entry))
    rows = [table.row(index) for index in range(table.count)]
    assert [(pc - CODE, unpack(rule).type) for pc, rule in rows] == [
        (0, RuleType.RSP), *expected, (16 + len(code), RuleType.RSP), (32 + len(code), RuleType.NONE)
    ]  # fmt: skip


def test_fdes_of_a_real_file_are_all_read() -> None:
    notes: Counter[str] = Counter()
    with ElfFile.open(library("libc.so.6")) as elf:
        (section,) = frame_sections(elf)
        fdes = FrameParser(section, notes).fdes
    assert len(fdes) > 1000
    assert not notes
