"""Loops for `parprof attach` through the daemon, which does not look for any: who asks for the profile does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from parprof.errors import ParprofError
from parprof.files.dso_cache import DsoCache
from parprof.model import Profile
from parprof.process.loadmap import LoadMap
from parprof.profile.late_loops import add_loops
from parprof.resources import Closing
from parprof.symbols.symbolizer import Symbolizer


class LateLoops(Closing):
    """Remembers what a process maps, while it is there, for loops to be looked for when its profile has come."""

    def __init__(self, pid: int) -> None:
        """Begin: look at it now, as it may end."""
        self._pid = pid
        self._cache = DsoCache()
        self._map: LoadMap | None = None
        self._problem = ""
        self._look()

    def add(self, profile: Profile, log: Callable[[str], None] | None) -> None:
        """Put loops into the profile. ``log`` is told what takes long."""
        self._look()
        if self._map is None:
            profile.notes.append(f"without loops: {self._problem}")
            return
        with Symbolizer(log=log) as symbolizer:
            add_loops(profile, self._map.dsos(), symbolizer)

    def close(self) -> None:
        """Close its files."""
        self._cache.close()

    def _look(self) -> None:
        """What has gone is still known: it may be what was measured."""
        try:
            now = LoadMap.read(self._pid, self._map, self._cache)
        except ParprofError as error:
            self._problem = str(error)
            return
        self._map = now if self._map is None else now.keeping(self._map)
        for dso in self._map.dsos():
            with suppress(ParprofError, OSError):
                dso.file()
