"""How commands show a profile that they have made or read."""

from __future__ import annotations

import argparse
import sys
from typing import TextIO

from parprof.exporters import projection, table
from parprof.exporters.views import View
from parprof.model import Profile

_DEFAULT_VIEW = View()


def print_report(
    profile: Profile, view: View = _DEFAULT_VIEW, *, physical: bool = False, file: TextIO | None = None
) -> None:
    """Print the report for people, to standard output unless ``file`` is given.

    ``physical``: by physical call paths instead of logical ones.
    """
    if physical:
        profile = projection.physical(profile)
    table.render(profile, view, sys.stdout if file is None else file)


def write_page(args: argparse.Namespace, profile: Profile) -> None:
    """Write the page that ``--html`` asks for."""
    from parprof.exporters import html  # a tenth of a second that only who asks for a page has to wait

    shown = projection.physical(profile) if args.physical else profile
    html.write(shown, args.html, source=not args.no_source, unfold=args.unfold or args.physical)
