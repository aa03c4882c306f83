# SPDX-License-Identifier: Apache-2.0
"""Go programs, stripped or not: whole call paths, names and lines, and serial code that is told as such."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import profiling
from parprof.calls.search import search
from parprof.files.elf import ElfFile

pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go compiler (Debian: golang-go)"),
]

ROUTINES = """package main

import "sync"

var sink int64

//go:noinline
func burn(k int64) {
	for i := int64(0); i < k; i++ {
		sink += i ^ k
	}
}

//go:noinline
func load() { burn(1500000000) }

//go:noinline
func worker(wg *sync.WaitGroup) { burn(600000000); wg.Done() }

func main() {
	load()
	var wg sync.WaitGroup
	for w := 0; w < 2; w++ {
		wg.Add(1)
		go worker(&wg)
	}
	wg.Wait()
}
"""


@pytest.fixture(scope="module", params=["", "-s -w"], ids=["whole", "stripped"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("go")
    (directory / "main.go").write_text(ROUTINES)
    (directory / "go.mod").write_text("module routines\n\ngo 1.16\n")
    # a cache beside it for both: to compile the standard library takes half a minute
    cache = {"GOCACHE": str(directory.parent / "go-cache"), "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    subprocess.run(
        ["go", "build", f"-ldflags={request.param}", "-o", "routines", "."],
        cwd=directory, check=True, env={**os.environ, **cache},
    )  # fmt: skip
    return directory / "routines"


def test_routines_have_their_call_paths(program: Path) -> None:
    with profiling.recorded([str(program)]) as (session, _):
        rows, maker = profiling.rows_of(session)
    samples = Counter[tuple[str, ...]]()
    lines = set[tuple[str, int]]()
    for row in rows:
        names = [frame.name for frame in row.path if frame.name.startswith("main.")]
        if names and names[-1] == "main.burn":
            samples[tuple(names)] += row.metrics.samples
            leaf = next(frame for frame in reversed(row.path) if frame.name == "main.burn")
            lines.add((os.path.basename(leaf.file), leaf.line))
    routine = next((path for path in samples if "main.worker" in path), ())
    assert samples[("main.main", "main.load", "main.burn")] > 100 and samples[routine] > 50, samples
    assert maker.samples and samples.total() >= 0.97 * sum(row.metrics.samples for row in rows)
    assert set(samples) == {("main.main", "main.load", "main.burn"), routine}
    assert lines <= {("main.go", line) for line in range(8, 12)}, lines


def test_calls_are_not_timed_since_others_may_go_on_with_them(program: Path) -> None:
    """`burn` is a leaf whose goroutines are taken off their threads in the middle of it."""
    with ElfFile.open(str(program)) as elf:
        found = search(elf, ["main.burn", "main.load"], [], times=True).routines
        copies = [copy for one in found for copy in one.copies]
        assert len(copies) == (2 if any(elf.symbols()) else 0)
        assert all("other threads" in copy.exits.untimed and copy.places for copy in copies)
