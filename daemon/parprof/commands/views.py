"""The options that say how a profile is to be shown, as far as commands share them."""

from __future__ import annotations

import argparse
from typing import Any

from parprof.exporters.views import DEFAULT_LIMIT, RECURSION, VIEWS, View
from parprof.metrics import METRICS


def view_of(args: argparse.Namespace) -> View:
    """What the options of `add_view_options` ask for."""
    return View(
        view=args.view,
        sort=args.sort,
        limit=args.limit,
        width=args.width,
        details=getattr(args, "verbose", False),
        unfold=args.unfold or args.physical,
        recursion=args.recursion,
    )


def add_view_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that say what a report shows, as `view_of` takes them, ``--physical`` and ``--blame``."""
    parser.add_argument(
        "--view",
        choices=VIEWS,
        default="context",
        help="call paths from the root (context), functions and their callers, functions (flat), threads, source "
        "lines, or how many threads worked at once, all the time and in each function (concurrency) "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--physical",
        action="store_true",
        help="stacks as they were, the runtime's frames included, instead of logical call paths",
    )
    parser.add_argument(
        "--unfold",
        action="store_true",
        help="every frame in a row of its own: those of the kernel, of libraries and of imports, too",
    )
    parser.add_argument(
        "--recursion",
        choices=RECURSION,
        default="fold",
        help="fold: recursive calls are a part of the first one; levels: each level has its row (default: %(default)s)",
    )
    parser.add_argument(
        "--count-outside",
        action="store_true",
        help="count it as stall, in efficiency and verdicts too, when nobody worked because requests, events or keys "
        "were waited for (default: shown apart, as no loss)",
    )
    add_row_options(parser, events=True)
    parser.add_argument(
        "--width",
        metavar="COLUMNS",
        type=positive,
        help="cut lines to this width, at least 80 (default: COLUMNS, else the terminal's; files and pipes: no limit)",
    )
    parser.add_argument(
        "--blame",
        choices=("locks",),
        action=_Blame,
        help="who made others wait: sort by the time that threads waited for locks which a call path held",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        default=argparse.SUPPRESS,
        help="all facts, notes, losses and costs before the table, and tracebacks of errors",
    )


def add_loops_option(parser: argparse.ArgumentParser) -> None:
    """Declare ``--loops``, for commands that write a profile."""
    parser.add_argument(
        "--loops",
        action="store_true",
        help="in the file, loops are frames for other tools, too: what they cost is then no longer their functions' "
        "own (default: only parprof shows them)",
    )


def add_row_options(parser: argparse.ArgumentParser, *, events: bool = False) -> None:
    """Declare ``--sort`` and ``--limit``. ``events``: rows can be sorted by events, too."""
    metrics = tuple(METRICS.by_name())
    parser.add_argument(
        "--sort",
        metavar="METRIC",
        choices=None if events else metrics,
        default="idleness",
        help=f"{', '.join(metrics)}{', or an event of -e' if events else ''} (default: %(default)s)",
    )
    parser.add_argument(
        "--limit",
        metavar="N",
        type=positive,
        default=DEFAULT_LIMIT,
        help="rows to show at most (default: %(default)s)",
    )


def add_html_option(parser: argparse._ActionsContainer, what: str) -> None:
    """Declare ``--html``. ``what``: the help."""
    parser.add_argument("--html", metavar="OUT", help=f"{what}; - is standard output")


def add_source_option(parser: argparse.ArgumentParser) -> None:
    """Declare ``--no-source``."""
    parser.add_argument(
        "--no-source",
        action="store_true",
        help="leave the text of the program's source out of the page of --html",
    )


class _Blame(argparse.Action):
    """``--blame`` sorts by blame, as ``--sort blame`` does; a measurement also sees that it is asked for."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        namespace.sort = "blame"


def positive(text: str) -> int:
    """A count of at least one, from an argument."""
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return value
