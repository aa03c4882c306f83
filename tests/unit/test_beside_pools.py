# SPDX-License-Identifier: Apache-2.0
"""n_w where a pool's threads spin: it is 1 where the only caller works elsewhere, whatever samples told of others."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path as FilePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(FilePath(__file__).parent))

from logical_stacks import frames
from parprof.model import NO_EVENT, Count, SampleKey, ThreadState
from parprof.profile.beside_pools import n_working_beside_pools
from test_logical_paths import MAIN, Pool

CORES = 2


class Phases(Pool):
    """A script that prepares and calls OpenBLAS in turn; keys are of its threads at work."""

    def __init__(self) -> None:
        super().__init__()
        self.prepare = self.stack(frames("main prepare"), start_up=MAIN)
        self.call, self.part = self.caller("main f"), self.worker()
        self.search = self.worker("blas_thread_server")

    def key(self, user: int, n_working: int, tid: int = 1, image: int = 1) -> SampleKey:
        return SampleKey(image, tid, 0, ThreadState.WORKING, n_working, user, 0)

    def told_late(self) -> dict[SampleKey, int]:
        """Of samples that tell each change too late: idleness of `prepare` is at the call."""
        prepares, calls = self.key(self.prepare, 2), self.key(self.call, 1)
        return {prepares: 40, calls: 10, self.key(self.part, 1, 2): 10}

    def found(self, facts: Mapping[SampleKey, int], cores: int = CORES) -> dict[SampleKey, float]:
        counts = {key: Count(number, number) for key, number in facts.items()}
        return n_working_beside_pools(counts, lambda key: self.paths, lambda key: cores)


def idle(facts: Mapping[SampleKey, int], n_w: Mapping[SampleKey, float], cores: int = CORES) -> float:
    """Idle core time, in samples."""
    return sum(
        number * (cores / min(max(n_w.get(key, key.n_working), 1), cores) - 1)
        for key, number in facts.items()
    )


@pytest.fixture
def process() -> Phases:
    return Phases()


def test_what_only_the_caller_does_is_serial_though_a_thread_seemed_to_work(process: Phases) -> None:
    """3 ms of Python, then 1 ms in the library, whose thread is found to spin, or to work, up to 2 ms late."""
    late, seen = process.key(process.prepare, 2), process.key(process.prepare, 1)
    call, part = process.key(process.call, 1), process.key(process.part, 1, 2)
    beside = process.key(process.part, 2, 2)
    facts = {late: 40, seen: 60, call: 20, part: 25, beside: 10}
    n_w = process.found(facts)
    assert (n_w[late], n_w[seen]) == (1, 1)
    assert idle(facts, n_w) == pytest.approx(idle(facts, {})), "it is right in sum"
    assert n_w[call] == n_w[part] == pytest.approx(2 / (1 + 5 / 45)), "in proportion to what they had"
    assert n_w[beside] == 2


def test_there_is_no_more_idleness_than_was_seen(process: Phases) -> None:
    late, call = process.key(process.prepare, 2), process.key(process.call, 1)
    part = process.key(process.part, 2, 2)
    facts = {late: 40, call: 10, part: 10}
    n_w = process.found(facts)
    assert idle(facts, n_w) == pytest.approx(10)
    assert n_w[call] == 2 and 1 < n_w[late] < 2


def test_where_all_is_told_by_samples_nothing_changes(process: Phases) -> None:
    facts = {
        process.key(process.prepare, 1): 40,
        process.key(process.part, 2, 2): 9,
        process.key(process.call, 2): 9,
    }
    assert not process.found(facts)


def test_nothing_is_known_where_more_than_one_thread_hands_out_work_or_does_other(process: Phases) -> None:
    facts = process.told_late()
    assert process.found(facts)
    assert not process.found(facts, cores=1) and not process.found(facts, cores=0)
    for other in (
        process.key(process.call, 1, 3),
        process.key(process.prepare, 2, 3),
        process.key(process.prepare, 1, image=2),
    ):
        assert not process.found({**facts, other: 5})
    assert process.found({**facts, process.key(process.prepare, 2, 3): 1}), (
        "a thread that does next to nothing"
    )
    without_pool = {key: number for key, number in facts.items() if key.tid == 1}
    assert not process.found(without_pool)


def test_only_samples_of_threads_at_work_count(process: Phases) -> None:
    facts = process.told_late()
    n_w = process.found(facts)
    spins = process.key(process.search, 1, 2)._replace(state=ThreadState.SPINNING)
    sleeps = process.key(process.prepare, 1)._replace(event=NO_EVENT)
    assert process.found({**facts, spins: 30, sleeps: 10**9}) == n_w


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6), st.integers(1, 99)), max_size=12),
    st.integers(2, 5),
)
def test_idleness_stays_what_it_was(rows: list[tuple[int, int, int]], cores: int) -> None:
    process = Phases()
    stacks = (process.prepare, process.call, process.part)
    facts = {
        process.key(stacks[kind], n_working, 2 if kind == 2 else 1): number
        for kind, n_working, number in rows
    }
    n_w = process.found(facts, cores)
    assert all(1 - 1e-9 <= one <= cores + 1e-9 for one in n_w.values())
    assert idle(facts, n_w, cores) == pytest.approx(idle(facts, {}, cores))
