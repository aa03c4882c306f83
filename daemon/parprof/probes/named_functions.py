"""Functions of a file by names that a user gives: what a child does, which reads what others wrote."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from parprof.files.elf import ElfFile, Symbol
from parprof.files.elf_symbols import TYPE_IFUNC
from parprof.loops.extents import function_at
from parprof.patterns import regex
from parprof.probes.wait_code import Range
from parprof.symbols.names import readable, without_clone_suffixes

MAX_FOUND = 64
"""Functions of one file; what the programs can be told of is less."""
MAX_NAME = 256
MAX_NEAR = 3
_WORST = 0.65
_MOST_COMPARED = 1 << 15
_WORDS = regex(r"\w+")


class WaitFunction(NamedTuple):
    """A function in a file; its code is [start, end), ELF virtual addresses."""

    name: str
    start: int
    end: int


def find_wait_functions(elf: ElfFile, pattern: str) -> list[WaitFunction]:
    """The functions of a file that match; the first `MAX_FOUND` of them.

    Raises:
        ElfError: the file cannot be read.
    """
    expression = re.compile(pattern)
    out: dict[int, WaitFunction] = {}
    for symbol in elf.symbols():
        if symbol.kind == TYPE_IFUNC or symbol.value in out or not _matches(expression, symbol.name):
            continue
        code = _code_of(elf, symbol)
        if code is not None:
            out[symbol.value] = WaitFunction(readable(symbol.name)[:MAX_NAME], *code)
        if len(out) >= MAX_FOUND:
            break
    return list(out.values())


def near_names(elf: ElfFile, pattern: str) -> list[str]:
    """Names of functions of a file that were perhaps meant.

    Raises:
        ElfError: the file cannot be read.
    """
    names = {_bare(readable(symbol.name))[:MAX_NAME] for symbol in islice(elf.symbols(), _MOST_COMPARED)}
    return nearest(pattern, names)


def nearest(pattern: str, names: Iterable[str]) -> list[str]:
    """Those of some names that an expression may have been meant for, the likeliest first; a few at the most."""
    return difflib.get_close_matches(_literal(pattern), dict.fromkeys(names), MAX_NEAR, _WORST)


def _matches(expression: re.Pattern[str], symbol: str) -> bool:
    """Whether the name of a function is meant: as the linker knows it, as people do, or so without its arguments.

    >>> _matches(re.compile("ns::wait_.*"), "_ZN2ns8wait_forEi"), _matches(re.compile("wait"), "await")
    (True, False)
    """
    name = readable(symbol)
    return any(
        expression.fullmatch(one) is not None
        for one in dict.fromkeys((symbol, without_clone_suffixes(symbol), name, _bare(name)))
    )


def _bare(name: str) -> str:
    """A function's name without its arguments.

    >>> _bare("ns::wait_for(int)"), _bare("(anonymous namespace)::wait()"), _bare("wait")
    ('ns::wait_for', '(anonymous namespace)::wait', 'wait')
    """
    at = name.find("(", 1)
    while at > 0 and name.startswith("(anonymous namespace)", at):
        at = name.find("(", at + 1)
    return name[:at] if at > 0 else name


def _literal(pattern: str) -> str:
    """The words of an expression: what names are compared with.

    >>> _literal("wait_.*|^spin$")
    'wait_spin'
    """
    return "".join(_WORDS.findall(pattern))


def _code_of(elf: ElfFile, symbol: Symbol) -> Range | None:
    if symbol.size:
        return symbol.value, symbol.value + symbol.size
    extent = function_at(elf, symbol.value)
    return (extent[0], extent[0] + extent[1]) if extent is not None and extent[1] else None
