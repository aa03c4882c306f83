# SPDX-License-Identifier: Apache-2.0
"""parprof.files.elf against readelf and nm, and against damaged files."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parprof.files import elf_symbols
from parprof.files.elf import ET_DYN, ET_EXEC, ElfError, ElfFile
from parprof.files.elf_symbols import BIND_GLOBAL, BIND_LOCAL, Strings

SOURCE = """
#include <stdio.h>
static int __attribute__((noinline)) hidden(int x) { return x * 3 + 1; }
int old_face(int x) { return hidden(x); }
int new_face(int x) { return hidden(x) + 1; }
int plain(int x) { puts("x"); return hidden(x) + 2; }
__asm__(".symver old_face, face@V1");
__asm__(".symver new_face, face@@V2");
"""
VERSIONS = "V1 { global: face; plain; local: *; };\nV2 { global: face; } V1;\n"
MAIN = "int plain(int); int main(int c, char **v) { return plain(c); }\n"


def run(*command: object) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a versioned library and programs of several kinds."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    here = tmp_path_factory.mktemp("elf")
    (here / "lib.c").write_text(SOURCE)
    (here / "lib.map").write_text(VERSIONS)
    (here / "main.c").write_text(MAIN)
    library = here / "libface.so.1"
    run(
        "gcc",
        "-O1",
        "-shared",
        "-fPIC",
        "-Wl,--build-id=0x0123456789abcdef",
        "-Wl,-soname,libface.so.1",
        f"-Wl,--version-script={here / 'lib.map'}",
        here / "lib.c",
        "-o",
        library,
    )
    run("strip", "-o", here / "stripped.so", library)
    run("gcc", "-O1", here / "main.c", library, "-o", here / "pie")
    run("gcc", "-O1", "-no-pie", here / "main.c", library, "-o", here / "fixed")
    (here / "alone.c").write_text("int main(void) { return 0; }\n")
    run("gcc", "-O1", "-static", "-nostdlib", "-Wl,-e,main", here / "alone.c", "-o", here / "static")
    return here


@pytest.fixture(scope="module")
def headless(built: Path) -> Path:
    """The stripped library without section headers, as ``strip --strip-section-headers`` leaves it."""
    data = bytearray((built / "stripped.so").read_bytes())
    struct.pack_into("<Q", data, 40, 0)
    struct.pack_into("<HHH", data, 58, 0, 0, 0)
    path = built / "headless.so"
    path.write_bytes(data)
    return path


def test_library(built: Path) -> None:
    with ElfFile.open(str(built / "libface.so.1")) as elf:
        assert elf.build_id == "0123456789abcdef"
        assert elf.soname == "libface.so.1"
        assert "libc.so.6" in elf.needed
        assert elf.type == ET_DYN
        assert not elf.is_static
        assert "puts" in elf.undefined()
        symbols = {symbol.name: symbol for symbol in elf.symbols()}
        assert symbols["hidden"].bind == BIND_LOCAL
        assert symbols["plain"].bind == BIND_GLOBAL
        assert symbols["plain"].size > 0


def test_kinds(built: Path) -> None:
    with ElfFile.open(str(built / "pie")) as pie, ElfFile.open(str(built / "fixed")) as fixed:
        assert (pie.type, fixed.type) == (ET_DYN, ET_EXEC)
        assert pie.interp.startswith("/lib")
        assert pie.needed[0] == "libface.so.1"
        assert "plain" in pie.undefined()
        assert (pie.base, fixed.base) == (0, 0x400000)
    with ElfFile.open(str(built / "static")) as static:
        assert static.is_static
        assert [symbol.name for symbol in static.symbols()] == ["main"]


@pytest.mark.parametrize("name", ["libface.so.1", "stripped.so", "headless.so"])
def test_versions_default_first(built: Path, headless: Path, name: str) -> None:
    nm = run("nm", "-D", built / "stripped.so")
    addresses = {line.split()[2]: int(line.split()[0], 16) for line in nm.splitlines() if " T " in line}
    with ElfFile.open(str(built / name)) as elf:
        found = elf.lookup(["face", "plain", "nothing"])
        assert [symbol.value for symbol in found["face"]] == [addresses["face@@V2"], addresses["face@V1"]]
        assert [symbol.value for symbol in found["plain"]] == [addresses["plain@@V1"]]
        assert "nothing" not in found
        assert "puts" in elf.undefined()
        assert elf.soname == "libface.so.1"
        assert elf.build_id == "0123456789abcdef"


@pytest.mark.parametrize("name", ["pie", "fixed", "libface.so.1"])
def test_symbols_agree_with_nm(built: Path, name: str) -> None:
    theirs = set()
    for line in run("nm", "-f", "posix", built / name).splitlines():
        symbol, kind, *numbers = line.split()
        if kind in "tTwWi" and numbers and int(numbers[0], 16):
            theirs.add((symbol.split("@")[0], int(numbers[0], 16)))
    with ElfFile.open(str(built / name)) as elf:
        ours = {(symbol.name, symbol.value) for symbol in elf.symbols()}
    assert ours <= theirs
    assert {symbol for symbol, _ in theirs} - {symbol for symbol, _ in ours} <= {"data_start"}  # no function


def test_addresses(built: Path) -> None:
    with ElfFile.open(str(built / "fixed")) as elf:
        (main,) = elf.lookup(["main"])["main"]
        offset = elf.file_offset(main.value)
        assert offset is not None
        assert elf.vaddr(offset) == main.value
        assert elf.read(main.value, main.size) == (built / "fixed").read_bytes()[offset : offset + main.size]
        assert elf.code_end(main.value) >= main.value + main.size
        assert elf.file_offset(1) is None
        assert elf.vaddr(1 << 40) is None
        assert elf.read(1, 8) == b""


def test_a_page_that_two_segments_share_counts_as_code() -> None:
    data = bytearray(64 + 2 * 56 + 0x3000)
    data[:64] = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0
    )
    struct.pack_into("<IIQQQQQQ", data, 64, 1, 4, 0, 0, 0, 0x1234, 0x1234, 4096)
    struct.pack_into("<IIQQQQQQ", data, 120, 1, 5, 0x1234, 0x2234, 0, 0x1000, 0x1000, 4096)
    elf = ElfFile(lambda offset, size: bytes(data[offset : offset + size]), len(data), "test")
    assert elf.vaddr(0x1234) == 0x2234
    assert elf.vaddr(0x1000) == 0x2000  # where the kernel maps the page of the code
    assert elf.vaddr(0x100) == 0x100


def test_not_elf(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    os.mkfifo(tmp_path / "pipe")
    for path, word in (
        ("text", "not an ELF"),
        ("none", "No such file"),
        ("pipe", "regular"),
        (".", "regular"),
    ):
        with pytest.raises(ElfError, match=word):
            ElfFile.open(str(tmp_path / path))
    with pytest.raises(ElfError):
        ElfFile.open("a\0b")
    with pytest.raises(ElfError, match="regular"):
        ElfFile.open("/dev/null")


def test_a_file_that_shrinks_is_no_crash(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "shrinking"
    shutil.copy(built / "pie", path)
    with ElfFile.open(str(path)) as elf:
        os.truncate(path, 100)
        explore(elf)


def test_strings_across_windows() -> None:
    data = b"\0" + b"a" * 70000 + b"\0end\0tail"
    strings = Strings(lambda offset, size: data[offset : offset + size], 0, len(data))
    assert strings.get(len(data) - 8) == b"end"
    assert strings.get(len(data) - 4) == b"tail"
    assert set(strings.get(1)) == {ord("a")}
    assert strings.get(-1) == strings.get(len(data)) == b""


@given(st.binary(max_size=40), st.sets(st.binary(min_size=1, max_size=4), max_size=3), st.integers(1, 9))
def test_the_places_of_names_are_those_where_the_strings_are(
    data: bytes, names: set[bytes], piece: int
) -> None:
    strings = Strings(lambda offset, size: data[offset : offset + min(size, piece)], 0, len(data))
    wanted = {name for name in names if not {0, ord("@")} & set(name)}
    held = {index: data[index:].partition(b"\0")[0] for index in range(len(data))}
    expected = {index for index, text in held.items() if {text, text.partition(b"@")[0]} & wanted}
    assert strings.places(wanted) == expected


def explore(elf: ElfFile) -> None:
    """Everything that a file is asked for."""
    count = 0
    try:
        for symbol in elf.symbols():
            elf.read(symbol.value, min(symbol.size, 64))
            elf.code_end(symbol.value)
            count += 1
            assert count < 1 << 21
        elf.undefined()
        elf.lookup(["main", "face", ""])
        _ = elf.build_id, elf.interp, elf.needed, elf.soname, elf.is_static
        elf.section_data(b".gnu_debuglink", 4096)
        elf.vaddr(0x1000), elf.file_offset(0x1000)
    except ElfError:
        pass


def survive(data: bytes) -> bool:
    """Whether the headers were good enough to look further."""
    begin = time.process_time()
    try:
        elf = ElfFile(lambda offset, size: data[offset : offset + size], len(data), "mutant")
    except ElfError:
        return False
    explore(elf)
    assert time.process_time() - begin < 2
    return True


@pytest.mark.parametrize("name", ["pie", "stripped.so", "headless.so"])
def test_truncated(built: Path, headless: Path, name: str) -> None:
    data = (built / name).read_bytes()
    for size in [*range(0, 1200, 7), *range(1200, len(data), 509)]:
        survive(data[:size])


@pytest.mark.parametrize("name", ["libface.so.1", "headless.so"])
def test_mutated(built: Path, headless: Path, name: str) -> None:
    original = (built / name).read_bytes()
    chance = random.Random(20)
    tables = [range(64), range(64, 64 + 56 * 12), range(0x200, 0x800), range(len(original))]
    tables.append(range(max(0, len(original) - 64 * 34), len(original)))  # section headers
    explored = 0
    for _ in range(600):
        data = bytearray(original)
        for _ in range(chance.randint(1, 6)):
            at = chance.choice(chance.choice(tables))
            wild = chance.choice(
                [b"\0", b"\xff", b"\xff\xff\xff\xff", b"\xff" * 8, b"\x7f", b"\x80", chance.randbytes(4)]
            )
            data[at : at + len(wild)] = wild
        explored += survive(bytes(data))
    assert explored > 100


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=600))
def test_any_bytes(tail: bytes) -> None:
    survive(tail)
    survive(b"\x7fELF\x02\x01\x01" + tail)
    survive(
        b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
        + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 64, 0, 64, 56, 3, 64, 5, 1)
        + tail
    )


def test_endless_tables_are_bounded() -> None:
    """A sparse file that claims 2^40 symbols: time and memory stay within reason."""
    data = bytearray(64 + 56 + 3 * 64)
    data[:64] = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 120, 0, 64, 56, 1, 64, 3, 0
    )
    struct.pack_into("<IIQQQQQQ", data, 64, 1, 5, 0, 0, 0, 1 << 40, 1 << 40, 4096)
    struct.pack_into("<IIQQQQIIQQ", data, 120 + 64, 0, 2, 0, 0, 0, 24 << 40, 2, 0, 8, 24)
    struct.pack_into("<IIQQQQIIQQ", data, 120 + 128, 0, 3, 0, 0, 0, 1 << 40, 0, 0, 1, 0)
    begin = time.process_time()
    elf = ElfFile(
        lambda offset, size: bytes(data[offset : offset + size]).ljust(size, b"\0"), 1 << 50, "sparse"
    )
    assert sum(1 for _ in elf.symbols()) < 1 << 22
    assert elf.lookup(["main"]) == {}
    assert time.process_time() - begin < 20


def test_a_large_table_is_looked_up_as_a_small_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the places of names rather than symbol by symbol; libc's symbols have versions, some several."""
    path = next(
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libc." in line
    )
    with ElfFile.open(path) as elf:
        names = {symbol.name for symbol in elf.symbols()}
        wanted = [*sorted(names)[::7], "pthread_cond_wait", "memcpy", "no_such_name"]
        found = elf.lookup(wanted)
        assert len(found) > 100 and sum(len(known) for known in found.values()) > len(found)
        monkeypatch.setattr(elf_symbols, "_FEW", 1 << 30)
        assert elf.lookup(wanted) == found
