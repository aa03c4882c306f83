"""`parprof diff`: what changed between two profiles."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import field
from typing import TextIO

from rich.text import Text

from parprof.attribution import Effort, percent, verdict
from parprof.attribution.interval import TOLERANCE, Change, amount_of, step_of
from parprof.cct.tree import CallingContextTree
from parprof.cct.views import flat_view
from parprof.commands import scaled
from parprof.commands.comparable import Traits, differences
from parprof.commands.input_views import refuse_saved
from parprof.commands.views import add_html_option, add_row_options
from parprof.exporters import diff_page, pprof, pprof_reader
from parprof.exporters.screen import Screen, elided
from parprof.metrics import METRICS, SAMPLES, Metrics
from parprof.model import Profile
from parprof.units import NANOSECONDS
from parprof.untrusted import printable
from parprof.values import dataclass

DiffKey = tuple[str, str, str]
_REAL_SAMPLED = "real: more than the chance of sampling explains (95 %)"
_REAL_MEASURED = (
    f"real: more than {100 * TOLERANCE:g} % of all core time, as measured times differ from run to run"
)


class DiffCommand:
    """Show what changed from profile A to profile B: totals, efficiency, and each function.

    Of two files of `parprof scale --pprof`: the speed-ups by cores, and each site's part of the least time.
    """

    name = "diff"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("a", metavar="A", help="the profile from before")
        parser.add_argument("b", metavar="B", help="the profile from after")
        add_row_options(parser)
        add_html_option(parser, "write a web page to OUT instead")

    def run(self, args: argparse.Namespace) -> int:
        """Do it. Returns the exit code."""
        if args.html:
            pprof.check_writable(args.html)
        refuse_saved((args.a, args.b), "compare the laws that `parprof report` shows of each file")
        a, b = (pprof_reader.read_as(path, scaled.decode) for path in (args.a, args.b))
        if not isinstance(a, Profile) or not isinstance(b, Profile):
            scaled.diff(args, a, b)
        elif args.html:
            diff_page.write(a, b, args.html, differences([Traits.of(a), Traits.of(b)]))
        else:
            print_diff(a, b, args.sort, args.limit, sys.stdout)
        return 0


@dataclass(slots=True)
class FunctionChange:
    """A function in both profiles."""

    key: DiffKey
    exclusive: tuple[Metrics, Metrics] = field(default_factory=lambda: (Metrics(), Metrics()))
    inclusive: tuple[Metrics, Metrics] = field(default_factory=lambda: (Metrics(), Metrics()))


def changes(a: Profile, b: Profile) -> list[FunctionChange]:
    """The functions of both profiles. They are the same by name and base names, wherever they were built."""
    out: dict[DiffKey, FunctionChange] = {}
    for side, profile in enumerate((a, b)):
        for procedure, row in flat_view(CallingContextTree(profile.samples)).items():
            key = (procedure.name, os.path.basename(procedure.module), os.path.basename(procedure.file))
            change = out.setdefault(key, FunctionChange(key))
            change.exclusive[side].add(row.exclusive)
            change.inclusive[side].add(row.inclusive)
    return list(out.values())


def print_diff(a: Profile, b: Profile, sort: str, limit: int, file: TextIO) -> None:
    """Print totals, then the functions whose own ``sort`` metric changed most.

    Times in seconds; points are differences of percentages of what the metric is a part of: effort, CPU
    time, or all of itself. Only changes that are real have a mark: more than sampling makes, and than measured
    times differ between two runs of one program.
    """
    totals = a.total(), b.total()
    rows = changes(a, b)
    metric = METRICS.by_name()[sort]
    wholes = [total.whole_of(metric) for total in totals]

    def points(pair: tuple[Metrics, Metrics]) -> float:
        return percent(pair[1][metric], wholes[1]) - percent(pair[0][metric], wholes[0])

    def delta(pair: tuple[Metrics, Metrics]) -> float:
        return pair[1][metric] - pair[0][metric]

    def change(pair: tuple[Metrics, Metrics]) -> str:
        return f"{metric.unit.amount(delta(pair)):+.{3 if metric.unit is NANOSECONDS else 0}f}"

    def is_real(pair: tuple[Metrics, Metrics]) -> bool:
        before, after = (
            amount_of(metric, part, total, profile.process.cores, profile.available_ns)
            for part, total, profile in zip(pair, totals, (a, b), strict=True)
        )
        return Change(before, after).is_real

    def mark(row: FunctionChange) -> str:
        if is_real(row.exclusive):
            return "yes"
        return "incl." if is_real(row.inclusive) else ""

    rows = [row for row in rows if delta(row.exclusive) or delta(row.inclusive)]
    rows.sort(key=lambda row: (-abs(delta(row.exclusive)), -abs(delta(row.inclusive)), row.key))
    with Screen(file) as screen:
        for side, profile in zip("AB", (a, b), strict=True):
            screen.fact(side, _headline(profile))
        for sentence in differences([Traits.of(a), Traits.of(b)]):
            screen.fact("note", sentence)
        screen.fact("change", _change(*totals))
        screen.line("")
        unit = metric.unit.shown or "count"
        headings = [
            *((f"{kind}\n{what}", 9) for kind in ("excl.", "incl.") for what in (f"{unit}", "points")),
            ("\nreal", 5),
            (f"change of {sort}\nfunction", 0),
        ]
        width = screen.last_width(headings)
        screen.table(
            headings,
            (
                (
                    [
                        change(row.exclusive),
                        f"{points(row.exclusive):+.1f}",
                        change(row.inclusive),
                        f"{points(row.inclusive):+.1f}",
                        mark(row),
                    ],
                    Text(elided(printable(row.key[0]) or "[unknown]", width)),
                )
                for row in rows[:limit]
            ),
        )
        if rows:
            screen.line(_REAL_SAMPLED if step_of(metric, 1.0, max(a.process.cores, 2)) else _REAL_MEASURED)
        if len(rows) > limit:
            screen.line(f"{len(rows) - limit:,} more beyond --limit {limit}")


def _headline(profile: Profile) -> str:
    total = profile.total()
    useful, overhead, idleness = Effort.of(total).percentages()
    return (
        f"{profile.process.command or profile.process.comm}; {profile.duration_s:.2f} s,"
        f" n = {profile.process.cores}: useful work {useful:.1f} %, overhead {overhead:.1f} %,"
        f" idleness {idleness:.1f} %; {verdict(total).value}"
    )


def _change(a: Metrics, b: Metrics) -> str:
    efficiency = 100 * (Effort.of(b).efficiency - Effort.of(a).efficiency)
    parts = [
        f"{metric.name} {metric.unit.amount(b[metric] - a[metric]):+.3f} {metric.unit.shown}".rstrip()
        for metric in METRICS
        if metric is not SAMPLES and (not metric.optional or a[metric] or b[metric])
    ]
    return f"parallel efficiency {efficiency:+.1f} points; {', '.join(parts)}"
