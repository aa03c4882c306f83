"""What `parprof input` and `parprof report` share: the options of reports on input and cost, and the reports."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable

from parprof.errors import UsageError
from parprof.input import page, saved, terminal
from parprof.input.answer import lines
from parprof.input.model import InputProfile
from parprof.untrusted import visible


def add_routine_option(parser: argparse.ArgumentParser, of: str = "") -> None:
    """Declare ``--routine``. ``of``: which files it is for, if not for all."""
    parser.add_argument(
        "--routine",
        metavar="RE",
        default="",
        help=f"{of}plot and list only routines whose name this expression finds",
    )


def add_earlier_option(parser: argparse.ArgumentParser, of: str = "") -> None:
    """Declare ``--with``. ``of``: which files it is for, if not for all."""
    parser.add_argument(
        "--with",
        dest="earlier",
        metavar="FILE",
        action="append",
        default=[],
        help=f"{of}add what an earlier run wrote with -o; may be repeated: runs with inputs of many sizes tell more",
    )


def refuse_saved(files: Iterable[str], instead: str) -> None:
    """Say what to do with files of `parprof input` where profiles of samples are wanted.

    Raises:
        UsageError: one of them is.
    """
    for path in files:
        if saved.is_saved(path):
            raise UsageError(f"{visible(path)} is what parprof input wrote: {instead}")


def add_earlier(profile: InputProfile, earlier: Iterable[InputProfile]) -> None:
    """Add earlier runs to a profile.

    Raises:
        UsageError: their costs are of another kind.
    """
    for other in earlier:
        try:
            profile.add(other)
        except ValueError as error:
            raise UsageError(
                f"--with: {error}; build both with `parprof cc --input`, or run both under Valgrind"
            ) from error


def show(
    profile: InputProfile, *, pattern: str, limit: int, as_json: bool, html: str | None, is_page_all: bool
) -> None:
    """Print or write what the options ask for. ``is_page_all``: where there is a page, nothing is printed.

    Raises:
        UsageError: ``pattern`` matches nothing, or is none.
        OutputError: the page cannot be written.
    """
    found = lines(profile, pattern)
    if html is not None:
        page.write(profile, found, html)
        if is_page_all:
            return
    if as_json:
        print(json.dumps(saved.as_json(profile, found), indent=1))
    else:
        sys.stdout.write(terminal.report(profile, found, limit=limit, plots=bool(pattern)))
