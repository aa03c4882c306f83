"""Recognises HotSpot, the JVM of OpenJDK, among the files that a process maps."""

from __future__ import annotations

from collections.abc import Mapping

from parprof.files.dso import Dso
from parprof.languages import Data, Loader
from parprof.languages.hotspot.client import JvmReader
from parprof.languages.hotspot.instance import HotSpotInstance
from parprof.languages.hotspot.structures import SYMBOLS
from parprof.process.loadmap import LoadMap
from parprof.values import dataclass

_LIBRARY, _LAUNCHER = "libjvm.so", "libjli.so"


class HotSpotLoader(Loader):
    """The front end for HotSpot."""

    name = "hotspot"
    counters = HotSpotInstance.COUNTERS

    def __init__(self) -> None:
        self._reader = JvmReader()

    def may_be(self, dso: Dso, is_program: bool) -> bool:
        """It is always the library of that name. The launcher's tells that it will come."""
        return dso.name in (_LIBRARY, _LAUNCHER)

    def load(self, dso: Dso) -> HotSpotData | None:
        """The JVM in a file; None: it says nothing of itself."""
        if dso.name == _LAUNCHER:
            self._reader.prepare()  # which takes as long as a JVM takes to begin
            return None
        if dso.elf is None:
            return None
        symbols = {name: known[0].value for name, known in dso.elf.lookup(SYMBOLS).items()}
        return HotSpotData(symbols, self._reader) if set(SYMBOLS) <= symbols.keys() else None


@dataclass(frozen=True, slots=True)
class HotSpotData(Data):
    """The JVM in one file: where it says what of itself."""

    symbols: Mapping[str, int]
    reader: JvmReader

    def attach(self, load_map: LoadMap, dso: Dso) -> HotSpotInstance:
        """The JVM of a process, which maps the file ``dso``."""
        bias = load_map.bias(dso)
        symbols = {name: address + bias for name, address in self.symbols.items()}
        return HotSpotInstance(load_map.pid, symbols, self.reader)
