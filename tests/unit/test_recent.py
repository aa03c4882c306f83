# SPDX-License-Identifier: Apache-2.0
"""Recent profiles in bounded memory, and the folding of cold call paths."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path as FilePath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(FilePath(__file__).parent))

from parprof.cct.tree import CallingContextTree
from parprof.cct.views import flat_view
from parprof.facts.scopes import ScopeTimes
from parprof.metrics import IDLENESS, STALL, WORK, Metrics
from parprof.model import NOBODY, Frame, Origin, PathSample, ProcessInfo, Profile
from parprof.profile.accounting import JobTime
from parprof.service.folding import FOLDED, fold_cold
from parprof.service.kept_intervals import KEPT
from parprof.service.model import Labels
from parprof.service.recent import RecentProfiles
from profiles import few_paths, few_samples, with_events

A, B, C, D, MAIN = (Frame(name) for name in ("a", "b", "c", "d", "main"))


def path_sample(path: tuple[Frame, ...], work_ms: int, **labels: str) -> PathSample:
    return PathSample(path, Metrics(work_ms, work_ms * 1e6), Origin(**labels))


def interval(pid: int, start_s: float, samples: list[PathSample], seconds: float = 10.0) -> Profile:
    return Profile(ProcessInfo(pid, "x"), seconds, 99, samples, start_time_s=start_s, lost={"map full": 1})


def sums(samples: list[PathSample]) -> Metrics:
    out = Metrics()
    for sample in samples:
        out.add(sample.metrics)
    return out


def by_path(samples: list[PathSample]) -> dict[tuple[Frame, ...], float]:
    return {sample.path: sample.metrics.work_ns / 1e6 for sample in samples}


def test_fields_are_those_that_a_row_holds() -> None:
    """A new metric or label must find its place in a row, or it would be lost here."""
    assert {field.name for field in fields(PathSample)} == {
        "path",
        "metrics",
        "origin",
        "physical",
        "levels",
    }
    assert set(Metrics.__slots__) == {"values", "events"}
    names = ("comm", "thread", "runtime", "overhead")
    origin = Origin(7, *names, image=9, labels=(("node", "n1"),), tid=11)
    assert all(origin)
    row = PathSample((MAIN, A), Metrics(*range(1, 20), events={"e": 3}), origin, (MAIN, B), (3.0, 1.0, 4.0))
    recent = RecentProfiles()
    recent.add(interval(7, 0.0, [row]), image=9)
    kept = recent.profile(7, 1e9)
    assert kept is not None and kept.samples == [row]


# Folding


def test_coldest_calls_go_first() -> None:
    samples = [
        path_sample((MAIN, A, B), 1),
        path_sample((MAIN, A, C), 2),
        path_sample((MAIN, A), 50),
        path_sample((MAIN, B, C), 40),
        path_sample((MAIN, B, D), 30),
    ]
    left, folded = fold_cold(samples, 4)
    assert folded == 2
    assert by_path(left) == {
        (MAIN, A, FOLDED): 3, (MAIN, A): 50, (MAIN, B, C): 40, (MAIN, B, D): 30,
    }  # fmt: skip
    left, folded = fold_cold(left, 2)
    assert by_path(left) == {(MAIN, FOLDED): 53, (MAIN, B, FOLDED): 70}


def test_folds_into_what_was_folded_before() -> None:
    samples = [path_sample((MAIN, FOLDED), 9), path_sample((MAIN, A), 1), path_sample((MAIN, B), 99)]
    left, folded = fold_cold(samples, 2)
    assert (by_path(left), folded) == ({(MAIN, FOLDED): 10, (MAIN, B): 99}, 1)


def test_all_into_one() -> None:
    samples = [path_sample((MAIN, A), 1), path_sample((MAIN, B), 2), path_sample((D, C), 3)]
    left, folded = fold_cold(samples, 1)
    assert (by_path(left), folded) == ({(FOLDED,): 6}, 3)
    with pytest.raises(ValueError, match="at least 1"):
        fold_cold(samples, 0)


def test_nothing_to_fold() -> None:
    samples = [path_sample((MAIN, A), 1, thread="t"), path_sample((MAIN, A), 2, thread="u")]
    assert fold_cold(samples, 1) == (samples, 0)


def test_folding_keeps_labels_apart() -> None:
    samples = [path_sample((MAIN, A), 1, overhead="sync"), path_sample((MAIN, B), 2), path_sample((C,), 9)]
    left, _ = fold_cold(samples, 2)
    assert [(one.path, one.origin.overhead) for one in left] == [
        ((MAIN, FOLDED), "sync"),
        ((MAIN, FOLDED), ""),
        ((C,), ""),
    ]


def test_deep_recursion() -> None:
    samples = [path_sample((MAIN,) + (A,) * depth, 1) for depth in range(1500)]
    left, folded = fold_cold(samples, 10)
    assert len({sample.path for sample in left}) <= 10
    assert folded >= 1490
    assert sums(left).samples == 1500


@settings(max_examples=150, deadline=None)
@given(few_samples, st.integers(1, 8))
def test_folding_bounds_paths_and_keeps_totals(samples: list[PathSample], limit: int) -> None:
    left, folded = fold_cold(samples, limit)
    before, after = sums(samples), sums(left)
    assert after == before
    paths = {sample.path for sample in left}
    most = max(limit, 1 + (() in paths))
    assert len(paths) <= most
    gone = {sample.path for sample in samples} - paths
    assert folded == len(gone)
    assert bool(folded) == (len({sample.path for sample in samples}) > most)


@settings(max_examples=100, deadline=None)
@given(few_samples, st.integers(1, 8))
def test_folding_keeps_what_callers_answer_for(samples: list[PathSample], limit: int) -> None:
    """Every call path that is left has the same inclusive metrics as before."""
    before, after = Counter[tuple[Frame, ...]](), Counter[tuple[Frame, ...]]()
    left, _ = fold_cold(samples, limit)
    for counter, rows in ((before, samples), (after, left)):
        for row in rows:
            for depth in range(len(row.path) + 1):
                counter[row.path[:depth]] += int(row.metrics.work_ns)
    for path, work_ns in after.items():
        if FOLDED not in path:
            assert before[path] == work_ns


# Recent profiles


def test_merges_the_last_seconds() -> None:
    recent = RecentProfiles()
    for number in range(5):
        samples = [path_sample((MAIN, A), 1), path_sample((MAIN, B), number)]
        recent.add(interval(7, 1000.0 + 10 * number, samples), labels=Labels(uid=3))
    profile = recent.profile(7, 20)
    assert profile is not None
    assert by_path(profile.samples) == {(MAIN, A): 2, (MAIN, B): 7}
    assert (profile.start_time_s, profile.duration_s, profile.lost) == (1030.0, 20.0, {"map full": 2})
    shorter, longer = recent.profile(7, 0.5), recent.profile(7, 1e9)
    assert shorter is not None and shorter.start_time_s == 1040.0
    assert longer is not None and longer.duration_s == 50.0
    assert recent.profile(8, 10) is None
    (entry,) = recent.entries()
    assert (entry.pid, entry.uid, entry.start_s, entry.duration_s, entry.samples) == (7, 3, 1000.0, 50.0, 15)


def test_the_intervals_are_those_that_come_nearest() -> None:
    """And so exactly those since a moment at which an interval was ended for that, however short they are."""
    recent = RecentProfiles()
    for start_s, seconds in ((0.0, 10.0), (10.0, 7.0), (17.0, 2.0), (19.0, 1.01)):
        recent.add(interval(7, start_s, [path_sample((MAIN, A), 1)], seconds))
    lengths = {}
    for asked in (3.0, 6.0, 7.0, 10.0, 100.0):
        profile = recent.profile(7, asked)
        assert profile is not None
        lengths[asked] = profile.duration_s
    assert lengths == {
        3.0: pytest.approx(3.01), 6.0: pytest.approx(3.01), 7.0: pytest.approx(10.01), 10.0: pytest.approx(10.01),
        100.0: pytest.approx(20.01),
    }  # fmt: skip


def test_an_interval_ends_when_it_was_drained_not_when_it_was_added() -> None:
    """Names take long the first time: what was before an attach is none of it for that."""
    recent = RecentProfiles(clock=lambda: 10.4)
    recent.add(interval(7, 9.7, [path_sample((MAIN, B), 5)], 0.3), ended_s=10.0)
    recent.add(interval(7, 10.0, [path_sample((MAIN, A), 5)], 3.0), ended_s=13.0)
    profile = recent.profile(7, 2.99, until_s=13.0, since_s=9.0)
    assert profile is not None
    assert [sample.path for sample in profile.samples] == [(MAIN, A)]


def test_the_interval_in_which_a_process_was_first_watched_is_its_first() -> None:
    recent = RecentProfiles(clock=lambda: 10.4)
    recent.add(interval(7, 8.0, [path_sample((MAIN, A), 5)], 2.0), ended_s=10.0)
    profile = recent.profile(7, 10, until_s=10.0, since_s=9.5)
    assert profile is not None and profile.samples


def test_time_in_which_nothing_was_sampled_counts() -> None:
    """A process that slept for most of the seconds that were asked for: each is in the duration, none twice."""
    now_s = 1000.0
    recent = RecentProfiles(clock=lambda: now_s)
    for began_s, seconds in ((960.0, 10.0), (985.0, 1.0), (992.0, 2.0)):
        now_s = began_s + seconds
        recent.add(interval(7, 5e8 + began_s, [path_sample((MAIN, A), 5)], seconds))
    now_s = 1000.0
    for asked, since_s, took_s, found in ((20, 0, 20, 2), (10, 0, 10, 1), (36, 0, 40, 3), (34, 0, 34, 2),
                                          (100, 950, 50, 3)):  # fmt: skip
        profile = recent.profile(7, asked, until_s=now_s, since_s=since_s)
        assert profile is not None, asked
        assert profile.duration_s == pytest.approx(took_s), asked
        assert profile.start_time_s == pytest.approx(5e8 + 1000 - took_s)
        assert sums(profile.samples).samples == 5 * found
    assert recent.profile(7, 5, until_s=now_s) is None
    slept = recent.profile(7, 10)
    assert slept is not None and slept.duration_s == 13, (
        "of a process that is gone only what was sampled is known"
    )


def test_the_same_path_as_another_object() -> None:
    recent = RecentProfiles()
    for number in range(4):
        path = (Frame("main"), Frame("a")) if number % 2 else (MAIN, A)
        recent.add(interval(7, 10.0 * number, [path_sample(path, 1), path_sample((MAIN, A), 1)]))
    profile = recent.profile(7, 100)
    assert profile is not None and by_path(profile.samples) == {(MAIN, A): 8}


def test_a_profile_with_its_intervals_can_be_had_again() -> None:
    recent = RecentProfiles()
    for at, now in enumerate((10.0, 20.0, 35.0)):  # the last after a pause
        rows = [path_sample((MAIN, A), 5 + at), path_sample((MAIN, B), at)]
        recent.add(interval(1, 100 * at, rows), ended_s=now)
        recent.add(interval(2, 100 * at, [path_sample((MAIN, C), 1)]))
    found = recent.profile(1, 100, by_interval=True)
    assert found is not None
    assert [(one.begin_s, one.end_s) for one in found.intervals] == [(0, 10), (10, 20), (25, 35)]
    for row, one in enumerate(found.samples):
        assert (
            sum(part.rows[row].work_ns for part in found.intervals if row in part.rows) == one.metrics.work_ns
        )
    first, last = map(int, found.extra[KEPT].split("-"))
    recent.add(interval(1, 300, [path_sample((MAIN, D), 9)]))
    again = recent.exactly(1, first, last)
    assert again is not None and again == found
    assert recent.exactly(2, first, last) is None and recent.exactly(1, first - 1, last) is None
    recent.forget(1)
    recent.add(interval(1, 300, [path_sample((MAIN, D), 9)]))
    assert recent.exactly(1, first, last) is None
    assert RecentProfiles().profile(1, 10, by_interval=True) is None


def job_time(*levels_s: float) -> JobTime:
    """Of a process on two cores."""
    levels = tuple(int(one * 1e9) for one in levels_s)
    working = sum(n * took for n, took in enumerate(levels))
    return JobTime.of(ScopeTimes(levels, working, True, (9,)), 2, 0.0, {}, 100, ticked=False)


def test_all_core_time_is_accounted_for_where_each_interval_knows_its_own() -> None:
    """Threads spin in the first, and sleep in the second, of which nothing else is known."""
    recent = RecentProfiles()
    solve, barrier = (MAIN, A), (MAIN, B)
    rows = [
        PathSample(solve, Metrics.of({WORK: 8e9, IDLENESS: 4e9}), Origin(image=9)),
        PathSample(barrier, Metrics.of({STALL: 1e9}), Origin(image=9)),
    ]
    recent.add(
        interval(7, 0, rows), image=9, ended_s=10.0, job_time=job_time(4, 4, 2), spun=[(rows[1], 1.5e9)]
    )
    folded = PathSample((MAIN, C), Metrics(), Origin(image=9))
    recent.add(interval(7, 10, []), image=9, ended_s=20.0, job_time=job_time(10), spun=[(folded, 1e9)])
    profile = recent.profile(7, 100, by_interval=True)
    assert profile is not None and profile.accounting is not None
    account = profile.accounting
    assert account.accounted == pytest.approx(1) and account.elapsed_s == 20
    assert (account.work_s, account.idleness_s, account.stall_s) == (8, 4, 28)
    assert account.level_s == (14, 4, 2) and account.counted_idleness_s == 4
    stall_s = {row.path: row.metrics[STALL] / 1e9 for row in profile.samples}
    assert stall_s == pytest.approx({solve: 0, barrier: 1 + 6, NOBODY: 21})
    assert [one.level_s for one in profile.intervals] == [(4, 4, 2), (10,)]
    for at, row in enumerate(profile.samples):
        parts = [part.rows[at] for part in profile.intervals if at in part.rows]
        for metric in (WORK, IDLENESS, STALL):
            assert sum(part[metric] for part in parts) == pytest.approx(row.metrics[metric])
    left = recent.take(7)
    assert left is not None and left[0].accounting is None and len(left[0].samples) == 2
    recent.add(interval(7, 20, rows), image=9, ended_s=30.0)
    profile = recent.profile(7, 100)
    assert profile is not None and profile.accounting is None and len(profile.samples) == 2
    recent.forget(7)
    assert recent.estimated_bytes == 0


def test_each_interval_is_taken_once() -> None:
    recent = RecentProfiles()
    recent.add(interval(7, 0.0, [path_sample((A,), 1)]), labels=Labels("a", 3))
    recent.add(interval(7, 10.0, [path_sample((A,), 2)]))
    first = recent.take(7)
    assert first is not None and sums(first[0].samples).samples == 3
    assert recent.take(7) is None
    recent.add(interval(7, 20.0, [path_sample((A,), 4)]))
    second = recent.take(7)
    assert second is not None and (sums(second[0].samples).samples, second[0].start_time_s) == (4, 20.0)
    assert second[1] == Labels("a", 3)
    assert recent.take(8) is None


def test_clock_set_back() -> None:
    recent = RecentProfiles()
    recent.add(interval(7, 5000.0, [path_sample((A,), 1)]))
    recent.add(interval(7, 100.0, [path_sample((A,), 2)]))
    profile = recent.profile(7, 10)
    assert profile is not None and sums(profile.samples).samples == 2
    assert recent.entries()[0].duration_s >= 0


def test_another_image_is_another_process() -> None:
    recent = RecentProfiles()
    recent.add(interval(7, 0.0, [path_sample((A,), 1)]), image=1)
    recent.add(interval(7, 10.0, [path_sample((B,), 2)]), image=2)
    profile = recent.profile(7, 100)
    assert profile is not None and by_path(profile.samples) == {(B,): 2}


def test_oldest_intervals_go() -> None:
    recent = RecentProfiles(max_rows=10)
    for number in range(6):
        recent.add(interval(number % 2, 10.0 * number, [path_sample((A,), 1), path_sample((B,), 1)]))
    assert (recent.rows, recent.dropped_intervals, recent.dropped_rows) == (10, 1, 2)
    assert {entry.pid: entry.start_s for entry in recent.entries()} == {0: 20.0, 1: 10.0}
    recent.add(interval(9, 99.0, [path_sample((A,) * n, 1) for n in range(11)]))
    assert (recent.rows, recent.entries(), recent.dropped_intervals) == (0, (), 7)
    assert recent.estimated_bytes == 0


def test_forgotten_processes_take_no_memory() -> None:
    recent = RecentProfiles(max_rows=50)
    for pid in range(1000):
        recent.add(interval(pid, pid, [path_sample((Frame(f"f{pid}"),), 1)]))
        if pid % 3:
            recent.forget(pid)
    assert (recent.rows, recent.dropped_intervals) == (50, 334 - 50)
    for pid in recent.pids():
        recent.forget(pid)
    recent.forget(12345)
    assert (recent.rows, recent.estimated_bytes, recent.pids()) == (0, 0, ())


intervals = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(1, 2),
        st.lists(
            st.builds(
                PathSample, few_paths, with_events, st.sampled_from("tu").map(lambda t: Origin(thread=t))
            ),
            max_size=6,
        ),
    ),
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(intervals)
def test_merged_totals_are_those_of_the_intervals(added: list[tuple[int, int, list[PathSample]]]) -> None:
    recent = RecentProfiles()
    expected: dict[int, tuple[int, Metrics]] = {}
    for pid, image, samples in added:
        recent.add(interval(pid, 0.0, samples), image=image)
        if expected.get(pid, (0,))[0] != image:
            expected[pid] = (image, Metrics())
        expected[pid][1].add(sums(samples))
    for pid, (_, total) in expected.items():
        profile = recent.profile(pid, 1e9)
        assert profile is not None
        assert profile.total() == total
        identities = [(row.path, row.origin.thread) for row in profile.samples]
        assert len(identities) == len(set(identities))
    for pid in expected:
        recent.forget(pid)
    assert (recent.rows, recent.estimated_bytes) == (0, 0)


@settings(max_examples=100, deadline=None)
@given(intervals, st.integers(0, 12))
def test_never_more_rows_than_allowed(added: list[tuple[int, int, list[PathSample]]], most: int) -> None:
    recent = RecentProfiles(max_rows=most)
    rows = 0
    for pid, _, samples in added:
        recent.add(interval(pid, 0.0, samples))
        rows += len(samples)
        assert recent.rows <= most
        assert recent.rows + recent.dropped_rows == rows


@pytest.mark.parametrize(("rows", "depth", "times"), [(400, 20, 10), (2000, 8, 3), (3, 5, 300)])
def test_the_estimate_is_no_less_than_what_python_takes(rows: int, depth: int, times: int) -> None:
    """Frames are made anew for every interval, so that nothing is shared but by the table itself."""
    recent = RecentProfiles(max_rows=10**9, max_bytes=1 << 40)

    def fresh() -> list[PathSample]:
        return [
            PathSample(
                tuple(
                    Frame(f"function{row}_{level}", f"/src/file{level}.c", level) for level in range(depth)
                ),
                Metrics(1, 2.5, 3.5, 4.5, 5.5, 6.5),
                Origin(thread=f"thread-{row}"),
            )
            for row in range(rows)
        ]

    def known() -> JobTime:
        """As of a process that somebody attaches to, where eight threads work."""
        levels = tuple(10**9 + level for level in range(8))
        job = ScopeTimes(levels, 28 * 10**9, True, tuple([9 * 10**9]), 10**10, 10**11)
        return JobTime.of(job, 2.5, 1.5, {}, 100, ticked=False)

    gc.collect()
    tracemalloc.start()
    for number in range(times):
        samples = fresh()
        spun = [(sample, 1.5 + number) for sample in samples[:50]]
        extra = {f"cost_{kind}_percent": f"{number / 7:.3f}" for kind in "abcdefgh"}
        recent.add(replace(interval(7, float(number), samples), extra=extra), job_time=known(), spun=spun)
    del samples, spun, extra
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"estimated {recent.estimated_bytes:,}, taken {taken:,}")
    assert taken <= recent.estimated_bytes <= 4 * taken


def test_folded_intervals_stay_folded() -> None:
    recent = RecentProfiles()
    for number in range(3):
        samples, _ = fold_cold([path_sample((MAIN, Frame(f"f{n}")), n + number) for n in range(20)], 5)
        recent.add(replace(interval(7, 10.0 * number, []), samples=samples))
    profile = recent.profile(7, 100)
    assert profile is not None
    assert sums(profile.samples).samples == sum(n + number for n in range(20) for number in range(3))
    assert flat_view(CallingContextTree(profile.samples))
