"""In which loops of which files threads wait for each other: asked of a child once, and kept on disk.

A loop is looked at when threads are found in it (`parprof.session.spins`), never before: there are too many.
"""

from __future__ import annotations

import json
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from parprof.cache import DiskCache
from parprof.files.dso import Dso, FileKey
from parprof.probes.facts_book import BOOK, FactsBook, file_facts
from parprof.probes.wait_code import Range
from parprof.untrusted import visible

FORMAT = 8
"""To be raised with each change of what counts as waiting."""
MAX_LOOPS = 16
"""Of one file."""
_MAX_FILE = 1 << 14
_MAX_OTHERS = 512
_MAX_BYTES = 1 << 22
_CLOCK_CODE = "[vdso]"
"""Whoever reads the clock looks again while the kernel moves it on, which takes it nanoseconds: that is no waiting."""
_MAX_UNDER_WAY = 2
"""Questions at a time: what planning asks the same child comes first."""
_MAX_KNOWN = 1 << 14
_MAX_NAME = 256
_BLOCK = 16
"""Bytes: addresses in one block of so many are one question."""


class SpinBook:
    """What is known of such loops. To be used by one thread."""

    def __init__(self, book: FactsBook = BOOK, base: Path | None = None) -> None:
        """``book``: whose child is asked. Keep what is found in ``base``, or in parprof's own cache directory."""
        self._book = book
        self._disk = DiskCache("spins", _MAX_BYTES, base)
        self._loops: dict[FileKey, dict[Range, str]] = {}
        """Each with the function that it is in; empty: it has no name."""
        self._others: dict[FileKey, list[Range]] = {}
        """The code of each file that is known to be no such loop: functions without one, and blocks of others."""
        self._asked: dict[tuple[FileKey, int], None] = {}
        self._coming: list[tuple[Dso, int, Future[dict[str, Any]]]] = []

    def loops(self, dso: Dso) -> list[Range]:
        """The waiting loops of a file that are known, and its `sched_yield`: ELF addresses [start, end)."""
        return [*file_facts(dso).yield_code, *self.found(dso)]

    def yields(self, dso: Dso, vaddr: int) -> bool:
        """Whether an ELF virtual address, or the few bytes from there on, are code of `sched_yield`."""
        return any(start < vaddr + _BLOCK and vaddr < end for start, end in file_facts(dso).yield_code)

    def found(self, dso: Dso) -> dict[Range, str]:
        """Those that were found because threads were seen there, each with its function; empty: it has no name."""
        return dict(self._known(dso)) if dso.name != _CLOCK_CODE else {}

    def ask(self, dso: Dso, vaddr: int) -> None:
        """Look at the loop around an ELF virtual address, unless that was done before."""
        if dso.name == _CLOCK_CODE:
            return
        question = dso.key, vaddr // _BLOCK
        if question in self._asked or len(self._coming) >= _MAX_UNDER_WAY:
            return
        if any(start <= vaddr < end for start, end in (*self.loops(dso), *self._others[dso.key])):
            return
        if len(self._asked) >= _MAX_KNOWN:
            self._asked.clear()
        self._asked[question] = None
        future = self._book.ask(dso, {"address": vaddr})
        if future is not None:
            self._coming.append((dso, question[1], future))

    def answered(self) -> list[Dso]:
        """The files in which new loops have been found since the last call."""
        done = [one for one in self._coming if one[2].done()]
        self._coming = [one for one in self._coming if not one[2].done()]
        found = []
        for dso, block, future in done:
            reply = future.result()
            answer = reply.get("spins")
            loop = _range(answer)
            known, others = self._known(dso), self._others[dso.key]
            if loop is not None and loop not in known and len(known) < MAX_LOOPS:
                known[loop] = _name(reply.get("in"))
                found.append(dso)
            elif answer == [] and len(others) < _MAX_OTHERS:
                here = block * _BLOCK, (block + 1) * _BLOCK
                around = _range(reply.get("none"))
                is_around = around is not None and around[0] < here[1] and here[0] < around[1]
                others.append(around if around is not None and is_around else here)
            else:
                continue
            if name := self._name(dso):  # so that the child is not needed the next time
                self._disk.write(name, _to_bytes(known, others))
        return list(dict.fromkeys(found))

    def _known(self, dso: Dso) -> dict[Range, str]:
        known = self._loops.get(dso.key)
        if known is None:
            if len(self._loops) >= _MAX_KNOWN:
                self._loops.clear()
                self._others.clear()
            name = self._name(dso)
            known, others = self._load(name) if name else ({}, [])
            self._loops[dso.key], self._others[dso.key] = known, others
        return known

    def _name(self, dso: Dso) -> str:
        content = dso.content_name()
        return f"{content}-{FORMAT}" if content else ""

    def _load(self, name: str) -> tuple[dict[Range, str], list[Range]]:
        """Loops, and code that has none: in the file a loop is a range and a name, other code a range alone."""
        raw = self._disk.read(name)
        with suppress(ValueError, RecursionError):
            loaded = json.loads(raw) if raw is not None and len(raw) <= _MAX_FILE else []
            if isinstance(loaded, list):
                lists = [one for one in loaded if isinstance(one, list)]
                loops = {
                    loop: _name(one[2])
                    for one in lists
                    if len(one) == 3 and (loop := _range(one[:2])) is not None
                }
                others = [other for one in lists if len(one) == 2 and (other := _range(one)) is not None]
                return dict(list(loops.items())[:MAX_LOOPS]), others[:_MAX_OTHERS]
        return {}, []


SPINS = SpinBook()
"""Of this process."""


def _to_bytes(loops: dict[Range, str], others: list[Range]) -> bytes:
    return json.dumps([*([*loop, name] for loop, name in loops.items()), *others]).encode()


def _name(raw: Any) -> str:
    return visible(raw, _MAX_NAME) if isinstance(raw, str) else ""


def _range(raw: Any) -> Range | None:
    """A range as it travels; None if it is none."""
    if isinstance(raw, list) and len(raw) == 2 and all(isinstance(one, int) for one in raw):
        start, end = raw
        if 0 <= start < end < 1 << 64:
            return start, end
    return None
