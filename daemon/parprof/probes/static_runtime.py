"""Where the code of a parallel runtime lies in a program that it was linked into."""

from __future__ import annotations

from collections.abc import Iterator

from parprof.files.elf import ElfError, ElfFile, Symbol
from parprof.runtimes import Agent

_GAP = 16
"""So many functions of other names may lie between two of the runtime's: its own static ones."""
_LEAST = 8
"""Runs of fewer functions than that are not taken for the runtime's objects."""
_MOST = 4


def runtime_code(agent: Agent, elf: ElfFile) -> list[tuple[int, int]]:
    """ELF address ranges [start, end) of the runtime's code in a program: a linker puts its objects side by side."""
    try:
        functions = sorted(elf.symbols(), key=lambda symbol: symbol.value)
    except ElfError:
        return []
    runs = sorted(_runs(agent, functions), key=len, reverse=True)[:_MOST]
    return sorted((run[0].value, run[-1].value + (run[-1].size or 1)) for run in runs if len(run) >= _LEAST)


def _runs(agent: Agent, functions: list[Symbol]) -> Iterator[list[Symbol]]:
    run: list[Symbol] = []
    gap: list[Symbol] = []
    for symbol in functions:
        if agent.functions.match(symbol.name) and not agent.outlined.fullmatch(symbol.name):
            run += [*gap, symbol] if run else [symbol]
            gap = []
            continue
        gap.append(symbol)
        if len(gap) > _GAP or symbol.name == "main" or agent.outlined.fullmatch(symbol.name):
            if run:
                yield run
            run, gap = [], []
    if run:
        yield run
