"""A terminal, or what stands for it, that prints text of unknown origin safely and in a fixed width."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from io import StringIO
from typing import TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from parprof.untrusted import printable

MIN_WIDTH = 80
UNLIMITED = 10_000
"""The width of what is no terminal: no line of a report that makes sense is longer."""

_DUMB = frozenset({"", "dumb", "unknown"})
"""Values of TERM that promise nothing."""
_EIGHTHS = " ▏▎▍▌▋▊▉"
_INDENT = " " * 3
"""In front of the lines of a text but the first."""


class Screen:
    """A rich console of a fixed width that prints plain text only, and prints at the end, all at once."""

    def __init__(self, file: TextIO, width: int | None = None) -> None:
        """``width``: in columns; by default that of the environment (``COLUMNS``), else of a terminal, at least 80
        columns. Where there is none of these, in files and pipes, lines are as long as they are."""
        self._file = file
        self._buffer = StringIO()
        self._encoding = getattr(file, "encoding", None) or "utf-8"
        self._terminal = file.isatty()
        self._has_styles = self._terminal and os.environ.get("TERM", "") not in _DUMB
        self.has_bars = self._has_styles and self._can_show("█▏")
        """Whether somebody looks at it on what can draw small bars."""
        self.has_colours = self._has_styles and not os.environ.get("NO_COLOR")
        told = width or _told_width()
        self.is_limited = bool(told) or self._terminal
        """Whether what is too long has to be cut."""
        if told:
            self.width = max(told, MIN_WIDTH)
        elif self._terminal:
            self.width = MIN_WIDTH
            with suppress(OSError):
                self.width = max(MIN_WIDTH, os.get_terminal_size(file.fileno()).columns)
        else:
            self.width = UNLIMITED
        self._console = Console(
            file=self._buffer,
            width=self.width,
            force_terminal=self._has_styles,  # of others it does not believe the width
            markup=False,
            emoji=False,
            highlight=False,
            no_color=not self.has_colours,
        )

    def __enter__(self) -> Screen:
        """Start."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Print, unless there was an error. What the file's encoding lacks is spelled out."""
        if kind is None:
            text = self._buffer.getvalue()
            if not self._has_styles:
                text = "".join(line.rstrip() + "\n" for line in text.splitlines())
            self._file.write(text.encode(self._encoding, "backslashreplace").decode(self._encoding))

    @property
    def guides(self) -> tuple[str, str, str, str]:
        """For trees: a child, the last child, beside children, beneath the last child."""
        return ("├ ", "└ ", "│ ", "  ") if self._can_show("├└│…") else ("+ ", "` ", "| ", "  ")

    @property
    def bar_of(self) -> str:
        """What bars are made of."""
        return "█" if self._can_show("█") else "#"

    def _can_show(self, characters: str) -> bool:
        try:
            characters.encode(self._encoding)
        except UnicodeEncodeError:
            return False
        return True

    def line(self, text: str) -> None:
        """Print a line as it is."""
        self._console.print(Text(printable(text)), soft_wrap=True)

    def show(self, renderable: RenderableType) -> None:
        """Print something of rich's that fits the width and holds safe text only."""
        self._console.print(renderable)

    def brief(self, text: str, lines: int) -> int:
        """Print a text in no more than so many lines, cut if need be; returns how many it took."""
        width = self.width - len(_INDENT)
        wrapped = Text(printable(text)).wrap(self._console, width, overflow="fold")
        shown = [line.plain.rstrip() for line in wrapped]
        if len(shown) > lines:
            shown = [*shown[: lines - 1], elided_end(" ".join(shown[lines - 1 :]), width)]
        for number, line in enumerate(shown):
            indent = _INDENT if number and not line.startswith(_INDENT) else ""
            self._console.print(Text(indent + line), soft_wrap=True)
        return len(shown)

    def table(
        self, headings: list[tuple[str, int]], rows: Iterable[tuple[Sequence[str | Text], Text]]
    ) -> None:
        """Print right-aligned columns of these widths (bars, without a heading, left), and a last one that takes the
        rest."""
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
        for heading, width in headings[:-1]:
            table.add_column(heading, justify="right" if heading else "left", width=width, no_wrap=True)
        table.add_column(headings[-1][0], width=self.last_width(headings), no_wrap=True, overflow="crop")
        for cells, last in rows:
            table.add_row(*cells, last)
        self._console.print(table)

    def last_width(self, headings: list[tuple[str, int]]) -> int:
        """The width that `table` leaves for the last column."""
        return self.width - sum(width + 1 for _, width in headings[:-1])

    def fact(self, label: str, text: str) -> None:
        """Print ``label: text``, wrapped."""
        whole = Text.assemble((label, "bold"), ": ", text) if label else Text(text)
        lines = whole.wrap(self._console, self.width - 2, overflow="fold")
        for number, line in enumerate(lines):
            self._console.print(Text("  " if number else "") + line, soft_wrap=True)


def _told_width() -> int:
    """What the environment says, 0 if it says nothing."""
    told = os.environ.get("COLUMNS", "")
    return int(told) if told.isascii() and told.isdigit() and len(told) < 5 else 0


def small_bar(share: float, width: int) -> str:
    """A bar of so many cells for a share of 1, filled up with blanks.

    >>> small_bar(0.5, 3), small_bar(0.01, 3), small_bar(2.0, 3)
    ('█▌ ', '▏  ', '███')
    """
    eighths = min(round(share * 8 * width), 8 * width)
    if share > 0:
        eighths = max(eighths, 1)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + _EIGHTHS[rest] * bool(rest)).ljust(width)


def elided_end(text: str, width: int) -> str:
    """Text that fits ``width`` terminal cells, cut at its end where need be."""
    return text if cell_len(text) <= width else set_cell_size(text, max(width - 2, 0)).rstrip() + ".."


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
