# SPDX-License-Identifier: Apache-2.0
"""How the commands behave on a command line: exit codes, full disks, where output goes, help, manuals."""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from parprof.__main__ import main
from parprof.commands import COMMANDS
from parprof.commands.measuring import add_measuring_options, present
from parprof.commands.spawn import Child
from parprof.errors import CommandError
from parprof.exporters import pprof
from parprof.manuals import __main__ as manuals
from parprof.service.config.schema import KEYS
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


@pytest.mark.parametrize("command", ["record", "input", "calls -f main", "scale", "cc --input"])
@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_of_a_command_is_told_so(command: str, name: str) -> None:
    """As of `"$PROGRAM"` where that is not set. It was " was not found"."""
    done = parprof(*command.split(), "--", name)
    assert done.returncode == 127
    assert "the name of the command is empty" in done.stderr and "was not found" not in done.stderr


def test_a_traceback_changes_neither_the_exit_code_nor_the_last_line() -> None:
    """Where it is asked for: -v of a report is for all that it knows, and a script still wants the exit code."""
    done = parprof("-v", "input", "--", "/nonexistent/program")
    assert done.returncode == 127
    assert done.stderr.startswith("Traceback")
    assert done.stderr.splitlines()[-1] == "parprof: /nonexistent/program was not found"


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


_INTERRUPTED_IMPORT = """
import runpy, sys

class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == "parprof.commands":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
runpy.run_module("parprof", run_name="__main__")
"""


def test_an_interrupt_before_there_is_any_command() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_IMPORT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "parprof: interrupted, no results\n")


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


def test_the_daemons_manual_names_every_key() -> None:
    written = manuals.files()
    page = written["man/man8/parprofd.8"].replace("\\-", "-")
    for key in KEYS.values():
        assert f"\\fB{key.path}\\fR" in page and (key.file_only or f"({key.flag}, {key.variable})" in page), (
            key.path
        )
        for name in ("bash-completion/completions/parprofd", "zsh/site-functions/_parprofd"):
            assert (key.flag in written[name]) is not key.file_only, key.path
    for option in ("--config", "--print-config", "--check-config", "--version"):
        assert f"\\fB{option}\\fR" in page


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_man_pages_are_without_warnings(tmp_path: Path) -> None:
    assert manuals.main([str(tmp_path)]) == 0
    pages = sorted(map(str, tmp_path.glob("man/man*/*")))
    assert len(pages) == len(COMMANDS) + 2
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", *pages], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("shell", "folder"),
    [
        ("bash", "bash-completion/completions"),
        ("zsh", "zsh/site-functions"),
        ("fish", "fish/vendor_completions.d"),
    ],
)
def test_shells_read_the_completions(shell: str, folder: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    assert manuals.main([str(tmp_path)]) == 0
    scripts = sorted((tmp_path / folder).iterdir())
    assert len(scripts) == 2
    for script in scripts:
        done = subprocess.run([shell, "-n", script], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), script


def test_fish_completes() -> None:
    """A line for each option, of its command alone, with what it takes."""
    written = manuals.files()
    lines = written["fish/vendor_completions.d/parprof.fish"].splitlines()

    def of(command: str, option: str) -> str:
        start = f"complete -c parprof -n '__fish_seen_subcommand_from {command}' "
        (found,) = (line for line in lines if line.startswith(start) and f" -l {option} " in line)
        return found

    assert " -s o -l output -r -F -d " in of("record", "output")
    assert " -x -a 'context callers flat threads lines concurrency' -d " in of("report", "view")
    assert " -x -d " in of("attach", "duration") and " -s d " in of("attach", "duration")
    assert not any(" -l duration" in line for line in lines if "from record'" in line)
    for entry in COMMANDS:
        (line,) = (line for line in lines if f"__fish_use_subcommand -a {entry.name} " in line)
        assert line.endswith(f" -d '{entry.summary}'")
    for command, what in (("attach", "pids"), ("record", "subcommand")):
        start = f"complete -c parprof -n '__fish_seen_subcommand_from {command}' "
        assert any(line.startswith(start) and f"__fish_complete_{what}" in line for line in lines)
    daemon = written["fish/vendor_completions.d/parprofd.fish"].splitlines()
    (mode,) = (line for line in daemon if " -l select-mode " in line)
    assert " -x -a 'all listed' -d " in mode
    (config,) = (line for line in daemon if " -l config " in line)
    assert " -r -F " in config


def test_bash_completes_the_daemon() -> None:
    script = manuals.files()["bash-completion/completions/parprofd"]

    def completed(*words: str) -> list[str]:
        ask = f'COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; _parprofd; echo "${{COMPREPLY[*]}}"'
        done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert completed("parprofd", "--http-l") == ["--http-listen"]
    assert completed("parprofd", "--select-mode", "l") == ["listed"]
    assert completed("parprofd", "--metrics-pid", "t") == ["true"]


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
    assert completed("parprof", "attach", str(os.getpid())) == [str(os.getpid())]
    assert "bash" in completed("parprof", "record", "bas")
    (tmp_path / "one.pb.gz").touch()
    assert completed("parprof", "report", f"{tmp_path}/o") == [f"{tmp_path}/one.pb.gz"]
    assert completed("parprof", "attach", "-o", f"{tmp_path}/o") == [f"{tmp_path}/one.pb.gz"]
    assert completed("parprof", "attach", "-d", "") == completed("parprof", "top", "") == []
