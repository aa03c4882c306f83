"""`parprof report` of what `parprof input` wrote: it shows all that the command itself shows."""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from parprof.commands.diff import DiffCommand
from parprof.commands.merge import MergeCommand
from parprof.commands.report import ReportCommand
from parprof.errors import ProfileFormatError, UsageError
from parprof.exporters import pprof
from parprof.input import page, saved, terminal
from parprof.input.answer import lines
from parprof.input.model import BLOCKS, NANOSECONDS, InputProfile, Point, RoutineName
from profiles import heat

SIZES = (10, 20, 40, 80, 160, 320, 640)


def run(*arguments: str | Path) -> int:
    command = ReportCommand()
    parser = argparse.ArgumentParser()
    command.prepare_parser(parser)
    return command.run(parser.parse_args([*map(str, arguments)]))


def make(unit: str = BLOCKS) -> InputProfile:
    """`pairs` of two threads, called by two others; `scan` of one."""
    profile = InputProfile("./book in", "tsan", unit, first=700, induced=200, external=100, threads=2)
    for name, callers, thread, power in (
        ("pairs", ("main", "few"), 1, 2),
        ("pairs", ("main", "all"), 2, 2),
        ("scan", ("main",), 1, 1),
    ):
        routine = profile.routine(RoutineName(name, "book", "/src/book.c", 90, callers, thread))
        for n in SIZES:
            cost = 9 * n**power
            routine.add(Point(n, n // 2, 3, 3 * n, 3 * (n // 2), n, 0, 3 * cost, cost + 1, 3 * cost))
        routine.by_thread[thread] = 3 * len(SIZES)
    return profile


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "book.json.gz"
    with path.open("wb") as output:
        saved.write(make(), output, compressed=True)
    return path


def expected(profile: InputProfile, pattern: str = "", limit: int = terminal.MAX_ROUTINES) -> str:
    return terminal.report(profile, lines(profile, pattern), limit=limit, plots=bool(pattern))


def test_it_shows_what_the_command_shows(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file) == 0
    assert capsys.readouterr().out == expected(make())
    assert run(file, "--limit", "1") == 0
    assert capsys.readouterr().out == expected(make(), limit=1)


def test_a_routine_is_plotted(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "--routine", "^pairs$") == 0
    printed = capsys.readouterr().out
    assert printed == expected(make(), "^pairs$")
    assert printed.count("n (input, cells)") == 2 and "scan" not in printed.split("\n\n", 1)[1]
    with pytest.raises(UsageError, match="matches none of 2 routines; near it: pairs"):
        run(file, "--routine", "pears")
    with pytest.raises(UsageError, match="not a regular expression"):
        run(file, "--routine", "(")


def test_json_and_the_page_of_a_routine(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(file, "--json", "--routine", "scan") == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["routines"]] == ["scan"]
    assert run(file, "--html", tmp_path / "page.html", "--routine", "scan") == 0
    assert (tmp_path / "page.html").read_text() == page.make(make(), lines(make(), "scan")).html()
    assert capsys.readouterr().out == ""


def test_threads_and_contexts_are_put_together(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "--merged") == 0
    printed = capsys.readouterr().out
    assert printed == expected(make().merged())
    assert " called by " not in printed and " in thread " not in printed
    (pairs,) = (one for identity, one in make().merged().routines.items() if identity.name == "pairs")
    assert pairs.total().calls == 2 * 3 * len(SIZES) and pairs.by_thread == {1: 21, 2: 21}


def test_runs_are_added_up(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "--with", file, "--with", file) == 0
    assert ", 3 runs" in capsys.readouterr().out
    other = tmp_path / "time.json"
    with other.open("wb") as output:
        saved.write(make(NANOSECONDS), output, compressed=False)
    with pytest.raises(UsageError, match="--with: costs in ns"):
        run(file, "--with", other)


def stdin(data: bytes) -> SimpleNamespace:
    return SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(data)))


@pytest.mark.parametrize("compressed", [False, True])
def test_it_is_read_from_a_pipe(
    compressed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = io.BytesIO()
    saved.write(make(), data, compressed=compressed)
    monkeypatch.setattr(sys, "stdin", stdin(data.getvalue()))
    assert run("-", "--routine", "scan") == 0
    assert capsys.readouterr().out == expected(make(), "scan")
    monkeypatch.setattr(sys, "stdin", stdin(b'{"kind": "parprof input", "x": 1}'))
    with pytest.raises(ProfileFormatError, match="cannot read -: not what parprof input writes"):
        run("-")


@pytest.mark.parametrize("option", [["--view", "flat"], ["--sort", "work"], ["--physical"], ["--no-source"]])
def test_options_of_other_files_are_refused(file: Path, option: list[str]) -> None:
    with pytest.raises(
        UsageError, match=f"^{option[0]} is for profiles of time; this is a file of parprof input"
    ):
        run(file, *option)


@pytest.mark.parametrize("option", [["--routine", "f"], ["--with", "x"], ["--merged"]])
def test_its_options_are_refused_for_other_files(tmp_path: Path, option: list[str]) -> None:
    path = str(tmp_path / "heat.pb.gz")
    pprof.write(heat(), path)
    with pytest.raises(UsageError, match=f"^{option[0]} is for files of parprof input alone"):
        run(path, *option)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    "command, remedy",
    [(MergeCommand(), "add such runs up by `parprof report"), (DiffCommand(), "compare the laws")],
)
def test_merge_and_diff_say_what_to_do_with_it(
    command: MergeCommand | DiffCommand, remedy: str, compressed: bool, tmp_path: Path
) -> None:
    """They said "not a gzipped profile, or damaged; --skip-bad leaves such files out"."""
    path = tmp_path / "run.json.gz"
    with path.open("wb") as file:
        saved.write(make(), file, compressed=compressed)
    parser = argparse.ArgumentParser()
    command.prepare_parser(parser)
    output = ["-o", str(tmp_path / "out.pb.gz")] if isinstance(command, MergeCommand) else []
    with pytest.raises(UsageError, match=f"run.json.gz is what parprof input wrote: {remedy}"):
        command.run(parser.parse_args([*output, str(path), str(path)]))
    assert not (tmp_path / "out.pb.gz").exists()
