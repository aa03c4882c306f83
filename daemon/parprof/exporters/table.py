"""The report for people: what to do about it, then one view of the profile."""

from __future__ import annotations

from typing import TextIO

from parprof.causes.ranking import find_causes
from parprof.cct.tree import CallingContextTree
from parprof.exporters.concurrency_table import ConcurrencyTable
from parprof.exporters.readable import readable
from parprof.exporters.screen import Screen
from parprof.exporters.sources import changed_since
from parprof.exporters.summary import facts, first_lines
from parprof.exporters.table_columns import Columns
from parprof.exporters.table_names import RowNames, named
from parprof.exporters.table_rows import PRUNE_SHARE, Rows
from parprof.exporters.views import View
from parprof.metrics import BLAME
from parprof.model import Profile
from parprof.untrusted import printable


def render(profile: Profile, view: View, file: TextIO) -> None:
    """Print the report.

    Raises:
        UsageError: rows cannot be sorted by that.
    """
    causes = find_causes(profile)
    shown = profile if view.unfold else readable(profile)
    tree = CallingContextTree(shown.samples)
    changed = changed_since(profile, (cause.file for cause in causes))
    with Screen(file, view.width) as screen:
        if view.details:
            for fact in facts(profile, tree, causes):
                screen.fact(fact.label, fact.text)
            if changed:
                screen.fact("note", printable(changed))
        else:
            first_lines(screen, profile, causes, printable(changed))
        if tree.root.inclusive:
            screen.line("")
            _print_view(tree, shown, view, screen)


def _print_view(tree: CallingContextTree, profile: Profile, view: View, screen: Screen) -> None:
    concurrency = ConcurrencyTable(profile, screen) if view.view == "concurrency" else None
    share = concurrency.elapsed_share if concurrency else None
    rows = Rows(tree, profile, view, screen.guides, share)
    if concurrency is not None:
        concurrency.print_job()
        if not concurrency.has_functions:
            return
    chosen = rows.choose()
    names = RowNames(view)
    columns = Columns(tree.root.inclusive, profile.process.cores, view, screen, concurrency)
    shown = columns.fitting(names.widest(chosen.rows) if screen.is_limited else 0)
    headings = [*((column.heading, column.width) for column in shown), (names.heading, 0)]
    width = screen.last_width(headings)
    screen.table(headings, ((columns.cells(row, shown), names.shown(row, width)) for row in chosen.rows))
    if chosen.rows and not rows.has_order:
        how = ": it is recorded with --blame locks" if view.sort == BLAME.name else ""
        screen.fact("", f"No row has any {view.sort}, by which they are sorted{how}.")
    alike = "; ".join(", ".join(map(named, items)) for items in rows.alike(chosen.rows))
    if alike:
        screen.fact("", f"Too few samples to tell which is more (95 %): {alike}.")
    if chosen.recursive:
        screen.line("Recursive calls are folded into the first one.")
    if chosen.left_out:
        screen.line(
            f"Not shown: {chosen.left_out:,} more, below {PRUNE_SHARE:.1%} or beyond --limit {view.limit}."
        )
