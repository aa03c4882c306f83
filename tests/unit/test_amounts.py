# SPDX-License-Identifier: Apache-2.0
"""Events by amount: how they are asked for, and what both sides know. The samples: tests/e2e/test_events.py."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from parprof.errors import UsageError
from parprof.instruments.alloc import why_not
from parprof.kernel import amounts, perf_events
from parprof.kernel.amounts import AMOUNTS, MOST_BYTES, Amount, parse
from parprof.service.config import schema
from parprof.service.main import Parprofd

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


def test_the_daemon_refuses_them() -> None:
    """They would slow down every system call of the machine, for good."""
    config = schema.Config()
    config = replace(config, sampling=replace(config.sampling, events=("read-bytes",)))
    with pytest.raises(UsageError, match="read-bytes is for `parprof record` and `attach`"):
        Parprofd(SimpleNamespace(load=lambda: SimpleNamespace(config=config)))  # type: ignore[arg-type]


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
