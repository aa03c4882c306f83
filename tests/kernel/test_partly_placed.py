# SPDX-License-Identifier: Apache-2.0
"""Large files of processes that ran before: the unwinder has the rows of what they use, soon of what they use next."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import profiling
from parprof.kernel.stacks import STACK_ENDS
from parprof.session.session import Session
from parprof.session.target import Target
from parprof.unwind.pages import REGION_SHIFT
from parprof.unwind.placed import Placed

pytestmark = pytest.mark.beside

FAR = 3_000_000
PROGRAM = """
#include <stdio.h>
#include <unistd.h>
volatile long sink;
#define CALLS(name) \\
	__attribute__((noinline)) static void name##_spins(int n) { for (int i = 0; i < n; i++) sink += i; } \\
	__attribute__((noinline)) static void name##_calls(int n) { name##_spins(n); sink++; } \\
	__attribute__((noinline)) void name(int n) { name##_calls(n); sink++; }
CALLS(early)
asm(".text\\n.skip FAR, 0xcc");
CALLS(late)
int main(int count, char **words)
{
	puts("ready");
	fflush(stdout);
	while (access(words[1], F_OK))
		early(1000000);
	for (;;)
		late(1000000);
}
""".replace("FAR", str(FAR))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of its functions are far from each other, and none keeps a frame pointer."""
    out = tmp_path_factory.mktemp("partly") / "program"
    command = ["gcc", "-O2", "-fomit-frame-pointer", "-fno-toplevel-reorder", "-x", "c", "-", "-o", out]
    subprocess.run(command, input=PROGRAM, text=True, check=True)
    return out


@pytest.fixture
def goes_on(tmp_path: Path) -> Path:
    """The program is in its second half when this is there."""
    return tmp_path / "goes on"


@pytest.fixture
def pid(program: Path, goes_on: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of the program, for which every table is a large one."""
    monkeypatch.setattr("parprof.unwind.cache.LARGE_BYTES", 0)
    monkeypatch.setattr("parprof.unwind.placing.LARGE_BYTES", 0)
    with subprocess.Popen([program, goes_on], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout and process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.kill()


def cut(session: Session) -> int:
    """How many walks did not reach the end of the stack."""
    counted = session.kernel.statistics()
    return sum(counted[f"stacks_{end}"] for end in STACK_ENDS if end not in ("complete", "zero"))


def table_of(target: Target) -> Placed:
    """Where that of the program itself is."""
    load_map = target.load_map
    assert load_map is not None
    (key,) = {mapping.dso.key for mapping in load_map.mappings if mapping.dso.name == "program"}
    return target.placer._placed[key]


def test_the_rows_of_what_is_executed_are_there(pid: int, goes_on: Path) -> None:
    with profiling.traced_session() as session:  # its table is built, and is on disk from then on
        session.watch(pid)
        profiling.run_until(session, lambda: not session.watched.placer.is_waiting)
    with profiling.traced_session() as session:
        target = session.watch(pid)
        placed = table_of(target)
        before = placed.here
        assert before is not None and placed.regions > FAR >> REGION_SHIFT
        assert 0 < sum(before) < 20, "some of its hundreds"
        profiling.run_while_it_works(session, pid, 0.5)
        assert session.kernel.statistics()["stacks_complete"] > 200
        assert cut(session) == 0, "they are all that is needed"
        known = bytes(before)
        goes_on.touch()
        profiling.run_until(session, lambda: placed.here != known)
        assert placed.here is not None and 0 < placed.misses <= 2
        assert sum(placed.here) < 30
        missed, complete = cut(session), session.kernel.statistics()["stacks_complete"]
        assert missed > 0, "nothing hides it"
        profiling.run_while_it_works(session, pid, 0.5)
        assert session.kernel.statistics()["stacks_complete"] > complete + 200
        assert cut(session) <= missed + 1
