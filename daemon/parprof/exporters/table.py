"""The report for terminals: facts, then one view of the profile, in 80 columns or more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TextIO

from rich.cells import cell_len
from rich.text import Text

from parprof.attribution import Effort, Verdict, percent, verdict
from parprof.cct.tree import CallingContextTree, Node, weight
from parprof.cct.views import Caller, FunctionTotals, callers_view, flat_view, fold_recursion
from parprof.exporters.screen import Screen, elided
from parprof.exporters.summary import facts, place
from parprof.metrics import METRICS, Metric, Metrics, Shown
from parprof.model import Profile
from parprof.untrusted import printable

PRUNE_SHARE = 0.005
"""Rows are left out that hold less than this of all effort, of all samples and of the sort metric."""

CALLERS_FUNCTIONS = 10
"""Functions whose callers the callers view shows, at most."""

_VERDICTS = {
    Verdict.PARALLEL: "ok",
    Verdict.COARSEN: "coarsen",
    Verdict.REFINE: "refine",
    Verdict.SWITCH: "switch",
    Verdict.UNKNOWN: "",
}

Item = Node | Caller | FunctionTotals
TreeItem = Node | Caller
Weight = tuple[float, float, int]


@dataclass(frozen=True, slots=True)
class _Row:
    guides: str
    item: Item


class _Report:
    """One view of one tree, sorted by one metric."""

    def __init__(self, tree: CallingContextTree, view: str, sort: Metric, limit: int, screen: Screen) -> None:
        self._tree = tree
        self._total = tree.root.inclusive
        self._own = view != "context"  # whether rows are mainly about exclusive metrics
        self._view = view
        self._sort = sort
        self._limit = limit
        self._screen = screen

    def print(self) -> None:
        recursive = 0
        if self._view == "flat":
            rows, left_out = self._flat()
        elif self._view == "callers":
            rows, left_out = self._forest(self._tops())
        else:
            folded, recursive = fold_recursion(self._tree)
            rows, left_out = self._forest(folded.root.children.values())
        headings = self._headings()
        width = self._screen.last_width(headings)
        self._screen.table(headings, ((self._cells(row.item), self._name(row, width)) for row in rows))
        if recursive:
            self._screen.line("Recursive calls are folded into the first one.")
        if left_out:
            self._screen.line(
                f"Not shown: {left_out:,} more, below {PRUNE_SHARE:.1%} or beyond --limit {self._limit}."
            )

    def _metrics(self, item: Item) -> Metrics:
        return item.exclusive if self._own else item.inclusive

    def _weight(self, item: Item) -> tuple[Weight, Weight]:
        return weight(self._metrics(item), self._sort), weight(item.inclusive, self._sort)

    def _negligible(self, metrics: Metrics) -> bool:
        """Whether a row is not worth showing."""
        shares = zip(weight(metrics, self._sort), weight(self._total, self._sort), strict=True)
        return not any(whole and part >= PRUNE_SHARE * whole for part, whole in shares)

    def _flat(self) -> tuple[list[_Row], int]:
        rows = list(flat_view(self._tree).values())
        kept = [row for row in rows if not self._negligible(row.inclusive)]
        kept.sort(key=lambda row: (self._weight(row), row.procedure), reverse=True)
        kept = kept[: self._limit]
        return [_Row("", row) for row in kept], len(rows) - len(kept)

    def _tops(self) -> list[Caller]:
        """The functions that the callers view is about."""
        rows = [row for row in flat_view(self._tree).values() if not self._negligible(row.exclusive)]
        rows.sort(key=lambda row: (self._weight(row), row.procedure), reverse=True)
        return callers_view(self._tree, rows[:CALLERS_FUNCTIONS])

    def _forest(self, roots: Iterable[TreeItem]) -> tuple[list[_Row], int]:
        """The heaviest nodes as the lines of a tree, and how many nodes are not shown.

        A caller weighs at least what its callee does and comes first, so no row lacks the row above it.
        """
        candidates: list[TreeItem] = []
        left_out = 0
        pending = list(roots)
        while pending:
            item = pending.pop()
            if self._negligible(self._metrics(item)):
                left_out += 1
            else:
                candidates.append(item)
                pending.extend(item.children.values())
        candidates.sort(key=self._weight, reverse=True)
        left_out += max(len(candidates) - self._limit, 0)
        return self._drawn(candidates[: self._limit]), left_out

    def _drawn(self, kept: list[TreeItem]) -> list[_Row]:
        """Draw the trees that these items make, the heaviest first everywhere, as in ``kept``."""
        rank = {id(item): position for position, item in enumerate(kept)}
        inner = {id(child) for item in kept for child in item.children.values()}
        branch, last_branch, beside, beneath = self._screen.guides
        rows: list[_Row] = []
        pending = [(item, "", "") for item in reversed(kept) if id(item) not in inner]
        while pending:
            item, guides, before = pending.pop()
            rows.append(_Row(guides, item))
            children = [child for child in item.children.values() if id(child) in rank]
            children.sort(key=lambda child: rank[id(child)])
            below = [(child, before + branch, before + beside) for child in children]
            if below:
                below[-1] = (children[-1], before + last_branch, before + beneath)
            pending.extend(reversed(below))
        return rows

    def _headings(self) -> list[tuple[str, int]]:
        this, other = ("excl", "incl") if self._own else ("incl", "excl")
        names = {
            "context": "calling context\nfunction (heaviest line)",
            "callers": "function, its callers beneath\n(heaviest line)",
            "flat": "\nfunction (heaviest line)",
        }
        percentages = [f"idle\n{this}%", f"idle\n{other}%", f"use\n{this}%", f"ovhd\n{this}%"]
        return [
            *((heading, 5) for heading in percentages),
            *(self._heading(metric, this) for metric in self._columns()),
            (f"samples\n{this}.", 7),
            ("verdict\nincl.", 7),
            (names[self._view], 0),
        ]

    def _columns(self) -> list[Metric]:
        """The metrics with columns of their own, where there is anything of them; and the one that rows are sorted by,
        unless it has a column anyway."""
        shown = [metric for metric in METRICS.at(Shown.COLUMN) if self._total[metric]]
        sort = self._sort
        if sort not in shown and sort.optional and self._total[sort]:
            shown.append(sort)
        return shown

    @staticmethod
    def _heading(metric: Metric, kind: str) -> tuple[str, int]:
        name = f"{metric.name} {metric.unit.shown}".rstrip()
        return f"{name}\n{kind}.", max(6, len(name))

    def _cells(self, item: Item) -> list[str]:
        this, other = item.inclusive, item.exclusive
        if self._own:
            this, other = other, this
        whole = self._total.effort_ns
        useful = Effort.of(this).useful_ns
        parts = (this.idleness_ns, other.idleness_ns, useful, this.overhead_ns)
        return [
            *(f"{percent(part, whole):.1f}" for part in parts),
            *(f"{metric.unit.amount(this[metric]):.{metric.unit.digits}f}" for metric in self._columns()),
            str(this.samples),
            _VERDICTS[verdict(item.inclusive)],
        ]

    def _name(self, row: _Row, width: int) -> Text:
        procedure, guides = row.item.procedure, row.guides
        deepest = width // 4 * 2
        if len(guides) > deepest:
            guides = ".." + guides[len(guides) - deepest + 2 :]
        where = place(procedure, row.item.hottest_line(self._sort))
        room = width - len(guides)
        name = printable(procedure.name) or "[unknown]"
        least = 12 if procedure.file else room * 2 // 3  # a source line says more than a name, a library less
        if procedure.is_loop and cell_len(f"{name} {where}") > room:
            where = ""  # its name says enough
        where = elided(f" {where}", room - min(cell_len(name), least)) if where else ""
        name = elided(name, room - cell_len(where))
        return Text.assemble((guides, "dim"), name, (where, "dim"))


def render(profile: Profile, view: str, sort: str, limit: int, file: TextIO) -> None:
    """Print the report: ``view`` is one of `views.VIEWS`, ``sort`` the name of a metric."""
    tree = CallingContextTree(profile.samples)
    with Screen(file) as screen:
        for fact in facts(profile, tree):
            screen.fact(fact.label, fact.text)
        if tree.root.inclusive:
            screen.line("")
            _Report(tree, view, METRICS.by_name()[sort], limit, screen).print()
