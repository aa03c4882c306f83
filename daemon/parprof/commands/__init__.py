"""The commands of ``parprof``: one class each, its docstring is its help.

A command's module imports all that its work needs, so it is imported only when that command is asked for. What
the list of commands shows stands here.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import NamedTuple, Protocol


class Command(Protocol):
    """One sub-command."""

    name: str

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare options and operands."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; the result is the exit code."""


class CommandEntry(NamedTuple):
    """A command in the list of commands, not imported yet."""

    name: str
    """Also that of its module here."""
    summary: str
    """The first line of its class's docstring."""

    def load(self) -> Command:
        """Import the command."""
        module = import_module(f"{__name__}.{self.name}")
        command: Command = getattr(module, f"{self.name.capitalize()}Command")()
        return command


COMMANDS = (
    CommandEntry(
        "record", "Run a command and profile it, and its children, from the first instruction to the exit."
    ),
    CommandEntry(
        "attach",
        "Profile a running process until its exit, Ctrl-C, or the given seconds; it runs on unharmed.",
    ),
    CommandEntry(
        "calls",
        "Count the calls of chosen functions exactly: how many, by whom, and what ran beside them.",
    ),
    CommandEntry(
        "report", "Read a profile file and show where cores stood idle, and which code answers for it."
    ),
    CommandEntry(
        "diff", "Show what changed from profile A to profile B: totals, efficiency, and each function."
    ),
    CommandEntry("merge", "Add up profiles of many nodes, ranks or processes into one file."),
    CommandEntry(
        "input", "Run a command and tell how the cost of its routines grows with the input that they read."
    ),
    CommandEntry("cc", "Run a compiler so that the program can be measured from inside."),
    CommandEntry(
        "top",
        "Watch all processes that parprofd watches: cores used, cores that stand idle, and what measuring costs.",
    ),
    CommandEntry(
        "status",
        "Show whether parprofd runs, since when, what it watches, what that costs, and what it has lost.",
    ),
    CommandEntry(
        "scale", "Say how fast a program can get with more cores, and which site stands in the way."
    ),
    CommandEntry(
        "check", "Try what profiling needs on this machine, and say what is missing and how to get it."
    ),
)
