"""Waiting for a single task (parprof_span.h) against the longest path by definition, on programs that are made up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scale_programs import COMPILERS, run

Tree = tuple[Any, ...]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scale-futures")


def trees() -> st.SearchStrategy[Tree]:
    leaf = st.one_of(
        st.tuples(st.just("W"), st.integers(1, 1000)),
        st.tuples(st.just("J"), st.integers(0, 20)),
        st.just(("Y",)),
    )

    def larger(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        return st.one_of(
            st.tuples(st.just("S"), st.lists(inner, min_size=1, max_size=6)), st.tuples(st.just("T"), inner)
        )

    return st.recursive(leaf, larger, max_leaves=30)


def words_of(tree: Tree) -> Iterator[str]:
    kind, *rest = tree
    yield kind
    if kind == "S":
        yield str(len(rest[0]))
    for part in rest[0] if kind == "S" else rest:
        if isinstance(part, tuple):
            yield from words_of(part)
        else:
            yield str(part)


class Oracle:
    """Each strand a node: how long the longest path up to its end is."""

    def __init__(self) -> None:
        self.work = 0
        self.span = 0

    def node(self, weight: int, *before: int) -> int:
        self.work += weight
        length = weight + max(before)
        self.span = max(self.span, length)
        return length

    def execute(self, tree: Tree, at: int, futures: list[int], made: list[int]) -> int:
        """The node after which the task goes on. ``futures``: the last nodes of those that can be waited for."""
        kind, *rest = tree
        if kind == "W":
            return self.node(rest[0], at)
        if kind == "J":
            return self.node(0, at, futures[rest[0] % len(futures)]) if futures else at
        if kind == "Y":
            return self.node(0, at, *made)
        if kind == "S":
            for part in rest[0]:
                at = self.execute(part, at, futures, made)
            return at
        end = self.execute(rest[0], at, list(futures), [])
        futures.append(end)
        made.append(end)
        return at


SHORT: Tree = ("T", ("W", 10))
LONG: Tree = ("T", ("W", 100))


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("threads", [2, 64])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees())
@example(tree=("S", [LONG, SHORT, ("J", 1), ("W", 7)]))  # the longer one is not waited for
@example(tree=("S", [SHORT, LONG, ("J", 1), ("W", 7)]))
@example(tree=("S", [LONG, ("W", 1), ("T", ("S", [("J", 0), ("W", 5)])), ("J", 1), ("W", 7)]))  # another's
@example(tree=("S", [LONG, ("J", 0), ("J", 0), ("W", 7), SHORT, ("Y",), ("W", 1)]))
def test_the_longest_path_through_joins(directory: Path, compiler: str, threads: int, tree: Tree) -> None:
    oracle = Oracle()
    oracle.execute(tree, 0, [], [])
    record = run(directory, threads, "span_futures", *words_of(tree), compiler=compiler)
    assert record.work_s == pytest.approx(oracle.work / 1e9)
    assert record.span_s == pytest.approx(oracle.span / 1e9)
    assert sum(site.span_s for site in record.sites) == pytest.approx(record.span_s)
    assert sum(site.work_s for site in record.sites) == pytest.approx(record.work_s)
