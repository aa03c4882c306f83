"""What the rows of a table are called, in the room that there is."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from parprof.exporters.readable import without_parameters
from parprof.exporters.screen import elided
from parprof.exporters.summary import place
from parprof.exporters.table_rows import Item, Row
from parprof.exporters.views import View
from parprof.metrics import METRICS
from parprof.untrusted import printable

_HEADINGS = {
    "context": "calling context\nfunction (heaviest line)",
    "callers": "function, its callers beneath\n(heaviest line)",
    "flat": "\nfunction (heaviest line)",
    "threads": "\nthread, and where it was most",
    "lines": "\nline, and its function",
    "concurrency": "\nfunction (heaviest line)",
}


class RowNames:
    """The last column of one view."""

    def __init__(self, view: View) -> None:
        self.heading = _HEADINGS[view.view]
        self._sort = METRICS.by_name().get(view.sort) or METRICS.by_name()["work"]

    def widest(self, rows: Sequence[Row]) -> int:
        """Columns that all names whole would take, with the lines of the tree before them."""
        return max((cell_len(row.guides) + cell_len(self._whole(row)) for row in rows), default=0)

    def shown(self, row: Row, width: int) -> Text:
        """The name in so many columns."""
        guides = row.guides
        deepest = width // 4 * 2
        if len(guides) > deepest:  # too deep to draw: say how deep instead
            mark = f"{row.depth}: "
            guides = mark + guides[len(guides) - deepest + len(mark) :]
        last = row.items[-1].procedure
        where = self._where(row)
        room = width - len(guides)
        names = [named(item) for item in row.items]
        name = " > ".join(names)
        least = 12 if last.file else room * 2 // 3  # a source line says more than a name, a library less
        if last.is_loop and cell_len(f"{name} {where}") > room:
            where = ""  # its name says enough
        if len(names) > 1 and cell_len(f"{name} {where}") > room:
            name = _shorter(names, room - cell_len(where) - 1)
        where = elided(f" {where}", room - min(cell_len(name), least)) if where else ""
        name = elided(name, room - cell_len(where))
        return Text.assemble((guides, "dim"), name, (where, "dim"))

    def _whole(self, row: Row) -> str:
        where = self._where(row)
        return " > ".join(map(named, row.items)) + (f" {where}" if where else "")

    def _where(self, row: Row) -> str:
        last = row.items[-1]
        return place(last.procedure, last.hottest_line(self._sort))


def named(item: Item) -> str:
    """The name of a function, or of what else a row is about."""
    return printable(without_parameters(item.procedure.name)) or "[unknown]"


def _shorter(names: list[str], room: int) -> str:
    """A chain of calls without as many of its middle ones as need be."""
    for kept in range(len(names) - 2, -1, -1):
        shown = " > ".join(
            [names[0], "..", *names[len(names) - kept :]] if kept else [names[0], "..", names[-1]]
        )
        if cell_len(shown) <= room:
            return shown
    return f".. > {names[-1]}"
