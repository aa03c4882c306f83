"""Where n_w comes from: the choice between exact, memory, sampled and scheduler (DESIGN.md section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from parprof.files.dso import Dso
from parprof.files.elf import ElfError
from parprof.kernel.records import CHECK_MEMORY, FROM_LEAVES, FROM_MEMORY, HAS_RUNTIME
from parprof.kernel.uprobes import Site
from parprof.plans import ClosureChain, Edge, MemoryPlan, Root, UnknownLayout, WorkerArray
from parprof.probes.facts_book import file_facts
from parprof.process.loadmap import LoadMap
from parprof.process.memory import ProcessMemory, environment_of
from parprof.runtimes import Agent
from parprof.values import dataclass


class Source(StrEnum):
    """Labels as in reports and metrics."""

    EXACT = "exact"
    """Probes on the runtime's work-acquire and work-release points."""
    MEMORY = "memory"
    """The runtime's own state, read at each sample."""
    SAMPLED = "sampled"
    """What threads were running at samples and switches."""
    SCHEDULER = "scheduler"
    """No parallel runtime: who is runnable works."""


@dataclass(frozen=True, slots=True)
class MemoryChoice:
    """What is known of reading n_w from memory."""

    plan: MemoryPlan | None = None
    spoilt_by: str = ""
    """Why it would be wrong for this program, though it can be read; empty where it holds."""
    problem: str = ""
    """Why it cannot be read."""
    agent: Agent | None = None
    """Whose plan it is."""

    @property
    def holds(self) -> bool:
        """Whether n_w from memory is right for this program."""
        return self.plan is not None and not self.spoilt_by

    @property
    def is_learned(self) -> bool:
        """Whether a probe has to tell where the runtime's state is: see `Root.LEARNED`."""
        return isinstance(self.plan, WorkerArray) and self.plan.root_kind is Root.LEARNED

    @property
    def closures(self) -> ClosureChain | None:
        """Where the runtime keeps the ancestors of stolen work, if they are on no stack and can be read."""
        return self.plan.closures if isinstance(self.plan, WorkerArray) else None


def flags_for(source: Source, memory: MemoryChoice) -> int:
    """Flags of the programs' configuration."""
    if source is Source.EXACT:
        return HAS_RUNTIME | (CHECK_MEMORY if memory.holds else 0)
    if source is Source.MEMORY:
        return HAS_RUNTIME | FROM_LEAVES | FROM_MEMORY
    return HAS_RUNTIME | FROM_LEAVES if source is Source.SAMPLED else 0


def can_probe_edges(sites: list[Site], agents: Sequence[Agent] = (), bodies: int = 0) -> bool:
    """Whether these sites tell both when work begins and when it ends; a stripped library has lost some.

    ``bodies``: so many of them are compiler-made functions of the program, see `Agent.outlined`. Where stolen work
    goes on in such functions, a stripped program has lost its edges, whatever the library has.
    """
    if not bodies and any(agent.has_closures for agent in agents):
        return False
    kinds = {Edge(site.kind) for site in sites}
    return bool(kinds & {Edge.WORK, Edge.WAIT, Edge.REGION, Edge.LEARN}) or {Edge.BEGIN, Edge.END} <= kinds


def first_source(
    agents: list[Agent], memory: MemoryChoice, wanted: Source | None, has_edges: bool = True
) -> Source:
    """The source that a process starts with; ``wanted`` is the user's, kept where it can be had.

    ``has_edges``: some work edge can be probed, which is not so in all stripped libraries.
    """
    if not agents:
        return Source.SCHEDULER
    # Of several runtimes, those that can be probed are; threads of the others are judged by what they run all the same.
    offered = [Source(agent.source) for agent in agents]
    preferred = wanted or (Source.EXACT if Source.EXACT in offered else offered[0])
    if preferred is Source.MEMORY and memory.plan is None:
        preferred = Source.EXACT
    if preferred is Source.EXACT and not (has_edges and any(agent.hooks for agent in agents)):
        return Source.MEMORY if memory.holds else Source.SAMPLED
    return preferred


def root_sites(sites: Sequence[Site]) -> list[Site]:
    """Where to see the runtime's state pass by, for plans that begin there: entries alone, of the rarest functions."""
    found = [replace(site, returns=False) for site in sites if site.root_argument]
    rare = [site for site in found if site.kind in (Edge.BEGIN, Edge.END)]
    return rare or found


def with_root(memory: MemoryChoice, sites: Sequence[Site]) -> MemoryChoice:
    """The same, unless nothing can be probed that tells where the runtime's state is, of a plan that needs it."""
    if not memory.is_learned or root_sites(sites):
        return memory
    return MemoryChoice(problem="no function can be probed that is called with the runtime's state")


def next_source(memory: MemoryChoice) -> Source:
    """The source to go on with where probes are too dear."""
    return Source.MEMORY if memory.holds else Source.SAMPLED


def look_for_memory(agents: list[Agent], load_map: LoadMap) -> MemoryChoice:
    """Ask the agents for a way to read n_w from the memory of a process."""
    if not agents:
        return MemoryChoice()
    problem = ""
    for agent in agents:
        libraries = [
            dso for dso in load_map.dsos() if agent.library.match(dso.name) or _has_inside(dso, agent)
        ]
        users = [
            d for d in load_map.dsos() if any(agent.imports.match(name) for name in file_facts(d).imports)
        ]
        for dso in [*libraries, *users]:  # a stripped library's thread-local may be reached through its users
            facts = file_facts(dso)
            problem = facts.layout_problem or problem
            try:
                plan = agent.memory(dso, ProcessMemory(load_map, dso), facts.code_layout)
            except UnknownLayout as error:
                problem = str(error)
                continue
            except (OSError, ElfError) as error:
                problem = f"{dso.name}: {error}"
                continue
            if plan is not None:
                return MemoryChoice(plan, _spoilt_by(agent, agents, load_map), agent=agent)
    return MemoryChoice(problem=problem)


def _has_inside(dso: Dso, agent: Agent) -> bool:
    """Whether a file brings a runtime along, or may."""
    facts = file_facts(dso)
    return facts.is_static or facts.brings(agent)


def look_again(memory: MemoryChoice, agents: list[Agent], load_map: LoadMap) -> MemoryChoice:
    """The same way to read n_w, judged by what is mapped now: a library that came later may use more.

    What was not right once stays so; the reason is that of now, a second copy of the runtime before anything else.
    """
    if memory.agent is None:
        return memory
    return replace(memory, spoilt_by=_spoilt_by(memory.agent, agents, load_map) or memory.spoilt_by)


def _spoilt_by(agent: Agent, agents: list[Agent], load_map: LoadMap) -> str:
    others = [other.name for other in agents if other.name != agent.name]
    if others:
        return f"its threads are not all that work: those of {' and '.join(others)} do, too"
    facts = [file_facts(dso) for dso in load_map.dsos()]
    is_inside = any(one.static_agent is not None for one in facts)
    imported = None if is_inside else {name for one in facts for name in one.imports}
    return (
        _copies(agent, load_map)
        or agent.memory_spoilt_by(imported, environment_of(load_map.pid))
        or _other_threads(load_map)
    )


def _copies(agent: Agent, load_map: LoadMap) -> str:
    """Why one runtime's state is not all that works in a process that maps several copies of it; empty if not."""
    names = []
    for dso in load_map.dsos():
        facts = file_facts(dso)
        is_library = bool(agent.library.match(dso.name)) and not facts.is_namesake
        if is_library or facts.brings(agent):
            names.append(dso.name)
    return f"{' and '.join(names[:3])} are {agent.name} each, and one is read" if len(names) > 1 else ""


def _other_threads(load_map: LoadMap) -> str:
    """Why the runtime's state is not all that works in a process; empty if it is."""
    creator = next((dso.name for dso in load_map.dsos() if file_facts(dso).creates_threads), "")
    return f"{creator} starts threads of its own, which the runtime does not know" if creator else ""
