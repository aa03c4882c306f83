"""The ``parprof`` command."""

from __future__ import annotations

import argparse
import inspect
import os
import sys

from parprof import __version__
from parprof.commands import COMMANDS
from parprof.errors import ParprofError


def make_parser() -> argparse.ArgumentParser:
    """The parser with all sub-commands."""
    parser = argparse.ArgumentParser(
        prog="parprof",
        description="Where the cores of a parallel program stand idle, and which code is to blame.",
    )
    parser.add_argument("--version", action="version", version=f"parprof {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="show tracebacks of errors")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        text = inspect.cleandoc(command.__doc__ or "")
        sub = commands.add_parser(command.name, help=text.splitlines()[0], description=text)
        command.prepare_parser(sub)
        sub.set_defaults(run=command.run)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = make_parser().parse_args(arguments)
    try:
        return int(args.run(args))
    except ParprofError as error:
        if args.verbose:
            raise
        print(f"parprof: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("parprof: interrupted, no results", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `parprof report FILE | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
