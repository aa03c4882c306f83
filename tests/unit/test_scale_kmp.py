"""Work and span of what compilers ask of LLVM's runtime, by clang, and by gcc on the same runtime.

The clock is the programs' own, so results are exact.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from parprof.scale.record import Flag, SiteKind, SpanRecord
from scale_programs import COMPILERS, has_clang, program, records_of, run, sites, variables

N = 100


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scale")


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(
    ("form", "work", "span", "bound"),
    [
        # a task is n, then its child's 5 n, which is longer than its own second part, then n
        ("untied", 8 * 8, 7, 8),
        # n, 2 n, and then the child's 10 n beside 3 n and the rest
        ("undeferred", 19, 13, 13),
        # 3 n by one thread; then n, n, n times the number, n
        ("serialized", 3 + 8 * 3 + 28, 3 + 3 + 7, 3 + 3 + 7),
        ("masked", 3 + 8, 4, 4),
        ("copied", 8 + 4 + 36, 1 + 4 + 8, 1 + 4 + 8),
        ("reduced", 64 + 64 + 8, 8 + 8 + 1, 8 + 8 + 1),
        ("awaited", 5 + 9 + 2, 9, 9),
        ("chained", 7, 7, 7),
        ("many", 8, 1, 1),
        ("locked", 128, 16, 64),
        ("cancelled", 24, 3, 3),
        # of 16 n in the ordered loop, 8 n are ordered
        ("sized", 16 + 512 + 64, 2 + 64 + 8, 8 + 64 + 8),
    ],
)
def test_constructs(directory: Path, compiler: str, form: str, work: int, span: int, bound: int) -> None:
    """With eight threads, in units of n."""
    record = run(directory, 8, "span_kmp", form, str(N), compiler=compiler)
    assert round(record.work_s * 1e9) == work * N
    assert round(record.span_s * 1e9) == span * N
    assert round(record.bound_s * 1e9) == bound * N
    assert record.flags & Flag.CLOSED and not record.flags & Flag.INSIDE


@pytest.mark.parametrize("form", ["locked", "leagues"])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_runtimes_start_is_no_code_of_the_programs(directory: Path, compiler: str, form: str) -> None:
    """LLVM's gets ready at the first call: that was 0.9 ms of serial code before the first region."""
    record = run(directory, 8, "span_kmp", form, "0", compiler=compiler, clock="")
    serial_s = sum(site.work_s for site in sites(record, SiteKind.SERIAL))
    assert 0 < serial_s < 300e-6


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_league_of_teams(directory: Path, compiler: str) -> None:
    """How many threads a team gets is the runtime's choice."""
    record = run(directory, 8, "span_kmp", "leagues", str(N), compiler=compiler)
    assert record.regions >= 2
    assert round(record.work_s * 1e9) >= 2 * N + 2 * N
    named = [site for site in record.sites if site.kind == SiteKind.REGION]
    assert named and all(site.address.module.endswith(f"span_kmp{_ending(compiler)}") for site in named)


def _ending(compiler: str) -> str:
    return "" if compiler == "gcc" else f".{compiler}"


@pytest.mark.parametrize(
    ("name", "form", "size", "work", "span"),
    [
        ("span_forms", "wavefront", 20, 400 * 100_000, 39 * 100_000),
        ("span_forms", "taskloop", 16, 20_007, 5007),
        ("span_forms", "large_chunk", 512, 543_000, 543_000 // 8),
        ("span_kmp", "untied", N, 64 * N, 7 * N),
    ],
)
def test_a_program_of_gcc_on_llvms_runtime(
    directory: Path, tmp_path: Path, name: str, form: str, size: int, work: int, span: int
) -> None:
    """That has GNU's entries, too, and calls its own from inside them."""
    if not llvm_runtime(directory):
        pytest.skip("needs clang and libomp-dev")
    record = on_llvm(directory, tmp_path, name, form, str(size))
    assert (round(record.work_s * 1e9), round(record.span_s * 1e9)) == (work, span)


def llvm_runtime(directory: Path) -> str:
    """libomp's file; empty if there is none."""
    if not has_clang():
        return ""
    needed = subprocess.run(
        ["ldd", program("span_kmp", directory, "clang")], capture_output=True, text=True, check=True
    )
    found = re.search(r"=> (\S*/lib[i]?omp\S*)", needed.stdout)
    assert found
    return found[1]


def on_llvm(directory: Path, records: Path, name: str, *arguments: str) -> SpanRecord:
    env = variables(records, 8)
    env["LD_PRELOAD"] += f":{llvm_runtime(directory)}"
    subprocess.run([str(program(name, directory)), *arguments], env=env, check=True, timeout=120)
    return max(records_of(records), key=lambda record: record.work_s)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_masked_code_is_told_apart(directory: Path, compiler: str) -> None:
    """By clang's; gcc asks no runtime who is the first."""
    record = run(directory, 8, "span_kmp", "masked", str(N), compiler=compiler)
    masked = [round(site.work_s * 1e9) for site in sites(record, SiteKind.MASKED)]
    assert masked == ([] if compiler == "gcc" else [3 * N])
