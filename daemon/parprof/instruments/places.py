"""Names and lines of addresses that a target wrote down as file and ELF address: its process may be long gone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from parprof.files.dso import Dso
from parprof.files.dso_cache import DsoCache
from parprof.files.maps_line import MapsLine
from parprof.loops.kept import KeptLoops
from parprof.loops.scopes import LoopScopes
from parprof.model import Frame
from parprof.resources import Closing
from parprof.symbols.symbolizer import Symbolizer
from parprof.untrusted import visible

_MAX_PLACES = 1 << 16


class FilePlace(NamedTuple):
    """An address in a file. ``build_id`` as hexadecimal digits, empty if the file had none."""

    module: str
    build_id: str
    vaddr: int
    is_return: bool = True


class Places(Closing):
    """Resolves places to frames; remembers what it resolved. For one thread."""

    def __init__(self, symbolizer: Symbolizer, *, with_loops: bool = True) -> None:
        """Take names from ``symbolizer``, which stays the caller's."""
        self._symbolizer = symbolizer
        self._cache = DsoCache()
        self._loops = KeptLoops()
        self._scopes = LoopScopes(symbolizer.resolve, self._loops) if with_loops else None
        self._dsos: dict[tuple[str, str], Dso | None] = {}
        self.notes: dict[str, str] = {}
        """File -> why its names are missing."""

    def resolve(self, places: Iterable[FilePlace]) -> dict[FilePlace, tuple[Frame, ...]]:
        """The frames at each place: innermost inlined function or loop first, the function last."""
        wanted = list(dict.fromkeys(places))[:_MAX_PLACES]
        dsos = {place: dso for place in wanted if (dso := self._dso(place)) is not None}
        requests = {place: (dso, place.vaddr, place.is_return) for place, dso in dsos.items()}
        frames = self._symbolizer.resolve(requests.values())
        if self._scopes is not None:
            self._scopes.prepare(dict.fromkeys(requests.values(), 1), frames, 1)
        out: dict[FilePlace, tuple[Frame, ...]] = {}
        for place in wanted:
            request = requests.get(place)
            if request is None:
                out[place] = (_nameless(place),)
            elif self._scopes is None:
                out[place] = frames[request]
            else:
                out[place] = self._scopes.scopes(request, frames[request])
        return out

    def close(self) -> None:
        """Close the files, and end the helper."""
        self._cache.close()
        self._loops.close()

    def _dso(self, place: FilePlace) -> Dso | None:
        key = (place.module, place.build_id)
        if key not in self._dsos:
            self._dsos[key] = self._open(*key)
        return self._dsos[key]

    def _open(self, module: str, build_id: str) -> Dso | None:
        """The file, if it is still the one that was mapped."""
        shown = visible(module)
        if not module.startswith("/"):
            return None
        try:
            status = os.stat(module)
        except (OSError, ValueError) as error:
            self.notes[shown] = f"names are missing: {getattr(error, 'strerror', None) or error}"
            return None
        line = MapsLine(0, 1, True, 0, status.st_dev, status.st_ino, os.fsencode(module))
        dso = self._cache.get(os.getpid(), line)
        if dso.elf is None:
            self.notes[shown] = f"names are missing: {dso.problem or 'it cannot be read'}"
            return None
        if build_id and dso.build_id and build_id != dso.build_id:
            self.notes[shown] = "names are missing: the file has changed since it ran"
            return None
        return dso


def _nameless(place: FilePlace) -> Frame:
    name = visible(place.module).rpartition("/")[2] or "[unknown]"
    return Frame(
        f"{name}+{place.vaddr:#x}", module=name, build_id=visible(place.build_id), address=place.vaddr
    )
