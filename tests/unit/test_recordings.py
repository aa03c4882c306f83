# SPDX-License-Identifier: Apache-2.0
"""Everything from the drain to the exporters, on recordings of real programs of each runtime: tests/recordings."""

from __future__ import annotations

import functools
import io
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from parprof.attribution.concurrency import AtWork
from parprof.exporters import concurrency, html, json_report, pprof, table, views
from parprof.exporters.pprof_reader import read_as
from parprof.exporters.views import View
from parprof.facts.measurement import Measurement
from parprof.facts.reading import decode
from parprof.facts.replay import RecordedNames
from parprof.model import Frame, PathSample, Profile
from parprof.profile.assemble import make_profile
from parprof.runtimes import agents
from parprof.symbols.kernel import KERNEL

TESTS = Path(__file__).resolve().parents[1]
RECORDINGS = TESTS / "recordings"
OPENMP = ("libgomp", "libgomp_memory", "libomp")
ALL = (*OPENMP, "pthreads", "opencilk", "cilk5", "cpython")
COMPLETE = 0.99
MAX_BYTES = 100_000


def measurement(name: str) -> tuple[Measurement, RecordedNames]:
    return read_as(RECORDINGS / f"{name}.facts", decode)


@functools.cache
def profile(name: str) -> Profile:
    return make_profile(*measurement(name))


def truth(name: str) -> dict[str, tuple[float, float]]:
    """True work and idleness of each function, in seconds."""
    found: dict[str, tuple[float, float]] = json.loads((RECORDINGS / f"{name}.truth.json").read_text())
    return found


def names(path: tuple[Frame, ...]) -> list[str]:
    return [frame.name for frame in path]


def working(name: str) -> list[PathSample]:
    return [row for row in profile(name).samples if row.metrics.work_ns > 0]


def by_function(name: str) -> dict[str, tuple[float, float]]:
    """Work and idleness of each function with what it calls, in seconds."""
    out: dict[str, tuple[float, float]] = {}
    for row in profile(name).samples:
        for function in set(names(row.path)):
            work, idle = out.get(function, (0.0, 0.0))
            out[function] = work + row.metrics.work_ns / 1e9, idle + row.metrics.idleness_ns / 1e9
    return out


def test_every_recording_is_tested_and_small() -> None:
    assert {path.stem for path in RECORDINGS.glob("*.facts")} == set(ALL)
    assert max(path.stat().st_size for path in RECORDINGS.iterdir()) < MAX_BYTES


@pytest.mark.parametrize("name", ALL)
def test_no_sample_is_lost_on_the_way(name: str) -> None:
    measured, _ = measurement(name)
    counted = sum(count.samples for key, count in measured.drain.facts.items() if key.event == 0)
    assert sum(row.metrics.samples for row in profile(name).samples) == counted > 300
    assert counted == measured.kernel.statistics()["samples"]
    assert profile(name).extra["invariant_violations"] == "0"
    assert set(profile(name).lost) <= {"user_stack"}  # an exec or exit has none


@pytest.mark.parametrize(
    ("name", "runtime", "source"),
    [
        ("libgomp", "libgomp", "exact"),
        ("libgomp_memory", "libgomp", "memory"),
        ("libomp", "libomp", "exact"),
        ("pthreads", "none", "scheduler"),
        ("opencilk", "opencilk", "exact"),
        ("cilk5", "cilk5", "exact"),
        ("cpython", "none", "scheduler"),
    ],
)
def test_the_process_is_described(name: str, runtime: str, source: str) -> None:
    process = profile(name).process
    assert (process.runtime, process.cores, process.n_w_source) == (runtime, 2, source)
    assert process.command.split()[0].startswith(("/workloads/build/", "/usr/bin/python3"))


JUDGED = ("serial_work", "balanced_work", "skewed_long", "barrier_long", "locked_work")


@pytest.mark.parametrize("name", [*OPENMP, "pthreads"])
def test_functions_have_their_true_work_and_idleness(name: str) -> None:
    found, expected = by_function(name), truth(name)
    judged = [function for function in JUDGED if function in expected]
    assert len(judged) >= 4
    for function in judged:
        (work, idle), (true_work, true_idle) = found[function], expected[function]
        assert work == pytest.approx(true_work, rel=0.25, abs=0.02), function
        assert idle / work == pytest.approx(true_idle / true_work, abs=0.1), function


@pytest.mark.parametrize("name", [*OPENMP, "pthreads"])
def test_functions_have_their_true_sequential_and_concurrent_time(name: str) -> None:
    """On 2 cores the idle one is idle for as long as the other one works alone: the log tells that, too."""
    found, expected = by_function(name), truth(name)
    levels = {
        procedure.name: one for procedure, one in concurrency.by_function(profile(name).samples).items()
    }
    for function in (function for function in JUDGED if function in expected):
        at_work = AtWork.of(levels[function].inclusive)
        true_work, alone = expected[function]
        assert at_work.work_ns / 1e9 == pytest.approx(found[function][0])
        assert at_work.sequential_ns / at_work.work_ns == pytest.approx(alone / true_work, abs=0.1), function
        true_elapsed = alone + (true_work - alone) / 2
        assert at_work.elapsed_ns / 1e9 == pytest.approx(true_elapsed, rel=0.25, abs=0.02), function


@pytest.mark.parametrize("name", [*OPENMP, "opencilk", "cilk5"])
def test_logical_paths_are_whole_and_without_the_runtime(name: str) -> None:
    whole: Counter[bool] = Counter()
    for row in working(name):
        kernel = next((at for at, frame in enumerate(row.path) if frame.module == KERNEL), len(row.path))
        inside = [frame for frame in row.path[:kernel] if not frame.name.startswith("[")][:-1]
        owned = [frame for frame in inside for agent in agents() if agent.owns(frame.name, frame.module)]
        assert not owned, names(row.path)
        whole[not row.path[0].name.startswith("[")] += row.metrics.samples
    assert whole.total() > 300
    assert whole[True] >= COMPLETE * whole.total(), whole


@pytest.mark.parametrize("name", ["libgomp", "libomp"])
def test_workers_hang_where_their_work_was_created(name: str) -> None:
    creator = {"nested_work": "phase_nested", "task_work": "phase_tasks", "taskwait_child": "phase_taskwait"}
    found: Counter[str] = Counter()
    for row in working(name):
        path = names(row.path)
        for leaf, phase in creator.items():
            if leaf in path and row.physical and names(row.physical)[0] != "main":
                assert path[0] == "main" and phase in path[: path.index(leaf)], path
                found[leaf] += row.metrics.samples
    assert found.keys() == creator.keys()


def test_threads_hang_where_they_were_created() -> None:
    rooted: Counter[bool] = Counter()
    for row in working("pthreads"):
        path = names(row.path)
        if "balanced_work" in path:
            assert path.index("phase_balanced") < path.index("balanced_work")
        rooted[path[0] in ("main", "truth_write") or row.path[0].module.startswith("ld-")] += (
            row.metrics.samples
        )
    assert rooted[True] >= COMPLETE * rooted.total(), rooted


def tree_leaves(n: int) -> Counter[int]:
    """Leaves of the doubly recursive tree, by the number of procedures on the way to them."""
    if n < 2:
        return Counter({1: 1})
    below = tree_leaves(n - 1) + tree_leaves(n - 2)
    return Counter({depth + 1: count for depth, count in below.items()})


@pytest.mark.parametrize("name", ["opencilk", "cilk5"])
def test_each_level_of_a_tree_of_spawns_has_its_share(name: str) -> None:
    levels: Counter[int] = Counter()
    others = 0
    for row in profile(name).samples:
        path = [frame.name for frame in row.path if not frame.is_loop]
        if "tree_leaf" in path:
            work = path.index("tree_leaf")
            first = path.index("tree") if "tree" in path else work
            if path[0] == "main" and set(path[first:work]) == {"tree"}:
                levels[work - first] += row.metrics.samples
            else:
                others += row.metrics.samples
    true = tree_leaves(8)
    assert others <= 0.01 * levels.total() and levels.total() > 300
    assert set(levels) == set(true)
    for level, leaves in true.items():
        expected = levels.total() * leaves / true.total()
        assert expected / 2 < levels[level] < expected * 2, (level, levels)


def test_python_functions_are_in_their_chains() -> None:
    lines = (TESTS / "workloads/chains.py").read_text().splitlines()
    marks = {
        number: found[1] for number, line in enumerate(lines, 1) if (found := re.search(r"#: (\w+)$", line))
    }
    chains: Counter[str] = Counter()
    for row in profile("cpython").samples:
        python = [frame for frame in row.path if frame.module == "python"]
        chains[" ".join(marks.get(frame.line, "?") for frame in python)] += row.metrics.samples
    total = chains.total()
    for chain in (
        "module start main_recurse recurse recurse recurse recurse recurse bottom spin",
        "module start main_generate delegate generate spin",
        "module start main_sort key spin",
        "module start main_crc crc",
    ):
        assert chains[chain] > 0.05 * total, chain
    assert sum(count for chain, count in chains.items() if "?" not in chain and chain) >= COMPLETE * total, (
        chains
    )
    assert profile("cpython").extra["python_unnamed"] == "0"


@pytest.mark.parametrize("name", ALL)
def test_all_exporters_take_it(name: str, tmp_path: Path) -> None:
    file = str(tmp_path / "out.pb.gz")
    pprof.write(profile(name), file)
    again = pprof.read(file)
    assert again.total().samples == profile(name).total().samples
    assert again.total().idleness_ns == pytest.approx(
        profile(name).total().idleness_ns, abs=len(again.samples)
    )
    report = json_report.report(profile(name))
    assert report["totals"]["samples"] == again.total().samples
    path = max(profile(name).samples, key=lambda row: row.metrics.work_ns).path
    costliest = [frame.name for frame in path if not frame.is_loop][-1]
    for view in views.VIEWS:
        text = io.StringIO()
        table.render(profile(name), View(view, "work", 1000), text)
        assert costliest in text.getvalue()
    html.write(profile(name), str(tmp_path / "out.html"))
    assert costliest in (tmp_path / "out.html").read_text()
