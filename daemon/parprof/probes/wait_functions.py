"""Functions of which the user says that their threads wait there: looked for by name, in a child, in each file once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import Future, wait
from contextlib import suppress
from itertools import islice
from typing import Any

from parprof.errors import UsageError
from parprof.files.dso import Dso, FileKey
from parprof.probes.facts_book import BOOK, FactsBook
from parprof.probes.named_functions import MAX_FOUND, MAX_NAME, MAX_NEAR, WaitFunction, nearest
from parprof.untrusted import visible
from parprof.values import dataclass

MAX_PATTERN = 1000
_FILES_COMPARED = 8
_NEAR_SECONDS = 2.0
_LONGEST_WAIT_S = 1.0
"""For the files of a program that stands still."""


def check_pattern(pattern: str) -> None:
    """See that ``--wait-function`` is an expression.

    Raises:
        UsageError: it is none.
    """
    if not 0 < len(pattern) <= MAX_PATTERN:
        raise UsageError(f"--wait-function: give an expression of 1 to {MAX_PATTERN} characters")
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--wait-function {visible(pattern)}: no regular expression: {error}") from error


@dataclass(frozen=True, slots=True)
class SpinRules:
    """What counts as spinning beside what runtimes say of themselves."""

    loops: bool = True
    """Loops of which the machine code says that they only wait: `parprof.loops.spins`."""
    functions: WaitFunctions | None = None
    """What the user says."""


DEFAULT_RULES = SpinRules()


class WaitFunctions:
    """Of one measurement. To be used by one thread."""

    def __init__(self, pattern: str, book: FactsBook | None = None) -> None:
        """``pattern``: for whole names, as reports show them or as linkers know them. ``book``: whose child is asked.

        Raises:
            UsageError: it is no regular expression.
        """
        check_pattern(pattern)
        self.pattern = pattern
        self._book = BOOK if book is None else book
        self._found: dict[FileKey, list[WaitFunction]] = {}
        self._asked: dict[FileKey, Dso] = {}
        self._new: list[Dso] = []
        self._coming: list[tuple[Dso, Future[dict[str, Any]]]] = []

    def ask(self, dsos: Iterable[Dso]) -> None:
        """Begin to look into those of these files that were not looked into yet."""
        for dso in dsos:
            if dso.key in self._asked or dso.elf is None:
                continue
            self._asked[dso.key] = dso
            future = self._book.ask(dso, {"waits": self.pattern})
            if future is not None:
                self._coming.append((dso, future))

    def look_into(self, dsos: Iterable[Dso]) -> None:
        """`ask`, and wait for the answers, but not for long: `answered` still tells of them."""
        self.ask(dsos)
        wait([future for _, future in self._coming], _LONGEST_WAIT_S)

    def answered(self) -> list[Dso]:
        """The files in which such functions have been found since the last call."""
        self._take()
        found, self._new = self._new, []
        return found

    def _take(self) -> None:
        done = [one for one in self._coming if one[1].done()]
        self._coming = [one for one in self._coming if not one[1].done()]
        for dso, future in done:
            if found := _functions(future.result().get("waits")):
                self._found[dso.key] = found
                self._new.append(dso)

    def of(self, dso: Dso) -> list[WaitFunction]:
        """Those of a file that are known by now."""
        self._take()
        return self._found.get(dso.key, [])

    def notes(self) -> list[str]:
        """What the user must know: that there is no such function, and which one he may have meant."""
        self._take()
        if self._found:
            return []
        nearest = self._nearest()
        hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
        return [
            f"--wait-function {visible(self.pattern)}: no function in the program's files has such a name{hint}"
        ]

    def _nearest(self) -> list[str]:
        """Names of functions that are nearly what was asked for, in the files that were mapped first."""
        names: list[str] = []
        for dso in islice(self._asked.values(), _FILES_COMPARED):
            future = self._book.ask(dso, {"near": self.pattern})
            with suppress(TimeoutError):
                answer = future.result(_NEAR_SECONDS).get("near") if future is not None else []
                found = answer if isinstance(answer, list) else []
                names += [visible(one, MAX_NAME) for one in found[:MAX_NEAR] if isinstance(one, str)]
        return nearest(self.pattern, names)


def _functions(raw: Any) -> list[WaitFunction]:
    """What the child found, as far as it makes sense."""
    out = []
    for one in raw[:MAX_FOUND] if isinstance(raw, list) else []:
        if isinstance(one, list) and len(one) == 3 and isinstance(one[0], str):
            name, start, end = one
            if isinstance(start, int) and isinstance(end, int) and 0 <= start < end < 1 << 64:
                out.append(WaitFunction(visible(name, MAX_NAME), start, end))
    return out
