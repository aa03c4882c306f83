"""A terminal, or what stands for it, that prints text of unknown origin safely and in a fixed width."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from io import StringIO
from typing import TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from parprof.untrusted import printable

MIN_WIDTH = 80


class Screen:
    """A rich console of a fixed width that prints plain text only, and prints at the end, all at once."""

    def __init__(self, file: TextIO) -> None:
        """Take the width of a terminal, at least 80 columns; 80 for anything else."""
        self._file = file
        self._buffer = StringIO()
        self._encoding = getattr(file, "encoding", None) or "utf-8"
        self._terminal = file.isatty()
        width = MIN_WIDTH
        if self._terminal:
            with suppress(OSError):
                width = max(width, os.get_terminal_size(file.fileno()).columns)
        self.width = width
        self._console = Console(
            file=self._buffer,
            width=width,
            force_terminal=self._terminal,
            markup=False,
            emoji=False,
            highlight=False,
        )

    def __enter__(self) -> Screen:
        """Start."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Print, unless there was an error. What the file's encoding lacks is spelled out."""
        if kind is None:
            text = self._buffer.getvalue()
            if not self._terminal:
                text = "".join(line.rstrip() + "\n" for line in text.splitlines())
            self._file.write(text.encode(self._encoding, "backslashreplace").decode(self._encoding))

    @property
    def guides(self) -> tuple[str, str, str, str]:
        """For trees: a child, the last child, beside children, beneath the last child."""
        try:
            "├└│…".encode(self._encoding)
        except UnicodeEncodeError:
            return "+ ", "` ", "| ", "  "
        return "├ ", "└ ", "│ ", "  "

    def line(self, text: str) -> None:
        """Print a line as it is."""
        self._console.print(Text(printable(text)), soft_wrap=True)

    def show(self, renderable: RenderableType) -> None:
        """Print something of rich's that fits the width and holds safe text only."""
        self._console.print(renderable)

    def table(self, headings: list[tuple[str, int]], rows: Iterable[tuple[list[str], Text]]) -> None:
        """Print right-aligned columns of these widths, and a last one that takes the rest."""
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
        for heading, width in headings[:-1]:
            table.add_column(heading, justify="right", width=width, no_wrap=True)
        table.add_column(headings[-1][0], width=self.last_width(headings), no_wrap=True, overflow="crop")
        for cells, last in rows:
            table.add_row(*cells, last)
        self._console.print(table)

    def last_width(self, headings: list[tuple[str, int]]) -> int:
        """The width that `table` leaves for the last column."""
        return self.width - sum(width + 1 for _, width in headings[:-1])

    def fact(self, label: str, text: str) -> None:
        """Print ``label: text``, wrapped."""
        whole = Text.assemble((label, "bold"), ": ", text)
        lines = whole.wrap(self._console, self.width - 2, overflow="fold")
        for number, line in enumerate(lines):
            self._console.print(Text("  " if number else "") + line, soft_wrap=True)


def elided(text: str, width: int) -> str:
    """Text that fits ``width`` terminal cells, cut in the middle where need be."""
    if cell_len(text) <= width:
        return text
    if width < 4:
        return set_cell_size(text, max(width, 0))
    tail = ""
    for char in reversed(text):
        if cell_len(tail) + cell_len(char) > (width - 2) // 2:
            break
        tail = char + tail
    return set_cell_size(text, width - 2 - cell_len(tail)).rstrip() + ".." + tail
