"""What `parprof report` and `diff` do with the files that `parprof scale --pprof` writes."""

from __future__ import annotations

import argparse
import sys

from parprof.errors import ProfileFormatError
from parprof.exporters import pprof_reader, scale_diff, scale_json, scale_page, scale_pprof, scale_table
from parprof.exporters.output import open_output
from parprof.exporters.webpage import WebPage
from parprof.model import Profile
from parprof.scale.model import Scale


def decode(data: bytes) -> Profile | Scale:
    """What an uncompressed pprof file holds.

    Raises:
        ProfileFormatError: it is not of parprof.
    """
    scale = scale_pprof.decode(data)
    return pprof_reader.decode(data) if scale is None else scale


def report(args: argparse.Namespace, scale: Scale) -> None:
    """Show it as `parprof scale` did."""
    if args.html:
        write_page(scale_page.page(scale), args.html)
    elif args.json:
        sys.stdout.write(scale_json.to_json(scale))
    else:
        sys.stdout.write(scale_table.text(scale, args.limit))


def diff(args: argparse.Namespace, a: Profile | Scale, b: Profile | Scale) -> None:
    """Compare two.

    Raises:
        ProfileFormatError: they cannot be compared.
    """
    if not isinstance(a, Scale) or not isinstance(b, Scale):
        raise ProfileFormatError("one is of work and span, the other of idleness: compare files of one kind")
    found = scale_diff.change(a, b)
    if args.html:
        write_page(scale_diff.page(found), args.html)
    else:
        sys.stdout.write(scale_diff.to_text(found, args.limit))


def write_page(page: WebPage, path: str) -> None:
    """Write a page to a file (``-``: standard output)."""
    with open_output(path) as file:
        file.write(page.html().encode("utf-8", "backslashreplace"))
