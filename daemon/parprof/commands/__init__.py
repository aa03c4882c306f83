"""The commands of ``parprof``: one class each, its docstring is its help."""

from __future__ import annotations

import argparse
from typing import Protocol

from parprof.commands.attach import AttachCommand
from parprof.commands.check import CheckCommand
from parprof.commands.diff import DiffCommand
from parprof.commands.merge import MergeCommand
from parprof.commands.record import RecordCommand
from parprof.commands.report import ReportCommand
from parprof.commands.status import StatusCommand
from parprof.commands.top import TopCommand


class Command(Protocol):
    """One sub-command."""

    name: str

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare options and operands."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; the result is the exit code."""


COMMANDS: tuple[Command, ...] = (
    RecordCommand(),
    AttachCommand(),
    ReportCommand(),
    DiffCommand(),
    MergeCommand(),
    TopCommand(),
    StatusCommand(),
    CheckCommand(),
)
