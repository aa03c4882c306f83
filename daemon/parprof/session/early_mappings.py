"""Mappings of process images that the session does not know yet.

They come through another ring than the record of the image, and are read later than that one was last: a program that
was started in between may have been sampled. The kernel tells of each mapping once, so nothing of it would have a name.
"""

from __future__ import annotations

from collections.abc import Iterable

from parprof.kernel.file_tables import FoundMapping


class EarlyMappings:
    """Those that wait for their image. They are dropped when all records that were there by then have been dealt with:
    then it is an image that the session is not to know."""

    def __init__(self) -> None:
        """There are none."""
        self._fresh: list[FoundMapping] = []
        self._waiting: list[FoundMapping] = []
        """They came before the records that are dealt with now were read."""

    def keep(self, mappings: Iterable[FoundMapping]) -> None:
        """Nobody knows their image."""
        self._fresh.extend(mappings)

    def await_next(self) -> None:
        """All records that there are have just been read, and are about to be dealt with."""
        self._waiting, self._fresh = self._fresh, []

    def take(self) -> list[FoundMapping]:
        """All that wait: to be tried again, and kept again where that fails."""
        out, self._waiting = self._waiting, []
        return out
