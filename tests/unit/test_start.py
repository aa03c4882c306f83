# SPDX-License-Identifier: Apache-2.0
"""What the ``parprof`` command loads before it knows what to do, and that its commands are what they were."""

from __future__ import annotations

import argparse
import inspect
import subprocess
import sys

import pytest

from parprof import __version__
from parprof.__main__ import CommandParser, make_parser
from parprof.commands import COMMANDS, CommandEntry

LIGHT = {"parprof", "parprof.__main__", "parprof.commands", "parprof.errors"}
"""All of ours that may be loaded to say the version or list the commands."""
HEAVY = (
    "asyncio capstone ctypes dataclasses google.protobuf http.client importlib.metadata inspect json logging "
    "multiprocessing opentelemetry prometheus_client psutil rich socket ssl subprocess symbolic tomllib"
).split()
CHILDREN = "calls.worker jit.worker loops.worker symbols.worker unwind.worker".split()
"""Processes without privileges that read files which are handed to them."""
ARGUMENTS = {
    "record": "--help --output --loops --save-facts --frequency --event --cores --n-w-source --wait-function "
    "--no-spin-loops --budget --no-wait "
    "--quiet --report --no-report --view --physical --unfold --recursion --count-outside --sort --limit "
    "--width --blame --verbose --html --no-source --trace --trace-limit --trace-seconds command",
    "attach": "--help pid --duration --scope --children --span --output --loops --save-facts --frequency --event "
    "--cores --n-w-source "
    "--wait-function --no-spin-loops --budget --no-wait "
    "--quiet --report --no-report --view --physical --unfold --recursion --count-outside --sort "
    "--limit --width --blame --verbose --html --no-source --trace --trace-limit --trace-seconds --socket",
    "calls": "--help pid --function --duration --times --force --budget --n-w-source --output --json --quiet command",
    "report": "--help file --view --physical --unfold --recursion --count-outside --sort --limit "
    "--width --blame --verbose --routine --with --merged --json --html --no-source --cores",
    "diff": "--help a b --sort --limit --html",
    "merge": "--help files --output --label --label-from-name --loops --skip-bad",
    "input": "--help --tool --with --contexts --by-thread --routine --limit --output --html --json --quiet command",
    "cc": "--help --input --scale command",
    "top": "--help --interval --sort --once --json --socket",
    "status": "--help --json --socket",
    "scale": "--help --threads --serial --json --csv --output --html --pprof --limit --quiet command",
    "check": "--help --json",
}


def sub_parsers() -> dict[str, CommandParser]:
    (action,) = (one for one in make_parser()._actions if isinstance(one, argparse._SubParsersAction))
    return dict(action.choices)


def loaded_by(*arguments: str) -> tuple[str, set[str]]:
    """What ``parprof`` prints when it is called so, and the modules that it has loaded by then."""
    script = (
        "import sys; before = set(sys.modules); from parprof.__main__ import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert not end.code\n"
        "print('loaded', *set(sys.modules) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    printed, _, loaded = done.stdout.rpartition("loaded ")
    return printed, set(loaded.split())


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_the_version_and_the_list_of_commands_load_next_to_nothing(argument: str) -> None:
    printed, loaded = loaded_by(argument)
    wanted = (
        [f"parprof {__version__}"]
        if argument == "--version"
        else [word for one in COMMANDS for word in one.summary.split()]
    )
    assert all(word in printed for word in wanted)
    assert {name for name in loaded if name.partition(".")[0] == "parprof"} == LIGHT
    assert not {name for name in loaded for heavy in HEAVY if f"{name}.".startswith(f"{heavy}.")}


def test_a_command_loads_what_it_needs_and_no_other_command() -> None:
    printed, loaded = loaded_by("check", "--help")
    assert "--json" in printed
    assert {"parprof.commands.check", "parprof.kernel.capability"} <= loaded
    assert not {"parprof.commands.record", "parprof.session.session", "rich"} & loaded


@pytest.mark.parametrize("module", CHILDREN)
def test_children_that_read_files_load_none_of_what_their_parents_have_to_open_them(module: str) -> None:
    """Each recording starts the one of symbols, which took a sixth of the CPU time of a short one."""
    script = f"import sys, importlib; importlib.import_module('parprof.{module}'); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert f"parprof.{module}" in loaded
    assert not loaded & {
        "parprof.files.dso",
        "parprof.files.guard",
        "parprof.workers.client",
        "logging",
        "subprocess",
    }


@pytest.mark.parametrize("entry", COMMANDS, ids=[entry.name for entry in COMMANDS])
def test_each_command_is_the_one_that_the_list_names(entry: CommandEntry) -> None:
    command = entry.load()
    assert command.name == entry.name
    assert inspect.cleandoc(command.__doc__ or "").splitlines()[0] == entry.summary


def test_the_commands_take_the_arguments_that_they_took() -> None:
    found = {}
    for name, parser in sub_parsers().items():
        parser.prepare()
        found[name] = " ".join(
            one.option_strings[-1] if one.option_strings else one.dest for one in parser._actions
        )
    assert found == ARGUMENTS


@pytest.mark.parametrize("name", ARGUMENTS)
def test_each_command_has_its_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        make_parser().parse_args([name, "--help"])
    assert end.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    entry = next(one for one in COMMANDS if one.name == name)
    assert text.startswith(f"usage: parprof {name} ")
    assert entry.summary in text
    assert all(one in text for one in ARGUMENTS[name].split() if one.startswith("--"))
