"""In which loops of which files threads wait for each other: asked of a child once, and kept on disk.

A loop is looked at when threads are found in it (`parprof.session.spins`), never before: there are too many.
"""

from __future__ import annotations

import json
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from parprof.cache import DiskCache
from parprof.files.dso import Dso, FileKey
from parprof.probes.facts_book import BOOK, FactsBook, file_facts
from parprof.probes.wait_code import Range, lies_in
from parprof.remembered import Remembered
from parprof.untrusted import visible

FORMAT = 12
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
        self._beside: dict[FileKey, dict[Range, str]] = {}
        """Others of the same functions, likewise: nobody was seen there yet, but no child is needed to know them."""
        self._seen: list[Dso] = []
        """Files in which threads have been seen in one of these since `answered` was called."""
        self._others: dict[FileKey, list[Range]] = {}
        """The code of each file that is known to be no such loop: functions without one, and blocks of others."""
        self._asked = Remembered[tuple[FileKey, int], None](_MAX_KNOWN)
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

    def note_pool(self, dso: Dso, vaddr: int) -> None:
        """A thread was seen at an ELF virtual address: if a library's pool waits there, that is such a loop."""
        known = self._known(dso)
        for start, end, function in file_facts(dso).pool_loops:
            if start <= vaddr < end and (start, end) not in known:
                self._add(dso, (start, end), _name(function))

    def ask(self, dso: Dso, vaddr: int) -> None:
        """Look at the loop around an ELF virtual address, unless that was done before."""
        if dso.name == _CLOCK_CODE:
            return
        question = dso.key, vaddr // _BLOCK
        if question in self._asked or len(self._coming) >= _MAX_UNDER_WAY:
            return
        if lies_in(vaddr, (*self.loops(dso), *self._others[dso.key])):
            return
        beside = self._beside[dso.key]
        if loop := next((one for one in beside if one[0] <= vaddr < one[1]), None):
            self._add(dso, loop, beside.pop(loop))
            return
        self._asked[question] = None
        future = self._book.ask(dso, {"address": vaddr})
        if future is not None:
            self._coming.append((dso, question[1], future))

    def await_answers(self, seconds: float) -> bool:
        """Wait for what was asked, for so long at most, and take it in; whether there was anything, and all of it came.

        `answered` still tells of it.
        """
        coming = [future for *_, future in self._coming]
        if not coming or wait(coming, max(seconds, 0.0)).not_done:
            return False
        self._seen = self.answered()
        return True

    def answered(self) -> list[Dso]:
        """The files in which new loops have been found since the last call."""
        done = [one for one in self._coming if one[2].done()]
        self._coming = [one for one in self._coming if not one[2].done()]
        for dso, block, future in done:
            reply = future.result()
            answer = reply.get("spins")
            loop = _range(answer)
            known, others, beside = self._known(dso), self._others[dso.key], self._beside[dso.key]
            if loop is not None and loop not in known:
                function = _name(reply.get("in"))
                for also in _ranges(reply.get("also"))[: MAX_LOOPS - len(beside)]:
                    if also not in known:
                        beside[also] = function
                beside.pop(loop, None)
                self._add(dso, loop, function)
            elif answer == [] and len(others) < _MAX_OTHERS:
                here = block * _BLOCK, (block + 1) * _BLOCK
                around = _range(reply.get("none"))
                is_around = around is not None and around[0] < here[1] and here[0] < around[1]
                others.append(around if around is not None and is_around else here)
                self._keep(dso)
        found, self._seen = self._seen, []
        return list(dict.fromkeys(found))

    def _add(self, dso: Dso, loop: Range, function: str) -> None:
        """Threads were seen in a loop that waits."""
        known = self._known(dso)
        if len(known) < MAX_LOOPS:
            known[loop] = function
            self._seen.append(dso)
            self._keep(dso)

    def _keep(self, dso: Dso) -> None:
        """So that the child is not needed the next time."""
        if name := self._name(dso):
            known = self._known(dso)
            self._disk.write(name, _to_bytes(known, self._beside[dso.key], self._others[dso.key]))

    def _known(self, dso: Dso) -> dict[Range, str]:
        known = self._loops.get(dso.key)
        if known is None:
            if len(self._loops) >= _MAX_KNOWN:
                self._loops.clear()
                self._beside.clear()
                self._others.clear()
            name = self._name(dso)
            known, beside, others = self._load(name) if name else ({}, {}, [])
            self._loops[dso.key], self._beside[dso.key], self._others[dso.key] = known, beside, others
        return known

    def _name(self, dso: Dso) -> str:
        content = dso.content_name()
        return f"{content}-{FORMAT}" if content else ""

    def _load(self, name: str) -> tuple[dict[Range, str], dict[Range, str], list[Range]]:
        """Loops, those beside them, and code that has none: in the file a loop is a range, a name, and whether threads
        have been seen there; other code is a range alone."""
        raw = self._disk.read(name)
        loaded: Any = None
        with suppress(ValueError, RecursionError):
            loaded = json.loads(raw) if raw is not None and len(raw) <= _MAX_FILE else None
        loops: tuple[dict[Range, str], dict[Range, str]] = {}, {}
        others: list[Range] = []
        for one in loaded if isinstance(loaded, list) else ():
            place = _range(one[:2]) if isinstance(one, list) else None
            if place is None:
                continue
            if len(one) == 4 and len(found := loops[not one[3]]) < MAX_LOOPS:
                found[place] = _name(one[2])
            elif len(one) == 2 and len(others) < _MAX_OTHERS:
                others.append(place)
        return *loops, others


SPINS = SpinBook()
"""Of this process."""


def _to_bytes(loops: dict[Range, str], beside: dict[Range, str], others: list[Range]) -> bytes:
    seen = [[*loop, name, 1] for loop, name in loops.items()]
    unseen = [[*loop, name, 0] for loop, name in beside.items()]
    return json.dumps([*seen, *unseen, *others]).encode()


def _name(raw: Any) -> str:
    return visible(raw, _MAX_NAME) if isinstance(raw, str) else ""


def _ranges(raw: Any) -> list[Range]:
    """Those that are some, of several."""
    found = map(_range, raw if isinstance(raw, list) else ())
    return [one for one in found if one is not None]


def _range(raw: Any) -> Range | None:
    """A range as it travels; None if it is none."""
    if isinstance(raw, list) and len(raw) == 2 and all(isinstance(one, int) for one in raw):
        start, end = raw
        if 0 <= start < end < 1 << 64:
            return start, end
    return None
