"""Doacross loops (`ordered(n)`): the library against a longest path by definition, on loops that Hypothesis makes up.

The oracle has a node for each piece of code of an iteration, and an edge for each thing that it must wait for.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from parprof.scale.record import Flag, SiteKind, SpanRecord
from scale_programs import COMPILERS, records_of, run, sites, speedup, variables, with_hooks

ABOVE, TWICE, BEFORE, COLLAPSED, LOCKED = range(5)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scale")


@dataclass(frozen=True)
class Loop:
    """What tests/workloads/span_doacross.c is told."""

    pattern: int
    schedule: str
    chunk: int
    rows: int
    columns: int
    weights: tuple[int, ...]

    def words(self) -> list[str]:
        numbers = (self.chunk, self.rows, self.columns, *self.weights)
        return [str(self.pattern), self.schedule, *map(str, numbers)]

    @property
    def outer(self) -> int:
        """Iterations that the schedule deals out."""
        return self.rows * (self.columns if self.pattern == COLLAPSED else 1)

    def inner(self) -> Sequence[int]:
        return range({BEFORE: 1, COLLAPSED: 2}.get(self.pattern, self.columns))

    def weight(self, at: int) -> int:
        return self.weights[at % len(self.weights)]

    def pieces(self, outer: int, inner: int) -> tuple[int, int, int]:
        """Work before the wait, from there to the post, and after it."""
        if self.pattern == BEFORE:
            at = 3 * outer * self.columns
            first = sum(self.weight(at + 3 * column) for column in range(self.columns))
            return first, self.weight(at + 1), self.weight(at + 2)
        if self.pattern == COLLAPSED:
            at = 3 * outer + inner
            return self.weight(at), self.weight(at + 1), 0
        at = 3 * (outer * self.columns + inner)
        return self.weight(at), self.weight(at + 1), self.weight(at + 2)

    def sinks(self, outer: int, inner: int) -> Iterator[tuple[int, int]]:
        """The iterations that one waits for."""
        if self.pattern in (ABOVE, BEFORE):
            found = [(outer - 1, inner)]
        elif self.pattern == TWICE:
            found = [(outer - 2, inner), (outer - 1, inner - 1)]
        else:
            row, column = divmod(outer, self.columns)
            found = [((row - 1) * self.columns + column, inner)]
            found += [(outer - 1, inner)] if column else []
        return ((one, other) for one, other in found if one >= 0 and other >= 0)


def owner(loop: Loop, outer: int, threads: int) -> int:
    """The thread of a static schedule, or the chunk of a dynamic one."""
    if loop.schedule == "dynamic":
        return outer // max(loop.chunk, 1)
    if loop.chunk > 0:
        return outer // loop.chunk % threads
    each, rest = divmod(loop.outer, threads)
    return (
        outer // (each + 1)
        if outer < rest * (each + 1)
        else rest + (outer - rest * (each + 1)) // max(each, 1)
    )


def longest_path(loop: Loop, threads: int, start: Callable[[list[int]], int]) -> int:
    """To the end of the loop's last chunk, or of the thread that ends last.

    ``start`` says when the first thread is idle again, by the ends of the chunks so far.
    """
    is_shared = loop.schedule == "dynamic"
    posts: dict[tuple[int, int], int] = {}
    ends = {} if is_shared else {thread: thread * loop.weights[0] for thread in range(threads)}
    for outer in range(loop.outer):
        mine = owner(loop, outer, threads)
        if mine not in ends:
            ends[mine] = start(list(ends.values())) if len(ends) >= threads else 0
        now = ends[mine]
        for inner in loop.inner():
            before, between, after = loop.pieces(outer, inner)
            now = max([now + before, *(posts[sink] for sink in loop.sinks(outer, inner))]) + between
            posts[outer, inner] = now
            now += after
        ends[mine] = now
    return max(ends.values(), default=0)


@dataclass(frozen=True)
class Truth:
    """Work and, for a length of the loop, span and the least time with so many threads."""

    loop: Loop
    threads: int

    @property
    def first(self) -> int:
        return self.loop.weights[0]

    @property
    def of_loop(self) -> int:
        pieces = (
            self.loop.pieces(one, other) for one in range(self.loop.outer) for other in self.loop.inner()
        )
        return sum(map(sum, pieces))

    @property
    def work(self) -> int:
        """Before the loop: 0, 1, 2, ... times the first weight; behind it each thread has that once."""
        return self.of_loop + self.first * (self.threads * (self.threads - 1) // 2 + self.threads)

    def span(self, longest: int) -> int:
        """A shared loop is a path of its own, of at least its even share, behind the longest path around it."""
        if self.loop.schedule != "dynamic":
            return longest + self.first
        return self.first * (self.threads - 1) + max(longest, self.of_loop // self.threads) + self.first

    def bound(self, longest: int) -> int:
        if self.loop.pattern == TWICE:  # no barrier: all is one phase
            return max(self.work // self.threads, self.span(longest))
        even = (self.work - self.first * self.threads) // self.threads
        return max(even + self.first, self.span(longest))


def measured(record: SpanRecord) -> tuple[int, int, int]:
    return round(record.work_s * 1e9), round(record.span_s * 1e9), round(record.bound_s * 1e9)


LOOPS = st.builds(
    Loop,
    pattern=st.sampled_from([ABOVE, TWICE, BEFORE, COLLAPSED]),
    schedule=st.sampled_from(["static", "dynamic"]),
    chunk=st.integers(1, 3),
    rows=st.integers(1, 12),
    columns=st.integers(1, 6),
    weights=st.lists(st.integers(0, 1000), min_size=1, max_size=12).map(tuple),
)


@pytest.mark.parametrize("compiler", COMPILERS)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(loop=Loop(ABOVE, "static", 1, 8, 4, (100,)), threads=4)
@example(loop=Loop(BEFORE, "dynamic", 1, 8, 1, (100, 30, 5)), threads=8)
@example(loop=Loop(COLLAPSED, "dynamic", 2, 4, 4, (3, 100, 7)), threads=3)
@given(loop=LOOPS, threads=st.sampled_from([1, 2, 3, 8]))
def test_waits_are_edges_of_the_graph(directory: Path, compiler: str, loop: Loop, threads: int) -> None:
    if compiler == "clang" and threads == 1 and loop.schedule == "dynamic":
        return  # that runtime deals out one chunk to a single thread: all of the loop
    record = run(directory, threads, "span_doacross", *loop.words(), compiler=compiler)
    work, span, bound = measured(record)
    truth = Truth(loop, threads)
    assert work == truth.work and not record.flags & Flag.WAITS_LOST
    least = longest_path(loop, threads, lambda ends: 0)
    if loop.schedule == "static" or loop.outer <= threads:
        most = least
    else:  # of a thread that is not through with its chunk in this run, it is not known when it will be
        most = longest_path(loop, threads, max)
    assert truth.span(least) - 2 <= span <= truth.span(most) + 2
    assert truth.bound(least) - 2 <= bound <= truth.bound(most) + 2


@pytest.mark.parametrize("chunk", [1, 3])
def test_one_thread_has_all_chunks(directory: Path, chunk: int) -> None:
    loop = Loop(COLLAPSED, "dynamic", chunk, 5, 4, (3, 100, 7))
    assert measured(run(directory, 1, "span_doacross", *loop.words()))[1] == Truth(loop, 1).work


LOCKED_WORDS = ("400", "1", "10", "300", "20")
"""Rows and columns; work with the lock, without, and in the chain."""


@pytest.mark.parametrize(
    ("threads", "critical_ns", "chain_ns"),
    # one thread: all work; of 64 the chain is the bound
    [(1, 400 * 10, 400 * 320), (64, 10, 300 + 400 * 20)],
)
def test_a_sites_part_of_the_span_is_its_part_of_what_bounds_the_loop(
    directory: Path, threads: int, critical_ns: float, chain_ns: float
) -> None:
    record = run(directory, threads, "span_doacross", str(LOCKED), "dynamic", "1", *LOCKED_WORDS)
    (critical,) = sites(record, SiteKind.CRITICAL)
    (loop,) = sites(record, SiteKind.DOACROSS)
    assert loop.count == threads
    assert critical.span_s * 1e9 == pytest.approx(critical_ns, abs=2)
    assert loop.span_s * 1e9 == pytest.approx(chain_ns, abs=2)


@pytest.mark.parametrize("threads", [1, 2, 64])
@pytest.mark.parametrize(
    ("pattern", "schedule"), [(LOCKED, "dynamic"), (ABOVE, "static"), (TWICE, "dynamic")]
)
def test_call_sites_have_all_of_the_work_and_the_span(
    directory: Path, pattern: int, schedule: str, threads: int
) -> None:
    """Built with hooks: what code waited for is in the span of the calls that executed that."""
    records = directory / f"records-{os.urandom(6).hex()}"
    records.mkdir()
    words = [str(pattern), schedule, "1", "30", "7", "10", "300", "20"]
    command = [with_hooks("span_doacross", directory), *words]
    subprocess.run(command, env=variables(records, threads), check=True, timeout=120)
    (record,) = records_of(records)
    assert sum(call.on_work.local_work_s for call in record.calls) == pytest.approx(record.work_s, rel=1e-9)
    on_span = sum(call.on_span.local_span_s for call in record.calls)
    assert on_span * 1e9 == pytest.approx(record.span_s * 1e9, abs=20)  # rounded down, each one
    assert sum(call.on_span.count for call in record.calls) <= sum(
        call.on_work.count for call in record.calls
    )


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("schedule", ["static", "dynamic"])
@pytest.mark.parametrize("threads", [2, 8, 64])
def test_a_wavefront(directory: Path, schedule: str, threads: int, compiler: str) -> None:
    """Rows are dealt out in turn: each begins a cell after the one above it, n / N of them in each thread."""
    n = 128
    arguments = ("span_doacross", str(ABOVE), schedule, "1", str(n), str(n), "0", "1000", "0")
    record = run(directory, threads, *arguments, compiler=compiler)
    formula = n * n / (n / threads * n + threads - 1)
    assert speedup(record) == pytest.approx(formula, rel=0.01)


def test_more_iterations_than_are_remembered(directory: Path) -> None:
    """Those far back are forgotten: nobody waits for them any more."""
    loop = Loop(BEFORE, "static", 1, 200_000, 1, (7, 2, 0))
    record = run(directory, 8, "span_doacross", *loop.words())
    truth = Truth(loop, 8)
    assert (
        measured(record)[1] == truth.span(longest_path(loop, 8, max)) and not record.flags & Flag.WAITS_LOST
    )
