"""The code that JIT compilers have registered in one process: its names, and its unwind tables in the kernel."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import Future

from parprof.files.dso import ANONYMOUS
from parprof.jit.objects import MadeFunction
from parprof.jit.reader import HUNG_SECONDS, NOTHING_MADE, JitReader, MadeCode
from parprof.process.loadmap import LoadMap
from parprof.unwind.placing import Placer

_PAUSE = 2.0
"""A list is read again after so many times as long as that took the last time: all of it is read."""
_STEP_SECONDS = 0.005
_SOON_SECONDS = 1.0
_MOST_FUNCTIONS = 1 << 16
"""Beyond that those are forgotten that are gone."""


class RegisteredCode:
    """Of one process, over time. Nothing of it waits."""

    def __init__(self, pid: int, reader: JitReader, placer: Placer) -> None:
        """Nothing is known yet."""
        self._pid = pid
        self._reader = reader
        self._placer = placer
        self._made = NOTHING_MADE
        self._coming: Future[MadeCode] | None = None
        self._load_map: LoadMap | None = None
        self._heads: Sequence[int] = ()
        """What is to be looked at next; none: nothing."""
        self._begun_s = self._next_s = 0.0
        self._is_hung = False
        """Its memory does not answer."""
        self._functions: dict[int, MadeFunction] = {}
        """By their begin: also those that are gone, until others are there."""
        self._starts: list[int] = []

    @property
    def is_waiting(self) -> bool:
        """Whether something is being looked at: `pump` will show it to the unwinder, soon."""
        return self._coming is not None and time.monotonic() - self._begun_s < _SOON_SECONDS

    def follow(self, load_map: LoadMap, heads: Sequence[int]) -> None:
        """The process maps this by now, or the list may have changed. ``heads``: addresses of its lists, if any."""
        self._load_map, self._heads = load_map, heads
        self.pump()

    def pump(self) -> None:
        """Take what was found, and look at what is to be looked at next."""
        if self._coming is not None and self._coming.done():
            made, self._coming = self._coming.result(), None
            now_s = time.monotonic()
            self._next_s = now_s + _PAUSE * (now_s - self._begun_s)
            if made is not self._made and self._load_map is not None:
                self._take(made, self._load_map)
        if self._coming is not None and time.monotonic() - self._begun_s > HUNG_SECONDS:
            self._is_hung = self._coming.running()
            self._coming = None
            self._reader.leave_behind()
        if self._is_hung:
            return
        if self._coming is None and self._heads and self._load_map and time.monotonic() >= self._next_s:
            heads, self._heads = self._heads, ()
            mappings = self._load_map.mappings
            spans = tuple((one.start, one.end) for one in mappings if one.dso.key == ("label", ANONYMOUS))
            self._begun_s = time.monotonic()
            self._coming = self._reader.look(self._pid, heads, spans, self._made)

    def await_found(self, seconds: float = 0.5) -> None:
        """Wait for what is being looked at, so long at most: a process that ran before us has its code already."""
        end_s = time.monotonic() + seconds
        while self._coming is not None and time.monotonic() < end_s:
            time.sleep(_STEP_SECONDS)
            self.pump()

    def _take(self, made: MadeCode, load_map: LoadMap) -> None:
        fresh = [facts for one, facts in made.objects.items() if one not in self._made.objects]
        if len(self._functions) > _MOST_FUNCTIONS:
            self._functions.clear()
            fresh = list(made.objects.values())
        for facts in reversed(fresh):  # LLVM has the newest first: where memory is used again that one counts
            self._functions.update((function.start, function) for function in facts.functions)
        self._starts = sorted(self._functions)
        self._made = made
        self._placer.show_made(load_map, made.tables)

    def names(self, addresses: Iterable[int]) -> dict[int, str]:
        """The function at each address; those in none are left out."""
        out: dict[int, str] = {}
        for address in addresses if self._starts else ():
            index = bisect_right(self._starts, address) - 1
            if index >= 0:
                start, size, name = self._functions[self._starts[index]]
                if address < start + size:
                    out[address] = name
        return out

    def rule(self, address: int) -> int | None:
        """The packed unwind rule at an address, 0 where there is none; None: no table is of that memory."""
        start = next((low for low, high in self._made.spans if low <= address < high), None)
        table = None if start is None else self._made.tables.get(start)
        return None if table is None or start is None else table.rule(address - start)

    def close(self) -> None:
        """It is looked at no more; its names stay."""
        self._load_map, self._heads, self._coming = None, (), None
