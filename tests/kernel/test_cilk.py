"""Cilk's three generations, on stand-in runtimes that really steal: n_w, call paths across stacks, survival."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import profiling
from parprof.model import ThreadState

LIMIT = 0.01
BUSY_LIMIT = 0.1
PROGRAMS = {
    "spawn_truth.opencilk": "opencilk",
    "spawn_truth.opencilk.static": "opencilk",
    "spawn_truth.cilkplus": "cilkplus",
    "cilk5_truth": "cilk5",
}
CACTUS = [program for program, runtime in PROGRAMS.items() if runtime != "cilk5"]
CHAIN_LEVELS = 11


def agree(make: Callable[[], profiling.Run], minimum: int, limit: float = LIMIT) -> profiling.Run:
    run = profiling.agree(make, minimum, limit, BUSY_LIMIT)
    assert not run.target.failures
    return run


def check_results(capfd: pytest.CaptureFixture[str]) -> None:
    """The program, which checks its own results, was content in each run, and pieces of it were stolen."""
    said = capfd.readouterr()
    assert "instead of" not in said.err
    steals = [int(count) for count in re.findall(r"^steals (\d+)$", said.out, re.M)]
    assert steals and all(steals), said.out


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("threads", [2, 4])
def test_n_working(program: str, threads: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["all", "--repeat", "2", "--threads", str(threads)]
    run = agree(lambda: profiling.record(program, arguments, tmp_path / "log"), 500)
    check_results(capfd)
    assert run.target.n_w_source == "exact"
    assert run.target.plan.runtime == PROGRAMS[program]
    # the same transitions, read from the runtime's own memory
    assert run.statistics["checked"] > 500
    assert run.statistics["disagreed"] <= LIMIT * run.statistics["checked"]


@pytest.mark.parametrize("program", ["spawn_truth.opencilk.stripped", "spawn_truth.cilkplus.stripped"])
def test_n_working_of_stripped_programs(
    program: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = agree(lambda: profiling.record(program, ["all", "--repeat", "2"], tmp_path / "log"), 500)
    check_results(capfd)
    assert run.target.n_w_source == "memory"


@pytest.mark.parametrize("program", ["spawn_truth.opencilk", "spawn_truth.cilkplus", "cilk5_truth"])
def test_attach_in_the_middle(program: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    phases = ["skewed,serial,tree,balanced", "--unit-ms", "20"]
    run = agree(lambda: profiling.attach(program, phases, tmp_path / "log", 0.3, 3), 300, 0.03)
    settled = profiling.compare(run.session.trace, run.truth, since_ns=run.session.started_ns + 10**9)
    assert settled.wrong_share <= (BUSY_LIMIT if profiling.was_busy(run) else 0.015), settled.cases


@pytest.mark.parametrize("program", CACTUS)
def test_nothing_is_probed_on_return_where_work_moves(
    program: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["stress,fan", "--unit-ms", "0.1", "--repeat", "50"]
    run = profiling.record(program, arguments, tmp_path / "log")
    check_results(capfd)
    assert run.target.plan.sites
    assert not any(site.returns for site in run.target.plan.sites)


def author_paths(run: profiling.Run) -> Counter[tuple[str, ...]]:
    """Logical call paths of working samples inside work functions, root first, down to the work function."""
    rows, _ = profiling.rows_of(run.session, loops=True)
    out = Counter[tuple[str, ...]]()
    for row in rows:
        names = [frame.name for frame in row.path if not frame.is_loop]
        work = next((at for at, name in enumerate(names) if name in ("tree_leaf", "chain_work")), None)
        if work is not None:
            out[tuple(names[: work + 1])] += row.metrics.samples
    return out


def recorded_paths(program: str, phase: str, log: Path) -> Counter[tuple[str, ...]]:
    """Of samples enough to tell levels of a path apart."""
    run = profiling.record(program, [phase, "--unit-ms", "20", "--repeat", "2"], log)
    assert any(record.state is ThreadState.WORKING for record in run.session.trace)
    found = author_paths(run)
    assert found.total() > 300
    return found


def tree_leaves(n: int) -> Counter[int]:
    """Leaves of the doubly recursive tree, by the number of procedures on the way to them."""
    if n < 2:
        return Counter({1: 1})
    below = tree_leaves(n - 1) + tree_leaves(n - 2)
    return Counter({depth + 1: count for depth, count in below.items()})


TRUE_TREE = tree_leaves(8)
TRUE_CHAIN = Counter(range(1, CHAIN_LEVELS + 1))
"""All leaves, and all levels, do the same work."""


def check_levels(levels: Counter[int], truth: Counter[int]) -> None:
    """Each level has the share of the work that it truly has: none is missing or taken for another."""
    assert set(levels) == set(truth), levels
    for level, count in truth.items():
        expected = levels.total() * count / truth.total()
        assert expected / 2 < levels[level] < expected * 2, (level, expected, levels)


@pytest.mark.parametrize("program", CACTUS)
def test_paths_across_stacks_are_the_true_ones(
    program: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check_paths(program, ("chain", "chain_link"), tmp_path / "log")
    check_results(capfd)


def test_paths_through_closures_are_the_true_ones(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    check_paths("cilk5_truth", ("chain",), tmp_path / "log")
    check_results(capfd)


def check_paths(program: str, link: tuple[str, ...], log: Path) -> None:
    """At least 99 % of the paths lead from main through the procedures, as often as each, to the leaf."""
    for phase, level, truth in (("tree", ("tree",), TRUE_TREE), ("chain", link, TRUE_CHAIN)):
        found = recorded_paths(program, phase, log)
        true_parts = {depth: (*level * (depth - 1), phase) for depth in truth}
        levels = Counter[int]()
        for path, count in found.items():
            depth = path.count(phase)
            if true_parts.get(depth) == author_part(path, phase):
                levels[depth] += count
        assert levels.total() >= 0.99 * found.total(), found.most_common(5)
        check_levels(levels, truth)


def author_part(path: tuple[str, ...], first: str) -> tuple[str, ...]:
    """The procedures of a path that begins with how the main thread came to them."""
    return path[path.index(first) : -1] if path[0] == "main" and first in path else ()
