"""The report for people: what to do about it, then one view of the profile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.cells import cell_len
from rich.text import Text

from parprof.attribution import Effort, Verdict, percent, verdict
from parprof.attribution.counters import Ratio, ratios_of
from parprof.attribution.gain import gain_text, row_gain
from parprof.attribution.interval import are_told_apart, metric_interval, period_ns, step_of
from parprof.causes import find_causes
from parprof.cct.tree import CallingContextTree, Node
from parprof.cct.views import CallerNode, FunctionTotals, callers_view, flat_view, fold_recursion
from parprof.errors import UsageError
from parprof.exporters import breakdown
from parprof.exporters.concurrency_table import Column, ConcurrencyTable
from parprof.exporters.readable import readable
from parprof.exporters.screen import Screen, elided, small_bar
from parprof.exporters.summary import facts, first_lines, place
from parprof.exporters.views import View
from parprof.metrics import (
    ACTIVATIONS,
    BYTES,
    COUNT,
    IDLENESS,
    METRICS,
    Metric,
    Metrics,
    Shown,
    brief_bytes,
    event_unit,
)
from parprof.model import Profile
from parprof.untrusted import printable

PRUNE_SHARE = 0.005
"""Rows are left out that hold less than this of all effort, of all samples and of the sort metric."""

CALLERS_FUNCTIONS = 10
"""Functions whose callers the callers view shows, at most."""

_WIDE = 110
_WIDE_FOR_DETAILS = 90
"""From so many columns on there is room for error bars beside the names; with -v, where all is asked for."""

_BAR = 4
"""Cells of the small bar beside idleness on a terminal; a full one is all idleness there is."""
_STYLES = ((20.0, "bold red"), (5.0, "yellow"))
"""From so many percent of effort on idleness has this colour."""

_ROWS_COMPARED = 10
"""So many rows from the top it is said of whether their order may be chance."""

_SAME_SHARE = 0.99
"""A caller and its only callee share a row if the callee has so much of what the caller has."""

_VERDICTS = {
    Verdict.PARALLEL: "ok",
    Verdict.COARSEN: "coarsen",
    Verdict.REFINE: "refine",
    Verdict.SWITCH: "switch",
    Verdict.UNKNOWN: "",
}

Item = Node | CallerNode | FunctionTotals
TreeItem = Node | CallerNode
Weight = tuple[float, float, int]


@dataclass(frozen=True, slots=True)
class _Row:
    guides: str
    items: tuple[Item, ...]
    """A caller and its only callees, as far as they share the row."""
    depth: int = 0


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    width: int
    cell: Callable[[Item, Item], str]
    """Of the first and the last item of a row."""
    of_function: bool = False
    """The last one that is a function is meant, not a loop of it."""


class _Report:
    """One view of one tree, sorted by one metric."""

    def __init__(self, tree: CallingContextTree, profile: Profile, view: View, screen: Screen) -> None:
        self._tree = tree
        self._profile = profile
        self._total = tree.root.inclusive
        self._own = view.view != "context"  # whether rows are mainly about exclusive metrics
        self._view = view
        self._amount = _amount_of(view.sort, self._total)
        self._screen = screen
        self._concurrency = ConcurrencyTable(profile, screen) if view.view == "concurrency" else None

    def print(self) -> None:
        recursive = 0
        view = self._view
        if self._concurrency is not None:
            self._concurrency.print_job()
            if not self._concurrency.has_functions:
                return
        if view.view == "context":
            tree, recursive = self._tree, 0
            if view.recursion == "fold":
                tree, recursive = fold_recursion(self._tree)
            rows, left_out = self._forest(tree.root.children.values())
        elif view.view == "callers":
            rows, left_out = self._forest(self._tops())
        else:
            rows, left_out = self._flat(self._totals())
        columns = self._fitting(self._columns(), rows)
        headings = [*((column.heading, column.width) for column in columns), (self._names_heading(), 0)]
        width = self._screen.last_width(headings)
        self._screen.table(
            headings,
            ((self._looks(self._cells(row, columns), row, columns), self._name(row, width)) for row in rows),
        )
        alike = "; ".join(", ".join(names) for names in self._alike(rows))
        if alike:
            self._screen.fact("", f"Too few samples to tell which is more (95 %): {alike}.")
        if recursive:
            self._screen.line("Recursive calls are folded into the first one.")
        if left_out:
            self._screen.line(
                f"Not shown: {left_out:,} more, below {PRUNE_SHARE:.1%} or beyond --limit {view.limit}."
            )

    def _metrics(self, item: Item) -> Metrics:
        return item.exclusive if self._own else item.inclusive

    def _key(self, metrics: Metrics) -> Weight:
        return self._amount(metrics), metrics.effort_ns, metrics.samples

    def _weight(self, item: Item) -> tuple[Weight, Weight]:
        return self._key(self._metrics(item)), self._key(item.inclusive)

    def _negligible(self, metrics: Metrics) -> bool:
        """Whether a row is not worth showing."""
        shares = zip(self._key(metrics), self._key(self._total), strict=True)
        return not any(whole and part >= PRUNE_SHARE * whole for part, whole in shares)

    def _totals(self) -> list[FunctionTotals]:
        """The rows of a view that is no tree."""
        if self._view.view == "threads":
            return list(breakdown.by_thread(self._profile.samples).values())
        if self._view.view == "lines":
            return breakdown.by_line(self._profile.samples)
        return list(flat_view(self._tree).values())

    def _flat(self, rows: list[FunctionTotals]) -> tuple[list[_Row], int]:
        kept = [row for row in rows if not self._negligible(row.inclusive)]
        if self._concurrency is not None:
            share = self._concurrency.elapsed_share
            kept = [row for row in rows if share(row.procedure) >= PRUNE_SHARE]
        kept.sort(key=lambda row: (self._weight(row), row.procedure), reverse=True)
        kept = kept[: self._view.limit]
        return [_Row("", (row,)) for row in kept], len(rows) - len(kept)

    def _tops(self) -> list[CallerNode]:
        """The functions that the callers view is about."""
        rows = [row for row in flat_view(self._tree).values() if not self._negligible(row.exclusive)]
        rows.sort(key=lambda row: (self._weight(row), row.procedure), reverse=True)
        return callers_view(self._tree, rows[:CALLERS_FUNCTIONS])

    def _forest(self, roots: Iterable[TreeItem]) -> tuple[list[_Row], int]:
        """The heaviest nodes as the lines of a tree, and how many nodes are not shown.

        A caller weighs at least what its callee does and comes first, so no row lacks the row above it. Items that
        share a row count as one.
        """
        candidates: list[tuple[TreeItem, ...]] = []
        left_out = 0
        pending = list(roots)
        while pending:
            item = pending.pop()
            if self._negligible(self._metrics(item)):
                left_out += 1
                continue
            chain = [item]
            while (only := self._only_callee(chain[-1])) is not None:
                left_out += len(chain[-1].children) - 1
                chain.append(only)
            candidates.append(tuple(chain))
            pending.extend(chain[-1].children.values())
        candidates.sort(key=lambda chain: self._weight(chain[0]), reverse=True)
        left_out += max(len(candidates) - self._view.limit, 0)
        return self._drawn(candidates[: self._view.limit]), left_out

    def _only_callee(self, item: TreeItem) -> TreeItem | None:
        """The callee that has nearly all that its caller has, so that one row says it all."""
        if self._view.unfold or self._own:
            return None
        mine = item.inclusive
        least = tuple(_SAME_SHARE * part for part in (*self._key(mine), mine.spin_ns, mine.overhead_ns))
        for callee in item.children.values():
            its = callee.inclusive
            parts = (*self._key(its), its.spin_ns, its.overhead_ns)
            if all(part >= whole for part, whole in zip(parts, least, strict=True)):
                return callee
        return None

    def _drawn(self, kept: list[tuple[TreeItem, ...]]) -> list[_Row]:
        """Draw the trees that these items make, the heaviest first everywhere, as in ``kept``."""
        rank = {id(chain[0]): position for position, chain in enumerate(kept)}
        inner = {id(child) for chain in kept for child in chain[-1].children.values()}
        branch, last_branch, beside, beneath = self._screen.guides
        rows: list[_Row] = []
        pending = [(chain, "", "", 0) for chain in reversed(kept) if id(chain[0]) not in inner]
        while pending:
            chain, guides, before, depth = pending.pop()
            rows.append(_Row(guides, chain, depth))
            places = sorted(rank[id(child)] for child in chain[-1].children.values() if id(child) in rank)
            below = [(kept[at], before + branch, before + beside, depth + 1) for at in places]
            if below:
                below[-1] = (kept[places[-1]], before + last_branch, before + beneath, depth + 1)
            pending.extend(reversed(below))
        return rows

    def _names_heading(self) -> str:
        return {
            "context": "calling context\nfunction (heaviest line)",
            "callers": "function, its callers beneath\n(heaviest line)",
            "flat": "\nfunction (heaviest line)",
            "threads": "\nthread, and where it was most",
            "lines": "\nline, and its function",
            "concurrency": "\nfunction (heaviest line)",
        }[self._view.view]

    def _columns(self) -> list[_Column]:
        """All columns but the last, those that can be spared last."""
        if self._concurrency is not None:
            return self._concurrency_columns(self._concurrency)
        this, other = ("excl", "incl") if self._own else ("incl", "excl")
        whole = self._total.effort_ns

        def share(part: float) -> str:
            return f"{percent(part, whole):.1f}"

        def mine(first: Item, last: Item) -> Metrics:
            return last.exclusive if self._own else first.inclusive

        def others(first: Item, last: Item) -> Metrics:
            return first.inclusive if self._own else last.exclusive

        def idle_bar(first: Item, last: Item) -> str:
            return small_bar(mine(first, last).idleness_ns / (self._total.idleness_ns or 1.0), _BAR)

        def gain(first: Item, last: Item) -> str:
            return gain_text(row_gain(first.inclusive, self._total))

        error_bar = _Column(f"+-\n{this}%", 5, lambda first, last: self._error_bar(mine(first, last)))
        return [
            _Column(f"idle\n{this}%", 5, lambda first, last: share(mine(first, last).idleness_ns)),
            *([_Column("", _BAR, idle_bar)] if self._has_idle_bar() else []),
            _Column(f"idle\n{other}%", 5, lambda first, last: share(others(first, last).idleness_ns)),
            *([error_bar] if self._has_error_bars() else []),
            _Column(f"use\n{this}%", 5, lambda first, last: share(Effort.of(mine(first, last)).useful_ns)),
            _Column(f"ovhd\n{this}%", 5, lambda first, last: share(mine(first, last).overhead_ns)),
            *(self._metric_column(metric, this, mine) for metric in self._shown_metrics()),
            *(self._event_column(event, this, mine) for event in sorted(self._total.events)),
            *(
                self._ratio_column(one, this, mine)
                for one in ratios_of(self._total.events, self._total.cpu_ns)
            ),
            *(self._call_columns() if self._tells_calls() else ()),
            _Column(f"samples\n{this}.", 7, lambda first, last: str(mine(first, last).samples)),
            _Column("verdict\nincl.", 7, lambda first, last: _VERDICTS[verdict(first.inclusive)]),
            *([_Column("x if\nfixed", 5, gain)] if self._has_gains() else []),
        ]

    def _tells_calls(self) -> bool:
        """Whether rows are functions in call paths, of which calls were told apart; with -v, where there is room."""
        by_path = self._view.view in ("context", "callers", "flat")
        return self._view.details and by_path and self._total[ACTIVATIONS] > 0

    def _call_columns(self) -> list[_Column]:
        """How often the row's function was called, at least, and so what a call took at most: few long calls, or many
        short ones."""

        def calls(item: Item) -> float:
            return item.exclusive[ACTIVATIONS]

        def per_call(item: Item) -> str:
            return f"{item.inclusive.cpu_ns / calls(item) / 1e6:,.1f}" if calls(item) else ""

        def at_least(item: Item) -> str:
            return COUNT.text(calls(item)) if calls(item) else ""

        columns = [_Column("calls\n>=", 7, lambda first, last: at_least(last), of_function=True)]
        if self._view.view != "callers":  # what these have beneath are their callers, not what they call
            columns.append(_Column("ms/call\n<=", 8, lambda first, last: per_call(last), of_function=True))
        return columns

    @staticmethod
    def _concurrency_columns(table: ConcurrencyTable) -> list[_Column]:
        def cell(column: Column) -> Callable[[Item, Item], str]:
            return lambda first, _: column.cell(table.of(first.procedure))

        return [_Column(column.heading, column.width, cell(column)) for column in table.columns()]

    def _has_idle_bar(self) -> bool:
        return self._screen.has_bars and self._total.idleness_ns > 0

    def _looks(self, cells: list[str], row: _Row, columns: Sequence[_Column]) -> list[str | Text]:
        """Colours for what the first column says, and its bar, on a terminal."""
        if self._concurrency is not None or not self._screen.has_colours:
            return list(cells)
        idle = percent(self._metrics_shown(row).idleness_ns, self._total.effort_ns)
        style = next((style for least, style in _STYLES if idle >= least), "")
        return [
            Text(cell, style) if not at or not columns[at].heading else cell for at, cell in enumerate(cells)
        ]

    def _metrics_shown(self, row: _Row) -> Metrics:
        """What the first column is about."""
        return row.items[-1].exclusive if self._own else row.items[0].inclusive

    def _has_error_bars(self) -> bool:
        """Whether there is room for them, or they are asked for."""
        screen = self._screen
        return not screen.is_limited or screen.width >= (_WIDE_FOR_DETAILS if self._view.details else _WIDE)

    def _has_gains(self) -> bool:
        """Whether there is room for what a fix would gain at best: always among functions, whose names need little."""
        if self._concurrency is not None:
            return False
        return self._view.view == "flat" or self._has_error_bars()

    def _error_bar(self, metrics: Metrics) -> str:
        """How far the share of idleness may be off, in percent of effort, with 95 % probability."""
        _, high = metric_interval(IDLENESS, metrics, self._total, self._profile.process.cores)
        share = percent(metrics.idleness_ns, self._total.effort_ns)
        return f"{max(100 * high - share, 0.0):.1f}"

    def _alike(self, rows: Sequence[_Row]) -> list[list[str]]:
        """Names of rows next to each other, of one caller, of which the first may as well be the last.

        Only those that begin among the first few rows.
        """
        metric = METRICS.by_name().get(self._view.sort)
        step = step_of(metric, period_ns(self._total), self._profile.process.cores) if metric else 0.0
        groups: list[list[str]] = []
        seen: set[int] = set()
        for first in range(min(len(rows), _ROWS_COMPARED)):
            most = self._amount(self._metrics(rows[first].items[0]))
            group, at = [first], _next_sibling(rows, first)
            while at and first not in seen:
                amount = self._amount(self._metrics(rows[at].items[0]))
                if not amount or are_told_apart(most, amount, step):
                    break
                group.append(at)
                at = _next_sibling(rows, at)
            if len(group) > 1:
                seen.update(group)
                groups.append([_named(rows[one].items[-1]) for one in group])
        return groups

    def _fitting(self, columns: list[_Column], rows: Sequence[_Row]) -> list[_Column]:
        """As many columns as leave the names whole, where there is no room for all; but the first ones always."""
        if not self._screen.is_limited:
            return columns
        needed = max((cell_len(row.guides) + cell_len(self._whole_name(row)) for row in rows), default=0)
        for spared in (_without_bar, *[_without_last] * (3 if self._has_gains() else 2)):
            room = self._screen.width - sum(column.width + 1 for column in columns)
            if needed > room:
                columns = spared(columns)
        return columns

    def _shown_metrics(self) -> list[Metric]:
        """The metrics with columns of their own, where there is anything of them; and the one that rows are sorted by,
        unless it has a column anyway."""
        shown = [metric for metric in METRICS.at(Shown.COLUMN) if self._total[metric]]
        sort = METRICS.by_name().get(self._view.sort)
        if sort is not None and sort not in shown and sort.optional and self._total[sort]:
            shown.append(sort)
        return shown

    def _metric_column(self, metric: Metric, kind: str, mine: Callable[[Item, Item], Metrics]) -> _Column:
        unit = metric.unit
        name = f"{metric.name} {unit.shown}".rstrip()
        largest = f"{unit.amount(self._total[metric]):.{unit.digits}f}"
        return _Column(
            f"{name}\n{kind}.",
            max(6, len(name), len(largest)),
            lambda first, last: f"{unit.amount(mine(first, last)[metric]):.{unit.digits}f}",
        )

    @staticmethod
    def _event_column(event: str, kind: str, mine: Callable[[Item, Item], Metrics]) -> _Column:
        name = printable(event)
        text = brief_bytes if event_unit(event) is BYTES else COUNT.text
        return _Column(
            f"{name}\n{kind}.",
            min(max(8, cell_len(name)), 16),
            lambda first, last: text(mine(first, last).events.get(event, 0)),
        )

    @staticmethod
    def _ratio_column(ratio: Ratio, kind: str, mine: Callable[[Item, Item], Metrics]) -> _Column:
        def cell(first: Item, last: Item) -> str:
            metrics = mine(first, last)
            value = ratio.value(metrics.events, metrics.cpu_ns)
            return f"{value:.2f}" if value is not None else ""

        return _Column(f"{ratio.name}\n{kind}.", max(6, cell_len(ratio.name)), cell)

    def _cells(self, row: _Row, columns: Sequence[_Column]) -> list[str]:
        last = row.items[-1]
        function = next((item for item in reversed(row.items) if not item.procedure.is_loop), last)
        return [column.cell(row.items[0], function if column.of_function else last) for column in columns]

    def _whole_name(self, row: _Row) -> str:
        where = self._where(row)
        return " > ".join(map(_named, row.items)) + (f" {where}" if where else "")

    def _where(self, row: _Row) -> str:
        last = row.items[-1]
        sort = METRICS.by_name().get(self._view.sort) or METRICS.by_name()["work"]
        return place(last.procedure, last.hottest_line(sort))

    def _name(self, row: _Row, width: int) -> Text:
        guides = row.guides
        deepest = width // 4 * 2
        if len(guides) > deepest:  # too deep to draw: say how deep instead
            mark = f"{row.depth}: "
            guides = mark + guides[len(guides) - deepest + len(mark) :]
        last = row.items[-1].procedure
        where = self._where(row)
        room = width - len(guides)
        names = [_named(item) for item in row.items]
        name = " > ".join(names)
        least = 12 if last.file else room * 2 // 3  # a source line says more than a name, a library less
        if last.is_loop and cell_len(f"{name} {where}") > room:
            where = ""  # its name says enough
        if len(names) > 1 and cell_len(f"{name} {where}") > room:
            name = _shorter(names, room - cell_len(where) - 1)
        where = elided(f" {where}", room - min(cell_len(name), least)) if where else ""
        name = elided(name, room - cell_len(where))
        return Text.assemble((guides, "dim"), name, (where, "dim"))


def _without_bar(columns: list[_Column]) -> list[_Column]:
    return [column for column in columns if column.heading]


def _without_last(columns: list[_Column]) -> list[_Column]:
    return columns[:-1]


def _next_sibling(rows: Sequence[_Row], at: int) -> int:
    """The next row below the same caller; 0: there is none."""
    for other in range(at + 1, len(rows)):
        if rows[other].depth <= rows[at].depth:
            return other if rows[other].depth == rows[at].depth else 0
    return 0


def _named(item: Item) -> str:
    return printable(item.procedure.name) or "[unknown]"


def _shorter(names: list[str], room: int) -> str:
    """A chain of calls without as many of its middle ones as need be."""
    for kept in range(len(names) - 2, -1, -1):
        shown = " > ".join(
            [names[0], "..", *names[len(names) - kept :]] if kept else [names[0], "..", names[-1]]
        )
        if cell_len(shown) <= room:
            return shown
    return f".. > {names[-1]}"


def _amount_of(sort: str, total: Metrics) -> Callable[[Metrics], float]:
    """How much a row has of what rows are sorted by.

    Raises:
        UsageError: there is no such metric or event.
    """
    metric = METRICS.by_name().get(sort)
    if metric is not None:
        return lambda metrics: metrics[metric]
    if sort in total.events or not total.samples:
        return lambda metrics: metrics.events.get(sort, 0)
    known = ", ".join([*METRICS.by_name(), *sorted(map(printable, total.events))])
    raise UsageError(f"--sort {printable(sort)}: there is no such metric or event here; take one of {known}")


def render(profile: Profile, view: View, file: TextIO) -> None:
    """Print the report.

    Raises:
        UsageError: rows cannot be sorted by that.
    """
    causes = find_causes(profile)
    shown = profile if view.unfold else readable(profile)
    tree = CallingContextTree(shown.samples)
    with Screen(file, view.width) as screen:
        if view.details:
            for fact in facts(profile, tree, causes):
                screen.fact(fact.label, fact.text)
        else:
            first_lines(screen, profile, causes)
        if tree.root.inclusive:
            screen.line("")
            _Report(tree, shown, view, screen).print()
