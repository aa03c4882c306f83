"""The library against a brute-force longest path, on programs of tasks that Hypothesis makes up.

The oracle writes the program's graph down, every strand a node, and takes the longest path by definition.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from parprof.scale.record import CallRecord, Flag, SpanRecord
from scale_programs import COMPILERS, run

Tree = tuple[Any, ...]
Place = tuple[int, int]
"""Of a call: the function that it is in, and where in that; what it calls is a third of the latter."""
MAIN: Place = (4, 0)


def _trees() -> st.SearchStrategy[Tree]:
    leaf = st.one_of(st.tuples(st.just("W"), st.integers(1, 1000)), st.just(("J",)))

    def larger(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        numbered = st.integers(0, 3)
        return st.one_of(
            st.tuples(st.just("S"), st.lists(inner, min_size=1, max_size=5)),
            st.tuples(st.just("T"), inner),
            st.tuples(st.just("G"), inner),
            st.tuples(st.just("I"), numbered, inner),
            st.tuples(st.just("O"), numbered, inner),
            st.tuples(st.just("F"), st.integers(0, 5), inner),
            # a lock around work alone: held across a wait for tasks that want it, it would be a deadlock
            st.tuples(st.just("C"), numbered, st.tuples(st.just("W"), st.integers(1, 1000))),
        )

    return st.recursive(leaf, larger, max_leaves=25)


def with_a_call(tree: Tree) -> Tree:
    """A program that calls nothing tells of no calls."""
    return ("S", [("F", 0, ("W", 1)), tree])


def words_of(tree: Tree) -> Iterator[str]:
    kind, *rest = tree
    yield kind
    if kind == "S":
        yield str(len(rest[0]))
        for part in rest[0]:
            yield from words_of(part)
        return
    for part in rest:
        if isinstance(part, tuple):
            yield from words_of(part)
        else:
            yield str(part)


@dataclass
class Task:
    """One task of the made-up program. ``calls``: the places of the calls that it is in, outermost first."""

    children: list[int] = field(default_factory=list)
    last_out: dict[int, int] = field(default_factory=dict)
    ins: dict[int, list[int]] = field(default_factory=dict)
    calls: tuple[Place, ...] = ()


class Oracle:
    """The graph: a weight for each node, and the nodes before it."""

    def __init__(self) -> None:
        self.weights: list[int] = []
        self.places: list[Place] = []
        self.calls: list[tuple[Place, ...]] = []
        """Each call that was made: the places of those above it, and its own."""
        self.before: list[list[int]] = []
        self.groups: list[list[int]] = []
        self.holds: dict[int, int] = {}

    def node(self, weight: int, *before: int, place: Place = MAIN) -> int:
        self.weights.append(weight)
        self.places.append(place)
        self.before.append(list(before))
        return len(self.weights) - 1

    def execute(self, tree: Tree, at: int, task: Task, groups: tuple[int, ...]) -> int:
        """The node after which the task goes on."""
        kind, *rest = tree
        if kind == "W":
            return self.node(rest[0], at, place=(MAIN, *task.calls)[-1])
        if kind == "J":
            return self.node(0, at, *task.children)
        if kind == "S":
            for part in rest[0]:
                at = self.execute(part, at, task, groups)
            return at
        if kind == "F":
            return self.call(rest[0], rest[1], at, task, groups)
        if kind == "C":
            self.holds[rest[0]] = self.holds.get(rest[0], 0) + rest[1][1]
            return self.execute(rest[1], at, task, groups)
        if kind == "G":
            self.groups.append([])
            mine = len(self.groups) - 1
            end = self.execute(rest[0], at, task, (*groups, mine))
            return self.node(0, end, *self.groups[mine])
        self.spawn(kind, rest, at, task, groups)
        return at

    def call(self, which: int, body: Tree, at: int, task: Task, groups: tuple[int, ...]) -> int:
        above = task.calls
        caller = above[-1][1] % 3 if above else 3
        task.calls = (*above, (caller, which))
        self.calls.append(task.calls)
        at = self.execute(body, at, task, groups)
        task.calls = above
        return at

    def spawn(self, kind: str, rest: list[Any], at: int, task: Task, groups: tuple[int, ...]) -> None:
        before = [at]
        if kind != "T":
            address = rest[0]
            before += [task.last_out[address]] if address in task.last_out else []
            before += task.ins.get(address, []) if kind == "O" else []
        end = self.execute(rest[-1], self.node(0, *before), Task(calls=task.calls), groups)
        task.children.append(end)
        for group in groups:
            self.groups[group].append(end)
        if kind == "I":
            task.ins.setdefault(rest[0], []).append(end)
        elif kind == "O":
            task.last_out[rest[0]] = end
            task.ins[rest[0]] = []

    def longest_paths(self) -> set[tuple[tuple[Place, int], ...]]:
        """What each longest path has by place; there may be several."""
        found: list[tuple[int, set[tuple[tuple[Place, int], ...]]]] = []
        for weight, before, place in zip(self.weights, self.before, self.places, strict=True):
            length = max((found[one][0] for one in before), default=0)
            paths = {path for one in before if found[one][0] == length for path in found[one][1]} or {()}
            added = {
                tuple(sorted((Counter(dict(path)) + Counter({place: weight})).items())) for path in paths
            }
            found.append((length + weight, added))
        longest = max(length for length, _ in found)
        return {path for length, paths in found if length == longest for path in paths}

    def greedy(self, threads: int) -> int:
        """How long one schedule takes on so many cores, in which none is idle while a node is ready. No bound on what
        any schedule takes is above it, but for locks."""
        after: list[list[int]] = [[] for _ in self.weights]
        missing = [len(set(before)) for before in self.before]
        for node, before in enumerate(self.before):
            for one in set(before):
                after[one].append(node)
        ready = [node for node, count in enumerate(missing) if not count]
        running: list[tuple[int, int]] = []
        now = 0
        while ready or running:
            while ready and len(running) < threads:
                node = ready.pop(0)
                heapq.heappush(running, (now + self.weights[node], node))
            now, ended = heapq.heappop(running)
            for node in after[ended]:
                missing[node] -= 1
                if not missing[node]:
                    ready.append(node)
        return now

    def longest(self) -> int:
        """Nodes come after those before them, so one pass is enough."""
        ends: list[int] = []
        for weight, before in zip(self.weights, self.before, strict=True):
            ends.append(weight + max((ends[one] for one in before), default=0))
        return max(ends, default=0)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scale")


def measured(record: SpanRecord) -> tuple[int, int, int]:
    return round(record.work_s * 1e9), round(record.span_s * 1e9), round(record.bound_s * 1e9)


CHAIN = ("S", [("O", 0, ("W", 100)), ("I", 0, ("W", 10)), ("I", 0, ("W", 70)), ("O", 0, ("W", 5)), ("W", 20)])
OUTSIDE = ("S", [("T", ("W", 4)), ("G", ("W", 1))])
"""A group ends, and a task that was made before it goes on."""
MANY = ("S", [("T", ("S", [("T", ("W", 90)), ("T", ("W", 90)), ("T", ("W", 90))])), ("J",), ("W", 200)])
"""The task is over, what it has made goes on."""
OUTLIVING = ("S", [("T", ("S", [("T", ("W", 900)), ("W", 1)])), ("J",), ("W", 50)])


@pytest.mark.parametrize("compiler", COMPILERS)
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@example(tree=CHAIN, threads=2)
@example(tree=OUTLIVING, threads=4)
@example(tree=OUTSIDE, threads=1)
@example(tree=MANY, threads=2)
@given(tree=_trees(), threads=st.sampled_from([1, 2, 3, 8]))
def test_work_span_and_bound_are_those_of_the_graph(
    directory: Path, compiler: str, tree: Tree, threads: int
) -> None:
    oracle = Oracle()
    oracle.execute(tree, oracle.node(0), Task(), ())
    work, span = sum(oracle.weights), oracle.longest()
    holds = max(oracle.holds.values(), default=0)
    found = measured(run(directory, threads, "span_tree", *words_of(tree), compiler=compiler))
    assert found[:2] == (work, span)
    assert max(work // threads, span, holds) - 2 <= found[2] <= max(oracle.greedy(threads), holds) + 2


def by_place(record: SpanRecord, amount: Callable[[CallRecord], int]) -> Counter[Place]:
    """An amount of each call site; main's own is (4, 0)."""
    places = ((call, divmod(call.address.vaddr - 0x400, 16)) for call in record.calls if call.address.vaddr)
    return +Counter({place: amount(call) for call, place in places})


def is_top_site(calls: tuple[Place, ...]) -> bool:
    return calls[-1] not in calls[:-1]


def is_top_caller(calls: tuple[Place, ...]) -> bool:
    return calls[-1][0] not in (caller for caller, _ in calls[:-1])


RECURSIVE = (
    "F",
    0,
    ("F", 0, ("S", [("T", ("F", 0, ("W", 9))), ("T", ("F", 3, ("W", 7))), ("J",), ("W", 1)])),
)


@pytest.mark.parametrize("compiler", COMPILERS)
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@example(tree=RECURSIVE, threads=2)
@given(tree=_trees().map(with_a_call), threads=st.sampled_from([1, 2, 8]))
def test_call_sites_are_those_of_the_graph(directory: Path, compiler: str, tree: Tree, threads: int) -> None:
    oracle = Oracle()
    oracle.execute(tree, oracle.node(0), Task(), ())
    record = run(directory, threads, "span_tree", *words_of(tree), compiler=compiler)
    assert record.flags & Flag.CALLS

    called = [calls[-1] for calls in oracle.calls]
    assert by_place(record, lambda call: call.on_work.count) == Counter([MAIN, *called])
    tops = [calls[-1] for calls in oracle.calls if is_top_site(calls)]
    assert by_place(record, lambda call: call.on_work.top_call_site.count) == Counter([MAIN, *tops])
    tops = [calls[-1] for calls in oracle.calls if is_top_caller(calls)]
    assert by_place(record, lambda call: call.on_work.top_caller.count) == Counter([MAIN, *tops])

    local: Counter[Place] = Counter()
    for place, weight in zip(oracle.places, oracle.weights, strict=True):
        local[place] += weight
    assert by_place(record, lambda call: round(call.on_work.local_work_s * 1e9)) == +local
    on_span = by_place(record, lambda call: round(call.on_span.local_span_s * 1e9))
    assert tuple(sorted(on_span.items())) in oracle.longest_paths()
    assert by_place(record, lambda call: call.on_span.count) <= Counter([MAIN, *called])
