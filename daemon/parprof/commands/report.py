"""`parprof report`: reads a profile again."""

from __future__ import annotations

import argparse
import gc
import json
import sys

from parprof.commands import scaled
from parprof.commands.showing import print_report, write_page
from parprof.commands.views import add_html_option, add_source_option, add_view_options, view_of
from parprof.exporters import json_report, pprof, pprof_reader, projection
from parprof.facts.reading import decode as decode_facts
from parprof.facts.reading import is_facts
from parprof.input import page as input_page
from parprof.input import saved as saved_input
from parprof.input import terminal
from parprof.input.answer import lines
from parprof.model import Profile
from parprof.profile.assemble import make_profile
from parprof.scale.model import Scale


class ReportCommand:
    """Read a profile file and show where cores stood idle, and which code answers for it.

    A file of facts (--save-facts) is recognised by its content; its profile is made anew. So are those of `parprof
    input` and `parprof scale --pprof`, which are shown as these commands show them.
    """

    name = "report"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "file", metavar="FILE", help="a profile or facts that parprof wrote; - is standard input"
        )
        add_view_options(parser)
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--json", action="store_true", help="print the whole report as JSON instead")
        add_html_option(form, "write a web page to OUT instead")
        add_source_option(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Do it. Returns the exit code."""
        if args.html:
            pprof.check_writable(args.html)
        if saved_input.is_saved(args.file):
            return _report_input(args)
        gc.disable()  # millions of objects and no cycles; nothing is freed before the end
        try:
            return self._run(args)
        finally:
            gc.enable()

    @staticmethod
    def _run(args: argparse.Namespace) -> int:
        profile = pprof_reader.read_as(args.file, _profile_in)
        if isinstance(profile, Scale):
            scaled.report(args, profile)
            return 0
        if args.html:
            write_page(args, profile)
            return 0
        if args.physical:
            profile = projection.physical(profile)
        if args.json:
            json_report.write(profile, sys.stdout)
        else:
            print_report(profile, view_of(args))
        return 0


def _report_input(args: argparse.Namespace) -> int:
    """The report of what `parprof input` wrote."""
    profile = saved_input.read(args.file)
    found = lines(profile)
    if args.html:
        input_page.write(profile, found, args.html)
    elif args.json:
        print(json.dumps(saved_input.as_json(profile, found), indent=1))
    else:
        sys.stdout.write(terminal.report(profile, found))
    return 0


def _profile_in(data: bytes) -> Profile | Scale:
    """The profile in a file, or that of the facts in it; or work and span."""
    if not is_facts(data):
        return scaled.decode(data)
    return make_profile(*decode_facts(data))
