"""Cilk's three generations, on stand-in runtimes that really steal: n_w, call paths across stacks, survival."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import profiling
from parprof.model import PathSample, ThreadState
from parprof.session.sources import Source
from reruns import MadeForAll

LIMIT = 0.01
BUSY_LIMIT = 0.1
PROGRAMS = {
    "spawn_truth.opencilk": "opencilk",
    "spawn_truth.opencilk.static": "opencilk",
    "spawn_truth.opencilk.inside": "opencilk",
    "spawn_truth.cilkplus": "cilkplus",
    "cilk5_truth": "cilk5",
    "cilk5_truth.g.p": "cilk5",
    "cilk5_truth.inside": "cilk5",
}
CACTUS = [program for program, runtime in PROGRAMS.items() if runtime != "cilk5"]
CHAIN_LEVELS = 11
DEEP_LEVELS = 151
LEAVES = ("tree_leaf", "chain_work", "deep_work")


N_WORKING = [
    (program, "all", "--repeat", "2", "--threads", threads) for program in PROGRAMS for threads in ("2", "4")
]
STRIPPED = [
    (program, "all", "--repeat", "2")
    for program in (
        "spawn_truth.opencilk.stripped", "spawn_truth.cilkplus.stripped", "cilk5_truth.stripped",
        "cilk5_truth.half_stripped",
    )
]  # fmt: skip


def is_usable(run: profiling.Run) -> bool:
    """Of a common session those in which nothing was lost and switches were followed, on a machine that others may have
    made busy."""
    return not (run.lost.keys() - {"user_stack"} or run.meanwhile["ticks"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> profiling.CommonRuns:
    return profiling.CommonRuns(
        (*N_WORKING, *STRIPPED), lambda: tmp_path_factory.mktemp("runs"), is_usable=is_usable
    )


def agree(make: Callable[[], profiling.Run], minimum: int, limit: float = LIMIT) -> profiling.Run:
    run = profiling.agree(make, minimum, limit, BUSY_LIMIT)
    assert not run.target.failures
    return run


def check_results(output: str) -> None:
    """The program, which checks its own results, was content, and pieces of it were stolen."""
    assert "instead of" not in output
    steals = [int(count) for count in re.findall(r"^steals (\d+)$", output, re.M)]
    assert steals and all(steals), output


@pytest.mark.parametrize("command", N_WORKING, ids=" ".join)
def test_n_working(command: profiling.Command, runs: profiling.CommonRuns) -> None:
    run = agree(lambda: runs.take(command), 500)
    check_results(run.output)
    assert run.target.n_w_source == "exact"
    assert not any("no line information" in note for note in run.target.notes())
    assert run.target.plan.runtime == PROGRAMS[command[0]]
    if command[0].endswith(".inside"):
        # whose threads it imports pthread_create for, the runtime's or its own, nobody knows
        assert "starts threads" in run.target.memory.spoilt_by
        return
    # the same transitions, read from the runtime's own memory
    assert run.meanwhile["checked"] > 500
    assert run.meanwhile["disagreed"] <= LIMIT * run.meanwhile["checked"]


@pytest.mark.parametrize("command", STRIPPED, ids=" ".join)
def test_n_working_of_stripped_programs(command: profiling.Command, runs: profiling.CommonRuns) -> None:
    run = agree(lambda: runs.take(command), 500)
    check_results(run.output)
    assert run.target.n_w_source == "memory"
    assert any("no line information" in note for note in run.target.notes()), "overhead is not told from work"


ATTACHED = [
    profiling.Attachment(program, ("skewed,serial,tree,balanced", "--unit-ms", "20"), 0.3, 2.4)
    for program in ("spawn_truth.opencilk", "spawn_truth.cilkplus", "cilk5_truth")
]


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory) -> profiling.CommonAttachments:
    return profiling.CommonAttachments(ATTACHED, lambda: tmp_path_factory.mktemp("attached"), is_usable)


@pytest.mark.parametrize("to", ATTACHED, ids=lambda to: to.program)
def test_attach_in_the_middle(to: profiling.Attachment, attached: profiling.CommonAttachments) -> None:
    run = agree(lambda: attached.take(to), 300, 0.03)
    settled = profiling.compare(run.session.trace, run.truth, since_ns=run.begun_ns + 10**9)
    assert settled.wrong_share <= (BUSY_LIMIT if profiling.was_busy(run) else 0.015), settled.cases


def of_paths(program: str, phase: str) -> profiling.Command:
    """Samples enough to tell levels of a path apart."""
    return program, phase, "--unit-ms", "20", "--repeat", "2"


STRESS = [(program, "stress,fan", "--unit-ms", "0.1", "--repeat", "50") for program in CACTUS]
PATHS = [of_paths(program, phase) for program in PROGRAMS for phase in ("tree", "chain")]


@dataclass
class Paths:
    """Programs of a common session, and the rows of all of them."""

    runs: dict[profiling.Command, profiling.Run]
    rows: list[PathSample]

    def of(self, command: profiling.Command) -> Counter[tuple[str, ...]]:
        """Logical call paths of working samples inside work functions, root first, down to the work function."""
        image = self.runs[command].target.image
        out = Counter[tuple[str, ...]]()
        for row in self.rows:
            names = [frame.name for frame in row.path if not frame.is_loop]
            work = next((at for at, name in enumerate(names) if name in LEAVES), None)
            if work is not None and row.origin.image == image:
                out[tuple(names[: work + 1])] += row.metrics.samples
        return out


DEEP = ("cilk5_truth", "deep", "--unit-ms", "40", "--repeat", "2")
DEEPER = ("DEEP_DEPTH=900", "cilk5_truth", "deep", "--unit-ms", "20")
CILK5_PATHS = [command for command in PATHS if command[0] == "cilk5_truth"]


@pytest.fixture(scope="module")
def all_paths(tmp_path_factory: pytest.TempPathFactory) -> MadeForAll[Paths]:
    def record() -> Paths:
        runs = profiling.record_each((*STRESS, *PATHS, DEEP, DEEPER), tmp_path_factory.mktemp("paths"))
        rows, _ = profiling.rows_of(next(iter(runs.values())).session, loops=True)
        return Paths(runs, rows)

    return MadeForAll(record)


@pytest.fixture
def paths(request: pytest.FixtureRequest, all_paths: MadeForAll[Paths]) -> Paths:
    return all_paths.take(request.node.name)


@pytest.mark.beside
@pytest.mark.parametrize("command", STRESS, ids=" ".join)
def test_nothing_is_probed_on_return_where_work_moves(command: profiling.Command, paths: Paths) -> None:
    run = paths.runs[command]
    check_results(run.output)
    assert run.target.plan.sites
    assert not any(site.returns for site in run.target.plan.sites)


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


@pytest.mark.beside
@pytest.mark.parametrize("program", CACTUS)
def test_paths_across_stacks_are_the_true_ones(program: str, paths: Paths) -> None:
    check_paths(program, ("chain", "chain_link"), paths)


@pytest.mark.beside
@pytest.mark.parametrize("program", [program for program, runtime in PROGRAMS.items() if runtime == "cilk5"])
def test_paths_through_closures_are_the_true_ones(program: str, paths: Paths) -> None:
    check_paths(program, ("chain",), paths)


@pytest.mark.beside
def test_paths_through_closures_where_n_w_comes_from_memory(tmp_path: Path) -> None:
    """No slow version is probed then: a sample looks at its worker's closures itself."""
    runs = profiling.record_each(CILK5_PATHS, tmp_path, source=Source.MEMORY)
    assert all(run.target.source is Source.MEMORY for run in runs.values())
    rows, _ = profiling.rows_of(next(iter(runs.values())).session, loops=True)
    check_paths("cilk5_truth", ("chain",), Paths(runs, rows))


@pytest.mark.beside
def test_a_long_chain_of_closures_is_shown_whole(paths: Paths) -> None:
    check_results(paths.runs[DEEP].output)
    found = paths.of(DEEP)
    assert found.total() > 300
    levels = Counter[int]()
    for path, count in found.items():
        assert path[0] == "main" and "[truncated]" not in path
        levels[path.count("deep") // 10] += count
    assert len(levels) == DEEP_LEVELS // 10 + 1
    assert max(levels.values()) < 2 * found.total() / len(levels), levels


@pytest.mark.beside
def test_a_chain_of_closures_that_is_too_long_is_marked(paths: Paths) -> None:
    """What shows fewer levels than it has would be taken for another level's."""
    check_results(paths.runs[DEEPER].output)
    found = paths.of(DEEPER)
    whole = Counter({path.count("deep"): count for path, count in found.items() if "[truncated]" not in path})
    assert 300 < whole.total() < found.total()
    few = sum(count for level, count in whole.items() if level <= 450)
    assert few < 1.4 * found.total() / 2, whole


@pytest.mark.parametrize("source", [Source.EXACT, Source.MEMORY])
def test_closures_of_a_program_that_ran_already_are_complete(source: Source, tmp_path: Path) -> None:
    """Nobody saw who created its workers, but nothing comes before the first procedure."""
    to = profiling.Attachment("cilk5_truth", ("tree,chain", "--unit-ms", "5"), 0.3, 2)
    run = profiling.attach(to, tmp_path / "log", source=source)
    rows, _ = profiling.rows_of(run.session, loops=True)
    command = ("cilk5_truth",)
    found = Paths({command: run}, rows).of(command)
    assert found.total() > 300
    unknown = sum(count for path, count in found.items() if path[0] == "[unknown context]")
    assert unknown <= 0.1 * found.total(), found.most_common(5)


def check_paths(program: str, link: tuple[str, ...], paths: Paths) -> None:
    """At least 99 % of the paths lead from main through the procedures, as often as each, to the leaf."""
    for phase, level, truth in (("tree", ("tree",), TRUE_TREE), ("chain", link, TRUE_CHAIN)):
        command = of_paths(program, phase)
        run, found = paths.runs[command], paths.of(command)
        assert any(
            one.state is ThreadState.WORKING and one.image == run.target.image for one in run.session.trace
        )
        check_results(run.output)
        assert found.total() > 300
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
