"""Which files that a process maps are a parallel runtime, or have one inside; and what has to be said of them."""

from __future__ import annotations

from collections.abc import Iterator

from parprof.files.dso import Dso
from parprof.probes.facts_book import file_facts
from parprof.runtimes import Agent, agent_for_library
from parprof.values import dataclass


@dataclass(frozen=True, slots=True)
class MappedRuntime:
    """A parallel runtime in a file that a process maps."""

    agent: Agent
    dso: Dso
    is_inside: bool
    """The file is not known as its library: it is linked into that file, or goes by another name."""

    @property
    def is_hidden(self) -> bool:
        """Nothing of it can be probed: see `FileFacts.is_hidden`."""
        return self.is_inside and file_facts(self.dso).is_hidden

    @property
    def is_probed(self) -> bool:
        """Whether probes tell what its threads do."""
        return bool(self.agent.hooks) and not self.is_hidden


def mapped_runtimes(dsos: list[Dso]) -> list[MappedRuntime]:
    """Which files are a runtime's library, and which bring one along, those behind the others."""
    known = [(agent_for_library(dso.name), dso) for dso in dsos]
    libraries = [
        MappedRuntime(a, dso, False)
        for a, dso in known
        if a is not None and not a.is_polling and not _is_namesake(dso)
    ]
    inside = [MappedRuntime(a, dso, True) for dso in dsos if (a := file_facts(dso).static_agent) is not None]
    return libraries + inside


def notes_on(runtimes: list[MappedRuntime], users: list[Dso], dsos: list[Dso]) -> list[str]:
    """What of their threads is not known as well as it could be, and why. ``users``: the files that call them."""
    return [*_inlined_unseen(runtimes, users), *_namesakes(dsos), *_hidden(runtimes)]


def _is_namesake(dso: Dso) -> bool:
    """Whether a file only has the name of a runtime's library. What is no ELF file no loader has made a library of."""
    is_other = dso.key[0] == "file" and dso.elf is None and bool(dso.problem)
    return is_other or file_facts(dso).is_namesake


def _namesakes(dsos: list[Dso]) -> Iterator[str]:
    """Files that are not what their names say."""
    for dso in dsos:
        agent = agent_for_library(dso.name)
        if agent is not None and _is_namesake(dso):
            yield f"{dso.name} is called as {agent.name} is, but has none of its functions: not taken for a runtime"


def _hidden(runtimes: list[MappedRuntime]) -> Iterator[str]:
    """Runtimes of which no symbol is left."""
    for runtime in runtimes:
        if runtime.is_hidden:
            name = runtime.agent.name
            yield (
                f"{runtime.dso.name} has {name} linked in, and is stripped: whether its threads work is told by what "
                "they run, their call paths begin where they were created, and its functions have no names; link the "
                f"shared {name}, or do not strip, to have it exact"
            )


def _inlined_unseen(runtimes: list[MappedRuntime], users: list[Dso]) -> Iterator[str]:
    """Where overhead cannot be told from work."""
    for runtime in runtimes:
        if not runtime.agent.is_inlined:
            continue
        files = [runtime.dso, *users] if runtime.is_inside else users
        for dso in {dso.key: dso for dso in files}.values():
            if not file_facts(dso).has_lines:
                yield (
                    f"{dso.name} has no line information: what its compiler inlined of {runtime.agent.name} (spawns, "
                    "syncs) counts as its own work, not as overhead"
                )
