# SPDX-License-Identifier: Apache-2.0
"""Events by amount: how they are asked for, and what both sides know. The samples: tests/e2e/test_events.py."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parprof.errors import ProbeAttachError, UsageError
from parprof.instruments.alloc import why_not
from parprof.kernel import amounts, perf_events
from parprof.kernel.allocation_probe import ALLOCATION_OUTER, ALLOCATION_TIMES_SHIFT
from parprof.kernel.amounts import AMOUNTS, MOST_BYTES, Amount, parse
from parprof.probes.allocators import ALLOCATORS, allocation_probes, unseen_new
from parprof.probes.file_facts import FileFacts, ProbedFunction, ProbePlace

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def every_event_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf_events, "is_available", lambda name: None)


@pytest.mark.parametrize(
    ("size", "expected"),
    [("1", 1), ("4096", 4096), ("64k", 65536), ("64KiB", 65536), ("64kb", 65536), ("1MiB", 1 << 20), ("1G", 1 << 30),
     ("512B", 512)],
)  # fmt: skip
def test_sizes(size: str, expected: int) -> None:
    assert parse(f"read-bytes={size}") == Amount("read-bytes", expected)


@pytest.mark.parametrize("size", ["", "0", "-1", "1.5k", "2GiB", "x", "1TiB", "9999999999", "64 KiB"])
def test_what_is_no_size_is_refused_with_one_that_is(size: str) -> None:
    with pytest.raises(UsageError, match=r"such as write-bytes=512KiB"):
        parse(f"write-bytes={size}")


def test_they_come_behind_the_perf_events() -> None:
    choice = perf_events.choose(["read-bytes=1k", "page-faults", "write-bytes", "cpu-clock"])
    assert choice.names == ("cpu-clock", "page-faults", "read-bytes", "write-bytes")
    assert choice.amounts == (Amount("read-bytes", 1024), Amount("write-bytes", amounts.DEFAULT_BYTES))


def test_twice_the_same_is_once_and_two_sizes_are_refused() -> None:
    assert perf_events.choose(["read-bytes=1k", "read-bytes=1024"]).amounts == (Amount("read-bytes", 1024),)
    with pytest.raises(UsageError, match="read-bytes is given with two sizes"):
        perf_events.choose(["read-bytes=1k", "read-bytes"])


def test_an_unknown_event_names_them() -> None:
    with pytest.raises(UsageError, match="write-bytes"):
        perf_events.choose(["wrote-bytes"])


def test_numbers_that_both_sides_know(tmp_path: Path) -> None:
    expected = {
        "AMOUNT_READ": AMOUNTS["read-bytes"], "AMOUNT_WRITTEN": AMOUNTS["write-bytes"],
        "ALLOCATION_TIMES_SHIFT": ALLOCATION_TIMES_SHIFT, "ALLOCATION_OUTER": ALLOCATION_OUTER,
        "AMOUNT_ALLOCATED": AMOUNTS["malloc-bytes"],
        "AMOUNT_KINDS": len(AMOUNTS),
        f"((u32){MOST_BYTES})": MOST_BYTES,
    }  # fmt: skip
    checks = "\n".join(f'_Static_assert({name} == {value}, "{name}");' for name, value in expected.items())
    source = tmp_path / "check.c"
    source.write_text(
        f'typedef unsigned int u32; typedef unsigned long long u64;\n#include "amounts.h"\n{checks}\n'
    )
    subprocess.run(["gcc", "-fsyntax-only", "-I", str(ROOT / "bpf"), str(source)], check=True)


OWN_ALLOCATOR = """
#include <stddef.h>
static char heap[1 << 20];
static size_t used;
void *malloc(size_t size) { used += (size + 15) & ~15UL; return heap + used - ((size + 15) & ~15UL); }
void free(void *room) { (void)room; }
int main(void) { return !malloc(100); }
"""


def test_allocations_that_nothing_can_be_put_in_front_of(tmp_path: Path) -> None:
    source = tmp_path / "own.c"
    source.write_text(OWN_ALLOCATOR)
    program = tmp_path / "own"
    subprocess.run(["gcc", "-fno-builtin", "-o", program, source], check=True)
    assert "an allocator of its own" in why_not(str(program))
    assert "linked statically" in why_not(str(ROOT / "tests/workloads/build/omp_truth.gomp.static"))
    assert why_not(str(ROOT / "tests/workloads/build/allocations")) == ""


@dataclass(frozen=True)
class File:
    """Stands in for a mapped file."""

    name: str
    defines: tuple[str, ...] = ()

    @property
    def elf(self) -> Any:
        return SimpleNamespace(file_offset=lambda vaddr: vaddr - 0x1000)

    def fd(self) -> int:
        return len(self.name)

    def facts(self) -> FileFacts:
        cheap, dear = ProbePlace(0x2010, True, True), ProbePlace(0x2000, False, True)
        moved = ProbePlace(0x2020, True, False)
        return FileFacts(
            functions=tuple(
                ProbedFunction(name, 0x2000 + 256 * at, dear._replace(vaddr=dear.vaddr + 256 * at),
                         (moved if name == "calloc" else cheap)._replace(vaddr=cheap.vaddr + 256 * at), None)
                for at, name in enumerate(self.defines)
            )
        )  # fmt: skip


FAMILY = ("malloc", "calloc", "pthread_create", "_Znwm")


def probed(*files: File) -> dict[tuple[str, int], tuple[int, int, bool, bool]]:
    found = allocation_probes(files, lambda file: file.facts())  # type: ignore[arg-type, attr-defined]
    return {
        (one.path, one.offset): (one.bytes_argument, one.times_argument, one.is_outer, one.dear)
        for one in found
    }


def test_where_allocations_of_a_running_process_are_probed() -> None:
    """In the C library, but for its loader's and our own; at the cheapest place where the arguments are still there."""
    files = File("program"), File("ld-linux-x86-64.so.2", FAMILY), File("libparprof_alloc-1.so", FAMILY)
    libc = File("libc.so.6", FAMILY)
    at = f"/proc/self/fd/{libc.fd()}"
    assert probed(*files, libc) == {(at, 0x1010): (1, 0, False, False), (at, 0x1100): (2, 1, True, True)}


def test_an_allocator_comes_before_libc_and_brings_new() -> None:
    other = File("libjemalloc.so.2", FAMILY)
    at = f"/proc/self/fd/{other.fd()}"
    assert probed(File("program"), File("libc.so.6", FAMILY), other).keys() == {
        (at, 0x1010),
        (at, 0x1100),
        (at, 0x1310),
    }
    assert probed(File("own", FAMILY), File("libc.so.6", FAMILY), other).keys() == {
        ("/proc/self/fd/3", offset) for offset in (0x1010, 0x1100, 0x1310)
    }
    with pytest.raises(
        ProbeAttachError, match=r"several allocators are there \(libjemalloc.so.2, libtcmalloc.so.4\)"
    ):
        probed(File("program"), other, File("libtcmalloc.so.4", FAMILY), File("libc.so.6", FAMILY))
    with pytest.raises(ProbeAttachError, match="no malloc is to be found"):
        probed(File("program"), File("libc.so.6", ("pthread_create",)))


def test_each_form_of_new_is_probed() -> None:
    """`new (std::nothrow)`, and of what is aligned, are functions of their own in an allocator that brings new."""
    forms = {name for name in ALLOCATORS if name.startswith("_Zn")}
    assert len(forms) == 8 and {"_ZnamRKSt9nothrow_t", "_ZnwmSt11align_val_t"} < forms
    other = File("libjemalloc.so.2", ("malloc", *forms))
    assert len(probed(File("program"), other)) == 9


def test_a_new_that_the_preloaded_library_does_not_see_is_named() -> None:
    ours, libc = File("libparprof_alloc-1.so", FAMILY[:3]), File("libc.so.6", FAMILY[:3])
    cpp, other = File("libstdc++.so.6", ("_Znwm", "_Znam")), File("libjemalloc.so.2", FAMILY)
    files = [File("program"), ours, cpp, libc]
    assert not unseen_new(files, lambda file: file.facts())  # type: ignore[arg-type, attr-defined]
    assert not unseen_new([other, libc], lambda file: file.facts())  # type: ignore[list-item, arg-type, attr-defined]
    assert unseen_new([*files, other], lambda file: file.facts()) == other.name  # type: ignore[list-item, arg-type, attr-defined]


def test_each_function_of_the_family_says_how_much() -> None:
    assert all(1 <= one.bytes_argument <= 3 and 0 <= one.times_argument <= 3 for one in ALLOCATORS.values())
    assert not ALLOCATORS["malloc"].is_outer  # it calls none of them
