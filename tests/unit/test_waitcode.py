# SPDX-License-Identifier: Apache-2.0
"""Which of a runtime's code waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.files.elf import ElfFile
from parprof.kernel.records import MAX_WAIT_RANGES
from parprof.probes.wait_code import merged, wait_code

LIBRARIES = [Path("/usr/lib/x86_64-linux-gnu") / name for name in ("libgomp.so.1", "libomp.so.5")]

ranges = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 50)), max_size=30).map(
    lambda pairs: sorted({(start, start + size) for start, size in pairs})
)


@given(ranges, st.integers(1, 20))
def test_merged_ranges_are_few_and_cover_all(given_ranges: list[tuple[int, int]], most: int) -> None:
    out = merged(given_ranges, most)
    assert len(out) <= most
    assert all(any(a <= start and end <= b for a, b in out) for start, end in given_ranges)
    assert all(before[1] < after[0] for before, after in zip(out, out[1:], strict=False)), "sorted, apart"


def test_the_smallest_gaps_are_closed_first() -> None:
    assert merged([(0, 1), (10, 11), (12, 13), (40, 41)], 3) == [(0, 1), (10, 13), (40, 41)]
    assert merged([(0, 5), (3, 9)], 4) == [(0, 9)], "what overlaps is one"
    assert merged([], 4) == []


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name)
def test_real_libraries(path: Path) -> None:
    """Debian's runtimes, whose internal functions have no names: locks and barriers wait, creation does not."""
    if not path.exists():
        pytest.skip(f"{path.name} is not installed")
    with ElfFile.open(str(path)) as elf:
        found = wait_code(elf)
        assert 0 < len(found) <= MAX_WAIT_RANGES
        names = {
            "libgomp.so.1": ("GOMP_task", "GOMP_parallel"),
            "libomp.so.5": ("__kmpc_omp_task", "__kmpc_fork_call"),
        }
        for symbols in elf.lookup(names[path.name]).values():
            assert not any(start <= symbols[0].value < end for start, end in found), symbols[0].name
        waits = elf.lookup(["omp_set_nest_lock"] if path.name == "libgomp.so.1" else ["__kmp_wait_64"])
        values = [symbol.value for symbols in waits.values() for symbol in symbols]
        assert any(start <= value < end for value in values for start, end in found)


def test_a_file_without_the_table_has_none(tmp_path: Path) -> None:
    """No search table, as in what an assembler made: all of the runtime's code may wait."""
    import subprocess

    source = tmp_path / "a.s"
    source.write_text(".globl f\nf: pause\n jmp f\n")
    subprocess.run(["gcc", "-nostdlib", "-shared", "-o", tmp_path / "a.so", source], check=True)
    with ElfFile.open(str(tmp_path / "a.so")) as elf:
        assert wait_code(elf) == []


def test_a_static_program_has_no_table_but_what_it_is_made_of(tmp_path: Path) -> None:
    import subprocess

    source = tmp_path / "a.c"
    source.write_text('void waits(volatile int *f) { while (!*f) __asm__ volatile ("pause"); }\n'
                      "int main(int n, char **v) { (void)v; waits(&n); return 0; }\n")  # fmt: skip
    subprocess.run(["gcc", "-O1", "-static", "-fno-inline", source, "-o", tmp_path / "a"], check=True)
    with ElfFile.open(str(tmp_path / "a")) as elf:
        assert not elf.named_section(b".eh_frame_hdr")
        symbols = {name: found[0] for name, found in elf.lookup(["waits", "main"]).items()}
        start, end = symbols["waits"].value, symbols["waits"].value + symbols["waits"].size
        here = [one for one in wait_code(elf, [(start, symbols["main"].value + 1)]) if one[0] == start]
        assert here and end <= here[0][1] <= symbols["main"].value
