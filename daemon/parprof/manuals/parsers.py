"""What the parsers of both commands know: their options, and what these take."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from parprof.__main__ import CommandParser

FILES = frozenset({"FILE", "OUT", "A", "B"})
"""What options and operands that name files are called."""


def commands_of(parser: argparse.ArgumentParser) -> dict[str, CommandParser]:
    """The commands by name, each with all of its options."""
    found: dict[str, CommandParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                command.prepare()
                found[name] = command
    return found


def summary_of(command: CommandParser) -> str:
    """What it does, in a line."""
    return (command.description or "").partition("\n")[0]


def options_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """What begins with a hyphen."""
    return (action for action in parser._actions if action.option_strings)


def operands_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """What does not."""
    for action in parser._actions:
        if not action.option_strings and not isinstance(action, argparse._SubParsersAction):
            yield action


def value_name(action: argparse.Action) -> str:
    """What an option or operand takes, as its help says; empty: nothing."""
    if action.nargs == 0:
        return ""
    if action.metavar:
        return str(action.metavar)
    return "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()


def help_of(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """What ``--help`` says of it."""
    return parser._get_formatter()._expand_help(action) if action.help else ""
