# SPDX-License-Identifier: Apache-2.0
"""`parprof attach` through the daemon: what it shows meanwhile, and what it writes."""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from control_standin import StandInService, process, serving, sleeping, taken
from parprof.commands.attach import AttachCommand
from parprof.commands.progress import Progress
from parprof.errors import UsageError
from parprof.exporters import pprof_reader
from parprof.service.control import control_pb2 as pb
from parprof.service.control import conversation
from parprof.service.control.client import NoDaemon


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return Terminal()


def attach(*arguments: str) -> int:
    command = AttachCommand()
    parser = argparse.ArgumentParser()
    command.prepare_parser(parser)
    return command.run(parser.parse_args(arguments))


@pytest.mark.parametrize("quiet", [False, True])
def test_progress_of_the_daemon(
    quiet: bool, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "PROGRESS_SECONDS", 0.02)
    out = tmp_path / "out.pb.gz"
    with sleeping() as target, serving(StandInService(process(target, os.getuid())), tmp_path) as path:
        monkeypatch.setenv("PARPROF_SOCKET", path)
        monkeypatch.setattr(sys, "stderr", terminal)
        assert attach(str(target), "-d", "0.3", "-o", str(out), *(["-q"] if quiet else [])) == 0
    assert ("n_w 3 of 4  lost 0  (Ctrl-C ends it)" in terminal.getvalue()) is not quiet
    with out.open("rb") as file:
        profile = pprof_reader.read_from(file)
    differs = profile.notes.pop()
    assert profile == taken() and differs.startswith("measured by parprofd, at 1000 Hz")


def test_the_daemon_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARPROF_SOCKET", str(tmp_path / "another"))
    out = tmp_path / "out.pb.gz"
    with sleeping() as target, serving(StandInService(process(target, os.getuid())), tmp_path) as path:
        assert attach(str(target), "-d", "0.05", "-q", "-o", str(out), "--socket", path) == 0
    with out.open("rb") as file:
        assert pprof_reader.read_from(file).notes[-1].startswith("measured by parprofd")


def test_a_daemon_that_is_named_and_not_there_is_an_error(tmp_path: Path) -> None:
    """Nobody else is asked for the profile instead."""
    out = tmp_path / "out.pb.gz"
    with sleeping() as target:
        for path, reason in (
            (tmp_path / "none", "no parprofd listens on"),
            (tmp_path, "no parprofd listens on"),
        ):
            with pytest.raises(NoDaemon, match=f"{reason} {path}: start it"):
                attach(str(target), "-d", "0.05", "-q", "-o", str(out), "--socket", str(path))
    assert not out.exists()


@pytest.mark.parametrize(
    "option",
    [
        ["--scope", "tree"],
        ["-e", "page-faults"],
        ["--span"],
        ["--cores", "1"],
        ["--budget", "3"],
        ["--blame", "locks"],
        ["--save-facts", "facts"],
        ["--trace", "trace"],
    ],
)
def test_what_the_daemon_cannot_do_is_not_asked_of_it(option: list[str], tmp_path: Path) -> None:
    with sleeping() as target, pytest.raises(UsageError, match="--socket: .* daemon"):
        attach(str(target), "-d", "0.05", "--socket", str(tmp_path / "x"), *option)


def test_losses_from_before_are_not_of_this_profile(terminal: Terminal) -> None:
    with Progress(terminal) as progress:
        for lost in (7, 9):
            progress.show_daemon(pb.Progress(elapsed_s=2.0, samples=5, n_working=1, cores=4, lost=lost))
        assert "2.0 s  5 samples  n_w 1 of 4  lost 0" in terminal.getvalue()
        assert "lost 2" in terminal.getvalue()
        progress.show_daemon(pb.Progress(elapsed_s=3.0))
        assert "3.0 s  0 samples  ended" in terminal.getvalue()
