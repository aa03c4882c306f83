"""`parprof report`: reads a profile again."""

from __future__ import annotations

import argparse
import sys
from typing import TextIO

from parprof.cct import METRICS
from parprof.exporters import html, json_report, pprof, table
from parprof.model import Profile


class ReportCommand:
    """Read a profile file and show where cores stood idle, and which code answers for it."""

    name = "report"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("file", metavar="FILE", help="a profile that parprof wrote; - is standard input")
        add_view_options(parser)
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--json", action="store_true", help="print the whole report as JSON instead")
        form.add_argument(
            "--html", metavar="OUT", help="write a web page to OUT instead; - is standard output"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Do it. Returns the exit code."""
        if args.html:
            pprof.check_writable(args.html)
        profile = pprof.read(args.file)
        if args.json:
            json_report.write(profile, sys.stdout)
        elif args.html:
            html.write(profile, args.html)
        else:
            print_report(profile, view=args.view, sort=args.sort, limit=args.limit)
        return 0


def print_report(
    profile: Profile,
    *,
    view: str = "context",
    sort: str = "idleness",
    limit: int = table.DEFAULT_LIMIT,
    file: TextIO | None = None,
) -> None:
    """Print the report for people, to standard output unless ``file`` is given."""
    table.render(profile, view, sort, limit, sys.stdout if file is None else file)


def add_view_options(parser: argparse.ArgumentParser) -> None:
    """Declare ``--view``, ``--sort`` and ``--limit``, as `print_report` takes them."""
    parser.add_argument(
        "--view",
        choices=table.VIEWS,
        default="context",
        help="call paths from the root, functions and their callers, or functions (default: %(default)s)",
    )
    add_row_options(parser)


def add_row_options(parser: argparse.ArgumentParser) -> None:
    """Declare ``--sort`` and ``--limit``."""
    parser.add_argument(
        "--sort",
        metavar="METRIC",
        choices=tuple(METRICS),
        default="idleness",
        help=f"{', '.join(METRICS)} (default: %(default)s)",
    )
    parser.add_argument(
        "--limit",
        metavar="N",
        type=_positive,
        default=table.DEFAULT_LIMIT,
        help="rows to show at most (default: %(default)s)",
    )


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return value
