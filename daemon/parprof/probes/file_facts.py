"""What planning has to know of a file: found once for each file and kept on disk, by a child that has no privileges.

`find_facts` reads and disassembles foreign bytes: it runs in that child alone (`parprof.probes.facts_worker`). What it
finds travels as JSON, is checked again when it is read (`from_json`), and holds for every process that maps the file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields
from functools import cache
from hashlib import sha256
from typing import Any, NamedTuple

from parprof import __version__
from parprof.files.elf import ElfError, ElfFile, Symbol
from parprof.files.elf_symbols import TYPE_OBJECT
from parprof.files.libc import is_libc
from parprof.loops.spins import spin_loops
from parprof.plans import UnknownLayout
from parprof.probes.allocators import ALLOCATORS
from parprof.probes.cheap_sites import ProbeSite, cheap_probe_site, tail_jump_site
from parprof.probes.hidden_runtime import HiddenRuntime, hidden_runtime
from parprof.probes.static_runtime import runtime_code
from parprof.probes.wait_code import Range, merged, wait_code
from parprof.runtimes import Agent, agent_for_library, agents
from parprof.runtimes.pools import pools
from parprof.values import dataclass

FORMAT = 14
"""To be raised with each change of what the facts are or how they are found."""
REGISTERS_CODE = "__jit_debug_register_code"
"""A function that does nothing, which JIT compilers call when they have told debuggers of code: see `parprof.jit`."""
_CODE_LIST = "__jit_debug_descriptor"
NAMED = ("pthread_create", "_dl_debug_state", REGISTERS_CODE, *ALLOCATORS)
"""Functions that are probed wherever they are."""
_YIELD = "sched_yield"
_YIELD_BYTES = 32
"""What it takes at least, where its size is not told."""
_ALIGNED = 16
"""Bytes: functions begin at multiples of that."""
MAX_FUNCTIONS = 1 << 14
"""Functions of one file that can be probed; more are left out."""
_MAX_NAME, _MAX_NAMES = 1 << 12, 1 << 16
_MAX_LAYOUT = 64
_MAX_POOL_LOOPS = 8
_UNSIZED = 64
_LINES = (b".debug_line", b".zdebug_line", b".gnu_debuglink")
_CREATORS = ("pthread_create", "thrd_create", "_ZNSt6thread15_M_start_thread")
"""How the names of functions begin that start a thread; the last is that of std::thread."""


class ProbePlace(NamedTuple):
    """An instruction to probe, an ELF virtual address."""

    vaddr: int
    cheap: bool
    """The kernel emulates it."""
    arguments_intact: bool
    """The registers of the first six arguments still hold them there."""


class WaitLoop(NamedTuple):
    """A loop in which threads only wait for others: ELF addresses [start, end), and the function that it is in."""

    start: int
    end: int
    function: str


class ProbedFunction(NamedTuple):
    """A function that may be probed, and where."""

    name: str
    vaddr: int
    first: ProbePlace
    """At its entry, as far as that can be told without a look at more than its first instruction."""
    whole: ProbePlace
    """The cheapest that every call passes."""
    slow: ProbePlace | None
    """The jump to its slow path, where it is a stub that else returns at once."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Facts about one file; empty where it is no ELF file that we can read."""

    imports: frozenset[str] = frozenset()
    """Functions that it has from some parallel runtime."""
    functions: tuple[ProbedFunction, ...] = ()
    """Its definitions of `NAMED`, of what a runtime's hooks name, and bodies of regions and tasks."""
    static_agent: Agent | None = None
    """The runtime that is linked into it, or that it is under another name: see `Agent.marker`."""
    is_static: bool = False
    wait_code: tuple[Range, ...] = ()
    """Of a runtime that tells by ``pause`` that a thread waits: that code, ELF addresses [start, end)."""
    creates_threads: bool = False
    """Whether it imports what starts a thread, and is neither a parallel runtime nor a wrapper for others."""
    runtime_code: tuple[Range, ...] = ()
    """Of a runtime that is linked into it: its code, ELF addresses [start, end)."""
    yield_code: tuple[Range, ...] = ()
    """Of a C library: the function by which threads give up their CPU while they wait for each other. Of a library of a
    runtime that polls: functions in which it does, see `Agent.poll_functions`."""
    code_layout: tuple[int, ...] = ()
    """What a runtime's agent says of the code of it, for reading n_w from memory: see `Agent.code_layout`."""
    layout_problem: str = ""
    """Why there is no layout, where there should be one."""
    wants_loader: bool = False
    """Whether it names the dynamic loader that is to start it, as programs do, and the C library, which is one."""
    has_lines: bool = False
    """Whether it has line information, or names a file that has it: else nobody knows what was inlined."""
    is_namesake: bool = False
    """It is called as a runtime's library is, and has none of the functions that programs have from that."""
    pool_loops: tuple[WaitLoop, ...] = ()
    """Of a library with a pool of threads (`parprof.runtimes.pools`): those in which these wait for work, and callers
    for them. Known before anybody is seen there: a short run is over before samples have told where to look."""
    code_list: int = 0
    """Where a JIT compiler in it keeps the list of code that debuggers are told of, an ELF address; 0: nowhere."""
    is_hidden: bool = False
    """No symbol tells of the runtime that is linked into it: see `parprof.probes.hidden_runtime`."""

    def brings(self, agent: Agent) -> bool:
        """Whether this runtime is inside."""
        return self.static_agent is not None and self.static_agent.name == agent.name


def find_facts(elf: ElfFile, base_name: str) -> FileFacts:
    """Look for the facts about a file; ``base_name`` is what processes call it."""
    library = agent_for_library(base_name)
    markers = {agent.marker for agent in agents() if agent.marker} if library is None else set()
    polling = library.poll_functions if library is not None else ()
    try:
        is_static, wants_loader = elf.is_static, bool(elf.interp)
        defined = elf.lookup({*NAMED, _YIELD, _CODE_LIST, *markers, *polling})
    except ElfError:
        return FileFacts()
    code = {name: [one for one in known if _is_function(elf, one)] for name, known in defined.items()}
    named = [symbol for name in NAMED for symbol in code.get(name, ())]
    try:
        undefined = elf.undefined()
    except ElfError:
        undefined = set()
    patterns = [agent.imports for agent in agents()]
    imports = frozenset(name for name in undefined if any(pattern.match(name) for pattern in patterns))
    static_agent = _agent_inside({name for name in markers if code.get(name)})
    is_namesake = library is not None and not _is_really(library, elf)
    if is_namesake:
        library = None
    creates_threads = (
        library is None
        and not (is_libc(base_name) or base_name.startswith("libstdc++."))
        and any(name.startswith(_CREATORS) for name in undefined)
    )
    runtime = static_agent or library
    hidden = _hidden(elf, undefined) if runtime is None and not is_libc(base_name) else None
    layout, problem = _layout(runtime, elf) if hidden is None else ((), "")
    wanted = [*named, *_probed(elf, runtime, has_bodies=bool(imports or static_agent))]
    inside = tuple(runtime_code(static_agent, elf)) if static_agent is not None else ()
    if hidden is not None:
        runtime = static_agent = hidden.agent
        inside = (hidden.code,)
    return FileFacts(
        imports,
        tuple(_functions(elf, wanted)),
        static_agent,
        is_static,
        tuple(wait_code(elf, inside)) if runtime is not None and runtime.pauses else (),
        creates_threads,
        inside,
        tuple(_code_of(one for name in (_YIELD, *polling) for one in code.get(name, ()))),
        layout,
        problem,
        wants_loader,
        _has_lines(elf),
        is_namesake,
        _pool_loops(elf, base_name),
        next((symbol.value for symbol in defined.get(_CODE_LIST, ()) if symbol.kind == TYPE_OBJECT), 0),
        hidden is not None,
    )


def _hidden(elf: ElfFile, undefined: Collection[str]) -> HiddenRuntime | None:
    """The runtime in a file without symbols of it. Each starts threads: by far most files need no further look."""
    try:
        starts_threads = elf.is_static or any(name.startswith(_CREATORS) for name in undefined)
        return hidden_runtime(elf) if starts_threads else None
    except ElfError:
        return None


def _pool_loops(elf: ElfFile, base_name: str) -> tuple[WaitLoop, ...]:
    """Where threads wait in a library with a pool of them; ``base_name`` is what processes call it."""
    known = [pool for pool in pools() if pool.library.match(base_name)]
    out: dict[Range, WaitLoop] = {}
    try:
        for symbol in elf.symbols() if known else ():
            if any(pool.may_wait_in(symbol.name) for pool in known) and _is_function(elf, symbol):
                for start, end in spin_loops(elf, symbol.value, symbol.size):
                    out[start, end] = WaitLoop(start, end, symbol.name[:_MAX_NAME])
    except ElfError:
        return ()
    return tuple(out.values())[:_MAX_POOL_LOOPS]


def _code_of(symbols: Iterable[Symbol]) -> list[Range]:
    """The code of small functions; of neighbours in one piece: only so many can be told apart."""
    ends = {(one.value, one.value + (one.size or _YIELD_BYTES)) for one in symbols}
    return merged(sorted((start, end + -end % _ALIGNED) for start, end in ends), len(ends))


def _is_function(elf: ElfFile, symbol: Symbol) -> bool:
    """Whether there is code where a symbol says that a function is: symbols are what a file says of itself."""
    return symbol.kind != TYPE_OBJECT and elf.is_code(symbol.value)


def _is_really(library: Agent, elf: ElfFile) -> bool:
    """Whether a file that is called as a runtime's library is has functions that programs have from that."""
    try:
        return not library.tells_imports or any(
            library.imports.match(symbol.name) and _is_function(elf, symbol) for symbol in elf.symbols()
        )
    except ElfError:
        return True


def _has_lines(elf: ElfFile) -> bool:
    try:
        return any(elf.named_section(name) is not None for name in _LINES)
    except ElfError:
        return False


def _layout(runtime: Agent | None, elf: ElfFile) -> tuple[tuple[int, ...], str]:
    """What the runtime's agent says of this file, and why it says nothing."""
    try:
        return (tuple(runtime.code_layout(elf)) if runtime is not None else ()), ""
    except UnknownLayout as error:
        return (), str(error)[:_MAX_NAME]
    except ElfError:
        return (), ""


def _agent_inside(markers: Collection[str]) -> Agent | None:
    """Whose these markers are. Some runtimes offer the functions of another, too: theirs come first."""
    found = [agent for agent in agents() if agent.marker in markers]
    return min(found, key=lambda agent: agent.is_imitated, default=None)


def _probed(elf: ElfFile, runtime: Agent | None, has_bodies: bool) -> Iterator[Symbol]:
    """The functions of a runtime that its hooks name, and bodies of regions and tasks in files that may have them."""
    patterns = [hook.pattern for hook in (*runtime.hooks, *runtime.lock_hooks)] if runtime else []
    if has_bodies:
        patterns += [agent.outlined for agent in agents()]
    if not patterns:
        return
    any_of = re.compile("|".join(f"(?:{pattern.pattern})" for pattern in patterns))
    try:
        for symbol in elf.symbols():
            if any_of.fullmatch(symbol.name) and _is_function(elf, symbol):
                yield symbol
    except ElfError:
        return


def _functions(elf: ElfFile, symbols: list[Symbol]) -> Iterator[ProbedFunction]:
    for symbol in list({(symbol.name, symbol.value): symbol for symbol in symbols}.values())[:MAX_FUNCTIONS]:
        try:
            yield look_at(elf, symbol.value, symbol.size, symbol.name)
        except ElfError:
            continue


def look_at(elf: ElfFile, vaddr: int, size: int = 0, name: str = "") -> ProbedFunction:
    """Where the function at an ELF virtual address is to be probed; ``size`` in bytes, 0 = unknown.

    Raises:
        ElfError: the file cannot be read.
    """
    slow = tail_jump_site(elf, vaddr, size or _UNSIZED)
    first, whole = cheap_probe_site(elf, vaddr, 0), cheap_probe_site(elf, vaddr, size or _UNSIZED)
    return ProbedFunction(
        name, vaddr, _place(first), _place(whole), _place(slow) if slow is not None else None
    )


def at_its_entry(elf: ElfFile, vaddr: int) -> ProbedFunction:
    """The function at an ELF virtual address, to be probed at its first instruction: always right, at times dear.

    Nothing is disassembled for that.

    Raises:
        ElfError: the file cannot be read.
    """
    first = _place(cheap_probe_site(elf, vaddr, 0))
    return ProbedFunction("", vaddr, first, first, None)


def _place(site: ProbeSite) -> ProbePlace:
    return ProbePlace(site.vaddr, site.cheap, site.arguments_intact)


@cache
def rules() -> str:
    """Tells apart the rules by which facts are found: with other agents, or another parprof, they may be others."""
    known = [
        (
            *(a.name, a.marker, a.sign, a.messages.pattern, a.pauses, a.is_imitated, type(a).__module__),
            *(p.pattern for p in (a.library, a.imports, a.functions, a.outlined, a.polls)),
            *(hook.pattern.pattern for hook in (*a.hooks, *a.lock_hooks)),
            *a.poll_functions,
        )
        for a in agents()
    ]
    waiting = [(p.library.pattern, p.serves.pattern, p.hands_out.pattern) for p in pools()]
    return sha256(repr((FORMAT, __version__, known, waiting)).encode()).hexdigest()[:16]


# as JSON


def to_json(facts: FileFacts) -> dict[str, Any]:
    """Facts as they travel and are kept."""
    out: dict[str, Any] = {field.name: getattr(facts, field.name) for field in fields(facts)}
    out["imports"] = sorted(facts.imports)[:_MAX_NAMES]
    out["static_agent"] = facts.static_agent.name if facts.static_agent else ""
    return out


def from_json(raw: Any) -> FileFacts:
    """The facts again.

    Raises:
        ValueError: these are none.
    """
    try:
        agent = next((agent for agent in agents() if agent.name == raw["static_agent"]), None)
        return FileFacts(
            frozenset(_text(name) for name in _list(raw["imports"], _MAX_NAMES)),
            tuple(function_from_json(one) for one in _list(raw["functions"], MAX_FUNCTIONS)),
            agent,
            bool(raw["is_static"]),
            tuple(_range(one) for one in _list(raw["wait_code"], _MAX_NAMES)),
            bool(raw["creates_threads"]),
            tuple(_range(one) for one in _list(raw["runtime_code"], _MAX_NAMES)),
            tuple(_range(one) for one in _list(raw["yield_code"], _MAX_NAMES)),
            tuple(_word(one) for one in _list(raw["code_layout"], _MAX_LAYOUT)),
            _text(raw["layout_problem"]),
            bool(raw["wants_loader"]),
            bool(raw["has_lines"]),
            bool(raw["is_namesake"]),
            tuple(_wait_loop(one) for one in _list(raw["pool_loops"], _MAX_POOL_LOOPS)),
            _address(raw["code_list"]),
            bool(raw["is_hidden"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError("no facts about a file") from error


def function_from_json(raw: Any) -> ProbedFunction:
    """A function again.

    Raises:
        ValueError: this is none.
    """
    try:
        name, vaddr, first, whole, slow = raw
        return ProbedFunction(
            _text(name),
            _address(vaddr),
            _place_again(first),
            _place_again(whole),
            None if slow is None else _place_again(slow),
        )
    except TypeError as error:
        raise ValueError("no function") from error


def _place_again(raw: Any) -> ProbePlace:
    vaddr, cheap, intact = raw
    return ProbePlace(_address(vaddr), bool(cheap), bool(intact))


def _range(raw: Any) -> Range:
    start, end = raw
    return _address(start), _address(end)


def _wait_loop(raw: Any) -> WaitLoop:
    start, end, function = raw
    return WaitLoop(_address(start), _address(end), _text(function))


def _word(raw: Any) -> int:
    if not isinstance(raw, int) or not -(1 << 63) <= raw < 1 << 63:
        raise ValueError("no word")
    return raw


def _address(raw: Any) -> int:
    if not isinstance(raw, int) or not 0 <= raw < 1 << 64:
        raise ValueError("no address")
    return raw


def _text(raw: Any) -> str:
    if not isinstance(raw, str) or len(raw) > _MAX_NAME:
        raise ValueError("no name")
    return raw


def _list(raw: Any, most: int) -> list[Any]:
    if not isinstance(raw, list) or len(raw) > most:
        raise ValueError("no list, or too long a one")
    return raw
