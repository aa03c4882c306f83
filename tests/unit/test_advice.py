# SPDX-License-Identifier: Apache-2.0
"""Which call paths the report advises to act on, and what it says about them."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from parprof.attribution import Verdict, attribute, percent, verdict
from parprof.attribution.advice import LEAST_SHARE, NEGLIGIBLE_PERCENT, advise, lost_ns
from parprof.cct.tree import CallingContextTree, Node
from parprof.exporters.summary import headline, sentence
from parprof.metrics import Metrics
from parprof.model import Frame, PathSample, ThreadState
from profiles import few_samples, frame, heat, library

Row = tuple[list[str], float, float, float]
"""Names of the call path, then useful work, overhead and idleness in milliseconds."""


def tree_of(*rows: Row, cores: int = 4) -> CallingContextTree:
    """A name in capitals is a function without source."""
    samples = []
    for names, useful, overhead, idleness in rows:
        path = tuple(library(name) if name.isupper() else frame(name, 9) for name in names)
        metrics = Metrics(1, (useful + overhead) * 1e6, idleness * 1e6, overhead * 1e6)
        samples.append(PathSample(path, metrics))
    return CallingContextTree(samples)


def names(path: tuple[Node, ...]) -> str:
    return " ".join(node.procedure.name for node in path)


def advised(tree: CallingContextTree) -> list[tuple[str, Verdict]]:
    return [(names(one.path), one.verdict) for one in advise(tree)]


def test_one_path_is_followed_to_the_deepest_subtree_that_has_most() -> None:
    tree = tree_of(
        (["main", "setup", "read", "parse"], 5, 0, 15),
        (["main", "setup", "read", "check"], 4, 0, 12),
        (["main", "setup", "log"], 1, 0, 3),
        (["main", "solve"], 100, 0, 5),
    )
    # setup has 30 of 35, read 27 (77 %); its two callees have more than a quarter each
    assert advised(tree) == [
        ("main setup read parse", Verdict.REFINE),
        ("main setup read check", Verdict.REFINE),
    ]


def test_the_descent_ends_where_what_is_lost_scatters() -> None:
    scattered: list[Row] = [(["main", "setup", f"part{number}"], 1, 0, 3) for number in range(10)]
    assert advised(tree_of(*scattered, (["main", "solve"], 100, 0, 0))) == [("main setup", Verdict.REFINE)]


def test_a_callee_with_less_than_seven_tenths_leaves_its_caller() -> None:
    """GIVEN 60 % in a callee and 40 % in its caller itself THEN both are the caller's business."""
    tree = tree_of((["main", "f"], 4, 0, 4), (["main", "f", "g"], 6, 0, 6))
    assert advised(tree) == [("main f", Verdict.REFINE)]
    tree = tree_of((["main", "f"], 3, 0, 3), (["main", "f", "g"], 7, 0, 7))
    assert advised(tree) == [("main f g", Verdict.REFINE)]


def test_shares_do_not_wear_away_on_the_way_down() -> None:
    """Each callee has 80 % of its caller, but 70 % of the whole is the measure."""
    rows: list[Row] = [(["main"], 20, 0, 20), (["main", "a"], 16, 0, 16), (["main", "a", "b"], 64, 0, 64)]
    assert advised(tree_of(*rows)) == [("main a", Verdict.REFINE)]


def test_paths_that_split_are_all_named_worst_first() -> None:
    tree = tree_of(
        (["main", "load"], 2, 0, 6),
        (["main", "lock"], 10, 10, 0),
        (["main", "solve"], 100, 1, 0),
    )
    assert advised(tree) == [("main lock", Verdict.COARSEN), ("main load", Verdict.REFINE)]


def test_all_rows_of_table_1() -> None:
    for overhead, idleness, expected in (
        (1, 20, Verdict.REFINE),
        (20, 1, Verdict.COARSEN),
        (20, 20, Verdict.SWITCH),
    ):
        assert advised(tree_of((["main", "f"], 50, overhead, idleness))) == [("main f", expected)]
    assert advised(tree_of((["main", "f"], 100, 1, 1))) == []


def test_a_serial_part_of_a_good_program_is_named() -> None:
    """GIVEN a program that is effectively parallel as a whole, with one part that is not."""
    tree = tree_of((["main", "solve"], 1000, 0, 0), (["main", "write"], 10, 0, 30))
    assert verdict(tree.root.inclusive) is Verdict.PARALLEL
    assert advised(tree) == [("main write", Verdict.REFINE)]
    assert headline(tree, 4).startswith("main > write (heat.c:9) has 100 % of the idleness (2.9 % of the")


def test_code_without_source_is_its_callers_business() -> None:
    tree = tree_of((["START", "main", "f", "PRINTF", "WRITE"], 1, 0, 3), (["START", "main", "g"], 1, 0, 0))
    assert advised(tree) == [("START main f", Verdict.REFINE)]
    tree = tree_of((["main", "QSORT", "compare"], 1, 0, 3))
    assert advised(tree) == [("main QSORT compare", Verdict.REFINE)]
    tree = tree_of((["main", "QSORT"], 3, 0, 3), (["main", "QSORT", "compare"], 2, 0, 2))
    assert advised(tree) == [("main", Verdict.REFINE)]
    assert advised(tree_of((["START", "F"], 1, 0, 3))) == [("START F", Verdict.REFINE)]


def test_nothing_to_advise() -> None:
    assert advise(CallingContextTree()) == []
    assert headline(CallingContextTree(), 4) == ""
    busy = tree_of((["main"], 1000, 0, 1))
    assert advise(busy) == []
    assert headline(busy, 4) == "effectively parallel; focus on serial performance"
    assert headline(busy, 1).endswith("; n = 1, so no core could be idle")


def test_lost_outside_of_all_functions() -> None:
    tree = tree_of(([], 1, 0, 3))
    assert headline(tree, 4).startswith(
        "the whole program has 100 % of the idleness (75 % of the effort; 3.0 of"
    )


def test_sentences() -> None:
    tree = CallingContextTree(heat().samples)
    assert [sentence(one, 4) for one in advise(tree)] == [
        "main > write_boundary (heat.c:33) has 94 % of the idleness (17 % of the effort; 3.0 of 4 cores idle"
        " while it runs): cores stand idle; refine the concurrency (more, smaller pieces of work)"
    ]
    coarse = tree_of((["main", "f"], 50, 50, 0))
    assert headline(coarse, 4) == (
        "main > f (heat.c:9) has 100 % of the overhead (50 % of the effort): overhead is high; coarsen the"
        " concurrency (fewer, larger pieces of work)"
    )
    both = tree_of((["main", "f"], 50, 30, 20))
    assert headline(both, 4).startswith(
        "main > f (heat.c:9) has 100 % of the lost effort (50 % of the effort; 0.8"
    )


def test_long_and_hostile_names() -> None:
    tree = tree_of(([f"f{depth}" for depth in range(9)], 1, 0, 3))
    assert headline(tree, 4).startswith("f0 > ... > f7 > f8 (heat.c:9) has")
    assert "\x1b" not in headline(tree_of((["\x1b[31m" + "x" * 500], 1, 0, 3)), 4)


def test_loops_are_part_of_the_path_but_not_of_its_name() -> None:
    loop = Frame("loop at heat.c:40", "heat.c", 41, 40, is_loop=True)
    metrics = attribute(9, 1e6, 1, 4, ThreadState.WORKING)
    tree = CallingContextTree([PathSample((frame("main", 7), frame("relax", 41), loop), metrics)])
    assert headline(tree, 4).startswith("main > relax (heat.c:41) has 100 %")
    assert len(advise(tree)[0].path) == 3


def test_deep_paths() -> None:
    tree = tree_of(([f"f{depth}" for depth in range(3000)], 1, 0, 3))
    assert len(advise(tree)[0].path) == 3000


@given(few_samples)
def test_properties(samples: list[PathSample]) -> None:
    tree = CallingContextTree(samples)
    found = advise(tree)
    total = tree.root.inclusive
    assert len(found) <= 1 / LEAST_SHARE
    if percent(lost_ns(total), total.effort_ns) < NEGLIGIBLE_PERCENT:
        assert found == []
    for one in found:
        assert one.verdict is not Verdict.PARALLEL
        assert one.verdict is verdict(one.path[-1].inclusive if one.path else total)
        assert 100 * LEAST_SHARE - 1e-6 <= one.lost_percent <= 100 + 1e-6
        node = tree.root
        for step in one.path:
            assert node.children[step.procedure] is step
            node = step
    assert [one.lost_percent for one in found] == sorted((one.lost_percent for one in found), reverse=True)
    for one in found:  # no sample is in two of them
        others = [other.path for other in found if other is not one]
        assert not any(path[: len(one.path)] == one.path for path in others)


@given(few_samples, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(samples: list[PathSample], random: object) -> None:
    before = [(names(one.path), one.metrics) for one in advise(CallingContextTree(samples))]
    shuffled = samples.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    after = [(names(one.path), one.metrics) for one in advise(CallingContextTree(shuffled))]
    assert after == before


@given(st.floats(1 - LEAST_SHARE + 0.01, 1), st.integers(1, 30))
def test_a_dominant_leaf_is_always_found(share: float, depth: int) -> None:
    chain = [f"f{level}" for level in range(depth)]
    rows: list[Row] = [([*chain, "hot"], 10 * share, 0, 30 * share)]
    rows += [
        ([*chain[:at], "cold"], 10 * (1 - share) / depth, 0, 30 * (1 - share) / depth) for at in range(depth)
    ]
    assert advised(tree_of(*rows)) == [(" ".join([*chain, "hot"]), Verdict.REFINE)]
