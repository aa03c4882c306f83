"""Where ``main`` is in a program without symbols: the start-up code that every C program is linked with says so.

It hands the address to the C library. Nearly all programs of a distribution are stripped: without that, the root of all
their call paths would be a number.
"""

from __future__ import annotations

import re
from contextlib import suppress

from parprof.files.elf import ElfError, ElfFile
from parprof.patterns import regex

_START = regex(
    rb"(?:\xf3\x0f\x1e\xfa)?\x31\xed\x49\x89\xd1\x5e\x48\x89\xe2\x48\x83\xe4\xf0\x50\x54"
    rb".{5,14}?(?P<load>\x48\x8d\x3d|\x48\xc7\xc7)(?P<operand>.{4})(?:\xff\x15|\x67?\xe8)",
    re.DOTALL,
)
"""glibc's ``_start`` (sysdeps/x86_64/start.S), of all versions: arguments of the process, two functions or none, then
``main`` as the first argument, by its distance or by itself, and the call."""
_RELATIVE = b"\x48\x8d\x3d"
_CODE = 64


def main_function(elf: ElfFile) -> int | None:
    """The ELF virtual address of ``main``; None if the code at the program's entry is not glibc's."""
    code = b""
    with suppress(ElfError):
        code = elf.read(elf.entry, _CODE)
    found = _START.match(code)
    if found is None:
        return None
    operand = int.from_bytes(found["operand"], "little", signed=True)
    return elf.entry + found.end("operand") + operand if found["load"] == _RELATIVE else operand
