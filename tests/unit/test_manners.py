# SPDX-License-Identifier: Apache-2.0
"""How the commands behave on a command line: exit codes, full disks, where output goes, help, manuals."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from parprof import manuals
from parprof.__main__ import main
from parprof.commands import COMMANDS
from parprof.commands.measuring import add_measuring_options, present
from parprof.commands.spawn import Child
from parprof.errors import CommandError
from parprof.exporters import pprof
from profiles import heat

ROOT = Path(__file__).resolve().parents[2]


def parprof(*arguments: str, stdout: int | io.IOBase = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "daemon")}
    command = [sys.executable, "-m", "parprof", *arguments]
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, check=False
    )


def test_commands_that_cannot_be_run_have_the_shells_exit_codes(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="was not found") as missing:
        Child(["/nonexistent/program"])
    assert missing.value.exit_code == 127
    plain = tmp_path / "plain"
    plain.write_text("no program")
    with pytest.raises(CommandError, match="is not executable") as forbidden:
        Child([str(plain)])
    assert forbidden.value.exit_code == 126


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_is_one_line(tmp_path: Path, options: list[str]) -> None:
    file = str(tmp_path / "heat.pb.gz")
    pprof.write(heat(), file)
    with open("/dev/full", "w") as full:
        done = parprof("report", file, *options, stdout=full)
    assert done.returncode == 1
    assert done.stderr == "parprof: cannot write standard output: No space left on device\n"


def test_an_interrupt_while_a_command_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> argparse.ArgumentParser:
        raise KeyboardInterrupt

    monkeypatch.setattr("parprof.__main__.make_parser", interrupted)
    assert main(["status"]) == 130
    assert capsys.readouterr().err == "parprof: interrupted, no results\n"


def test_choices_are_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["record", "--n-w-source", "scheduler", "true"])
    assert "choose from 'exact', 'memory', 'sampled'" in capsys.readouterr().err


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in ((["help", "merge"], "usage: parprof merge"), (["help"], "usage: parprof [-h]")):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 0
        assert capsys.readouterr().out.startswith(text)


def shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str, shares: bool = True
) -> tuple[str, str]:
    parser = argparse.ArgumentParser()
    add_measuring_options(parser, "unused")
    args = parser.parse_args(["-q", "-o", str(tmp_path / "out.pb.gz"), *options])
    present(args, heat(), shares_output=shares)
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_the_report_keeps_out_of_the_programs_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = shown(tmp_path, capsys)
    assert out == "" and "calling context" in err
    out, err = shown(tmp_path, capsys, shares=False)
    assert "calling context" in out and err == ""
    out, err = shown(tmp_path, capsys, "--report", "-")
    assert "calling context" in out and err == ""
    assert shown(tmp_path, capsys, "--no-report") == ("", "")
    assert shown(tmp_path, capsys, "--report", str(tmp_path / "report.txt")) == ("", "")
    assert "calling context" in (tmp_path / "report.txt").read_text()


def test_an_older_profile_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out.pb.gz").write_text("first")
    shown(tmp_path, capsys)
    second = (tmp_path / "out.pb.gz").read_bytes()
    assert (tmp_path / "out.pb.gz.old").read_text() == "first"
    shown(tmp_path, capsys)
    assert (tmp_path / "out.pb.gz.old").read_bytes() == second


def test_manuals_name_every_command_and_option(tmp_path: Path) -> None:
    assert manuals.main([str(tmp_path)]) == 0
    written = manuals.files()
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == set(written)
    for entry in COMMANDS:
        parser = argparse.ArgumentParser()
        entry.load().prepare_parser(parser)
        options = [option for action in parser._actions for option in action.option_strings]
        page = written[f"man/man1/parprof-{entry.name}.1"].replace("\\-", "-")
        for option in options:
            assert f"\\fB{option}\\fR" in page, option
            assert option in written["bash-completion/completions/parprof"]
            assert f"*{option}[" in written["zsh/site-functions/_parprof"]
        assert f"parprof-{entry.name}" in written["man/man1/parprof.1"].replace("\\-", "-")


def test_bash_completes(tmp_path: Path) -> None:
    script = manuals.files()["bash-completion/completions/parprof"]

    def completed(*words: str) -> list[str]:
        ask = f'COMP_WORDS=({" ".join(words) or ""}); COMP_CWORD={len(words) - 1}; _parprof; echo "${{COMPREPLY[*]}}"'
        done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert completed("parprof", "re") == ["record", "report"]
    assert "--frequency" in completed("parprof", "record", "--f")
    assert completed("parprof", "report", "--view", "t") == ["threads"]
    assert "merge" in completed("parprof", "help", "m")
