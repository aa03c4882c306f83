"""The table of languages, and which of them a process runs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cache

from parprof.files.dso import Dso, FileKey
from parprof.files.elf import ElfError
from parprof.languages import Data, Instance, Loader, Replayed, SavedLanguage, UnknownBuild
from parprof.languages.cpython.loader import CPythonLoader
from parprof.languages.cpython.recorded import RecordedCPython
from parprof.languages.hotspot.instance import SAVED_AS
from parprof.languages.hotspot.loader import HotSpotLoader
from parprof.languages.hotspot.recorded import RecordedHotSpot
from parprof.process.loadmap import LoadMap

_KEPT = 4096
"""Files of which it is remembered what is in them."""


@cache
def loaders() -> tuple[Loader, ...]:
    """All languages, the most likely first."""
    return CPythonLoader(), HotSpotLoader()


class FrontEnds:
    """Finds the languages of processes. Each file is looked into once, for all of them."""

    def __init__(self, known: Sequence[Loader] | None = None) -> None:
        """``known``: the languages, by default all."""
        self._loaders = loaders() if known is None else tuple(known)
        self._data: OrderedDict[tuple[str, FileKey], Data | str | None] = OrderedDict()
        """What is in a file; a text: an interpreter that is refused."""

    def find(self, load_map: LoadMap) -> Instance | None:
        """The interpreter that a process has mapped. One at most: the programs collect the frames of one."""
        known = ((data, dso) for data, dso in self._interpreters(load_map) if isinstance(data, Data))
        data, dso = next(known, (None, None))
        return data.attach(load_map, dso) if data is not None and dso is not None else None

    def refusal(self, load_map: LoadMap) -> str:
        """Which interpreter that a process has mapped is none that we know, for its reader; empty: none."""
        return next((data for data, _ in self._interpreters(load_map) if isinstance(data, str)), "")

    def _interpreters(self, load_map: LoadMap) -> Iterator[tuple[Data | str, Dso]]:
        for index, mapping in enumerate(load_map.mappings):
            for loader in self._loaders:
                if loader.may_be(mapping.dso, index == 0):
                    data = self._look_into(loader, mapping.dso)
                    if data is not None:
                        yield data, mapping.dso

    def _look_into(self, loader: Loader, dso: Dso) -> Data | str | None:
        key = loader.name, dso.key
        if key in self._data:
            self._data.move_to_end(key)
            return self._data[key]
        found: Data | str | None
        try:
            found = loader.load(dso)
        except ElfError:
            found = None
        except UnknownBuild as error:
            found = str(error)
        self._data[key] = found
        while len(self._data) > _KEPT:
            self._data.popitem(last=False)
        return found


def replayed(saved: SavedLanguage) -> Replayed:
    """An interpreter as it was saved."""
    return RecordedHotSpot(saved) if SAVED_AS in saved.modules else RecordedCPython.of(saved)
