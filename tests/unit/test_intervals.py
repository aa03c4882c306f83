# SPDX-License-Identifier: Apache-2.0
"""What was when: intervals of a measurement, of a profile, in its file and on the page."""

from __future__ import annotations

import copy
import io
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from parprof.cct.tree import CallingContextTree
from parprof.errors import ProfileFormatError
from parprof.exporters import pprof
from parprof.exporters.breakdown import by_thread
from parprof.exporters.graph import graph, shown_metrics
from parprof.exporters.pprof_intervals import unpack
from parprof.exporters.pprof_reader import read_from
from parprof.exporters.shares import shares
from parprof.facts.intervals import (
    FIRST_SECONDS,
    MOST,
    CountedInterval,
    Intervals,
    spread_rows,
    spread_waits,
)
from parprof.halving import few
from parprof.metrics import IDLENESS, SAMPLES, STOLEN, WORK, Metrics, total
from parprof.model import (
    NO_EVENT,
    SEVERAL_THREADS,
    Count,
    Facts,
    Interval,
    Profile,
    SampleKey,
    ThreadState,
    add_facts,
)
from parprof.profile.intervals import _fit, _without_cpu
from parprof.profile.merge import Merger
from profiles import heat

STEP_NS = int(FIRST_SECONDS * 1e9)


def key(tid: int = 1, state: ThreadState = ThreadState.WORKING, user: int = 7) -> SampleKey:
    event = NO_EVENT if state in (ThreadState.BLOCKED, ThreadState.STALLED) else 0
    return SampleKey(1, tid, event, state, 1, user, 0)


def test_a_long_measurement_has_few_long_intervals() -> None:
    intervals = Intervals()
    now = level = 0
    for _ in range(10_000):
        now += STEP_NS
        level += STEP_NS
        intervals.add(now - STEP_NS, {key(): Count(3, 3)}, {})
        if intervals.wants_levels(now):
            intervals.note_levels(now, (0, level))
        intervals.make_room(now)
    intervals.add(now, {key(): Count(1, 1)}, {})
    found = intervals.all(now + 5, (0, level + 5))
    assert MOST / 2 <= len(found) <= MOST
    assert sum(one.facts[key()].samples for one in found) == 30_001
    assert [one.begin_ns for one in found[1:]] == [one.end_ns for one in found[:-1]]
    assert found[0].begin_ns == 0 and found[-1].end_ns == now + 5
    assert all(one.level_ns == (0, one.end_ns - one.begin_ns) for one in found)


def test_many_rows_make_few_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parprof.facts.intervals.MOST_ROWS", 30)
    intervals = Intervals()
    for at in range(1, 101):
        intervals.add((at - 1) * STEP_NS, {key(user=10 * at + n): Count(1) for n in range(3)}, {})
        intervals.make_room(at * STEP_NS)
        assert len(copy.deepcopy(intervals).all(at * STEP_NS, ())) <= 12
    assert sum(len(one.facts) for one in intervals.all(100 * STEP_NS, ())) == 300


def test_cores_that_change_divide_what_was_before_and_what_comes() -> None:
    intervals = Intervals()
    intervals.add(0, {key(): Count(2)}, {})
    intervals.add(STEP_NS, {key(): Count(3)}, {})
    intervals.divide(1, 4)
    intervals.add(2 * STEP_NS - 1, {key(): Count(5)}, {1: 2})
    first, second = intervals.all(2 * STEP_NS, ())
    assert first.by_cores == {key(): {4: Count(2)}}
    assert second.by_cores == {key(): {4: Count(3), 2: Count(5)}}
    assert first.joined(second).by_cores == {key(): {4: Count(5), 2: Count(5)}}


def test_levels_are_shared_among_the_intervals_that_lie_between_two_looks() -> None:
    intervals = Intervals()
    intervals.note_levels(STEP_NS // 2, (STEP_NS // 2,))
    assert not intervals.wants_levels(STEP_NS - 1) and intervals.wants_levels(STEP_NS)
    intervals.note_levels(3 * STEP_NS, (STEP_NS // 2, 0, 5 * STEP_NS // 2))
    found = intervals.all(3 * STEP_NS, (STEP_NS // 2, 0, 5 * STEP_NS // 2))
    assert [one.level_ns for one in found] == [
        (STEP_NS // 2, 0, STEP_NS // 2),
        (0, 0, STEP_NS),
        (0, 0, STEP_NS),
    ]


def test_what_comes_late_is_in_the_interval_in_which_it_was_counted() -> None:
    intervals = Intervals()
    intervals.add(2 * STEP_NS, {key(): Count(1)}, {})
    intervals.add(STEP_NS, {key(): Count(2)}, {})
    intervals.add(9 * STEP_NS, {key(): Count(4)}, {})
    found = intervals.all(3 * STEP_NS, ())
    assert [one.facts.get(key(), Count()).samples for one in found] == [0, 2, 5], (
        "what is behind the end is in the last"
    )


@pytest.mark.parametrize("has_looked", [True, False])
def test_a_long_sleep_of_ours_makes_no_more_of_them_than_there_may_be(has_looked: bool) -> None:
    intervals = Intervals()
    late = 1000 * STEP_NS
    intervals.add(late - 1, {key(): Count(1)}, {})
    if has_looked:
        assert intervals.make_room(late) and not intervals.make_room(late)
    found = intervals.all(late, (0, late))
    assert len(found) <= MOST and sum(one.level_ns[1] for one in found) == late


def test_a_wait_is_in_the_intervals_that_it_took() -> None:
    slept, nobody = key(state=ThreadState.BLOCKED), key(state=ThreadState.STALLED)
    parts = [
        CountedInterval(0, 10, (0, 10), {key(): Count(1)}),
        CountedInterval(10, 20, (4, 6)),
        CountedInterval(20, 30, (10,)),
        CountedInterval(30, 40, (1, 9), {slept: Count(1, 19), nobody: Count(1, 15)}),
    ]
    before = copy.deepcopy(parts)
    found = spread_waits(parts)
    assert [one.facts.get(slept, Count()).total for one in found] == [0, 0, 9, 10]
    assert [one.facts.get(nobody, Count()).total for one in found] == [0, 4, 10, 1]
    assert parts == before


def test_of_two_waits_that_follow_each_other_none_has_all_of_the_interval() -> None:
    """The one was over somewhere in it, when the other began."""
    first, second = (key(state=ThreadState.BLOCKED)._replace(user=user) for user in (1, 2))
    for order in ((first, second), (second, first)):
        parts = [CountedInterval(10 * at, 10 * (at + 1)) for at in range(4)]
        waits = {first: (1, 18), second: (3, 25)}
        for one in order:
            parts[waits[one][0]].facts[one] = Count(1, waits[one][1])
        found = [{one: part.facts.get(one, Count()).total for one in order} for part in spread_waits(parts)]
        assert [part[first] for part in found] == [13, 5, 0, 0]
        assert [part[second] for part in found] == [0, 5, 10, 10]


def test_a_wait_that_is_estimated_takes_no_room_of_those_that_were_seen() -> None:
    """Glimpses saw a part of the later one, and it is told for twice as long as there was time behind the earlier one,
    which was seen from its begin to its end: that one is where it was, and what there is too much is before it."""
    seen, estimated = (
        key(state=ThreadState.BLOCKED)._replace(user=user, glimpse=user - 1) for user in (1, 2)
    )
    parts = [CountedInterval(10 * at, 10 * (at + 1)) for at in range(8)]
    parts[5].facts[seen] = Count(1, 40)
    parts[7].facts[estimated] = Count(1, 40)
    found = spread_waits(parts)
    assert [one.facts.get(seen, Count()).total for one in found] == [0, 0, 10, 10, 10, 10, 0, 0]
    assert [one.facts.get(estimated, Count()).total for one in found] == [10, 10, 0, 0, 0, 0, 10, 10]


def test_waits_of_several_threads_are_in_the_intervals_that_they_took() -> None:
    """Three of them, that are over at once."""
    slept = key(SEVERAL_THREADS, state=ThreadState.BLOCKED)
    parts = [CountedInterval(10 * at, 10 * (at + 1)) for at in range(4)]
    parts[3].facts[slept] = Count(3, 65)
    found = spread_waits(parts)
    assert [one.facts.get(slept, Count()).total for one in found] == [0, 5, 30, 30]


def test_waits_that_would_be_in_too_many_intervals_make_fewer() -> None:
    """A hundred threads that sleep all the time are in each interval, though they are counted in the last."""
    parts = [CountedInterval(10 * at, 10 * (at + 1), (10,)) for at in range(64)]
    for tid in range(1, 101):
        parts[-1].facts[key(tid, ThreadState.BLOCKED)] = Count(1, 640)
    assert spread_rows(parts) >= sum(len(one.facts) for one in spread_waits(parts)) == 6400
    fewer = few(parts, spread_rows, 1000)
    assert len(fewer) == 8
    assert sum(len(one.facts) for one in spread_waits(fewer)) == 800


_counts = st.builds(Count, st.integers(0, 5), st.integers(0, 300))
_keys = st.builds(key, st.integers(1, 3), st.sampled_from(list(ThreadState)), st.integers(0, 2))


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 60), st.dictionaries(_keys, _counts)), max_size=9)
)
def test_spreading_waits_loses_nothing(parts: list[tuple[int, int, Facts]]) -> None:
    intervals, now = [], 0
    for took, nobody, facts in parts:
        intervals.append(CountedInterval(now, now + took, (nobody,), facts))
        now += took
    sums: list[Facts] = []
    for some in (intervals, spread_waits(intervals)):
        facts = {}
        for one in some:
            add_facts(facts, copy.deepcopy(one.facts))
        sums.append({key: count for key, count in facts.items() if count != Count()})
    assert sums[0] == sums[1]


def halves() -> Profile:
    """Heat, whose serial part was first."""
    profile = heat()
    serial = {0, 1, 5}
    profile.intervals = [
        Interval(
            0.25 * at,
            0.25 * (at + 1),
            (0.0, 0.2, 0.05),
            {
                row: Metrics.of({metric: value / 3 for metric, value in sample.metrics.values.items()})
                for row, sample in enumerate(profile.samples)
                if (row in serial) == (at < 3)
            },
        )
        for at in range(6)
    ]
    return profile


def test_files_keep_them() -> None:
    profile = halves()
    file = io.BytesIO()
    pprof.write(profile, file)
    file.seek(0)
    read = read_from(file)
    assert [(one.begin_s, one.end_s, one.level_s) for one in read.intervals] == [
        (one.begin_s, one.end_s, one.level_s) for one in profile.intervals
    ]
    for ours, theirs in zip(profile.intervals, read.intervals, strict=True):
        assert ours.rows.keys() == theirs.rows.keys()
        for row, metrics in ours.rows.items():
            assert theirs.rows[row][WORK] == pytest.approx(metrics[WORK], abs=1000)
            assert theirs.rows[row][IDLENESS] == pytest.approx(metrics[IDLENESS], abs=1000)
    assert not any("rewrote" in note for note in read.notes)


def test_of_merged_profiles_they_are_not_known() -> None:
    merger = Merger()
    merger.add(halves())
    merger.add(halves())
    assert merger.profile().intervals == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda it: it["parts"][0].__setitem__(3, "1 900"),
        lambda it: it["parts"][0].__setitem__(3, "1"),
        lambda it: it["parts"][0].__setitem__(4, "-1 1 1"),
        lambda it: it["parts"][0].__setitem__(1, -1),
        lambda it: it["parts"][1].__setitem__(0, 0),
        lambda it: it["parts"][0].pop(),
        lambda it: it.__setitem__("parts", 7),
        lambda it: it.pop("metrics"),
    ],
)
def test_damaged_ones_are_refused(damage: object) -> None:
    from parprof.exporters.pprof_intervals import pack

    profile = halves()
    content = json.loads(json.dumps(pack(profile.intervals)))
    assert len(unpack(content, len(profile.samples))) == 6
    damage(content)  # type: ignore[operator]
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        unpack(content, len(profile.samples))


def test_a_damaged_file_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    monkeypatch.setattr(pprof, "pack", lambda intervals: {"metrics": [], "events": [], "parts": [[1]]})
    pprof.write(halves(), file)
    file.seek(0)
    with pytest.raises(ProfileFormatError, match="intervals"):
        read_from(file)


@pytest.mark.parametrize("profile", [heat(), halves()])
def test_the_shares_of_the_page_add_up(profile: Profile) -> None:
    tree = CallingContextTree(profile.samples)
    found = graph(tree, 4)
    shown = shown_metrics(tree.root.inclusive)
    threads = {key: at for at, key in enumerate(by_thread(profile.samples))}
    data = shares(profile, found, shown, threads)
    assert len(data["intervals"]) == max(len(profile.intervals), 1) == len(data["sizes"])
    assert sum(data["sizes"]) == len(data["nodes"]) == len(data["threads"])
    for metric in (SAMPLES, WORK, IDLENESS):
        own = [0.0] * len(found.data["nodes"]["parent"])
        for node, value in zip(data["nodes"], data["values"][metric.name], strict=True):
            own[node] += value
        assert own == pytest.approx(found.data["nodes"]["own"][metric.name], abs=3)
    assert total(sample.metrics for sample in profile.samples).samples == pytest.approx(
        sum(data["values"]["samples"])
    )


def test_shares_of_what_is_left_out_are_those_of_its_placeholder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parprof.exporters.graph.MAX_NODES", 5)
    profile = heat()
    tree = CallingContextTree(profile.samples)
    found = graph(tree, 4)
    data = shares(profile, found, shown_metrics(tree.root.inclusive), {})
    own = [0.0] * len(found.data["nodes"]["parent"])
    for node, value in zip(data["nodes"], data["values"]["work"], strict=True):
        own[node] += value
    assert own == pytest.approx(found.data["nodes"]["own"]["work"])
    assert set(data["threads"]) == {-1}


def test_many_shares_make_longer_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parprof.exporters.shares.MOST_SHARES", 10)
    profile = halves()
    tree = CallingContextTree(profile.samples)
    data = shares(profile, graph(tree, 4), shown_metrics(tree.root.inclusive), {})
    assert [(begin, end) for begin, end, _ in data["intervals"]] == [
        (0, 1_000_000),
        (1_000_000, 1_500_000),
    ]
    assert sum(data["values"]["work"]) == pytest.approx(4_460_000, rel=1e-5)


def test_what_is_known_of_the_whole_alone_is_where_it_can_have_been() -> None:
    """Of rows without samples, and of metrics that no interval has."""
    intervals = [
        Interval(0.0, 1.0, (0.0, 1.0), shares := {0: Metrics(samples=5, work_ns=1e9)}),
        Interval(1.0, 2.0, (0.75, 0.0, 0.25), others := {0: Metrics(samples=1, work_ns=0.25e9)}),
        Interval(2.0, 3.0, (0.25, 0.75), last := {}),
    ]
    parts: list[dict[int, Metrics]] = [shares, others, last]
    _fit(Metrics(samples=6, work_ns=1.5e9, ready_ns=10.0), 0, intervals, parts, _without_cpu(intervals))
    assert [part[0].work_ns if 0 in part else 0 for part in parts] == pytest.approx([1.2e9, 0.3e9, 0])
    assert [part[0].ready_ns if 0 in part else 0 for part in parts] == pytest.approx([8, 2, 0])
    _fit(Metrics(stall_ns=8.0), 1, intervals, parts, _without_cpu(intervals))
    assert [part[1].stall_ns if 1 in part else 0 for part in parts] == pytest.approx([0, 6, 2])
    _fit(Metrics.of({STOLEN: 9.5}), 2, intervals, parts, _without_cpu(intervals))
    assert [part[2][STOLEN] if 2 in part else 0 for part in parts] == pytest.approx([0, 2, 7.5])
