"""Our end of the child that reads JVMs: one for all of them, there while any is watched."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from parprof.languages.hotspot.layout import FACTS, HEAPS, PER_HEAP
from parprof.languages.hotspot.methods import JavaRow
from parprof.untrusted import visible
from parprof.workers.client import WorkerClient, WorkerFailed

_LOG = logging.getLogger(__name__)
_SECONDS = 2.0
_MOST_FAILURES = 3
_MOST_ROWS = 64
_MOST_TEXT = 4096


class JvmReader(WorkerClient):
    """Asks the child. Who hangs or crashes it three times has no names any more: see `Asked`."""

    module = "parprof.languages.hotspot.worker"
    doing = "reading a JVM"

    def __init__(self) -> None:
        super().__init__()
        self._users = 0

    def join(self) -> None:
        """There is one more JVM."""
        self._users += 1
        self.prepare()

    def leave(self) -> None:
        """There is one less."""
        self._users -= 1
        if self._users <= 0:
            self.close()


class Asked:
    """One JVM, which the child is asked about."""

    def __init__(self, reader: JvmReader, key: str, symbols: Mapping[str, int], fd: int) -> None:
        """``fd``: its memory, which stays the caller's; ``key`` tells it from all others."""
        self._reader = reader
        self._request = {"process": key, "symbols": dict(symbols)}
        self._fd = fd
        self._failures = 0
        self.problem = ""
        """Why it is asked no more."""

    def facts(self) -> dict[str, int | tuple[int, ...]]:
        """What the programs must know of it; empty: that is not known yet."""
        return _facts(self._ask([]).get("facts"))

    def rows(self, words: Sequence[int]) -> list[list[JavaRow]]:
        """For each word the functions there, innermost first."""
        found = self._ask(list(words)).get("rows")
        try:
            out = [_rows(one) for one in found] if isinstance(found, list) else []
        except (TypeError, ValueError):
            out = []
        return (out + [[] for _ in words])[: len(words)]

    def _ask(self, words: list[int]) -> dict[str, Any]:
        if self.problem:
            return {}
        try:
            return self._reader.ask(
                {**self._request, "words": words}, [self._fd], time.monotonic() + _SECONDS
            )
        except WorkerFailed as error:
            self._failures += 1
            if self._failures >= _MOST_FAILURES:
                self.problem = f"Java functions have no names: {error}"
                _LOG.warning("%s", self.problem)
            return {}


def _facts(found: Any) -> dict[str, int | tuple[int, ...]]:
    """Nothing if these are none: a child that read lies may have become one itself."""
    if not isinstance(found, dict) or found.keys() != set(FACTS):
        return {}
    out: dict[str, int | tuple[int, ...]] = {}
    for name in FACTS:
        values = found[name] if name in PER_HEAP else [found[name]]
        if not isinstance(values, list) or len(values) != (HEAPS if name in PER_HEAP else 1):
            return {}
        if not all(isinstance(value, int) and 0 <= value < 1 << 48 for value in values):
            return {}
        out[name] = tuple(values) if name in PER_HEAP else values[0]
    return out


def _rows(found: Any) -> list[JavaRow]:
    return [
        (visible(str(name), _MOST_TEXT), visible(str(file), _MOST_TEXT), int(line), int(first))
        for name, file, line, first in found[:_MOST_ROWS]
    ]
