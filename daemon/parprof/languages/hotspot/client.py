"""Our end of the child that reads JVMs: one for all of them, there while any is watched."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from parprof.languages.hotspot.methods import Row
from parprof.workers.client import WorkerClient, WorkerFailed

_LOG = logging.getLogger(__name__)
_SECONDS = 2.0
_MOST_FAILURES = 3
_MOST_ROWS = 64
_MOST_TEXT = 4096


class Reader(WorkerClient):
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

    def __init__(self, reader: Reader, key: str, symbols: Mapping[str, int], fd: int) -> None:
        """``fd``: its memory, which stays the caller's; ``key`` tells it from all others."""
        self._reader = reader
        self._request = {"process": key, "symbols": dict(symbols)}
        self._fd = fd
        self._failures = 0
        self.problem = ""
        """Why it is asked no more."""

    def facts(self) -> dict[str, Any]:
        """What the programs must know of it; empty: that is not known yet."""
        found = self._ask([]).get("facts")
        if not isinstance(found, dict):
            return {}
        return {
            str(name): tuple(map(int, value)) if isinstance(value, list) else int(value)
            for name, value in found.items()
        }

    def rows(self, words: Sequence[int]) -> list[list[Row]]:
        """For each word the functions there, innermost first."""
        found = self._ask(list(words)).get("rows", [])
        out = [_rows(one) for one in found] if isinstance(found, list) else []
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


def _rows(found: Any) -> list[Row]:
    out: list[Row] = []
    for name, file, line, first in found[:_MOST_ROWS]:
        out.append((str(name)[:_MOST_TEXT], str(file)[:_MOST_TEXT], int(line), int(first)))
    return out
