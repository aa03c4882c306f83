# SPDX-License-Identifier: Apache-2.0
"""Many short processes are told by program: parprof.profile.programs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from parprof.metrics import SAMPLES, WORK, Metrics
from parprof.model import Frame, Origin, PathSample, ProcessInfo
from parprof.process.identity import Process
from parprof.profile.programs import ByProgram, by_program, row_key

MAIN = 1
PATHS = tuple((Frame("main"), Frame(name)) for name in "abc")


def image(number: int, comm: str, *, pid: int = 0, watched_s: float = 0.1, runtime: str = "none") -> Any:
    process = Process(pid or 1000 + number, 5, comm, comm, "")
    return SimpleNamespace(
        image=number, process=process, runtime=runtime, n_w_source="scheduler", watched_s=lambda: watched_s
    )


def row(one: Any, path: int = 0, samples: int = 1, tid: int = 0) -> PathSample:
    pid, comm = one.process.pid, one.process.comm
    origin = Origin(pid, comm, f"tid {pid}", one.runtime, "", one.image, (), tid or pid)
    return PathSample(
        PATHS[path], Metrics.of({SAMPLES: samples, WORK: samples * 1e6}), origin, (), (0.0, 5.0)
    )


def told(images: list[Any], rows: list[PathSample]) -> ByProgram:
    measured: Any = SimpleNamespace(images={one.image: one for one in images}, main=MAIN)
    return by_program(measured, rows)


def test_a_build() -> None:
    """Make, and a compiler that it started 100 times; one of them took long."""
    make, slow = image(MAIN, "make", watched_s=9), image(2, "cc1", watched_s=2)
    compilers = [image(number, "cc1") for number in range(3, 102)]
    rows = [row(make), row(slow), *(row(one, path) for one in compilers for path in (0, 1))]
    rows.append(row(compilers[7], 2, 50))
    found = told([make, slow, *compilers], rows)
    heaviest = compilers[7]
    assert [(one.origin.comm, one.origin.image, one.metrics[SAMPLES]) for one in found.samples] == [
        ("make", MAIN, 1), ("cc1", 2, 1),
        ("cc1", heaviest.image, 99), ("cc1", heaviest.image, 99), ("cc1", heaviest.image, 50),
    ]  # fmt: skip
    assert found.others == {heaviest.image: 98}
    assert {one.origin.thread for one in found.samples[2:]} == {"cc1"}
    assert found.samples[2].levels == (0.0, 99 * 5.0)
    assert found.numbers[row_key(rows[2])] == 2
    assert ProcessInfo(comm="cc1", others=98).number == "99 processes"


def test_few_processes_are_told_one_by_one() -> None:
    images = [image(MAIN, "sh"), *(image(number, "cc1") for number in range(2, 30))]
    rows = [row(one) for one in images]
    found = told(images, rows)
    assert found.samples == rows and not found.others


def test_processes_with_several_threads_are_told_one_by_one() -> None:
    """How even their threads' shares are is said of each."""
    images = [image(number, "solver", runtime="libgomp") for number in range(1, 50)]
    rows = [row(one, tid=tid) for one in images for tid in (1, 2)]
    assert told(images, rows).samples == rows


def test_an_exec_leaves_the_pid_as_it_is() -> None:
    """Nobody is told as two programs: reports sum up by PID."""
    images = [image(MAIN, "make", pid=9)]
    for number in range(2, 80, 2):
        images += [image(number, "sh", pid=1000 + number), image(number + 1, "cc1", pid=1000 + number)]
    found = told(images, [row(one) for one in images])
    assert len({(one.origin.comm) for one in found.samples}) == 3
    assert len({one.origin.pid for one in found.samples}) == 3


A_ROW = st.tuples(st.integers(1, 60), st.integers(0, 2), st.integers(1, 9))


@settings(max_examples=50)
@given(st.lists(A_ROW, max_size=200), st.data())
def test_nothing_is_lost(drawn: list[tuple[int, int, int]], data: Any) -> None:
    """Each row is in one of those that are told, with the same path; the sums stay."""
    comms = data.draw(st.lists(st.sampled_from(["cc1", "as", "ld"]), min_size=60, max_size=60))
    lives_s = data.draw(st.lists(st.sampled_from([0.1, 3.0]), min_size=60, max_size=60))
    images = [
        image(at + 1, comm, watched_s=life_s)
        for at, (comm, life_s) in enumerate(zip(comms, lives_s, strict=True))
    ]
    sums: dict[tuple[int, int], int] = {}
    for number, path, samples in drawn:
        sums[number, path] = sums.get((number, path), 0) + samples
    rows = [row(images[number - 1], path, samples) for (number, path), samples in sums.items()]
    before = sum(one.metrics[SAMPLES] for one in rows)
    found = told(images, rows)
    assert sum(one.metrics[SAMPLES] for one in found.samples) == before
    assert sum(one.metrics[SAMPLES] for one in rows) == before  # these are as they were
    weights = [0] * len(found.samples)
    for one in rows:
        at = found.numbers[row_key(one)]
        assert found.samples[at].path is one.path
        assert found.samples[at].origin.comm == one.origin.comm
        weights[at] += one.metrics[SAMPLES]
    assert weights == [one.metrics[SAMPLES] for one in found.samples]
    told_images = {one.origin.image for one in found.samples}
    assert sum(1 + found.others.get(number, 0) for number in told_images) >= len(
        {one.origin.image for one in rows}
    )
