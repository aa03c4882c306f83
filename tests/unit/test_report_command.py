# SPDX-License-Identifier: Apache-2.0
"""`parprof report` and `parprof diff` from the command line on."""

from __future__ import annotations

import argparse
import gzip
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from parprof.commands.diff import DiffCommand, changes
from parprof.commands.report import ReportCommand
from parprof.commands.showing import print_report
from parprof.errors import OutputError, ProfileFormatError, UsageError
from parprof.exporters import outside, pprof, pprof_reader
from parprof.exporters.views import View
from parprof.facts.reading import decode
from parprof.metrics import OUTSIDE, READY, STALL, WAIT, Metric, Metrics
from parprof.model import Interval, PathSample, ProcessInfo, Profile
from parprof.profile.assemble import make_profile
from profiles import frame, heat, library, sample


def run(command: ReportCommand | DiffCommand, *arguments: str) -> int:
    parser = argparse.ArgumentParser(description=command.__doc__)
    command.prepare_parser(parser)
    return command.run(parser.parse_args(arguments))


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = str(tmp_path / "heat.pb.gz")
    pprof.write(heat(), path)
    return path


def test_default_report(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ReportCommand(), file) == 0
    printed = capsys.readouterr().out
    assert "calling context" in printed
    expected = io.StringIO()
    print_report(heat(), file=expected)
    assert printed == expected.getvalue()


def test_views(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ReportCommand(), file, "--view", "flat", "--sort", "work", "--limit", "1") == 0
    printed = capsys.readouterr().out
    assert "step (heat.c:42)" in printed
    assert "--limit 1" in printed


def test_json(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ReportCommand(), file, "--json") == 0
    assert json.loads(capsys.readouterr().out)["totals"]["samples"] == 4510


def test_html(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ReportCommand(), file, "--html", str(tmp_path / "out.html")) == 0
    assert "<title>parprof: ./heat 4096</title>" in (tmp_path / "out.html").read_text()
    assert capsys.readouterr().out == ""
    with pytest.raises(OutputError):
        run(ReportCommand(), file, "--html", str(tmp_path / "none" / "out.html"))


def test_standard_input(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(file).read_bytes())))
    assert run(ReportCommand(), "-") == 0
    assert capsys.readouterr().out.startswith("heat 4096: 4 cores")


RECORDED = Path(__file__).resolve().parents[1] / "recordings/pthreads.facts"


def test_facts_are_recognised_by_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = make_profile(*pprof_reader.read_as(RECORDED, decode))
    expected = io.StringIO()
    print_report(profile, View("flat"), file=expected)
    assert run(ReportCommand(), str(RECORDED), "--view", "flat") == 0
    assert capsys.readouterr().out == expected.getvalue()
    (tmp_path / "renamed.pb.gz").write_bytes(RECORDED.read_bytes())
    assert run(ReportCommand(), str(tmp_path / "renamed.pb.gz"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["totals"]["samples"] == profile.total().samples
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(RECORDED.read_bytes())))
    assert run(ReportCommand(), "-", "--view", "flat") == 0
    assert capsys.readouterr().out == expected.getvalue()


def test_damaged_facts_are_one_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "damaged"
    for content, match in (
        (RECORDED.read_bytes()[:-100], "truncated"),
        (gzip.compress(gzip.decompress(RECORDED.read_bytes())[:-5]), "truncated or damaged; record it again"),
        (gzip.compress(b'{"format":"parprof-facts","version":9,"writer":"parprof 7"}'), "newer parprof"),
    ):
        file.write_bytes(content)
        with pytest.raises(ProfileFormatError, match=f"cannot read {file}: .*{match}"):
            run(ReportCommand(), str(file))


def test_missing_file() -> None:
    with pytest.raises(ProfileFormatError, match="No such file"):
        run(ReportCommand(), "/nonexistent")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--limit", "0"],
        ["--limit", "x"],
        ["--view", "tree"],
        ["--json", "--html", "x"],
        [],
    ],
)
def test_usage(arguments: list[str], file: str) -> None:
    with pytest.raises(SystemExit) as caught:
        run(ReportCommand(), *([file] if arguments else []), *arguments)
    assert caught.value.code == 2


def test_a_metric_that_there_is_not(file: str) -> None:
    with pytest.raises(UsageError, match="--sort size: there is no such .*take one of idleness") as caught:
        run(ReportCommand(), file, "--sort", "size")
    assert caught.value.exit_code == 2


def test_diff(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    after = heat()
    after.samples[0] = sample(list(after.samples[0].path), 50, 1)
    other = str(tmp_path / "after.pb.gz")
    pprof.write(after, other)
    assert run(DiffCommand(), file, other, "--limit", "3") == 0
    printed = capsys.readouterr().out
    assert "parallel efficiency +6.9 points" in printed
    assert "idleness -0.450 s" in printed
    rows = [line.split() for line in printed.split("\n\n")[1].splitlines()]
    assert rows[2][-1] == "vfprintf"
    assert rows[2][0] == rows[2][2] == "-0.450"
    assert rows[2][4] == "yes"
    assert all(len(line) <= 80 for line in printed.splitlines())
    assert "beyond --limit 3" in printed


def test_diff_says_what_else_differs(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(DiffCommand(), file, file)
    assert "differ" not in capsys.readouterr().out
    after = heat()
    after.process = replace(after.process, command="/opt/cold 4096", cores=8)
    after.event = "cycles"
    after.samples[0].metrics.events = {"page-faults": 3}
    other = str(tmp_path / "after.pb.gz")
    pprof.write(after, other)
    run(DiffCommand(), file, other)
    printed = " ".join(capsys.readouterr().out.split())
    assert "the programs differ: cold / heat" in printed
    assert "the cores n differ: 4 / 8" in printed
    assert "the sampled events differ" in printed
    assert "the counted events differ: none / page-faults" in printed
    after = heat()
    after.process = replace(after.process, command="/opt/heat 1")
    pprof.write(after, other)
    run(DiffCommand(), file, other)
    assert "the commands differ: ./heat 4096 / /opt/heat 1" in " ".join(capsys.readouterr().out.split())


def test_diff_marks_only_changes_that_samples_can_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GIVEN a function that lost 10 of 100 samples, and one that lost 60 of 100."""
    names = []
    for count_f, count_g in ((100, 100), (90, 40)):
        samples = [sample([frame("main", 1), frame("f", 2)], count_f, 1)]
        samples.append(sample([frame("main", 1), frame("g", 2)], count_g, 1))
        names.append(str(tmp_path / f"{count_g}.pb.gz"))
        pprof.write(Profile(ProcessInfo(1, "x", cores=4), 1.0, 1000, samples), names[-1])
    assert run(DiffCommand(), *names) == 0
    table = capsys.readouterr().out.partition("function\n")[2]
    rows = [line.split() for line in table.splitlines()[:3]]
    assert {row[-1]: row[4:-1] for row in rows} == {"main": ["incl."], "f": [], "g": ["yes"]}


@pytest.mark.parametrize("metric", [STALL, OUTSIDE, WAIT, READY], ids=lambda one: one.name)
def test_diff_marks_measured_changes_that_any_two_runs_have(
    metric: Metric, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GIVEN what is no sample, of 4 cores for 1 s: 8 ms more in one function, 300 ms more in another."""
    names = []
    for f_ms, g_ms in ((500, 500), (508, 800)):
        samples = [sample([frame("main", 1), frame("work", 2)], 1000, 4)]
        for name, amount_ms in (("f", f_ms), ("g", g_ms)):
            charged = Metrics.of({metric: amount_ms * 1e6})
            samples.append(PathSample((frame("main", 1), frame(name, 3)), charged))
        names.append(str(tmp_path / f"{g_ms}.pb.gz"))
        pprof.write(Profile(ProcessInfo(1, "x", cores=4), 1.0, 1000, samples), names[-1])
    assert run(DiffCommand(), *names, "--sort", metric.name) == 0
    table = capsys.readouterr().out.partition("function\n")[2]
    rows = [line.split() for line in table.splitlines()[:3]]
    assert {row[-1]: row[4:-1] for row in rows} == {"main": ["incl."], "f": [], "g": ["yes"]}


def test_the_outside_can_be_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GIVEN a second of work beside other threads, and four of core time in which requests were waited for."""
    working = sample([frame("main", 1), frame("work", 2)], 1000, 4)
    idle = PathSample(
        (frame("main", 1), frame("serve", 3), library("epoll_wait")), Metrics.of({OUTSIDE: 4e9})
    )
    profile = Profile(ProcessInfo(1, "x", cores=4), 2.0, 1000, [working, idle])
    profile.intervals = [Interval(0.0, 2.0, (), {1: idle.metrics.copy()})]
    path = str(tmp_path / "x.pb.gz")
    pprof.write(profile, path)
    found = {}
    for options in ((), ("--count-outside",)):
        assert run(ReportCommand(), path, "--json", *options) == 0
        found[options] = json.loads(capsys.readouterr().out)
    before, after = (found[options]["totals"] for options in ((), ("--count-outside",)))
    assert (before["efficiency"], before["outside_s"], before["stall_s"]) == (1.0, 4.0, 0.0)
    assert (after["efficiency"], after["outside_s"], after["stall_s"]) == (0.2, 0.0, 4.0)
    assert (before["verdict"], after["verdict"]) == ("effectively parallel", "refine")
    assert found[()]["causes"] == []
    (cause,) = found[("--count-outside",)]["causes"]
    assert (cause["kind"], cause["function"]) == ("stall", "serve")
    assert pprof.read(path).samples[1].metrics[OUTSIDE] == 4e9, "the file is as it was"
    assert run(ReportCommand(), path, "--count-outside", "-v") == 0
    assert "counts as stall (--count-outside)" in " ".join(capsys.readouterr().out.split())
    counted = outside.counted(pprof.read(path))
    assert [one.rows[1][STALL] for one in counted.intervals] == [4e9]


def test_diff_of_equals(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(DiffCommand(), file, file, "--sort", "samples") == 0
    assert "parallel efficiency +0.0 points" in capsys.readouterr().out


def test_diff_matches_functions_across_builds() -> None:
    assert len(changes(heat(), heat())) == 9
