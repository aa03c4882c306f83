"""The ``parprof`` command."""

from __future__ import annotations

import sys

try:
    import argparse
    import errno
    import gc
    import os
    import traceback
    from collections.abc import Sequence
    from typing import Any

    from parprof import __version__
    from parprof.commands import COMMANDS, CommandEntry
    from parprof.errors import ParprofError
except KeyboardInterrupt:  # before `main` can say so: a tenth of a second on a busy machine
    print("parprof: interrupted, no results", file=sys.stderr)
    sys.exit(130)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
"""What writing to a disk, or to /dev/full, may fail with."""


class CommandParser(argparse.ArgumentParser):
    """The parser of one command, which it imports when there is something to parse."""

    def __init__(self, entry: CommandEntry, **options: Any) -> None:
        super().__init__(**options)
        self._entry = entry
        self._is_prepared = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """What argparse calls for the command that was named, and for no other."""
        self.prepare()
        return super().parse_known_args(args, namespace)

    def prepare(self) -> None:
        """Import the command and let it declare its arguments."""
        if self._is_prepared:
            return
        self._is_prepared = True
        gc.disable()  # what is imported stays: a tenth of an import would be spent on looking for garbage in it
        try:
            import inspect  # it takes 10 ms: not for `--version`

            command = self._entry.load()
        finally:
            gc.enable()
        self.description = inspect.cleandoc(command.__doc__ or "")
        command.prepare_parser(self)
        self.set_defaults(run=command.run)


def make_parser() -> argparse.ArgumentParser:
    """The parser with all sub-commands."""
    parser = argparse.ArgumentParser(
        prog="parprof",
        description="Where the cores of a parallel program stand idle, and which code is to blame.",
        epilog="`parprof help COMMAND` says more of a command.",
    )
    parser.add_argument("--version", action="version", version=f"parprof {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="show tracebacks of errors")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=CommandParser)
    for entry in COMMANDS:
        commands.add_parser(entry.name, help=entry.summary, entry=entry)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["help"]:  # `parprof help record`
        words = [*words[1:], "--help"]
    verbose = False
    try:
        args = make_parser().parse_args(words)
        verbose = args.verbose
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except ParprofError as error:
        if verbose:
            traceback.print_exc()
        print(f"parprof: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("parprof: interrupted, no results", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `parprof report FILE | head`
        _abandon_output()
        return 1
    except OSError as error:
        if verbose or error.errno not in _FULL:
            raise
        _abandon_output()
        print(f"parprof: cannot write standard output: {os.strerror(error.errno or 0)}", file=sys.stderr)
        return 1


def _abandon_output() -> None:
    """What is left to be written goes nowhere, or Python would try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
