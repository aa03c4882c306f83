# SPDX-License-Identifier: Apache-2.0
"""Loops put into the profile of a real process from the files that it maps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from control_standin import until
from parprof.commands.late_loops import LateLoops
from parprof.files.dso_cache import DsoCache
from parprof.metrics import ACTIVATIONS, Metrics
from parprof.model import Frame, Interval, PathSample, ProcessInfo, Profile
from parprof.process.loadmap import LoadMap
from parprof.symbols.symbolizer import Symbolizer

SOURCE = """
#include <unistd.h>
volatile unsigned long sink;
__attribute__((noinline)) void leaf(void)
{
    for (int row = 0; row < 1000; row++)
        sink += row;
}
int main(void)
{
    while (write(1, ".", 1) == 1) {
        leaf();
        usleep(1000);
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bin") / "loopy"
    source = path.with_suffix(".c")
    source.write_text(SOURCE)
    subprocess.run(["gcc", "-O1", "-g", source, "-o", path], check=True)
    return path


@contextmanager
def running(program: Path) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([program], stdout=subprocess.DEVNULL)
    try:
        until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == f"{program.name}\n")
        yield child
    finally:
        child.kill()
        child.wait()


def measured(pid: int) -> Profile:
    """What a profile without loops says: the leaf within its loop, below the call in main's."""
    with DsoCache() as cache, Symbolizer() as symbolizer:
        dso = next(one for one in LoadMap.read(pid, None, cache).dsos() if one.name == "loopy")
        symbols = subprocess.run(["objdump", "-d", f"/proc/{pid}/exe"], capture_output=True, text=True).stdout
        body = symbols.partition("<leaf>:\n")[2].partition("\n\n")[0].splitlines()
        add = next(line for line in body if "sink" in line)
        calls = [line for line in symbols.partition("<main>:\n")[2].splitlines() if "<leaf>" in line]
        after = symbols.splitlines()[symbols.splitlines().index(calls[0]) + 1]
        leaf, main = (int(line.partition(":")[0], 16) for line in (add, after))
        path = (*symbolizer.frames(dso, main, True), *symbolizer.frames(dso, leaf, False))
    outer, inner = (
        next(frame for frame in path if frame.name == "main"),
        next(frame for frame in path if frame.name == "leaf"),
    )
    kernel = Frame("[kernel: interrupt]", module="[kernel]")
    whole = (outer, inner, kernel)
    return Profile(
        ProcessInfo(pid, "loopy"), 1.0, 99,
        [PathSample((outer, inner), Metrics(90, 9e8)), PathSample(whole, Metrics(9, 9e7), physical=whole[:2]),
         PathSample((replace(outer, module="another"), inner), Metrics(1, 1e7))],
    )  # fmt: skip


def names(profile: Profile) -> list[list[str]]:
    return [[frame.name for frame in sample.path] for sample in profile.samples]


LOOPY = ["main", "loop at loopy.c:11-13", "leaf", "loop at loopy.c:6-7"]


def test_each_loop_is_below_its_function(program: Path) -> None:
    with running(program) as child, LateLoops(child.pid) as loops:
        profile = measured(child.pid)
        loops.add(profile, None)
    assert names(profile) == [LOOPY, [*LOOPY, "[kernel: interrupt]"], ["main", *LOOPY[2:]]]
    assert [frame.name for frame in profile.samples[1].physical] == LOOPY
    assert [frame.is_loop for frame in profile.samples[0].path] == [False, True, False, True]
    assert profile.notes == []


def test_calls_are_of_the_function_and_not_of_its_loop(program: Path) -> None:
    """As where there were loops from the beginning."""
    with running(program) as child, LateLoops(child.pid) as loops:
        profile = measured(child.pid)
        profile.samples[0].metrics[ACTIVATIONS] = 3
        only = replace(profile.samples[2], metrics=Metrics.of({ACTIVATIONS: 5}))
        profile.samples.append(only)
        parts = [{0: Metrics(60, 6e8)}, {0: Metrics(30, 3e8), 3: only.metrics.copy()}]
        parts[1][0][ACTIVATIONS] = 3
        profile.intervals = [Interval(0.0, 0.6, (), parts[0]), Interval(0.6, 1.0, (), parts[1])]
        loops.add(profile, None)
    calls = {
        tuple(frame.name for frame in sample.path): (sample.metrics[ACTIVATIONS], sample.metrics.samples)
        for sample in profile.samples
    }
    assert calls[tuple(LOOPY)] == (0, 90)
    assert calls[tuple(LOOPY[:3])] == (3, 0)
    assert calls["main", "leaf"] == (5, 0) and calls["main", *LOOPY[2:]] == (0, 1)
    for number, sample in enumerate(profile.samples[:1] + profile.samples[3:]):
        at = number and number + 2
        rows = [part.rows[at] for part in profile.intervals if at in part.rows]
        assert sum(row[ACTIVATIONS] for row in rows) == sample.metrics[ACTIVATIONS]
        assert sum(row.samples for row in rows) == sample.metrics.samples


def test_a_process_that_has_ended_has_loops_all_the_same(program: Path) -> None:
    with running(program) as child:
        loops, profile = LateLoops(child.pid), measured(child.pid)
    with loops:
        loops.add(profile, None)
    assert names(profile)[0] == LOOPY


def test_what_cannot_be_looked_at_is_said(program: Path) -> None:
    with running(program) as child:
        profile = measured(child.pid)
    with LateLoops(child.pid) as loops:
        loops.add(profile, None)
    assert names(profile)[0] == ["main", "leaf"]
    (note,) = profile.notes
    assert note.startswith("without loops: ") and "has ended" in note


def test_loops_that_are_there_already_stay_alone(program: Path) -> None:
    """The daemon looked for them itself, as ``symbols.loops`` has it do."""
    with running(program) as child, LateLoops(child.pid) as loops:
        profile = measured(child.pid)
        loops.add(profile, None)
        before = [sample.path for sample in profile.samples]
        loops.add(profile, None)
    assert [sample.path for sample in profile.samples] == before
