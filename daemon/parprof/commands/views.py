"""The options that say how a profile is to be shown, as far as commands share them."""

from __future__ import annotations

import argparse
from typing import Any

from parprof.exporters.views import DEFAULT_LIMIT, VIEWS
from parprof.metrics import METRICS


def add_view_options(parser: argparse.ArgumentParser) -> None:
    """Declare ``--view``, ``--physical``, ``--sort`` and ``--limit``, as `report.print_report` takes them, and
    ``--blame``."""
    parser.add_argument(
        "--view",
        choices=VIEWS,
        default="context",
        help="call paths from the root, functions and their callers, or functions (default: %(default)s)",
    )
    parser.add_argument(
        "--physical",
        action="store_true",
        help="stacks as they were, the runtime's frames included, instead of logical call paths",
    )
    add_row_options(parser)
    parser.add_argument(
        "--blame",
        choices=("locks",),
        action=_Blame,
        help="who made others wait: sort by the time that threads waited for locks which a call path held",
    )


def add_row_options(parser: argparse.ArgumentParser) -> None:
    """Declare ``--sort`` and ``--limit``."""
    metrics = tuple(METRICS.by_name())
    parser.add_argument(
        "--sort",
        metavar="METRIC",
        choices=metrics,
        default="idleness",
        help=f"{', '.join(metrics)} (default: %(default)s)",
    )
    parser.add_argument(
        "--limit",
        metavar="N",
        type=_positive,
        default=DEFAULT_LIMIT,
        help="rows to show at most (default: %(default)s)",
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


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return value
