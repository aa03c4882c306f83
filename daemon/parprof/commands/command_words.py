"""The command that another one runs: ``parprof record -- ./program``."""

from __future__ import annotations

import argparse


def add_command_words(
    parser: argparse.ArgumentParser, meaning: str = "the command and its arguments"
) -> None:
    """Take all that comes after the options as the command, whatever it looks like."""
    parser.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help=meaning)


def command_words(args: argparse.Namespace) -> list[str]:
    """Its words, without the ``--`` that may stand before it; empty where none was given."""
    words: list[str] = args.command
    return words[1:] if words[:1] == ["--"] else words
