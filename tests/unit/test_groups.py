# SPDX-License-Identifier: Apache-2.0
"""Accounts of processes that are told by what they belong to: bounded, and never less than before."""

from __future__ import annotations

import pytest

from parprof.metrics import READY, UNUSED, Metrics
from parprof.model import Frame, Origin, PathSample
from parprof.service.groups import KEPT_SECONDS, REST, Groups
from parprof.service.levels import NONE
from parprof.service.model import GroupKey, Labels


def rows(function: str, work_s: float) -> list[PathSample]:
    path = (Frame(function, "prog", "", 0),)
    return [PathSample(path, Metrics(work_ns=work_s * 1e9), Origin(image=1), path)]


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def totals(groups: Groups) -> dict[GroupKey, float]:
    return {one.key: one.totals.work_ns / 1e9 for one in groups.snapshots(5)}


def test_what_ended_processes_had_stays() -> None:
    groups, levels = Groups(), (1.0, *NONE[1:])
    for number in range(50):
        group = groups.join(Labels("cc1", number, unit="build.service"))
        group.charge(rows(f"f{number % 4}", 1), 0.5e9, levels, 2)
        groups.leave(group)
    (one,) = groups.snapshots(3)
    assert one.key == GroupKey("cc1", "build.service")
    assert one.totals.work_ns == pytest.approx(50e9) and one.totals[UNUSED] == pytest.approx(25e9)
    assert (one.folded, one.levels_s[0]) == (100, 50)
    assert len(one.functions) == 3
    assert one.functions[0].metrics.work_ns == pytest.approx(13e9)


def test_groups_are_bounded_and_nothing_is_lost() -> None:
    groups = Groups(limit=10)
    for number in range(1000):
        group = groups.join(Labels(f"job{number}"))
        group.charge(rows("f", 1), 0, NONE, 0)
        groups.leave(group)
    found = totals(groups)
    assert len(found) == 11 and found[REST] == pytest.approx(990)
    assert sum(found.values()) == pytest.approx(1000)


def test_a_group_goes_long_after_its_last_process() -> None:
    clock = Clock()
    groups = Groups(clock=clock)
    living, ending = groups.join(Labels("server")), groups.join(Labels("job"))
    clock.now_s += 10 * KEPT_SECONDS
    groups.leave(ending)
    assert len(totals(groups)) == 2
    clock.now_s += 0.9 * KEPT_SECONDS
    assert len(totals(groups)) == 2
    clock.now_s += 0.2 * KEPT_SECONDS
    assert list(totals(groups)) == [living.key]
    again = groups.join(Labels("job"))
    assert again.account.totals.work_ns == 0


def test_names_that_look_alike_are_one_group() -> None:
    """Their series would be twice on the page, and Prometheus would refuse all of it."""
    groups = Groups()
    assert groups.join(Labels("a\x01", unit="u\x07")) is groups.join(Labels("a\x02", unit="u\x08"))
    assert groups.join(Labels("x" * 500)).key.comm != groups.join(Labels("x" * 501)).key.comm
    assert len(groups) == 3


def test_time_without_a_cpu_is_in_no_row_if_nothing_was_sampled() -> None:
    groups = Groups()
    group = groups.join(Labels("starved"))
    group.charge([], 0, NONE, 0, ready_ns=3e9)
    assert groups.snapshots(5)[0].totals[READY] == 3e9
