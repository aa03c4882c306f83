"""From what a process maps to what must be probed in it: agents' hooks become sites in files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import field

from parprof.files.dso import Dso
from parprof.files.elf import ElfError
from parprof.files.libc import is_libc, is_loader
from parprof.kernel.records import (
    MAX_LIBC_RANGES,
    MAX_RUNTIME_RANGES,
    MAX_SPIN_RANGES,
    MAX_UNPROBED_RANGES,
    MAX_USER_RANGES,
    MAX_WAIT_RANGES,
)
from parprof.kernel.uprobes import Site
from parprof.plans import Edge, Hook
from parprof.probes.facts_book import BOOK, file_facts
from parprof.probes.file_facts import REGISTERS_CODE, ProbedFunction, at_its_entry
from parprof.probes.mapped_runtimes import MappedRuntime, mapped_runtimes, notes_on
from parprof.probes.spin_book import SPINS
from parprof.probes.translated import translator
from parprof.probes.wait_code import Range, lies_in, merged
from parprof.probes.wait_functions import DEFAULT_RULES, SpinRules
from parprof.process.loadmap import LoadMap, mapped_names
from parprof.runtimes import Agent, agent_for_library
from parprof.values import dataclass

_PAIRED = (Edge.WORK, Edge.WAIT, Edge.REGION, Edge.LOCK)
"""Their end is of interest too."""
_RARE = (Edge.LOAD_MAP, Edge.CREATE_THREAD)
"""Not worth a look at more of the code than the first instruction: a push is cheap."""

_MAX_POLLING = MAX_SPIN_RANGES - 6
"""Ranges of code that polls; the others are for loops."""
_BODY_SECONDS = 0.5
"""How long a look at the body of a region may take: its runs lack their path meanwhile, and nothing else is done."""


@dataclass(slots=True)
class Plan:
    """What to do about one process; plain data."""

    agents: list[Agent] = field(default_factory=list)
    """Of the runtimes that have work edges."""
    hidden: frozenset[str] = frozenset()
    """Names of runtimes of which there are only copies in stripped files: see `FileFacts.is_hidden`."""
    polling: list[Agent] = field(default_factory=list)
    """Of those that only poll: see `Agent.polls`."""
    sites: list[Site] = field(default_factory=list)
    """Work edges: only where they are the source of n_w."""
    rare_sites: list[Site] = field(default_factory=list)
    """Those that cost next to nothing, for every source: creation of threads, where what they run is to be known."""
    loader_sites: list[Site] = field(default_factory=list)
    """Where ld.so tells debuggers that the set of libraries changed, and JIT compilers that there is new code."""
    code_lists: tuple[int, ...] = ()
    """Where JIT compilers keep the list of that code, addresses in the process."""
    runtime_ranges: list[Range] = field(default_factory=list)
    user_ranges: list[Range] = field(default_factory=list)
    """The code of files that call the runtimes: a thread found there works, whatever its edges said."""
    wait_ranges: list[Range] = field(default_factory=list)
    """The code of the runtimes in which threads wait; none: all of it may."""
    libc_ranges: list[Range] = field(default_factory=list)
    """The C library and, before glibc 2.34, its threads: each from its first to its last executable mapping."""
    unprobed_ranges: list[Range] = field(default_factory=list)
    """The code of runtimes without probes, where others that are probed are beside them."""
    spin_ranges: list[Range] = field(default_factory=list)
    """Loops in which threads only wait for each other, of whatever code, as far as they are known."""
    spinning: list[str] = field(default_factory=list)
    """Where the loops are that were found because threads were seen there: functions, with their files."""
    wait_functions: list[str] = field(default_factory=list)
    """The functions of which the user says that threads wait there, with their files."""
    notes: list[str] = field(default_factory=list)
    outlined: int = 0
    """Outlined functions known by symbol."""

    @property
    def runtime(self) -> str:
        """Names of the runtimes, for labels, with the form if nothing of one can be probed; ``none`` without one."""
        names = (agent.name for agent in (*self.agents, *self.polling))
        return (
            "+".join(f"{name} (linked in, stripped)" if name in self.hidden else name for name in names)
            or "none"
        )


def file_of(dso: Dso) -> str:
    """A path under which the kernel finds the very file that the target maps, replaced or unlinked or not."""
    return f"/proc/self/fd/{dso.fd()}"


def _ranges(load_map: LoadMap, dso: Dso) -> list[Range]:
    return [(m.start, m.end) for m in load_map.mappings if m.dso.key == dso.key]


def make_site(
    dso: Dso, function: ProbedFunction, hook: Hook, returns: bool, *, moves: bool = False
) -> Site | None:
    """The cheapest site that sees every entry of the function (or, for locks, every slow one)."""
    at, cheap, instance = function.vaddr, False, hook.instance_argument
    work = hook.learn_argument or hook.function_argument
    if hook.edge in _RARE:
        at, cheap = function.first.vaddr, function.first.cheap
    else:
        place = (function.slow if hook.slow_path else None) or function.whole
        # An argument that is to be read must still be there. Work is found by its function alone, too.
        needed = work or hook.root_argument or (instance and hook.edge is not Edge.WORK)
        if place.arguments_intact or not needed:
            at, cheap = place.vaddr, place.cheap
            instance = instance if place.arguments_intact else 0
    offset = dso.elf.file_offset(at) if dso.elf is not None else None
    if offset is None:
        return None
    delta = at - function.vaddr
    return Site(
        file_of(dso),
        offset,
        int(hook.edge),
        returns,
        bool(hook.learn_argument),
        work,
        instance,
        hook.root_argument,
        hook.function_word,
        delta if 0 <= delta < 1 << 16 else 0,
        not cheap,
        moves,
        hook.is_barrier,
    )


def _body_site(agent: Agent, dso: Dso, function: ProbedFunction) -> Site | None:
    """A site for the outlined body of a region or task."""
    hook = Hook(
        re.compile(""),
        Edge.WORK,
        "the outlined body of a region or task",
        instance_argument=agent.outlined_instance(function.name),
        root_argument=agent.outlined_root,
    )
    return make_site(dso, function, hook, returns=True)


def learned_site(agent: Agent, dso: Dso, vaddr: int) -> Site | None:
    """A site for an outlined function without a symbol, which was learned from an argument; None if it has one."""
    if dso.elf is None or any(function.vaddr == vaddr for function in file_facts(dso).functions):
        return None
    try:
        entry = at_its_entry(dso.elf, vaddr)
        function = entry if entry.first.cheap else BOOK.function(dso, vaddr, 0, _BODY_SECONDS) or entry
        return _body_site(agent, dso, function)
    except ElfError:
        return None


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
    wanted = _wanted(hooks, imported)
    sites = {}
    for function in file_facts(dso).functions:
        hook = wanted(function.name)
        if hook is None or (hook.edge is Edge.LEARN and not stripped):
            continue
        paired = hook.edge in _PAIRED and agent.return_probes
        site = make_site(dso, function, hook, paired, moves=not agent.return_probes)
        if site is not None:
            sites[site.path, site.offset] = site
    return list(sites.values())


def _outlined_sites(agent: Agent, dso: Dso) -> list[Site]:
    sites = {}
    for function in file_facts(dso).functions:
        if agent.outlined.fullmatch(function.name):
            site = _body_site(agent, dso, function)
            if site is not None:
                sites[site.offset] = site
    return list(sites.values())


def _named_site(dso: Dso, name: str, edge: Edge) -> list[Site]:
    hook = Hook(re.compile(re.escape(name)), edge, "")
    named = [function for function in file_facts(dso).functions if function.name == name]
    made = [make_site(dso, function, hook, returns=False) for function in named]
    return list({site.offset: site for site in made if site is not None}.values())


def _loader_sites(dsos: list[Dso]) -> list[Site]:
    loaders = [(dso, "_dl_debug_state") for dso in dsos if is_loader(dso.name)]
    compilers = [(dso, REGISTERS_CODE) for dso in dsos if file_facts(dso).code_list]
    return [site for dso, name in (*loaders, *compilers) for site in _named_site(dso, name, Edge.LOAD_MAP)]


def _code_lists(load_map: LoadMap) -> tuple[int, ...]:
    found = ((dso, file_facts(dso).code_list) for dso in load_map.dsos())
    return tuple(load_map.bias(dso) + vaddr & (1 << 64) - 1 for dso, vaddr in found if vaddr)


def maps_runtime(pid: int) -> bool:
    """Whether a process maps what goes by the name of a runtime's library, before anything is known of its files."""
    found = (agent_for_library(name) for name in mapped_names(pid))
    return any(agent is not None and not agent.is_polling for agent in found)


def has_runtime(load_map: LoadMap) -> bool:
    """Whether a parallel runtime is mapped, of which code can be probed."""
    return bool(mapped_runtimes(load_map.dsos())) and not translator(load_map)


def is_static(load_map: LoadMap) -> bool:
    """Whether the program brings along all that it needs."""
    return any(file_facts(dso).is_static for dso in load_map.dsos()[:1])


def creates_threads_unprobed(plan: Plan, load_map: LoadMap | None) -> bool:
    """Whether a program may create threads of which no probe tells."""
    dsos = [] if load_map is None or plan.agents else load_map.dsos()
    return any(file_facts(dso).creates_threads for dso in dsos)


def make_plan(load_map: LoadMap, blame_locks: bool = False, spin_rules: SpinRules = DEFAULT_RULES) -> Plan:
    """Plan the probes of a process from what it maps now. ``blame_locks``: see `Agent.lock_hooks`."""
    dsos = load_map.dsos()
    hidden_by = translator(load_map)
    runtimes = [] if hidden_by else mapped_runtimes(dsos)
    users = _users(runtimes, dsos)
    plan = Plan(list({runtime.agent.name: runtime.agent for runtime in runtimes}.values()))
    others = {runtime.agent.name for runtime in runtimes if not runtime.is_hidden}
    plan.hidden = frozenset(agent.name for agent in plan.agents if agent.name not in others)
    plan.sites, plan.outlined = _work_edges(runtimes, users, dsos, blame_locks)
    # Threads that begin in such code wait for work whose call path a probe tells, unless none does.
    code = _runtime_code(load_map, [runtime for runtime in runtimes if not runtime.is_hidden])
    plan.runtime_ranges = code[:MAX_RUNTIME_RANGES]
    if len(code) > MAX_RUNTIME_RANGES:
        plan.notes.append(f"{len(code)} runtime mappings, {MAX_RUNTIME_RANGES} watched")
    plan.wait_ranges = _wait_code(load_map, runtimes, code)
    plan.unprobed_ranges = _unprobed_code(load_map, runtimes)
    if not any(runtime.is_inside for runtime in runtimes):  # else the runtime's code may lie among the user's
        code = [r for dso in users for r in _ranges(load_map, dso)]
        plan.user_ranges = code[:MAX_USER_RANGES]
        if len(code) > MAX_USER_RANGES:
            plan.notes.append(
                f"{len(code)} mappings of files that call the runtime, {MAX_USER_RANGES} of them known as the "
                "program's: in the others work whose edges are not probed counts as waiting"
            )
    plan.notes += notes_on(runtimes, users, dsos)
    if runtimes:  # else the creators of threads are known without a probe
        plan.rare_sites = _creation_sites(dsos, runtimes)
    if hidden_by:
        plan.notes.append(
            f"its code is translated by {hidden_by} before it runs: not probed, and its functions have no names"
        )
    else:
        plan.loader_sites = _loader_sites(dsos)
        plan.code_lists = _code_lists(load_map)
    plan.libc_ranges = _libc_ranges(load_map, dsos)
    plan_spins(plan, load_map, spin_rules)
    return plan


def _polling(load_map: LoadMap) -> tuple[list[Agent], list[Range]]:
    """The runtimes whose threads poll, and the code in which they do; at most as many ranges as are left for that."""
    known = [(agent_for_library(dso.name), dso) for dso in load_map.dsos()]
    found = [(agent, dso) for agent, dso in known if agent is not None and agent.is_polling]
    code = [r for agent, dso in found if agent.polls.match(dso.name) for r in _ranges(load_map, dso)]
    return list({agent.name: agent for agent, _ in found}.values()), merged(sorted(code), _MAX_POLLING)


def plan_spins(plan: Plan, load_map: LoadMap, rules: SpinRules) -> None:
    """Plan by what is known now of the code in which threads only wait for each other; `sched_yield` is such code.

    Where there is more of it than the programs can be told of, what the user names comes first, and loops last.
    """
    dsos = load_map.dsos()
    named, plan.wait_functions = _wait_functions(load_map, rules)
    plan.polling, polling = _polling(load_map)
    yields = [_moved(load_map, dso, one) for dso in dsos for one in file_facts(dso).yield_code]
    found = [
        (dso, _moved(load_map, dso, loop), name)
        for dso in dsos
        if rules.loops
        for loop, name in SPINS.found(dso).items()
    ]
    # Who waits in a runtime's code its edges tell, or its leaves: samples hit such loops before it is known as one.
    found = [one for one in found if not lies_in(one[1][0], plan.runtime_ranges)]
    loops = [loop for _, loop, _ in found]
    out = list(dict.fromkeys([*named, *plan.unprobed_ranges, *polling, *yields, *loops]))
    pools = _pool_loops(load_map) if rules.loops else []
    plan.spin_ranges = sorted(list(dict.fromkeys([*out, *pools]))[:MAX_SPIN_RANGES])
    # a name that is empty: the function has none
    plan.spinning = list(
        dict.fromkeys(f"{name} ({dso.name})" if name else dso.name for dso, _, name in found)
    )
    notes = []
    if len(named) > MAX_SPIN_RANGES:
        notes.append(
            f"{len(named)} functions match --wait-function, and {MAX_SPIN_RANGES} can be told apart: in the others "
            "waiting counts as work, as it does in loops that were not named"
        )
    elif len(out) > MAX_SPIN_RANGES:
        notes.append(
            f"more than {MAX_SPIN_RANGES} loops and functions only wait for other threads: spinning in the others "
            "counts as work"
        )
    plan.notes = list(dict.fromkeys([*plan.notes, *notes]))


def _pool_loops(load_map: LoadMap) -> list[Range]:
    """Where libraries' pools wait, whether a thread was seen there or not."""
    return [_moved(load_map, dso, one[:2]) for dso in load_map.dsos() for one in file_facts(dso).pool_loops]


def _moved(load_map: LoadMap, dso: Dso, code: Range) -> Range:
    bias = load_map.bias(dso)
    return bias + code[0], bias + code[1]


def _wait_functions(load_map: LoadMap, rules: SpinRules) -> tuple[list[Range], list[str]]:
    """Where the functions are of which the user says that they wait, and their names, as far as is known."""
    if rules.functions is None:
        return [], []
    dsos = load_map.dsos()
    rules.functions.ask(dsos)
    found = [(dso, function) for dso in dsos for function in rules.functions.of(dso)]
    ranges = [_moved(load_map, dso, (function.start, function.end)) for dso, function in found]
    return ranges, list(dict.fromkeys(f"{function.name} ({dso.name})" for dso, function in found))


def _users(runtimes: list[MappedRuntime], dsos: list[Dso]) -> list[Dso]:
    """The files that call one of the runtimes: there are the bodies of regions and tasks."""
    patterns = [runtime.agent.imports for runtime in runtimes]
    return [dso for dso in dsos if any(p.match(name) for p in patterns for name in file_facts(dso).imports)]


def _work_edges(
    runtimes: list[MappedRuntime], users: list[Dso], dsos: list[Dso], blame_locks: bool
) -> tuple[list[Site], int]:
    """Where work begins and ends: in the runtimes, and in the bodies of regions and tasks, with the number of these.

    Of a library only those functions are probed that some file imports. A file that brings the runtime along does not
    say which it calls.
    """
    imported = {name for dso in dsos for name in file_facts(dso).imports}
    sites: list[Site] = []
    bodies: list[Site] = []
    for runtime in runtimes:
        agent, dso = runtime.agent, runtime.dso
        if runtime.is_hidden:
            continue
        callers = [dso, *(user for user in users if user is not dso)] if runtime.is_inside else users
        own = [site for user in callers for site in _outlined_sites(agent, user)]
        sites += own
        sites += _library_sites(
            agent, _hooks(agent, blame_locks), dso, set() if runtime.is_inside else imported, stripped=not own
        )
        bodies += own
    return _each_once(sites), len(_each_once(bodies))


def _each_once(sites: list[Site]) -> list[Site]:
    return list({(site.path, site.offset): site for site in sites}.values())


def _hooks(agent: Agent, blame_locks: bool) -> tuple[Hook, ...]:
    """Of a runtime; to blame those who hold locks, a lock's whole function is probed, not its slow path alone."""
    if not blame_locks or not agent.lock_hooks:
        return agent.hooks
    return (*agent.lock_hooks, *(hook for hook in agent.hooks if not hook.slow_path))


def _runtime_code(load_map: LoadMap, runtimes: list[MappedRuntime]) -> list[Range]:
    """The runtimes' own code: a library's whole, in other files where their functions lie side by side."""
    out: list[Range] = []
    for runtime in runtimes:
        if runtime.is_inside:
            out += [_moved(load_map, runtime.dso, one) for one in file_facts(runtime.dso).runtime_code]
        else:
            out += _ranges(load_map, runtime.dso)
    return out


def _wait_code(load_map: LoadMap, runtimes: list[MappedRuntime], code: list[Range]) -> list[Range]:
    """Of the runtimes' code, what waits; none where that cannot be told of one of them."""
    out: list[Range] = []
    for runtime in runtimes:
        bias = load_map.bias(runtime.dso)
        found = [(bias + start, bias + end) for start, end in file_facts(runtime.dso).wait_code]
        if not runtime.is_hidden:
            found = [(start, end) for start, end in found if lies_in(start, code)]
        if not found and not runtime.is_probed:  # whatever it does there is not the program's work
            found = _runtime_code(load_map, [runtime])
        if not found:
            return []
        out += found
    return merged(sorted(out), MAX_WAIT_RANGES)


def _unprobed_code(load_map: LoadMap, runtimes: list[MappedRuntime]) -> list[Range]:
    """Of runtimes without probes, if others have some: else all threads are judged by what they run."""
    unprobed = [runtime for runtime in runtimes if not runtime.is_probed]
    if len(unprobed) == len(runtimes):
        return []
    return merged(sorted(_runtime_code(load_map, unprobed)), MAX_UNPROBED_RANGES)


def _creation_sites(dsos: list[Dso], runtimes: list[MappedRuntime]) -> list[Site]:
    """Where threads are created: in the C library, or in a program that brings that along."""
    out = [site for dso in dsos if is_libc(dso.name) for site in _pthread_create(dso)]
    if dsos and (not out or any(runtime.is_inside for runtime in runtimes)) and file_facts(dsos[0]).is_static:
        out += _pthread_create(dsos[0])
    return out


def _pthread_create(dso: Dso) -> list[Site]:
    return _named_site(dso, "pthread_create", Edge.CREATE_THREAD)


def _libc_ranges(load_map: LoadMap, dsos: list[Dso]) -> list[Range]:
    """From the first to the last of the C library's code, file by file: a leaf there that the runtime called waits."""
    found = [ranges for dso in dsos if is_libc(dso.name) and (ranges := _ranges(load_map, dso))]
    out = [(ranges[0][0], ranges[-1][1]) for ranges in found]
    # the largest: since glibc 2.34 libpthread is an empty shell
    return sorted(out, key=lambda ends: ends[0] - ends[1])[:MAX_LIBC_RANGES]
