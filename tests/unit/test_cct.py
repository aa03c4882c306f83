# SPDX-License-Identifier: Apache-2.0
"""The calling context tree and its views."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from parprof.cct.tree import CallingContextTree, Node, Procedure
from parprof.cct.views import callers_view, flat_view, fold_recursion
from parprof.metrics import IDLENESS, METRICS, OVERHEAD, WORK, Metrics
from parprof.model import Frame, PathSample
from profiles import few_samples, frame, heat, sample

Plain = dict[tuple[str, ...], tuple[Metrics, Metrics, int]]


def plain(tree: CallingContextTree) -> Plain:
    """The tree as a table that can be compared."""
    out: Plain = {(): (tree.root.exclusive, tree.root.inclusive, 0)}
    path: list[str] = []
    for node, entering in tree.walk():
        if entering:
            path.append(node.procedure.name)
            out[tuple(path)] = (node.exclusive, node.inclusive, node.hottest_line(IDLENESS))
        else:
            path.pop()
    return out


def child(node: Node, *names: str) -> Node:
    for name in names:
        node = next(below for below in node.children.values() if below.procedure.name == name)
    return node


def add(*parts: Metrics) -> Metrics:
    out = Metrics()
    for part in parts:
        out.add(part)
    return out


def total(samples: list[PathSample]) -> Metrics:
    return add(*(one.metrics for one in samples))


@given(few_samples)
def test_inclusive_is_exclusive_plus_children(samples: list[PathSample]) -> None:
    tree = CallingContextTree(samples)
    assert tree.root.inclusive == total(samples)
    for node, _ in tree.walk():
        assert node.inclusive == add(node.exclusive, *(below.inclusive for below in node.children.values()))


@given(st.data())
def test_insertion_order_does_not_matter(data: st.DataObject) -> None:
    samples = data.draw(few_samples)
    shuffled = data.draw(st.permutations(samples))
    assert plain(CallingContextTree(shuffled)) == plain(CallingContextTree(samples))


@given(few_samples)
def test_flat_view_counts_a_sample_once(samples: list[PathSample]) -> None:
    rows = flat_view(CallingContextTree(samples))
    for procedure, row in rows.items():
        through = [one for one in samples if any(f.name == procedure.name for f in one.path)]
        within = [one for one in through if one.path[-1].name == procedure.name]
        assert row.inclusive == total(through)
        assert row.exclusive == total(within)


@given(few_samples)
def test_callers_view_agrees_with_flat_view(samples: list[PathSample]) -> None:
    tree = CallingContextTree(samples)
    rows = list(flat_view(tree).values())
    for row, top in zip(rows, callers_view(tree, rows), strict=True):
        assert (top.exclusive, top.inclusive) == (row.exclusive, row.inclusive)
        pending = [top]
        while pending:
            caller = pending.pop()
            below = list(caller.children.values())
            assert add(*(one.inclusive for one in below)).samples <= caller.inclusive.samples
            pending += below


@given(few_samples)
def test_folding_recursion_keeps_flat_figures(samples: list[PathSample]) -> None:
    tree = CallingContextTree(samples)
    folded, saved = fold_recursion(tree)
    chain: list[Procedure] = []
    for node, entering in folded.walk():
        if entering:
            assert node.procedure not in chain
            chain.append(node.procedure)
        else:
            chain.pop()
    before, after = flat_view(tree), flat_view(folded)
    assert {key: row.exclusive for key, row in after.items()} == {
        key: row.exclusive for key, row in before.items()
    }
    recursive = any(len({f.name for f in one.path}) < len(one.path) for one in samples)
    assert (saved > 0) == recursive
    if not recursive:
        assert plain(folded) == plain(tree)


def test_hottest_line() -> None:
    tree = CallingContextTree(heat().samples)
    main = child(tree.root, "main")
    assert main.hottest_line(IDLENESS) == 61
    assert main.hottest_line(WORK) == 70
    assert child(main, "write_boundary").hottest_line(IDLENESS) == 33
    assert child(main, "solve").hottest_line(OVERHEAD) == 88
    assert child(main, "write_boundary", "fprintf").hottest_line(IDLENESS) == 0
    rows = {key.name: row for key, row in flat_view(tree).items()}
    assert rows["step"].hottest_line(WORK) == 42
    assert rows["main"].hottest_line(WORK) == 70


def test_a_procedure_without_lines_is_named_by_its_start() -> None:
    tree = CallingContextTree([sample([Frame("f", start_line=7)], 1, 1)])
    assert child(tree.root, "f").hottest_line(WORK) == 7


def test_same_name_in_two_modules_are_two_procedures() -> None:
    samples = [sample([frame("f", module=module)], 1, 1) for module in ("/bin/a", "/bin/b")]
    assert len(CallingContextTree(samples).root.children) == 2


@pytest.mark.parametrize(
    "names", [["f"], ["f", "g"], [f"f{i}" for i in range(5000)]], ids=["one", "two", "all"]
)
def test_five_thousand_levels(names: list[str]) -> None:
    path = [frame(names[i % len(names)], 1) for i in range(5000)]
    tree = CallingContextTree([sample(path, 2, 1), sample(path, 3, 1)])
    rows = flat_view(tree)
    assert len(rows) == len(names)
    assert all(row.inclusive.samples == 5 for row in rows.values())
    assert sum(row.exclusive.samples for row in rows.values()) == 5
    (top,) = callers_view(tree, [rows[next(reversed(rows))]])
    assert top.inclusive.samples == 5
    folded, saved = fold_recursion(tree)
    assert saved == 5000 - len(names)


def test_metric_names_are_those_of_the_command_line() -> None:
    assert list(METRICS.by_name()) == [
        "idleness",
        "work",
        "overhead",
        "spin",
        "blame",
        "profiling",
        "stall",
        "outside",
        "wait",
        "ready",
        "stolen",
        "unused",
        "samples",
        "activations",
    ]
