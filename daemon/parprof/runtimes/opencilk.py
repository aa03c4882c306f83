"""OpenCilk (its runtime cheetah).

A thief resumes the rest of a function on a stack of its own, with the frame pointer in the victim's stack: so callers
are found by unwinding, across stacks, and nothing may be probed on return. Workers change between user code and their
scheduler in two functions that never return. Those have local symbols: of a stripped library, n_w comes from memory.
"""

from __future__ import annotations

import re
import struct

from parprof.files.dso import Dso
from parprof.files.elf import ElfFile
from parprof.patterns import regex
from parprof.plans import Edge, Hook, Memory, MemoryPlan, Root, UnknownLayout, WorkerArray, check_pool
from parprof.runtimes import Agent, hook
from parprof.runtimes.tlsslots import tls_slots
from parprof.values import dataclass

_IDLE, _RUN = 10, 13
_MOST_WORKERS = 4096
_MAX_TLS = 1 << 24


@dataclass(frozen=True, slots=True)
class OpenCilkLayout:
    """Offsets in bytes, as the DWARF of a build of that version has them."""

    version: str
    tls: str
    """Thread-local pointer to the worker."""
    worker_self: int
    worker_g: int
    worker_l: int
    l_state: int
    g_nworkers: int
    g_workers: int


_V1 = OpenCilkLayout("v1", "tls_worker", 32, 40, 48, 8, 32, 40)
"""v1.0 and v1.1: alike in what we read."""
_V2_0 = OpenCilkLayout("v2.0", "__cilkrts_tls_worker", 24, 48, 56, 16, 32, 48)
_V2_1 = OpenCilkLayout("v2.1", "__cilkrts_tls_worker", 0, 16, 24, 8, 24, 40)
_TELLING = (
    ("__cilkrts_current_fh", _V2_1),
    ("__cilkrts_local_hyper_table_alloc", _V2_1),
    ("__cilkrts_use_extension", _V2_0),
    ("__cilkrts_tls_worker", _V2_0),
    ("tls_worker", _V1),
)
"""What a version has and those before it have not, whether defined or imported. There is no version symbol."""


def layout_of(names: set[str]) -> OpenCilkLayout | None:
    """The layout that a file with these symbols is built for; None where they tell nothing."""
    return next((layout for name, layout in _TELLING if name in names), None)


def _telling_names(elf: ElfFile) -> set[str]:
    wanted = {name for name, _ in _TELLING}
    return {
        name
        for table in elf.symbol_tables
        for entry in table.entries()
        if (name := table.name(entry)) in wanted
    }


class OpenCilk(Agent):
    """Agent for OpenCilk."""

    name = "opencilk"
    library = regex(r"libopencilk[.\-]")
    marker = "longjmp_to_user_code"
    return_probes = False
    cactus = True
    is_inlined = True
    imports = regex(r"__cilkrts_|Cilk_exception_handler")
    functions = regex(
        r"__cilkrts_|cilkrts_|cilk_fiber_|Cilk_(?:exception_handler|set_return|sync)\Z|"
        r"(?:longjmp_to_(?:user_code|runtime)|boss_wait_helper|scheduler_thread_proc|worker_scheduler|"
        r"do_what_it_says(?:_boss)?|extract_top_spawning_closure|promote_own_deque|provably_good_steal_maybe)\Z|"
        # its headers' functions, which compilers inline into the program
        r"__cilk_(?:prepare_spawn|sync|parent_epilogue|helper_epilogue)|(?:un)?cilkify\Z|get_worker_from_stack\Z|"
        r"sysdep_(?:save_fp|restore_fp|longjmp)"
    )
    create = regex(r"__cilkrts_(?:enter_frame|detach|save_fp)|__cilk_prepare_spawn|sysdep_save_fp")
    synchronize = regex(r".*(?:sync|leave_frame|epilogue|exception_handler|provably_good|set_return)")
    schedule = regex(
        r".*(?:schedul|longjmp_to|do_what_it_says|steal|extract_top|promote|deque|thieves|thief)"
    )
    hooks: tuple[Hook, ...] = (
        hook("longjmp_to_user_code", Edge.BEGIN, "a worker resumes a closure (cheetah runtime/scheduler.c)"),
        hook(
            "boss_wait_helper",
            Edge.BEGIN,
            "the main thread leaves the region and works serially (v1.1 and later)",
        ),
        hook(
            "longjmp_to_runtime",
            Edge.END,
            "a worker goes back to its scheduler (cheetah runtime/scheduler.c)",
        ),
        hook(
            "scheduler_thread_proc", Edge.END, "a worker thread begins, without work (cheetah runtime/init.c)"
        ),
        hook(
            "extract_top_spawning_closure", Edge.STEAL, "a steal succeeds, or a worker promotes its own deque"
        ),
    )
    _helper = regex(r"(.+?)(?:\.outline_.*|_+spawn_helper(?:[._]?\d+)?)", re.DOTALL)

    def author_name(self, name: str) -> str:
        """The function that spawns, for the helper of one of its spawns or the body of one of its loops.

        Compilers that keep the names of values put these in: ``outline_det.achd``, ``outline_pfor.cond.ls1``.

        >>> OpenCilk().author_name("sort.outline_.split.otd1"), OpenCilk().author_name("sort.outline_pfor.cond.ls1")
        ('sort', 'sort')
        """
        match = self._helper.fullmatch(name)
        return match[1] if match and match[1].strip("_") not in ("", "cilk") else name

    def memory(self, dso: Dso, process: Memory, code_layout: tuple[int, ...] = ()) -> MemoryPlan | None:
        """The workers' states: by the library's symbol, else by the thread-local that this file uses.

        ``dso`` may be the library, or a file of the program: one of them has what is needed, after ``strip`` too.
        """
        elf = dso.elf
        layout = layout_of(_telling_names(elf)) if elf is not None else None
        root = process.symbol("default_cilkrts")
        if elf is None or layout is None:
            if root:
                raise UnknownLayout(f"{dso.name}: a version of OpenCilk that is none of v1.0 to v2.1")
            return None
        if root:
            _check(process, root, layout, dso.name)
            return _plan(layout, Root.POINTER, root, ())
        slots = tls_slots(elf, layout.tls)
        if not slots.offset:
            if slots.module:
                raise UnknownLayout(
                    f"{dso.name}: OpenCilk {layout.version} without symbols, whose thread-local storage may be anywhere"
                )
            return None
        offset = int.from_bytes(process.read(process.address(slots.offset), 8), "little", signed=True)
        if not offset:
            return None  # ld.so has yet to relocate the file
        if not -_MAX_TLS < offset < 0 or offset % 8:
            raise UnknownLayout(f"{dso.name}: a thread-local offset of {offset} makes no sense")
        return _plan(layout, Root.THREAD_LOCAL, offset, (layout.worker_g,))


def _plan(layout: OpenCilkLayout, kind: Root, root: int, hops: tuple[int, ...]) -> WorkerArray:
    return WorkerArray(
        kind,
        root,
        hops,
        count=layout.g_nworkers,
        array=layout.g_workers,
        stride=8,
        pointers=True,
        worker_hops=(layout.worker_l,),
        value=layout.l_state,
        size=2,
        equals=_RUN,
    )


def _check(process: Memory, root: int, layout: OpenCilkLayout, label: str) -> None:
    """Refuse what does not look like this version, if the runtime has started."""

    def word(address: int, size: int = 8) -> int:
        return int.from_bytes(process.read(address, size), "little")

    state = struct.Struct("<H").size
    try:
        g = word(root)
        if not g:
            return
        count, first = word(g + layout.g_nworkers, 4), word(word(g + layout.g_workers))
        if not first:  # it starts just now
            return
        right = (
            0 < count <= _MOST_WORKERS
            and word(first + layout.worker_g) == g
            and word(first + layout.worker_self, 4) == 0
            and _IDLE <= word(word(first + layout.worker_l) + layout.l_state, state) <= _RUN
        )
    except OSError as error:
        raise UnknownLayout(f"{label}: not laid out as OpenCilk {layout.version}: {error}") from error
    if not right:
        raise UnknownLayout(
            f"{label}: not laid out as OpenCilk {layout.version}, of which it has the symbols"
        )
    check_pool(count, label)
