"""What planning has to know of a file, found once for all processes that map it."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from parprof.files.elf import ElfError, Symbol
from parprof.probes.wait_code import wait_code
from parprof.process.loadmap import Dso
from parprof.runtimes import Agent, agent_for_library, agents

_KEPT = 4096
NAMED = ("pthread_create", "_dl_debug_state")
"""Functions that are probed wherever they are."""
_CREATORS = ("pthread_create", "thrd_create", "_ZNSt6thread15_M_start_thread")
"""How the names of functions begin that start a thread; the last is that of std::thread."""
_CREATE_FOR_OTHERS = re.compile(r"libstdc\+\+\.|libc[.-]|libpthread[.-]")


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Facts about one file; empty where it is no ELF file that we can read."""

    imports: frozenset[str] = frozenset()
    """Functions that it has from some parallel runtime."""
    named: tuple[Symbol, ...] = ()
    """Its definitions of `NAMED`."""
    static_agent: Agent | None = None
    """The runtime that is linked into it, or that it is under another name: see `Agent.marker`."""
    is_static: bool = False
    wait_code: tuple[tuple[int, int], ...] = ()
    """Of a runtime that tells by ``pause`` that a thread waits: that code, ELF addresses [start, end)."""
    creates_threads: bool = False
    """Whether it imports what starts a thread, and is neither a parallel runtime nor a wrapper for others."""


_facts: OrderedDict[object, FileFacts] = OrderedDict()


def file_facts(dso: Dso) -> FileFacts:
    """The facts about a file; remembered."""
    found = _facts.get(dso.key)
    if found is not None:
        _facts.move_to_end(dso.key)
        return found
    if dso.elf is None:
        return FileFacts()  # may be better the next time
    found = _facts[dso.key] = _find(dso)
    while len(_facts) > _KEPT:
        _facts.popitem(last=False)
    return found


def _find(dso: Dso) -> FileFacts:
    elf = dso.elf
    assert elf is not None
    library = agent_for_library(dso.name)
    markers = {agent.marker for agent in agents() if agent.marker} if library is None else set()
    try:
        is_static = elf.is_static
        defined = elf.lookup({*NAMED, *markers})
    except ElfError:
        return FileFacts()
    named = tuple(symbol for name in NAMED for symbol in defined.get(name, ()))
    try:
        undefined = elf.undefined()
    except ElfError:
        undefined = set()
    patterns = [agent.imports for agent in agents()]
    imports = frozenset(name for name in undefined if any(pattern.match(name) for pattern in patterns))
    static_agent = _agent_inside(markers & defined.keys())
    creates_threads = (
        library is None
        and not _CREATE_FOR_OTHERS.match(dso.name)
        and any(name.startswith(_CREATORS) for name in undefined)
    )
    runtime = static_agent or library
    waits = tuple(wait_code(elf)) if runtime is not None and runtime.pauses else ()
    return FileFacts(imports, named, static_agent, is_static, waits, creates_threads)


def _agent_inside(markers: Collection[str]) -> Agent | None:
    """Whose these markers are. Some runtimes offer the functions of another, too: theirs come first."""
    found = [agent for agent in agents() if agent.marker in markers]
    return min(found, key=lambda agent: agent.is_imitated, default=None)
