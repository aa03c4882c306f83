"""`parprof report`: reads a profile again."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence

from parprof.commands import scaled
from parprof.commands.input_views import add_earlier, add_earlier_option, add_routine_option, show
from parprof.commands.showing import print_report, shown, write_page
from parprof.commands.views import (
    add_html_option,
    add_source_option,
    add_view_options,
    positive,
    view_of,
)
from parprof.errors import UsageError
from parprof.exporters import json_report, pprof, pprof_reader
from parprof.exporters.on_cores import on_cores
from parprof.facts.reading import decode as decode_facts
from parprof.facts.reading import is_facts
from parprof.input import saved as saved_input
from parprof.input.answer import check_pattern
from parprof.input.terminal import MAX_ROUTINES
from parprof.model import Profile
from parprof.profile.assemble import make_profile
from parprof.scale.model import Scale

_OF_INPUT = "of a file of parprof input: "
_FOR_INPUT = ("routine", "earlier", "merged")
_FOR_OTHERS = (
    "view",
    "physical",
    "count_outside",
    "unfold",
    "recursion",
    "sort",
    "width",
    "blame",
    "no_source",
    "cores",
)


class ReportCommand:
    """Read a profile file and show where cores stood idle, and which code answers for it.

    A file of facts (--save-facts) is recognised by its content; its profile is made anew. So are those of `parprof
    input` and `parprof scale --pprof`, which are shown as these commands show them.
    """

    name = "report"

    def __init__(self) -> None:
        self._defaults: dict[str, object] = {}

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "file", metavar="FILE", help="a profile or facts that parprof wrote; - is standard input"
        )
        add_view_options(parser)
        add_routine_option(parser, _OF_INPUT)
        add_earlier_option(parser, _OF_INPUT)
        parser.add_argument(
            "--merged",
            action="store_true",
            help=f"{_OF_INPUT}put together what --contexts and --by-thread told apart",
        )
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--json", action="store_true", help="print the whole report as JSON instead")
        add_html_option(form, "write a web page to OUT instead")
        add_source_option(parser)
        parser.add_argument(
            "--cores",
            metavar="N",
            type=positive,
            help="as if so many cores had been there: what more of them would waste, and what a fix would gain then "
            "(default: as it was measured)",
        )
        self._defaults = {name: parser.get_default(name) for name in (*_FOR_INPUT, *_FOR_OTHERS, "limit")}

    def run(self, args: argparse.Namespace) -> int:
        """Do it. Returns the exit code."""
        check_pattern(args.routine)
        if args.html:
            pprof.check_writable(args.html)
        if saved_input.is_saved(args.file):
            return self._report_input(args)
        gc.disable()  # millions of objects and no cycles; nothing is freed before the end
        try:
            return self._run(args)
        finally:
            gc.enable()

    def _run(self, args: argparse.Namespace) -> int:
        self._refuse(args, _FOR_INPUT, "files of parprof input alone, and this is none")
        profile = pprof_reader.read_as(args.file, _profile_in)
        if isinstance(profile, Scale):
            self._refuse(
                args, ("cores",), "profiles of time; `parprof scale --threads` has predictions for more"
            )
            scaled.report(args, profile)
            return 0
        if args.cores:
            profile = on_cores(profile, args.cores)
        if args.html:
            write_page(args, profile)
            return 0
        profile = shown(args, profile)
        if args.json:
            json_report.write(profile, sys.stdout)
        else:
            print_report(profile, view_of(args))
        return 0

    def _report_input(self, args: argparse.Namespace) -> int:
        """The report of what `parprof input` wrote."""
        profile = saved_input.read(args.file)
        self._refuse(args, _FOR_OTHERS, "profiles of time; this is a file of parprof input")
        add_earlier(profile, [saved_input.read(path) for path in args.earlier])
        show(
            profile.merged() if args.merged else profile,
            pattern=args.routine,
            limit=MAX_ROUTINES if args.limit == self._defaults["limit"] else args.limit,
            as_json=args.json,
            html=args.html,
            is_page_all=True,
        )
        return 0

    def _refuse(self, args: argparse.Namespace, names: Sequence[str], why: str) -> None:
        for name in names:
            if getattr(args, name) != self._defaults[name]:
                option = "with" if name == "earlier" else name.replace("_", "-")
                raise UsageError(f"--{option} is for {why}")


def _profile_in(data: bytes) -> Profile | Scale:
    """The profile in a file, or that of the facts in it; or work and span."""
    if not is_facts(data):
        return scaled.decode(data)
    return make_profile(*decode_facts(data))
