"""From what a process maps to what must be probed in it: agents' hooks become sites in files."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from parprof.codescan import cheap_probe_site, tail_jump_site
from parprof.elf import ElfError, ElfFile, Symbol
from parprof.kernel.engine import MAX_RUNTIME_RANGES, MAX_USER_RANGES
from parprof.kernel.uprobes import Site
from parprof.loadmap import Dso, LoadMap
from parprof.runtimes import Edge, Hook, RuntimeAgent, agent_for_library, agents

_LIBC = re.compile(r"libc[.-]|libpthread[.-]|ld-musl")
_LOADER = re.compile(r"ld-linux|ld-\d|ld-musl|ld\.so")
_RUNTIME_IMPORT = re.compile(r"GOMP_|__kmpc_|omp_")
_UNSIZED = 64
_RARE = (Edge.LOAD_MAP, Edge.CREATE_THREAD)
"""Not worth a look at the code for a cheap place."""


@dataclass(slots=True)
class Plan:
    """What to do about one process; plain data."""

    agents: list[RuntimeAgent] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    runtime_ranges: list[tuple[int, int]] = field(default_factory=list)
    user_ranges: list[tuple[int, int]] = field(default_factory=list)
    """The code of files that call the runtimes: a thread found there works, whatever its edges said."""
    libc_range: tuple[int, int] = (0, 0)
    notes: list[str] = field(default_factory=list)
    outlined: int = 0
    """Outlined functions known by symbol."""

    @property
    def runtime(self) -> str:
        """Names of the runtimes, for labels; ``none`` without one."""
        return "+".join(agent.name for agent in self.agents) or "none"


def file_of(dso: Dso) -> str:
    """A path under which the kernel finds the very file that the target maps, replaced or unlinked or not."""
    return f"/proc/self/fd/{dso.fd()}"


def _functions(elf: ElfFile) -> list[Symbol]:
    try:
        return list(elf.symbols())
    except ElfError:
        return []


def _imports(elf: ElfFile) -> set[str]:
    try:
        return elf.undefined()
    except ElfError:
        return set()


def _ranges(load_map: LoadMap, dso: Dso) -> list[tuple[int, int]]:
    return [(m.start, m.end) for m in load_map.mappings if m.dso.key == dso.key]


def make_site(dso: Dso, elf: ElfFile, vaddr: int, size: int, hook: Hook, returns: bool) -> Site | None:
    """The cheapest site that sees every entry of the function (or, for locks, every slow one)."""
    at = vaddr
    if hook.edge not in _RARE:
        place = tail_jump_site(elf, vaddr, size or _UNSIZED) if hook.slow_path else None
        place = place or cheap_probe_site(elf, vaddr, size or _UNSIZED)
        if (
            place.arguments_intact or not hook.learn_argument
        ):  # an argument that is to be read must still be there
            at = place.vaddr
    offset = elf.file_offset(at)
    if offset is None:
        return None
    return Site(file_of(dso), offset, int(hook.edge), returns, hook.learn_argument)


_OUTLINED = Hook(re.compile(""), Edge.WORK, "the outlined body of a region or task")


def outlined_site(dso: Dso, vaddr: int, size: int = 0) -> Site | None:
    """A site for an outlined function, known by symbol or learned from an argument."""
    return make_site(dso, dso.elf, vaddr, size, _OUTLINED, returns=True) if dso.elf else None


def _wanted(agent: RuntimeAgent, imported: set[str]) -> Callable[[str], Hook | None]:
    """Which hook a runtime function needs: none for functions that nothing calls."""
    anybody = any(hook.pattern.fullmatch(name) for hook in agent.hooks for name in imported)

    def find(name: str) -> Hook | None:
        for hook in agent.hooks:
            if hook.pattern.fullmatch(name):
                internal = hook.edge is Edge.WORK
                return hook if internal or not anybody or name in imported else None
        return None

    return find


def _library_sites(agent: RuntimeAgent, dso: Dso, imported: set[str], stripped: bool) -> list[Site]:
    elf = dso.elf
    if elf is None:
        return []
    wanted = _wanted(agent, imported)
    sites = {}
    for symbol in _functions(elf):
        hook = wanted(symbol.name)
        if hook is None or (hook.edge is Edge.LEARN and not stripped):
            continue
        paired = hook.edge in (Edge.WORK, Edge.WAIT, Edge.REGION) and agent.return_probes
        site = make_site(dso, elf, symbol.value, symbol.size, hook, paired)
        if site is not None:
            sites[site.path, site.offset] = site
    return list(sites.values())


def _outlined_sites(agent: RuntimeAgent, dso: Dso) -> list[Site]:
    elf = dso.elf
    if elf is None:
        return []
    sites = {}
    for symbol in _functions(elf):
        if agent.outlined.fullmatch(symbol.name):
            site = outlined_site(dso, symbol.value, symbol.size)
            if site is not None:
                sites[site.offset] = site
    return list(sites.values())


def _named_site(dso: Dso, name: str, edge: Edge) -> list[Site]:
    elf = dso.elf
    if elf is None:
        return []
    hook = Hook(re.compile(re.escape(name)), edge, "")
    made = [
        make_site(dso, elf, s.value, s.size, hook, returns=False) for s in _functions(elf) if s.name == name
    ]
    return list({site.offset: site for site in made if site is not None}.values())


def loader_sites(load_map: LoadMap) -> list[Site]:
    """Where ld.so tells debuggers that the set of libraries changed."""
    return [s for dso in load_map.dsos() if _LOADER.match(dso.name)
            for s in _named_site(dso, "_dl_debug_state", Edge.LOAD_MAP)]  # fmt: skip


def _static_agent(dso: Dso) -> RuntimeAgent | None:
    if dso.elf is None or not dso.elf.is_static:
        return None
    names = {symbol.name for symbol in _functions(dso.elf)}
    return next((agent for agent in agents() if agent.marker in names), None)


def make_plan(load_map: LoadMap) -> Plan:
    """Plan the probes of a process from what it maps now."""
    plan = Plan()
    dsos = load_map.dsos()
    runtimes = [(agent, dso) for dso in dsos if (agent := agent_for_library(dso.name)) is not None]
    static = [(agent, dso) for dso in dsos[:1] if (agent := _static_agent(dso)) is not None]
    if not runtimes and not static:
        return plan
    imports = {dso: names for dso in dsos if dso.elf is not None and (names := _imports(dso.elf))}
    imported = set().union(*imports.values()) if imports else set()
    users = [dso for dso, names in imports.items() if any(_RUNTIME_IMPORT.match(name) for name in names)]
    sites: list[Site] = []
    for agent, dso in runtimes + static:
        is_static = (agent, dso) in static
        if agent.name not in [known.name for known in plan.agents]:
            plan.agents.append(agent)
        bodies = [s for user in ([dso] if is_static else users) for s in _outlined_sites(agent, user)]
        plan.outlined += len(bodies)
        sites += bodies
        sites += _library_sites(agent, dso, set() if is_static else imported, stripped=not bodies)
        if not is_static:
            plan.runtime_ranges += _ranges(load_map, dso)
    if plan.agents and not static:
        plan.user_ranges = [r for dso in users for r in _ranges(load_map, dso)][:MAX_USER_RANGES]
    if len(plan.runtime_ranges) > MAX_RUNTIME_RANGES:
        plan.notes.append(f"{len(plan.runtime_ranges)} runtime mappings, {MAX_RUNTIME_RANGES} watched")
        del plan.runtime_ranges[MAX_RUNTIME_RANGES:]
    for dso in dsos:
        if not _LIBC.match(dso.name):
            continue
        if plan.agents:
            sites += _named_site(dso, "pthread_create", Edge.CREATE_THREAD)
        ranges = _ranges(load_map, dso)
        if ranges and dso.name.startswith("libc"):
            plan.libc_range = (ranges[0][0], ranges[-1][1])
    plan.sites = list({(s.path, s.offset): s for s in sites}.values())
    return plan
