"""Recognises CPython 3.9 to 3.13 among the files that a process maps."""

from __future__ import annotations

from parprof.files.dso import Dso
from parprof.files.elf import ElfFile
from parprof.languages import Data, Loader, UnknownBuild
from parprof.languages.cpython.evalcode import LOOP, loop_ranges
from parprof.languages.cpython.functions import PythonStacks
from parprof.languages.cpython.instance import CPythonInstance
from parprof.languages.cpython.layouts import (
    DEBUG_OFFSETS_SIZE,
    LAYOUTS,
    Layout,
    debug_layout,
    is_free_threaded,
)
from parprof.languages.cpython.process import CPython, thread_slots
from parprof.patterns import regex
from parprof.process.loadmap import LoadMap
from parprof.values import dataclass

_SYMBOLS = ("_PyRuntime", "PyCode_Type", "Py_Version", LOOP)
_NUMBER = regex(r"python3\.(\d+)")
_VERSION_TEXT = regex(rb"\0(3)\.(9|10)\.\d+(?:\+|a\d+|b\d+|rc\d+)?\0")
_PROGRAM = regex(r"python[\d.]*t?$")
_EXTENSION_MODULE = regex(r"\.(?:cpython-\d+\w*|abi3)[.-]")
"""In the names of libraries that an interpreter imports: a program may have hundreds, and none is one."""
_MAX_RODATA = 1 << 24
_FIRST_THAT_SAYS = 13
"""From this minor version on the interpreter says at the start of its ``_PyRuntime`` where it keeps things."""


class CPythonLoader(Loader):
    """The front end for CPython."""

    name = "cpython"
    counters = CPythonInstance.COUNTERS

    def may_be(self, dso: Dso, is_program: bool) -> bool:
        """Programs may have it built in; of libraries only those are looked at that are named for it."""
        return is_program or ("python" in dso.name and not _EXTENSION_MODULE.search(dso.name))

    def load(self, dso: Dso) -> CPythonData | None:
        """The interpreter in a file.

        Raises:
            UnknownBuild: it is of a version, or built in a way, that we do not know.
        """
        elf = dso.elf
        if elf is None:
            return None
        symbols = {name: known[0].value for name, known in elf.lookup(_SYMBOLS).items()}
        if not {"_PyRuntime", "PyCode_Type", LOOP} <= symbols.keys():
            return None
        minor = _minor_version(elf, dso, symbols.get("Py_Version", 0))
        said = elf.read(symbols["_PyRuntime"], DEBUG_OFFSETS_SIZE) if minor >= _FIRST_THAT_SAYS else b""
        layout = LAYOUTS.get(minor)
        if layout is None or is_free_threaded(said):
            raise UnknownBuild(_refusal(minor, is_free_threaded(said)))
        layout = debug_layout(layout, said) or layout
        return CPythonData(layout, symbols["_PyRuntime"], symbols["PyCode_Type"], tuple(loop_ranges(elf)))


@dataclass(frozen=True, slots=True)
class CPythonData(Data):
    """The interpreter in one file."""

    layout: Layout
    runtime: int
    code_type: int
    loops: tuple[tuple[int, int], ...]
    """[start, end) of the machine code of the interpreter loop."""

    def attach(self, load_map: LoadMap, dso: Dso) -> CPythonInstance:
        """The interpreter of a process, which maps the file ``dso``."""
        bias = load_map.bias(dso)
        first = load_map.mappings[0].dso.name
        python = CPython(
            self.layout,
            self.runtime + bias,
            self.code_type + bias,
            tuple((start + bias, end + bias) for start, end in self.loops),
            frozenset((dso.name, first) if _PROGRAM.match(first) else (dso.name,)),
            thread_slots(load_map),
        )
        return CPythonInstance(PythonStacks(load_map.pid, python))


def _refusal(minor: int, free_threaded: bool) -> str:
    which = f"CPython 3.{minor}" if minor else "CPython of an unknown version"
    if free_threaded:
        which = f"free-threaded {which}"
    known = f"parprof knows CPython 3.{min(LAYOUTS)} to 3.{max(LAYOUTS)} with a GIL"
    return f"Python functions of {which} are not known: {known}"


def _minor_version(elf: ElfFile, dso: Dso, version_symbol: int) -> int:
    """The 11 of 3.11, 0 if it cannot be told."""
    if version_symbol:
        raw = int.from_bytes(elf.read(version_symbol, 4), "little")
        return raw >> 16 & 0xFF if raw >> 24 == 3 else 0
    for name in (elf.soname, dso.name):
        if match := _NUMBER.search(name):
            return int(match[1])
    text = _VERSION_TEXT.search(elf.section_data(b".rodata", _MAX_RODATA))
    return int(text[2]) if text else 0
