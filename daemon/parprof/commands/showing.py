"""How commands show a profile that they have made or read."""

from __future__ import annotations

import argparse
import sys
from typing import TextIO

from parprof.exporters import outside, projection, table
from parprof.exporters.views import View
from parprof.model import Profile

_DEFAULT_VIEW = View()


def print_report(profile: Profile, view: View = _DEFAULT_VIEW, *, file: TextIO | None = None) -> None:
    """Print the report for people, to standard output unless ``file`` is given."""
    table.render(profile, view, sys.stdout if file is None else file)


def shown(args: argparse.Namespace, profile: Profile) -> Profile:
    """The profile as options want it seen: what is written to files does not depend on them."""
    if args.count_outside:
        profile = outside.counted(profile)
    return projection.physical(profile) if args.physical else profile


def write_page(args: argparse.Namespace, profile: Profile) -> None:
    """Write the page that ``--html`` asks for."""
    from parprof.exporters import html  # a tenth of a second that only who asks for a page has to wait

    html.write(
        shown(args, profile), args.html, source=not args.no_source, unfold=args.unfold or args.physical
    )
