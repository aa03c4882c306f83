"""What one process maps: its load map as it was read and as samples showed it, and when it is to be read again."""

from __future__ import annotations

import time
from collections.abc import Iterable

from parprof.errors import TargetError
from parprof.files.dso import Dso
from parprof.files.dso_cache import DsoCache
from parprof.files.maps_line import MapsLine
from parprof.kernel.file_tables import FoundMapping
from parprof.process.epochs import LoadMaps
from parprof.process.executable import own_vdso
from parprof.process.loadmap import LoadMap, Mapping
from parprof.unwind.placing import Placer

_PAUSE, _LONG_PAUSE, _LONG_READING_S = 3.0, 10.0, 0.01
"""A load map is read again after so many times as long as we computed for it: a quarter of a core at most while a
program loads libraries, less where the map is huge."""


class Mapped:
    """The load maps of one process over time. Who unwinds its stacks is told of each."""

    def __init__(self, pid: int, cache: DsoCache, placer: Placer) -> None:
        """Nothing is known yet."""
        self._pid = pid
        self._cache = cache
        self._placer = placer
        self.maps = LoadMaps()
        self._has_been_read = False
        """Else all that is known is what samples showed, and the parent's."""
        self.is_stale = False
        """It may have changed."""
        self.next_reading_s = 0.0

    @property
    def newest(self) -> LoadMap | None:
        """The load map as it was read last."""
        return self.maps.newest

    def inherit(self, parent: Mapped) -> None:
        """A fork starts with its parent's memory."""
        if parent.newest is not None:
            self.maps.add(0, parent.newest)

    def read(self, wait: bool) -> bool:
        """Read it again; False when the process is gone or nothing is mapped any more.

        ``wait`` for unwind tables that have to be built, because the process stands still for us.
        """
        epoch, started_cpu = self.maps.epoch, time.thread_time()
        try:
            fresh = LoadMap.read(self._pid, self.newest, self._cache)
        except TargetError:
            return False
        took_s = time.thread_time() - started_cpu
        pause = _PAUSE if took_s < _LONG_READING_S else _LONG_PAUSE
        self.next_reading_s = time.monotonic() + pause * took_s
        if not fresh.mappings:
            return False
        if fresh is not self.newest:
            self._placer.update(fresh, wait)
        self.maps.add(epoch, fresh)
        self._has_been_read = True
        return True

    def note(self, found: Iterable[FoundMapping]) -> None:
        """It has, or had, these mapped, as samples show."""
        by_epoch: dict[int, list[Mapping]] = {}
        for one in found:
            dso = self._placer.file_of(one) if one.inode else self._vdso(one)
            if dso is None:
                line = MapsLine(one.start, one.end, True, one.offset, one.device, one.inode, one.path)
                dso = self._cache.mapped(self._pid, line)
            if dso is not None:
                by_epoch.setdefault(one.epoch, []).append(Mapping(one.start, one.end, one.offset, dso))
        for epoch, mappings in sorted(by_epoch.items()):
            noted = LoadMap.of_mappings(self._pid, mappings)
            self.maps.note(epoch, noted)
            if not self._has_been_read:
                before = self.newest
                self.maps.add(self.maps.epoch, noted.keeping(before) if before else noted)

    def lacks_rows(self, address: int) -> None:
        """Code was executed there whose unwind table is in place only in parts."""
        if self.newest is not None:
            self._placer.missed(self.newest, address)

    def _vdso(self, found: FoundMapping) -> Dso | None:
        """The kernel's code in user space, if it found that: it is of no file, and as long as in our process."""
        own = own_vdso()
        if own is None or found.offset or found.end - found.start != own.end - own.start:
            return None
        return self._cache.ours(own)
