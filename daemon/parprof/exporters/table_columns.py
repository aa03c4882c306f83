"""What a table says of each row, but for its name: the columns of a view, as many as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len
from rich.text import Text

from parprof.attribution import Effort, Verdict, percent, verdict
from parprof.attribution.counters import Ratio, ratios_of
from parprof.attribution.gain import gain_text, row_gain
from parprof.attribution.interval import metric_interval
from parprof.exporters import concurrency_table
from parprof.exporters.concurrency_table import ConcurrencyTable
from parprof.exporters.screen import Screen, small_bar
from parprof.exporters.table_rows import Item, Row, called_function, tells_calls
from parprof.exporters.views import View
from parprof.metrics import ACTIVATIONS, IDLENESS, METRICS, Metric, Metrics, Shown
from parprof.units import BYTES, COUNT, brief_bytes, event_unit
from parprof.untrusted import printable
from parprof.values import dataclass

_WIDE = 110
_WIDE_FOR_DETAILS = 90
"""From so many columns on there is room for error bars beside the names; with -v, where all is asked for."""

_BAR = 4
"""Cells of the small bar beside idleness on a terminal; a full one is all idleness there is."""
_STYLES = ((20.0, "bold red"), (5.0, "yellow"))
"""From so many percent of effort on idleness has this colour."""

_VERDICTS = {
    Verdict.PARALLEL: "ok",
    Verdict.COARSEN: "coarsen",
    Verdict.REFINE: "refine",
    Verdict.SWITCH: "switch",
    Verdict.UNKNOWN: "",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One number of each row."""

    heading: str
    width: int
    cell: Callable[[Item, Item], str]
    """Of the first and the last item of a row."""
    of_function: bool = False
    """The one whose calls the row tells is meant, not the last one."""


class Columns:
    """Those of one view of a profile."""

    def __init__(
        self, total: Metrics, cores: int, view: View, screen: Screen, concurrency: ConcurrencyTable | None
    ) -> None:
        """``total``: of the whole profile. ``concurrency``: the table that has the columns of that view."""
        self._total = total
        self._cores = cores
        self._view = view
        self._screen = screen
        self._concurrency = concurrency
        self._own = view.is_exclusive

    def fitting(self, needed: int) -> list[Column]:
        """As many columns as leave ``needed`` ones for the names, where there is no room for all; but the first ones
        always."""
        columns = self._all()
        if not self._screen.is_limited:
            return columns
        for spared in (_without_bar, *[_without_last] * (3 if self._has_gains() else 2)):
            room = self._screen.width - sum(column.width + 1 for column in columns)
            if needed > room:
                columns = spared(columns)
        return columns

    def cells(self, row: Row, columns: Sequence[Column]) -> list[str | Text]:
        """What these say of a row."""
        last = row.items[-1]
        function = called_function(row.items)
        texts = [column.cell(row.items[0], function if column.of_function else last) for column in columns]
        return self._coloured(texts, row, columns)

    def _coloured(self, cells: list[str], row: Row, columns: Sequence[Column]) -> list[str | Text]:
        """Colours for what the first column says, and its bar, on a terminal."""
        if self._concurrency is not None or not self._screen.has_colours:
            return list(cells)
        idle = percent(self._metrics_shown(row).idleness_ns, self._total.effort_ns)
        style = next((style for least, style in _STYLES if idle >= least), "")
        return [
            Text(cell, style) if not at or not columns[at].heading else cell for at, cell in enumerate(cells)
        ]

    def _metrics_shown(self, row: Row) -> Metrics:
        """What the first column is about."""
        return row.items[-1].exclusive if self._own else row.items[0].inclusive

    def _all(self) -> list[Column]:
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

        error_bar = Column(f"+-\n{this}%", 5, lambda first, last: self._error_bar(mine(first, last)))
        return [
            Column(f"idle\n{this}%", 5, lambda first, last: share(mine(first, last).idleness_ns)),
            *([Column("", _BAR, idle_bar)] if self._has_idle_bar() else []),
            Column(f"idle\n{other}%", 5, lambda first, last: share(others(first, last).idleness_ns)),
            *([error_bar] if self._has_error_bars() else []),
            Column(f"use\n{this}%", 5, lambda first, last: share(Effort.of(mine(first, last)).useful_ns)),
            Column(f"ovhd\n{this}%", 5, lambda first, last: share(mine(first, last).overhead_ns)),
            *(self._metric_column(metric, this, mine) for metric in self._shown_metrics()),
            *(self._event_column(event, this, mine) for event in sorted(self._total.events)),
            *(
                self._ratio_column(one, this, mine)
                for one in ratios_of(self._total.events, self._total.cpu_ns)
            ),
            *(self._call_columns() if tells_calls(self._view, self._total) else ()),
            Column(f"samples\n{this}.", 7, lambda first, last: str(mine(first, last).samples)),
            Column("verdict\nincl.", 7, lambda first, last: _VERDICTS[verdict(first.inclusive)]),
            *([Column("x if\nfixed", 5, gain)] if self._has_gains() else []),
        ]

    def _call_columns(self) -> list[Column]:
        """How often the row's function was called, at least, and so what a call took at most: few long calls, or many
        short ones."""

        def calls(item: Item) -> float:
            return item.exclusive[ACTIVATIONS]

        def per_call(item: Item) -> str:
            return f"{item.inclusive.cpu_ns / calls(item) / 1e6:,.1f}" if calls(item) else ""

        def at_least(item: Item) -> str:
            return COUNT.text(calls(item)) if calls(item) else ""

        columns = [Column("calls\n>=", 7, lambda first, last: at_least(last), of_function=True)]
        if self._view.view != "callers":  # what these have beneath are their callers, not what they call
            columns.append(Column("ms/call\n<=", 8, lambda first, last: per_call(last), of_function=True))
        return columns

    @staticmethod
    def _concurrency_columns(table: ConcurrencyTable) -> list[Column]:
        def cell(column: concurrency_table.LevelColumn) -> Callable[[Item, Item], str]:
            return lambda first, _: column.cell(table.of(first.procedure))

        return [Column(column.heading, column.width, cell(column)) for column in table.columns()]

    def _has_idle_bar(self) -> bool:
        return self._screen.has_bars and self._total.idleness_ns > 0

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
        _, high = metric_interval(IDLENESS, metrics, self._total, self._cores)
        share = percent(metrics.idleness_ns, self._total.effort_ns)
        return f"{max(100 * high - share, 0.0):.1f}"

    def _shown_metrics(self) -> list[Metric]:
        """The metrics with columns of their own, where there is anything of them; and the one that rows are sorted by,
        unless it has a column anyway."""
        shown = [metric for metric in METRICS.at(Shown.COLUMN) if self._total[metric]]
        sort = METRICS.by_name().get(self._view.sort)
        if sort is not None and sort not in shown and sort.optional and self._total[sort]:
            shown.append(sort)
        return shown

    def _metric_column(self, metric: Metric, kind: str, mine: Callable[[Item, Item], Metrics]) -> Column:
        unit = metric.unit
        name = f"{metric.name} {unit.shown}".rstrip()
        largest = f"{unit.amount(self._total[metric]):.{unit.digits}f}"
        return Column(
            f"{name}\n{kind}.",
            max(6, len(name), len(largest)),
            lambda first, last: f"{unit.amount(mine(first, last)[metric]):.{unit.digits}f}",
        )

    @staticmethod
    def _event_column(event: str, kind: str, mine: Callable[[Item, Item], Metrics]) -> Column:
        name = printable(event)
        text = brief_bytes if event_unit(event) is BYTES else COUNT.text
        return Column(
            f"{name}\n{kind}.",
            min(max(8, cell_len(name)), 16),
            lambda first, last: text(mine(first, last).events.get(event, 0)),
        )

    @staticmethod
    def _ratio_column(ratio: Ratio, kind: str, mine: Callable[[Item, Item], Metrics]) -> Column:
        def cell(first: Item, last: Item) -> str:
            metrics = mine(first, last)
            value = ratio.value(metrics.events, metrics.cpu_ns)
            return f"{value:.2f}" if value is not None else ""

        return Column(f"{ratio.name}\n{kind}.", max(6, cell_len(ratio.name)), cell)


def _without_bar(columns: list[Column]) -> list[Column]:
    return [column for column in columns if column.heading]


def _without_last(columns: list[Column]) -> list[Column]:
    return columns[:-1]
