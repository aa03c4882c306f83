# SPDX-License-Identifier: Apache-2.0
"""Elapsed, sequential and concurrent time of functions, and the histogram of n_w, against known truth."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from parprof.attribution.concurrency import (
    FIRST_OF_BUCKET,
    RANGES,
    AtWork,
    bucket_of,
    groups_up_to,
    levels_of,
    plus,
)
from parprof.exporters import json_report, pprof, pprof_reader, table
from parprof.exporters.concurrency import by_function, job_histogram, what_is_missing
from parprof.exporters.views import View
from parprof.model import Accounting, Levels, PathSample, Profile
from parprof.profile.merge import Merger
from parprof.service.folding import fold_cold
from parprof.service.recent import RecentProfiles
from profiles import frame, heat, sample

_cores = st.integers(1, 300)
_facts = st.lists(st.tuples(st.integers(1, 10**4), st.integers(1, 2000)), min_size=1, max_size=20)


def histogram(facts: list[tuple[int, int]], cores: int) -> Levels:
    out: Levels = ()
    for count, n_working in facts:
        out = plus(out, levels_of(count * 1e6, n_working, cores))
    return out


def functions(profile: Profile) -> dict[str, dict[str, Any]]:
    out = io.StringIO()
    json_report.write(profile, out)
    return {one["name"]: one["concurrency"] for one in json.loads(out.getvalue())["functions"]}


def text(profile: Profile, width: int = 80) -> str:
    out = io.StringIO()
    table.render(profile, View("concurrency", width=width, unfold=True), out)
    return out.getvalue()


def with_account(profile: Profile, level_s: tuple[float, ...]) -> Profile:
    elapsed_s = sum(level_s)
    return replace(profile, accounting=Accounting(4, elapsed_s, 4.46, 0, 0, 0.96, 0.2, 0.96, level_s))


def rows_of(report: str) -> dict[str, list[str]]:
    """The rows of the table of functions, by name: the cells before it."""
    lines = report.partition("function (heaviest line)\n")[2].splitlines()
    found: dict[str, list[str]] = {}
    for line in lines:
        words = line.split()
        at = next((at for at, word in enumerate(words) if not word.replace(".", "").isdigit()), 0)
        found[words[at]] = words[:at]
    return found


# Arithmetic


def test_buckets_cover_all_n_w_without_gaps() -> None:
    for n_working in range(1, 3000):
        first, last = RANGES[bucket_of(n_working)]
        assert first <= n_working and (last is None or n_working <= last)
    assert [bucket_of(first) for first in FIRST_OF_BUCKET[1:]] == list(range(1, len(FIRST_OF_BUCKET)))


@given(_facts, _cores)
def test_shares_sum_up_to_one_and_elapsed_is_no_more_than_work(
    facts: list[tuple[int, int]], cores: int
) -> None:
    at_work = AtWork.of(histogram(facts, cores))
    work_ns = sum(count for count, _ in facts) * 1e6
    assert at_work.work_ns == pytest.approx(work_ns)
    assert work_ns / cores * 0.999 <= at_work.elapsed_ns <= work_ns * 1.001
    assert at_work.elapsed_ns == pytest.approx(sum(count * 1e6 / min(n, cores) for count, n in facts))
    assert at_work.sequential_ns == pytest.approx(sum(count for count, n in facts if n == 1) * 1e6)
    assert sum(at_work.shares([(1, None)])) == pytest.approx(1)
    for most in (3, 5, 12):
        assert sum(at_work.shares(groups_up_to(cores, most))) == pytest.approx(1)


@given(st.floats(1, 500), _cores)
def test_a_mean_n_w_keeps_its_elapsed_time_in_the_histogram(n_working: float, cores: int) -> None:
    """GIVEN n_w of fine phases, a mean WHEN divided among its neighbours THEN they stand for as much time."""
    levels = levels_of(1e9, n_working, cores)
    assert sum(levels[1:]) == pytest.approx(1e9)
    assert min(levels) >= 0
    if n_working <= 7:
        spread = sum(value / at for at, value in enumerate(levels) if at)
        assert spread == pytest.approx(1e9 / n_working)


@given(st.integers(1, 5000), st.integers(3, 12))
def test_groups_show_one_and_all_cores_and_fit(cores: int, most: int) -> None:
    groups = groups_up_to(cores, most)
    assert len(groups) <= most
    assert groups[0][0] == 1 and groups[-1][1] is None
    assert all(
        last is not None and last + 1 == after
        for (_, last), (after, _) in zip(groups, groups[1:], strict=False)
    )
    if cores > 1:
        assert groups[0] == (1, 1)
    for first, _ in groups:  # no bucket is in two groups
        assert first in FIRST_OF_BUCKET
    if cores <= 1024:
        assert groups[-1][0] <= cores < 2 * groups[-1][0]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=128), _cores)
def test_lines_of_the_histogram_have_all_of_the_time(level_s: list[float], cores: int) -> None:
    lines = job_histogram(level_s, cores)
    assert sum(line.seconds for line in lines) == pytest.approx(sum(level_s))
    assert lines[0].seconds == level_s[0] and lines[0].last == 0
    assert len(lines) <= 15


def test_the_last_level_that_is_counted_is_for_more_as_well() -> None:
    lines = job_histogram([1.0] * 128, 256)
    assert (lines[-1].first, lines[-1].last, lines[-1].seconds) == (127, None, 1.0)
    assert (lines[-2].first, lines[-2].last, lines[-2].seconds) == (64, 126, 63.0)


# A profile of known truth: 4 cores, samples of 1 ms


def test_functions_of_known_phases() -> None:
    found = functions(heat())
    assert found["write"]["exclusive"] == {
        "elapsed_s": 0.1,
        "sequential_s": 0.1,
        "concurrent_s": 0.0,
        "levels": [{"from": 1, "to": 1, "work_s": 0.1, "share": 1.0}],
    }
    assert found["step"]["inclusive"] == {
        "elapsed_s": 1.0,
        "sequential_s": 0.0,
        "concurrent_s": 4.0,
        "levels": [{"from": 4, "to": 4, "work_s": 4.0, "share": 1.0}],
    }
    assert found["main"]["exclusive"] is None  # it never worked itself
    main = found["main"]["inclusive"]
    assert (main["elapsed_s"], main["sequential_s"], main["concurrent_s"]) == (1.355, 0.3, 4.16)
    assert [(one["from"], one["work_s"]) for one in main["levels"]] == [(1, 0.3), (2, 0.06), (4, 4.1)]


def test_recursion_counts_once() -> None:
    fib = functions(heat())["fib"]
    assert fib["inclusive"] == fib["exclusive"]
    assert (fib["inclusive"]["elapsed_s"], fib["inclusive"]["concurrent_s"]) == (0.03, 0.06)


def test_elapsed_times_of_functions_sum_up_to_that_of_the_job() -> None:
    profile = heat()
    own = [AtWork.of(one.exclusive).elapsed_ns for one in by_function(profile.samples).values()]
    assert math.fsum(own) == pytest.approx(1.355e9)


def test_processes_of_a_job() -> None:
    profile = heat()
    out = io.StringIO()
    json_report.write(profile, out)
    (process,) = json.loads(out.getvalue())["scope"]["processes"]
    assert process["concurrency"]["sequential_s"] == 0.3
    assert process["concurrency"]["elapsed_s"] == 1.355


# Files, merging, the daemon's intervals


def test_it_comes_back_from_a_file_and_costs_no_column_where_there_is_none() -> None:
    profile = heat()
    message = pprof.encode(profile)
    names = [message.string_table[kind.type] for kind in message.sample_type]
    assert names[-4:] == ["elapsed", "work_at_1", "work_at_2", "work_at_4"]
    again = pprof_reader.decode(message.SerializeToString())
    assert functions(again) == functions(profile)
    for one in profile.samples:
        one.levels = ()
    message = pprof.encode(profile)
    assert not [kind for kind in message.sample_type if message.string_table[kind.type].startswith("work_at")]


def test_merged_profiles_have_the_sum() -> None:
    merger = Merger()
    merger.add(heat())
    merger.add(heat())
    assert functions(merger.profile())["main"]["inclusive"]["elapsed_s"] == 2.71


def test_folded_call_paths_keep_it() -> None:
    profile = heat()
    before = functions(profile)["main"]["inclusive"]
    folded, count = fold_cold(profile.samples, 2)
    assert count
    assert functions(replace(profile, samples=folded))["main"]["inclusive"] == before


def test_intervals_of_the_daemon_keep_it() -> None:
    recent = RecentProfiles()
    plain = heat()
    for one in plain.samples:
        one.levels = ()
    for profile in (heat(), plain, heat()):
        recent.add(profile, image=9)
    found = recent.profile(42, 1e9)
    assert found is not None
    assert functions(found)["main"]["inclusive"]["elapsed_s"] == pytest.approx(2.71, abs=1e-6)


# The view


def test_view_of_known_phases() -> None:
    report = text(with_account(heat(), (0.05, 0.3, 0.06, 0.0, 1.0, 0.09)))
    assert "Threads at work at once (n_w) in 1.50 s, 3.25 on average; each change seen:" in report
    lines = {line.split()[0]: line for line in report.splitlines() if re.search(r"\d s +\d+\.\d %", line)}
    assert list(lines) == ["0", "1", "2", "3", "4", "5+"]
    assert lines["4"].split()[1:5] == ["1.00", "s", "66.7", "%"] and lines["4"].endswith("all cores")
    assert lines["4"].count("█") == 21 and lines["1"].count("█") == 6
    rows = rows_of(report)
    # elapsed, sequential, concurrent, at 1, 2, 3, 4 and more, elapsed without callees
    assert rows["main"][:7] == ["1.35", "0.30", "4.16", "6.7", "1.3", "0.0", "91.9"]
    assert rows["step"][:7] == ["1.00", "0.00", "4.00", "0.0", "0.0", "0.0", "100.0"]
    assert max(map(len, report.splitlines())) <= 80


@pytest.mark.parametrize("cores", [1, 2, 48, 64, 256])
@pytest.mark.parametrize("width", [80, 200])
def test_view_fits_any_number_of_cores(cores: int, width: int) -> None:
    samples = [sample([frame("main", 1), frame(f"at_{n}", 2)], 100, n) for n in (1, 3, cores, cores + 9)]
    profile = with_account(heat(), (0.1,) * min(cores + 9, 128))
    profile = replace(profile, samples=samples, process=replace(profile.process, cores=cores))
    report = text(profile, width)
    assert max(map(len, report.splitlines())) <= width
    rows = rows_of(report)
    assert {"main", "at_1", "at_3"} <= rows.keys()
    assert rows["at_1"][3] == "100.0"
    assert 2 <= len(re.findall(r"\d s +\d+\.\d %", report)) <= 15


def test_a_job_of_several_processes_has_a_row_for_each() -> None:
    profile = heat()
    other = [replace(one, origin=one.origin._replace(pid=43, comm="other")) for one in profile.samples]
    report = text(replace(profile, samples=[*profile.samples, *other]))
    rows = [line.split()[-2:] for line in report.splitlines() if line.endswith(("(42)", "(43)"))]
    assert len(rows) == 2


def test_an_old_profile_says_that_it_lacks_it() -> None:
    profile = heat()
    for one in profile.samples:
        one.levels = ()
    report = " ".join(text(profile).split())
    assert "How many threads worked beside each function is not known" in report
    assert "For how long so many threads worked at once is not known of this profile" in report
    assert functions(profile)["main"] == {"exclusive": None, "inclusive": None}


def test_a_merge_with_an_old_profile_says_how_much_it_lacks() -> None:
    profile = heat()
    profile.samples[2].levels = ()
    assert what_is_missing(profile) == "Of 89.7 % of the work it is not known how many threads worked."
    assert "main" in rows_of(text(profile))


def test_spin_alone_lacks_nothing() -> None:
    spun = Profile(heat().process, 1.0, 1000, [sample([frame("f")], 5, 1, spin=True)])
    assert what_is_missing(spun) == ""
    assert "not known how many" not in text(spun)


def test_ascii_terminals_get_ascii_bars() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    table.render(with_account(heat(), (0.0, 1.0)), View("concurrency", width=80), file)
    file.flush()
    shown = file.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert "#" * 32 in shown and "\\u" not in shown


def test_rows_of_one_path_are_added_up() -> None:
    one, other = sample([frame("f")], 3, 1), sample([frame("f")], 5, 4)
    both: PathSample = replace(one, levels=plus(one.levels, other.levels))
    assert by_function([one, other]) == by_function([both])
