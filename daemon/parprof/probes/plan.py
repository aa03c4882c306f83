"""From what a process maps to what must be probed in it: agents' hooks become sites in files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from parprof.files.elf import ElfError, ElfFile, Symbol
from parprof.kernel.records import MAX_RUNTIME_RANGES, MAX_USER_RANGES, MAX_WAIT_RANGES
from parprof.kernel.uprobes import Site
from parprof.plans import Edge, Hook
from parprof.probes.cheap_sites import cheap_probe_site, tail_jump_site
from parprof.probes.file_facts import file_facts
from parprof.probes.static_runtime import runtime_code
from parprof.probes.wait_code import merged
from parprof.process.loadmap import Dso, LoadMap
from parprof.runtimes import Agent, agent_for_library

_LIBC = re.compile(r"libc[.-]|libpthread[.-]|ld-musl")
_LOADER = re.compile(r"ld-linux|ld-\d|ld-musl|ld\.so")
_UNSIZED = 64
_PAIRED = (Edge.WORK, Edge.WAIT, Edge.REGION, Edge.LOCK)
"""Their end is of interest too."""
_RARE = (Edge.LOAD_MAP, Edge.CREATE_THREAD)
"""Not worth a look at more of the code than the first instruction: a push is cheap."""


@dataclass(slots=True)
class Plan:
    """What to do about one process; plain data."""

    agents: list[Agent] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    """Work edges: only where they are the source of n_w."""
    rare_sites: list[Site] = field(default_factory=list)
    """Those that cost next to nothing, for every source: creation of threads."""
    runtime_ranges: list[tuple[int, int]] = field(default_factory=list)
    user_ranges: list[tuple[int, int]] = field(default_factory=list)
    """The code of files that call the runtimes: a thread found there works, whatever its edges said."""
    wait_ranges: list[tuple[int, int]] = field(default_factory=list)
    """The code of the runtimes in which threads wait; none: all of it may."""
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


def _ranges(load_map: LoadMap, dso: Dso) -> list[tuple[int, int]]:
    return [(m.start, m.end) for m in load_map.mappings if m.dso.key == dso.key]


def make_site(dso: Dso, elf: ElfFile, vaddr: int, size: int, hook: Hook, returns: bool) -> Site | None:
    """The cheapest site that sees every entry of the function (or, for locks, every slow one)."""
    at, cheap, instance = vaddr, False, hook.instance_argument
    function = hook.learn_argument or hook.function_argument
    if hook.edge in _RARE:
        first = cheap_probe_site(elf, vaddr, 0)
        at, cheap = first.vaddr, first.cheap
    else:
        place = tail_jump_site(elf, vaddr, size or _UNSIZED) if hook.slow_path else None
        place = place or cheap_probe_site(elf, vaddr, size or _UNSIZED)
        # An argument that is to be read must still be there. Work is found by its function alone, too.
        needed = function or hook.root_argument or (instance and hook.edge is not Edge.WORK)
        if place.arguments_intact or not needed:
            at, cheap = place.vaddr, place.cheap
            instance = instance if place.arguments_intact else 0
    offset = elf.file_offset(at)
    if offset is None:
        return None
    return Site(
        file_of(dso), offset, int(hook.edge), returns, bool(hook.learn_argument), function, instance,
        hook.root_argument, hook.function_word, at - vaddr if 0 <= at - vaddr < 1 << 16 else 0, not cheap,
    )  # fmt: skip


def outlined_site(agent: Agent, dso: Dso, vaddr: int, size: int = 0, name: str = "") -> Site | None:
    """A site for an outlined function, known by symbol or (then without ``name``) learned from an argument."""
    hook = Hook(
        re.compile(""), Edge.WORK, "the outlined body of a region or task",
        instance_argument=agent.outlined_instance(name), root_argument=agent.outlined_root,
    )  # fmt: skip
    return make_site(dso, dso.elf, vaddr, size, hook, returns=True) if dso.elf else None


def _wanted(hooks: Sequence[Hook], imported: set[str]) -> Callable[[str], Hook | None]:
    """Which hook a runtime function needs: none for functions that nothing calls."""
    anybody = any(hook.pattern.fullmatch(name) for hook in hooks for name in imported)

    def find(name: str) -> Hook | None:
        for hook in hooks:
            if hook.pattern.fullmatch(name):
                internal = hook.edge in (Edge.WORK, Edge.BEGIN, Edge.END, Edge.STEAL)
                return hook if internal or not anybody or name in imported else None
        return None

    return find


def _library_sites(
    agent: Agent, hooks: Sequence[Hook], dso: Dso, imported: set[str], stripped: bool
) -> list[Site]:
    elf = dso.elf
    if elf is None:
        return []
    wanted = _wanted(hooks, imported)
    sites = {}
    for symbol in _functions(elf):
        hook = wanted(symbol.name)
        if hook is None or (hook.edge is Edge.LEARN and not stripped):
            continue
        paired = hook.edge in _PAIRED and agent.return_probes
        site = make_site(dso, elf, symbol.value, symbol.size, hook, paired)
        if site is not None:
            sites[site.path, site.offset] = site
    return list(sites.values())


def _outlined_sites(agent: Agent, dso: Dso) -> list[Site]:
    elf = dso.elf
    if elf is None:
        return []
    sites = {}
    for symbol in _functions(elf):
        if agent.outlined.fullmatch(symbol.name):
            site = outlined_site(agent, dso, symbol.value, symbol.size, symbol.name)
            if site is not None:
                sites[site.offset] = site
    return list(sites.values())


def _named_site(dso: Dso, name: str, edge: Edge) -> list[Site]:
    elf = dso.elf
    if elf is None:
        return []
    hook = Hook(re.compile(re.escape(name)), edge, "")
    named = [symbol for symbol in file_facts(dso).named if symbol.name == name]
    made = [make_site(dso, elf, symbol.value, symbol.size, hook, returns=False) for symbol in named]
    return list({site.offset: site for site in made if site is not None}.values())


def loader_sites(load_map: LoadMap) -> list[Site]:
    """Where ld.so tells debuggers that the set of libraries changed."""
    return [s for dso in load_map.dsos() if _LOADER.match(dso.name)
            for s in _named_site(dso, "_dl_debug_state", Edge.LOAD_MAP)]  # fmt: skip


def _runtimes(dsos: list[Dso]) -> tuple[list[tuple[Agent, Dso]], list[tuple[Agent, Dso]]]:
    """The parallel runtimes that are mapped as libraries, and those that the executable brings along."""
    libraries = [(agent, dso) for dso in dsos if (agent := agent_for_library(dso.name)) is not None]
    static = [(agent, dso) for dso in dsos[:1] if (agent := file_facts(dso).static_agent) is not None]
    return libraries, static


def has_runtime(load_map: LoadMap) -> bool:
    """Whether a parallel runtime is mapped."""
    return any(_runtimes(load_map.dsos()))


def is_static(load_map: LoadMap) -> bool:
    """Whether the program brings along all that it needs."""
    return any(file_facts(dso).is_static for dso in load_map.dsos()[:1])


def _wait_ranges(load_map: LoadMap, dsos: list[Dso], plan: Plan) -> list[tuple[int, int]]:
    """Of the runtimes' code, what waits; none where that cannot be told of one of them."""
    out: list[tuple[int, int]] = []
    for dso in dsos:
        bias = load_map.bias(dso)
        found = [(bias + start, bias + end) for start, end in file_facts(dso).wait_code]
        found = [(start, end) for start, end in found if any(a <= start < b for a, b in plan.runtime_ranges)]
        if not found:
            return []
        out += found
    return merged(sorted(out), MAX_WAIT_RANGES)


def make_plan(load_map: LoadMap, blame_locks: bool = False) -> Plan:
    """Plan the probes of a process from what it maps now. ``blame_locks``: see `Agent.lock_hooks`."""
    plan = Plan()
    dsos = load_map.dsos()
    runtimes, static = _runtimes(dsos)
    imports = {dso: names for dso in dsos if (names := file_facts(dso).imports)}
    imported: set[str] = set().union(*imports.values())
    patterns = [agent.imports for agent, _ in runtimes]
    users = [dso for dso, names in imports.items() if any(p.match(name) for p in patterns for name in names)]
    sites: list[Site] = []
    for agent, dso in runtimes + static:
        is_static = (agent, dso) in static
        if agent.name not in [known.name for known in plan.agents]:
            plan.agents.append(agent)
        bodies = [s for user in ([dso] if is_static else users) for s in _outlined_sites(agent, user)]
        plan.outlined += len(bodies)
        sites += bodies
        hooks = agent.hooks
        if blame_locks:  # a lock's whole function, not its slow path alone
            locks = [hook for hook in hooks if not hook.slow_path]
            hooks = (*agent.lock_hooks, *locks) if agent.lock_hooks else hooks
        sites += _library_sites(agent, hooks, dso, set() if is_static else imported, stripped=not bodies)
        if is_static and dso.elf is not None:
            bias = load_map.bias(dso)
            plan.runtime_ranges += [(bias + start, bias + end) for start, end in runtime_code(agent, dso.elf)]
        else:
            plan.runtime_ranges += _ranges(load_map, dso)
    plan.wait_ranges = _wait_ranges(load_map, [dso for _, dso in runtimes + static], plan)
    if plan.agents and not static:
        plan.user_ranges = [r for dso in users for r in _ranges(load_map, dso)][:MAX_USER_RANGES]
    if len(plan.runtime_ranges) > MAX_RUNTIME_RANGES:
        plan.notes.append(f"{len(plan.runtime_ranges)} runtime mappings, {MAX_RUNTIME_RANGES} watched")
        del plan.runtime_ranges[MAX_RUNTIME_RANGES:]
    for dso in dsos:
        if not _LIBC.match(dso.name):
            continue
        plan.rare_sites += _named_site(dso, "pthread_create", Edge.CREATE_THREAD)
        ranges = _ranges(load_map, dso)
        if ranges and dso.name.startswith("libc"):
            plan.libc_range = (ranges[0][0], ranges[-1][1])
    if static or (not plan.rare_sites and dsos and file_facts(dsos[0]).is_static):
        plan.rare_sites += _named_site(dsos[0], "pthread_create", Edge.CREATE_THREAD)
    plan.sites = list({(s.path, s.offset): s for s in sites}.values())
    return plan
