"""The CPython interpreter of one process: what lies where in its memory."""

from __future__ import annotations

import re

from parprof.files.elf import ElfError
from parprof.files.libc import is_libc
from parprof.languages.cpython.layouts import NOT_THERE, Layout, kernel_facts
from parprof.patterns import regex
from parprof.process.loadmap import LoadMap
from parprof.values import dataclass

_SLOTS_CODE = regex(rb"\x48\x83[\xc0-\xc7](.)\x48\xc1[\xe0-\xe7]\x04", re.DOTALL)
_USUAL_SLOTS = 0x310


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


def thread_slots(load_map: LoadMap) -> int:
    """Where glibc keeps a thread's first 32 specific data, as its pthread_getspecific has it.

    The programs check what they find there: a wrong number costs the Python frames of threads that do not
    hold the GIL.
    """
    for dso in load_map.dsos():
        if not is_libc(dso.name) or dso.elf is None:
            continue
        try:
            for symbol in dso.elf.lookup(["pthread_getspecific"]).get("pthread_getspecific", ()):
                if match := _SLOTS_CODE.search(dso.elf.read(symbol.value, 48)):
                    return min(match[1][0] * 16, NOT_THERE)
        except ElfError:
            continue
    return _USUAL_SLOTS
