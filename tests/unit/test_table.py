# SPDX-License-Identifier: Apache-2.0
"""The terminal report."""

from __future__ import annotations

import io
import os
import pty
import random
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

sys.path.insert(0, str(Path(__file__).parent))

from parprof.exporters.screen import UNLIMITED, Screen, elided
from parprof.exporters.table import render
from parprof.exporters.views import VIEWS, View
from parprof.files.mounts import Mounts
from parprof.metrics import ACTIVATIONS, METRICS, STALL, WAIT, Metrics
from parprof.model import Accounting, PathSample, ProcessInfo, Profile
from profiles import any_profile, frame, heat, library, sample


def text(profile: Profile, view: str = "context", sort: str = "idleness", limit: int = 40) -> str:
    out = io.StringIO()
    render(profile, View(view, sort, limit, width=80, details=True, unfold=True), out)
    return out.getvalue()


def profile_of(*samples: PathSample) -> Profile:
    return Profile(ProcessInfo(1, "x", "x", cores=4), 1.0, 1000, list(samples))


def one_line(report: str) -> str:
    return " ".join(report.split())


def test_header() -> None:
    profile = heat()
    report = one_line(text(profile))
    assert "command: ./heat 4096" in report
    assert "pid 42 (heat), runtime libgomp, cores n = 4, n_w source exact" in report
    assert "1.50 s, 4,510 samples at 1000 Hz of cpu-clock" in report
    # work 4460 ms of which 100 overhead, idleness 300 * 3 + 60 = 960 ms: effort 5420 ms
    assert "useful work 80.4 %, overhead 1.8 % (sync 1.8 %), idleness 17.7 %; spin 0.05 s" in report
    assert "parallel efficiency: 80.4 %" in report
    assert report.startswith(
        "advice: serial code in main > write_boundary (heat.c:33): one thread works, 3 of 4 cores are idle; 17 %"
    )
    assert "verdict: refine (the whole program)" in report
    assert "lost: nothing" in report
    assert "cost: 0.00 % of the target's CPU time" in report


def test_losses_notes_and_events_are_shown() -> None:
    profile = heat()
    profile.lost = {"map-full": 1200, "never": 0}
    profile.notes = ["first [bold]note[/bold]", "second"]
    profile.samples[0].metrics.events = {"page-faults": 7}
    report = text(profile)
    assert "lost: 1,200 map-full (beside 4,510 samples counted)" in report
    assert "never" not in report
    assert "note: first [bold]note[/bold]\nnote: second\n" in report
    assert "events: 7 page-faults" in report


def test_calls_in_no_row_are_no_lost_samples() -> None:
    """Thousands of them in a build, of which each sample counts."""
    profile = heat()
    profile.lost = {"activations": 19_756}
    assert "lost: nothing; of the calls that samples told apart 19,756 are in no row" in text(profile)
    assert not any("lost" in line for line in first_lines(profile))
    profile.lost["stack_ring"] = 3
    assert "lost: 3 stack_ring (beside 4,510 samples counted); of the calls" in text(profile)
    assert any("3 lost" in line for line in first_lines(profile))


def first_lines(profile: Profile, width: int = 80) -> list[str]:
    out = io.StringIO()
    render(profile, View(width=width), out)
    return out.getvalue().partition("\n\n")[0].splitlines()


@pytest.mark.parametrize("behind_chroot", [False, True])
def test_a_source_file_that_was_changed_since_the_recording_has_a_line(
    behind_chroot: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those alone whose lines are named. Behind chroot no mount is known that the files are on."""
    if behind_chroot:
        monkeypatch.setattr(Mounts, "read", lambda pid: Mounts([]))
    profile, named, other = heat(), tmp_path / "heat.c", tmp_path / "other.c"
    for file in (named, other):
        file.write_text("int main(void);\n")
        os.utime(file, (1_600_000_000, 1_600_000_000))
    for one in profile.samples:
        files = (named if frame.name in ("write_boundary", "fib") else other for frame in one.path)
        one.path = tuple(
            replace(frame, file=str(file)) if frame.file else frame
            for file, frame in zip(files, one.path, strict=True)
        )
    before = first_lines(profile)
    assert not any("changed" in line for line in (*before, *text(profile).splitlines()))
    os.utime(other, (1_700_000_009, 1_700_000_009))
    assert first_lines(profile) == before
    os.utime(named, (1_700_000_009, 1_700_000_009))
    told = "heat.c was changed after the recording: its lines may not be those that were measured"
    assert told in first_lines(profile, 120) and len(first_lines(profile)) <= 6
    assert f"note: {told}" in one_line(text(profile))
    profile.start_time_s = 0  # as of what was merged
    assert first_lines(profile) == before


def test_processes_that_worked_have_a_line() -> None:
    job = heat()
    job.processes = [
        replace(job.process, pid=pid, comm=comm) for pid, comm in ((42, "heat"), (43, "x" * 30), (9, "sh"))
    ]
    assert not any("processes" in line for line in first_lines(job))
    job.samples[0].origin = job.samples[0].origin._replace(pid=43)
    assert first_lines(job)[1] == "2 processes: heat (pid 42) 96 %, 1 more; shares of the work"
    assert first_lines(job, 120)[1] == (
        "2 processes: heat (pid 42) 96 %, xxxxxxxxxxx..xxxxxxxxxxx (pid 43) 4.5 %; shares of the work"
    )
    for pid in range(100, 150):
        job.processes.append(replace(job.process, pid=pid))
        job.samples.append(replace(job.samples[1], origin=job.samples[1].origin._replace(pid=pid)))
    lines = first_lines(job)
    assert (
        len(lines) <= 6
        and lines[1].startswith("52 processes: heat (50 processes) 53 %")
        and lines[1].endswith(" more; shares of the work")
    )
    assert all(len(line) <= 80 for line in lines)


def test_context_view() -> None:
    rows = text(heat()).split("\n\n", 1)[1].splitlines()[2:]
    assert rows == [
        " 17.7   0.0  80.4   1.8   0.05    4510  refine main (heat.c:61)",
        " 16.6   0.0   5.5   0.0   0.00     300  refine ├ write_boundary (heat.c:33)",
        " 16.6   0.0   5.5   0.0   0.00     300  refine │ └ fprintf [libc.so.6]",
        " 11.1  11.1   3.7   0.0   0.00     200  refine │   ├ vfprintf [libc.so.6]",
        "  5.5   5.5   1.8   0.0   0.00     100  refine │   └ write [libc.so.6]",
        "  1.1   1.1   1.1   0.0   0.00      60  refine ├ fib (heat.c:5)",
        "  0.0   0.0  73.8   1.8   0.05    4150      ok └ solve (heat.c:88)",
        "  0.0   0.0  73.8   0.0   0.00    4000      ok   ├ step (heat.c:42)",
        "  0.0   0.0   0.0   1.8   0.05     150 coarsen   └ barrier [libc.so.6]",
        "Recursive calls are folded into the first one.",
    ]


def test_callers_view() -> None:
    rows = text(heat(), "callers").split("\n\n", 1)[1].splitlines()[2:]
    assert rows[0].endswith("200  refine vfprintf [libc.so.6]")
    assert rows[3].endswith("200  refine     └ main (heat.c:61)")
    fib = next(at for at, row in enumerate(rows) if "fib" in row)
    assert rows[fib + 1].endswith("60  refine └ main (heat.c:61)")


def test_flat_view_sorted_by_work() -> None:
    rows = text(heat(), "flat", "work").split("\n\n", 1)[1].splitlines()[2:]
    assert [row.split()[8] for row in rows][:2] == ["step", "vfprintf"]
    rows = [row for row in rows if row.startswith(" ")]
    assert len(rows) == 9
    assert [row.split()[8] for row in rows][-1] == "fprintf"


def test_what_a_fix_would_gain_at_best() -> None:
    """5,420 ms of effort; write_boundary's 900 ms of idleness gone: 5,420 / 4,520 times as fast."""
    bounds = {"main": 5420 / 4460, "write_boundary": 5420 / 4520, "vfprintf": 5420 / 4820, "step": 1.0}
    rows = text(heat(), "flat").split("\n\n", 1)[1].splitlines()
    assert "x if" in rows[0] and "fixed" in rows[1]
    found = {row.split()[8]: row.split()[7] for row in rows[2:] if row.startswith(" ")}
    assert {name: found[name] for name in bounds} == {name: f"{most:.2f}" for name, most in bounds.items()}
    assert "x if" not in text(heat())
    out = io.StringIO()
    render(heat(), View(width=110, unfold=True), out)
    (row,) = (line for line in out.getvalue().splitlines() if line.endswith("write_boundary (heat.c:33)"))
    assert row.split()[7:10] == ["refine", "1.20", "├"]


def test_who_waits_while_nobody_works_gains_that_too() -> None:
    stalled = heat()
    stalled.samples[0].metrics.stall_ns = 1e9
    out = io.StringIO()
    render(stalled, View("flat", width=120, unfold=True), out)
    (row,) = (line for line in out.getvalue().splitlines() if line.endswith("vfprintf [libc.so.6]"))
    assert f" {6420 / 4820:.2f} vfprintf" in row


def test_thousands_of_threads_sleep_for_hours() -> None:
    profile = profile_of(
        sample([frame("f", 1)], 900, 1), PathSample((frame("g", 2),), Metrics.of({WAIT: 123456.7e9}))
    )
    assert any(" 123456.70 " in line for line in text(profile, "flat", "wait").splitlines())


def test_bounds_make_room_for_names_first() -> None:
    long = frame("a_function_of_26_xxxxxxxxx", 42)
    report = text(profile_of(sample([long], 900, 1)), "flat")
    assert "x if" not in report and "verdict" in report.split("\n\n", 1)[1]


def test_error_bars_where_there_is_room() -> None:
    """300 samples of one thread on 4 cores, each of 3 ms idleness: 900 of 5420 ms, give or take 2.0 %."""
    out = io.StringIO()
    render(heat(), View(width=110, unfold=True), out)
    (row,) = (
        line.split() for line in out.getvalue().splitlines() if line.endswith("write_boundary (heat.c:33)")
    )
    assert row[:3] == ["16.6", "0.0", "1.8"]
    assert "+-" not in text(heat())


def test_a_row_tells_calls_that_all_its_functions_have() -> None:
    """Three long calls shared a row with what they call often, and only the calls of that were told."""
    main, long, often, inner = (frame(name) for name in ("main", "long", "often", "inner"))
    profile = profile_of(
        PathSample((main, long, often, inner), Metrics(work_ns=9e9, samples=900)),
        PathSample((main,), Metrics.of({ACTIVATIONS: 3})),
        PathSample((main, long), Metrics.of({ACTIVATIONS: 3})),
        PathSample((main, long, often), Metrics.of({ACTIVATIONS: 70})),
    )

    def rows(details: bool) -> list[str]:
        out = io.StringIO()
        render(profile, View("context", "work", details=details), out)
        return [line for line in out.getvalue().splitlines() if "(heat.c:10)" in line]

    (together,) = rows(details=False)
    assert "main > long > often > inner" in together
    outer, within = rows(details=True)
    assert "main > long (" in outer and "often > inner (" in within
    assert re.search(r" 3 +3,000\.0 ", outer) and re.search(r" 70 +128\.6 ", within)


def test_nobody_hides_behind_a_callee_that_recurs() -> None:
    """Threads that create threads: of two callees with all that there is, folded, one shared its caller's row, and the
    other, with the work below it, was nowhere."""
    main, start, outer, inner, work = (frame(name) for name in ("main", "start", "outer", "inner", "work"))
    profile = profile_of(
        PathSample((main, start, outer, start, inner, work), Metrics(work_ns=9e9, samples=900)),
        PathSample((main, start, outer), Metrics(work_ns=1e7, samples=1)),
    )
    out = io.StringIO()
    render(profile, View("context", "work"), out)
    rows = [line for line in out.getvalue().splitlines() if "(heat.c:10)" in line]
    assert len(rows) == 3
    assert "main > start (" in rows[0]
    assert "outer (" in rows[1] and "inner > work (" in rows[2]


def test_parameters_of_long_names_are_left_out() -> None:
    """GROMACS's ``do_force`` has 31, in 700 characters."""
    force = frame(f"gmx::do_force({', '.join(['gmx::ArrayRef<float const>'] * 31)}) const", 2)
    alone = [sample([frame("main", 1), force], 900, 1)]
    together = [sample([frame("main", 1), frame("solve", 3)], 900, 4) for _ in range(4)]
    together = [replace(one, origin=one.origin._replace(tid=tid)) for tid, one in enumerate(together, 2)]
    report = text(profile_of(*alone, *together))
    assert "serial code in main > gmx::do_force(..) const (heat.c:2): one thread" in one_line(report)
    assert "├ gmx::do_force(..) const (heat.c:2)" in report and "ArrayRef" not in report


def test_rows_that_cannot_be_told_apart_are_named() -> None:
    alike = profile_of(
        sample([frame("main", 1), frame("f", 2)], 100, 1),
        sample([frame("main", 3), frame("g", 4)], 110, 1),
        sample([frame("main", 5), frame("h", 6)], 200, 1),
    )
    for view in ("context", "flat", "callers"):
        assert "Too few samples to tell which is more (95 %): g, f." in one_line(text(alike, view)), view
    steps = profile_of(
        *(sample([frame(name, 2)], count, 1) for name, count in (("f", 100), ("g", 85), ("h", 70)))
    )
    # f and g, g and h are alike, f and h are not
    assert "(95 %): f, g." in one_line(text(steps, "flat"))
    apart = profile_of(sample([frame("f", 2)], 100, 1), sample([frame("g", 4)], 200, 1))
    assert "Too few" not in text(apart, "flat")
    assert "Too few" not in text(apart, "flat", "stall")


def test_limit_keeps_whole_branches() -> None:
    report = text(heat(), limit=3)
    assert [name in report.split("\n\n", 1)[1] for name in ("main", "write_b", "fprintf", "vfprintf")] == [
        True, True, True, False,
    ]  # fmt: skip
    assert "Not shown: 6 more, below 0.5% or beyond --limit 3." in report


def test_no_samples() -> None:
    report = one_line(text(profile_of()))
    assert "no samples: the process used no CPU while it was observed" in report
    assert "1.0 ms of CPU time" in report
    assert "lost: nothing" in report


def test_only_spin() -> None:
    report = text(profile_of(sample([frame("wait", 3)], 9, 1, spin=True)))
    assert "no work was sampled" in report
    assert "wait (heat.c:3)" in report


def test_profiling_is_said_where_it_counts() -> None:
    profile = heat()
    profile.samples[0].metrics.profiling_ns = 4e6
    assert "spin 0.05 s parallel" in one_line(text(profile))
    profile.samples[0].metrics.profiling_ns = 0.118e9
    assert "spin 0.05 s, profiling 0.12 s parallel" in one_line(text(profile))
    assert "profiling s" not in text(profile)
    by_profiling = text(profile, view="flat", sort="profiling")
    assert "profiling s" in by_profiling and " 0.12 " in by_profiling


def test_perfect_program_blames_nothing() -> None:
    report = text(profile_of(sample([frame("f", 1)], 9, 4)))
    assert "effectively parallel" in report
    assert "advice" not in report
    assert report.startswith("verdict: effectively parallel")


def test_one_core_is_never_idle() -> None:
    profile = Profile(ProcessInfo(cores=1), 1, 1, [PathSample((frame("f"),), Metrics(1, 5.0))])
    assert "n = 1, so no core could be idle" in one_line(text(profile))


def test_one_core_that_waits_is_not_called_idle() -> None:
    waits = Metrics(60, 60e6)
    waits[STALL] = 90e6
    told = one_line(text(Profile(ProcessInfo(cores=1), 1, 1, [PathSample((frame("f"),), waits)])))
    assert "verdict: for 60 % of its core's time it does not work, but waits; n = 1" in told
    assert "cores stand idle" not in told


def test_no_source_at_all() -> None:
    path = [library("start"), library("f")]
    assert "f [libc.so.6]" in one_line(text(profile_of(sample(path, 900, 1))))


def test_long_names_are_cut_in_the_middle() -> None:
    name = "std::" + "vector<int>::" * 20 + "last_word"
    report = text(profile_of(sample([frame(name, 77)], 9, 1)))
    row = report.splitlines()[-1]
    assert "std::" in row
    assert "word (heat.c:77)" in row


@given(any_profile, st.sampled_from(VIEWS), st.sampled_from(list(METRICS.by_name())))
def test_hostile_profiles_print_within_80_columns(profile: Profile, view: str, sort: str) -> None:
    report = text(profile, view, sort)
    assert "\x1b" not in report
    assert max(map(cell_len, report.splitlines())) <= 80


def test_levels_that_have_no_elapsed_time() -> None:
    """No profile of ours is so, but a file may say anything."""
    path = (frame("odd"),)
    account = Accounting(2, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, None, level_s=(0.0, 0.0))
    profile = profile_of(sample(path, 9, 1), PathSample(path, Metrics(), levels=(0, 1)))
    for made in (profile, replace(profile, accounting=account)):
        assert "odd" in text(made, "concurrency")


def test_markup_and_escapes_are_text() -> None:
    report = text(profile_of(sample([frame("[red]f[/red]\x1b[31m\n:smile:", 1)], 9, 1)))
    assert "[red]f[/red]\ufffd[31m\ufffd:smile: (heat.c:1)" in report


@pytest.mark.parametrize("recursive", [False, True])
def test_deep_paths(recursive: bool) -> None:
    path = [frame("f" if recursive else f"f{depth}", 1) for depth in range(3000)]
    for view in VIEWS:
        assert text(profile_of(sample(path, 9, 1)), view, limit=500).count("\n") > 10


def test_narrow_encodings() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="latin-1")
    profile = heat()
    profile.notes = ["\u4e2d"]
    render(profile, View(width=80, details=True, unfold=True), out)
    out.flush()
    assert b"4000      ok   + step (heat.c:42)" in raw.getvalue()
    assert b"note: \\u4e2d" in raw.getvalue()


def test_terminal_width() -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal, os.fdopen(leader, "rb"):
        assert Screen(terminal).width >= 80
    assert Screen(io.StringIO()).width == UNLIMITED
    assert Screen(io.StringIO(), 120).width == 120
    assert Screen(io.StringIO(), 10).width == 80


def on_terminal(monkeypatch: pytest.MonkeyPatch, width: int = 120, **environment: str) -> str:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    class Terminal(io.StringIO):
        encoding = "utf-8"  # type: ignore[assignment]

        def isatty(self) -> bool:
            return True

    out = Terminal()
    render(heat(), View(width=width), out)
    return out.getvalue()


def test_colours_and_bars_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    report = on_terminal(monkeypatch, TERM="xterm")
    (boundary,) = (line for line in report.splitlines() if "write_boundary > " in line)
    assert "\x1b[33m 16.6\x1b[0m \x1b[33m███▊\x1b[0m" in boundary
    (fib,) = (line for line in report.splitlines() if "fib\x1b" in line)
    assert fib.startswith("  1.1 ▎")


def test_no_colours_where_they_are_not_wanted_or_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = on_terminal(monkeypatch, TERM="dumb")
    assert "\x1b" not in plain and "█" not in plain
    assert plain == on_terminal(monkeypatch)
    out = io.StringIO()
    render(heat(), View(width=120), out)
    assert plain == out.getvalue()
    without = on_terminal(monkeypatch, TERM="xterm", NO_COLOR="1")
    assert "███▊" in without and not re.search(r"\x1b\[[0-9;]*3[0-7]m", without)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_terminals_get_no_line_that_is_too_long(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for term in ("xterm", "dumb"):
        report = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(monkeypatch, width, TERM=term))
        assert max(map(cell_len, report.splitlines())) <= width
        assert "…" not in report


def test_the_environment_says_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "132")
    assert Screen(io.StringIO()).width == 132
    assert Screen(io.StringIO(), 90).width == 90
    monkeypatch.setenv("COLUMNS", "wide")
    assert Screen(io.StringIO()).width == UNLIMITED


@given(st.text(max_size=60), st.integers(0, 50))
def test_elided(word: str, width: int) -> None:
    assert cell_len(elided(word, width)) <= width
    if cell_len(word) <= width:
        assert elided(word, width) == word


@pytest.mark.parametrize("view", ["context", "callers", "flat"])
def test_contexts_that_are_not_shown_cost_little(view: str) -> None:
    """Sixteen times as long when the tree had a node for each of the 240,000 contexts."""
    dice = random.Random(1)
    frames = [frame(f"f{n}", n + 1) for n in range(400)]
    profile = heat()
    profile.samples = [sample(dice.choices(frames, k=40), 1, 1) for _ in range(6000)]
    begun = time.process_time()
    shown = text(profile, view)
    assert time.process_time() - begun < 3
    assert "6,000 samples" in shown
    assert "Not shown" in shown or view == "callers"
