# SPDX-License-Identifier: Apache-2.0
"""Forks that called exec before anybody looked, and mappings that came before the record of their image."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from parprof.kernel.file_tables import FoundMapping
from parprof.kernel.records import RECORD_EXEC, RECORD_EXIT, RECORD_FORK, RECORD_LOAD_MAP, ControlRecord
from parprof.session.early_mappings import EarlyMappings
from parprof.session.passed import Fork, Passed, execs_of_forks

MAKE, GCC, CC1 = 10, 11, 12


def record(kind: int, pid: int, image: int, parent: int = 0) -> ControlRecord:
    return ControlRecord(kind, pid, pid, image, parent, False, 0, 1_000 * image, "x")


def passed(*records: ControlRecord) -> dict[int, int]:
    """By forked image, the one after it."""
    return {image: exec_.image for image, exec_ in execs_of_forks(records).items()}


def test_a_fork_and_its_exec() -> None:
    fork, exec_ = record(RECORD_FORK, GCC, 1, MAKE), record(RECORD_EXEC, GCC, 2)
    assert passed(fork, exec_) == {1: 2}
    assert passed(fork) == passed(exec_, fork) == {}


def test_what_happened_to_it_in_between_is_looked_at() -> None:
    fork, exec_ = record(RECORD_FORK, GCC, 1, MAKE), record(RECORD_EXEC, GCC, 2)
    for between in (
        record(RECORD_EXIT, GCC, 1),
        record(RECORD_LOAD_MAP, GCC, 1),
        record(RECORD_FORK, CC1, 3, GCC),
    ):
        assert passed(fork, between, exec_) == {}
    assert passed(fork, record(RECORD_EXIT, CC1, 9), exec_) == {1: 2}


def test_a_second_exec_is_of_a_program_that_was_there() -> None:
    records = (record(RECORD_FORK, GCC, 1, MAKE), record(RECORD_EXEC, GCC, 2), record(RECORD_EXEC, GCC, 3))
    assert passed(*records) == {1: 2}


KINDS = (RECORD_FORK, RECORD_EXEC, RECORD_EXIT, RECORD_LOAD_MAP)


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 4), st.integers(1, 4))))
def test_only_whole_lives_pass(events: list[tuple[int, int, int]]) -> None:
    """Whoever passes was forked and called exec, with nothing of it between: so nobody misses its target."""
    records = [record(kind, pid, image, parent) for image, (kind, pid, parent) in enumerate(events, 1)]
    for image, exec_ in execs_of_forks(records).items():
        begin = next(at for at, one in enumerate(records) if one.image == image)
        end = records.index(exec_)
        assert records[begin].kind == RECORD_FORK and exec_.kind == RECORD_EXEC and begin < end
        pid = records[begin].pid
        assert exec_.pid == pid
        for one in records[begin + 1 : end]:
            assert one.pid != pid
            assert one.kind != RECORD_FORK or one.parent_pid != pid


def a_fork(image: int, pid: int) -> Fork:
    parent: Any = SimpleNamespace(pid=MAKE)
    return Fork(record(RECORD_FORK, pid, image, MAKE), parent, 5)


def test_its_parent_stands_for_it_once() -> None:
    them = Passed()
    fork = a_fork(1, GCC)
    them.add(fork)
    assert them.parent_of(GCC) is fork.parent
    assert them.parent_of(GCC) is None
    assert them.take(1) is fork
    assert them.take(1) is None


def test_the_oldest_are_forgotten() -> None:
    them = Passed()
    for image in range(1, 10_001):
        them.add(a_fork(image, image))
        them.parent_of(image)
    assert them.take(1) is None
    assert them.take(10_000) is not None


def mapping(image: int) -> FoundMapping:
    return FoundMapping(image, 0x1000, 0x2000, 0, 0, 0)


def test_a_mapping_waits_for_the_record_of_its_image() -> None:
    early = EarlyMappings()
    early.keep([mapping(7)])
    assert early.take() == []  # nobody has read a record since
    early.await_next()
    assert early.take() == [mapping(7)]
    early.keep([mapping(7)])  # its record had not been there yet
    early.await_next()
    assert early.take() == [mapping(7)]


def test_mappings_of_an_image_that_never_comes_go() -> None:
    early = EarlyMappings()
    early.keep([mapping(7)])
    early.await_next()
    early.await_next()
    assert early.take() == []
