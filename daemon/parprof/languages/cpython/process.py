"""Recognises CPython 3.9 to 3.13 among the files that a process maps."""

from __future__ import annotations

import re
from dataclasses import dataclass

from parprof.files.dso import Key
from parprof.files.elf import ElfError, ElfFile
from parprof.languages.cpython.evalcode import LOOP, loop_ranges
from parprof.languages.cpython.layouts import (
    DEBUG_OFFSETS_SIZE,
    LAYOUTS,
    NOT_THERE,
    Layout,
    debug_layout,
    kernel_facts,
)
from parprof.process.loadmap import Dso, LoadMap, Mapping

_SYMBOLS = ("_PyRuntime", "PyCode_Type", "Py_Version", LOOP)
_NUMBER = re.compile(r"python3\.(\d+)")
_VERSION_TEXT = re.compile(rb"\0(3)\.(9|10)\.\d+(?:\+|a\d+|b\d+|rc\d+)?\0")
_PROGRAM = re.compile(r"python[\d.]*t?$")
_SLOTS_CODE = re.compile(rb"\x48\x83[\xc0-\xc7](.)\x48\xc1[\xe0-\xe7]\x04", re.DOTALL)
_USUAL_SLOTS = 0x310
_MAX_RODATA = 1 << 24


@dataclass(frozen=True, slots=True)
class CPython:
    """The interpreter of one process. Addresses are those in the process."""

    layout: Layout
    runtime: int
    code_type: int
    loops: tuple[tuple[int, int], ...]
    """[start, end) of the machine code of the interpreter loop."""
    modules: frozenset[str]
    """Names of the files that are the interpreter: its library, and the program that only starts it."""
    thread_slots: int

    def is_loop(self, address: int, is_return: bool) -> bool:
        """Whether the frame at an address is an activation of the interpreter loop."""
        return any(start <= address - is_return < end for start, end in self.loops)

    def kernel_facts(self) -> dict[str, int]:
        """What the programs in the kernel must know."""
        return kernel_facts(self.layout, self.runtime, self.thread_slots)


def find_cpython(load_map: LoadMap, known: set[Key]) -> CPython | None:
    """The interpreter that a process has mapped, if it is one that we know.

    Only the program itself and files with "python" in their name are looked at, and of those only what is not
    ``known`` to be none; what turns out to be none is added.
    """
    for index, mapping in enumerate(load_map.mappings):
        dso = mapping.dso
        if dso.key in known or (index and "python" not in dso.name):
            continue
        known.add(dso.key)
        try:
            found = _recognise(mapping, load_map)
        except ElfError:
            continue
        if found is not None:
            return found
    return None


def _recognise(mapping: Mapping, load_map: LoadMap) -> CPython | None:
    dso = mapping.dso
    elf = dso.elf
    if elf is None:
        return None
    symbols = {name: known[0].value for name, known in elf.lookup(_SYMBOLS).items()}
    if not {"_PyRuntime", "PyCode_Type", LOOP} <= symbols.keys():
        return None
    layout = LAYOUTS.get(_minor_version(elf, dso, symbols.get("Py_Version", 0)))
    if layout is None:
        return None
    if layout.minor >= 13:
        layout = debug_layout(layout, elf.read(symbols["_PyRuntime"], DEBUG_OFFSETS_SIZE)) or layout
    bias = mapping.start - dso.vaddr(mapping.file_offset)
    first = load_map.mappings[0].dso.name
    return CPython(
        layout,
        symbols["_PyRuntime"] + bias,
        symbols["PyCode_Type"] + bias,
        tuple((start + bias, end + bias) for start, end in loop_ranges(elf)),
        frozenset((dso.name, first) if _PROGRAM.match(first) else (dso.name,)),
        _thread_slots(load_map),
    )


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


def _thread_slots(load_map: LoadMap) -> int:
    """Where glibc keeps a thread's first 32 specific data, as its pthread_getspecific has it.

    The programs check what they find there: a wrong number costs the Python frames of threads that do not
    hold the GIL.
    """
    for dso in load_map.dsos():
        if not dso.name.startswith(("libc.so", "libc-2", "libpthread")) or dso.elf is None:
            continue
        try:
            for symbol in dso.elf.lookup(["pthread_getspecific"]).get("pthread_getspecific", ()):
                if match := _SLOTS_CODE.search(dso.elf.read(symbol.value, 48)):
                    return min(match[1][0] * 16, NOT_THERE)
        except ElfError:
            continue
    return _USUAL_SLOTS
