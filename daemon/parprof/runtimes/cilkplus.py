"""Intel Cilk Plus (libcilkrts.so.5, gcc 5 to 7 and icc), ABI 1.

As in OpenCilk, a thief resumes a function on a stack of its own with the frame pointer in the victim's: no return
probes, and callers across stacks. Most of the functions that are probed have local symbols; n_w from memory needs
only an exported variable.
"""

from __future__ import annotations

from parprof.files.dso import Dso
from parprof.patterns import regex
from parprof.plans import Edge, Hook, Memory, MemoryPlan, Root, UnknownLayout, WorkerArray, check_pool
from parprof.runtimes import Agent, hook

_G_TOTAL_WORKERS, _G_WORKERS, _G_P = 12, 32, 1312
_WORKER_SELF, _WORKER_G, _WORKER_L = 40, 48, 56
_L_FRAME_FF, _L_TYPE = 48, 136
_MOST_WORKERS = 4096
_MOST_TYPES = 3


class CilkPlus(Agent):
    """Agent for Intel Cilk Plus."""

    name = "cilkplus"
    library = regex(r"libcilkrts[.\-]")
    marker = "__cilkrts_bind_thread_1"
    return_probes = False
    cactus = True
    is_inlined = True
    imports = regex(r"__cilkrts_")
    functions = regex(
        r"__cilkrts_|cilkrts_|cilk_fiber|(?:longjmp_into_runtime|fiber_proc_to_resume_user_code_for_random_steal|"
        r"detach_for_steal|scheduler_thread_proc_for_\w+|worker_scheduler_function|worker_scheduling_loop_body)\Z"
    )
    create = regex(r"__cilkrts_(?:enter_frame|detach|bind_thread|cilk_for)")
    synchronize = regex(r".*(?:sync|leave_frame|c_return|post_suspend|exception)")
    schedule = regex(r".*(?:schedul|longjmp|steal|resume|check_for_work|search_until|fiber)")
    hooks: tuple[Hook, ...] = (
        hook(
            "fiber_proc_to_resume_user_code_for_random_steal",
            Edge.BEGIN,
            "a thief begins (libcilkrts scheduler.c)",
        ),
        hook(
            "cilkrts_resume",
            Edge.BEGIN,
            "a worker goes on behind a sync or a return (libcilkrts scheduler.c)",
        ),
        hook(
            "__cilkrts_bind_thread_1", Edge.BEGIN, "a thread of the program's becomes a worker, and works on"
        ),
        hook(
            "longjmp_into_runtime", Edge.END, "a worker goes back to its scheduler (libcilkrts scheduler.c)"
        ),
        hook("scheduler_thread_proc_for_system_worker", Edge.END, "a worker thread begins, without work"),
        hook("detach_for_steal", Edge.STEAL, "a thief takes a frame (libcilkrts scheduler.c)"),
    )
    _helper = regex(r"(.+?)_+spawn_helper(?:[._]?\d+)?")
    _numbered = regex(r"_cilk_(?:spn|for)_\d+(?:\.\w+)*")

    def author_name(self, name: str) -> str:
        """The function that spawns, for the helper of one of its spawns.

        >>> CilkPlus().author_name("sort_spawn_helper")
        'sort'
        """
        match = self._helper.fullmatch(name)
        return match[1] if match and match[1].strip("_") not in ("", "cilk") else name

    def encloser(self, name: str) -> str | None:
        """Unknown, for a spawn's helper or a loop's body of gcc, which numbers them."""
        return "" if self._numbered.fullmatch(name) else None

    def memory(self, dso: Dso, process: Memory, code_layout: tuple[int, ...] = ()) -> MemoryPlan | None:
        """Who has a full frame works. The library exports the variable, so that ``strip`` does not matter."""
        root = process.symbol("__cilkrts_global_state")
        if not root:
            return None
        if not process.symbol("__cilkrts_bind_thread_1"):
            raise UnknownLayout(f"{dso.name}: Cilk Plus before its ABI 1")
        _check(process, root, dso.name)
        return WorkerArray(
            Root.POINTER,
            root,
            (),
            count=_G_P,
            array=_G_WORKERS,
            stride=8,
            pointers=True,
            worker_hops=(_WORKER_L,),
            value=_L_FRAME_FF,
            size=8,
            equals=None,
        )


def _check(process: Memory, root: int, label: str) -> None:
    """The workers and frames are frozen ABI, the rest is not: refuse what looks otherwise, if it has started.

    Until then the variable leads to a state of the library's own which is all zero, once ld.so has relocated it.
    """

    def word(address: int, size: int = 8) -> int:
        return int.from_bytes(process.read(address, size), "little")

    try:
        g = word(root)
        workers, count = (word(g + _G_WORKERS), word(g + _G_P, 4)) if g else (0, 0)
    except OSError:
        return  # ld.so has yet to relocate it
    if not workers or not count:
        return
    try:
        first = word(workers)
        if not first:  # it starts just now
            return
        right = (
            0 < count <= _MOST_WORKERS
            and word(g + _G_TOTAL_WORKERS, 4) >= count
            and word(first + _WORKER_G) == g
            and word(first + _WORKER_SELF, 4) == 0
            and word(word(first + _WORKER_L) + _L_TYPE, 4) < _MOST_TYPES
        )
    except OSError as error:
        raise UnknownLayout(f"{label}: not laid out as the Cilk Plus that is known: {error}") from error
    if not right:
        raise UnknownLayout(f"{label}: not laid out as the Cilk Plus that is known (Build 4516)")
    check_pool(count, label)
