"""LLVM libomp and Intel libiomp5, which share one source.

Every thread runs region bodies through the exported ``__kmp_invoke_microtask``, so that regions need no
symbols of the application. Programs that gcc built call the ``GOMP_*`` entries of the same library, which
call the outlined function directly.
"""

from __future__ import annotations

from parprof.patterns import regex
from parprof.plans import Edge, Hook
from parprof.runtimes import Agent, hook
from parprof.runtimes.libgomp import (
    API,
    LEGACY_ENTRIES,
    LOCKS,
    REGION_ENTRIES,
    TASK_ENTRIES,
    Libgomp,
    encloser_by_gcc,
)

_HOOKS = (
    hook("__kmp_invoke_microtask", Edge.WORK, "runs a region's body (kmp z_Linux_asm.S)",
         function_argument=1),
    hook("__kmpc_fork_call __kmpc_fork_call_if __kmpc_fork_teams", Edge.REGION,
         "starts the team and waits for it (kmp_csupport.cpp)", function_argument=3),
    hook("__kmpc_barrier __kmpc_cancel_barrier", Edge.WAIT, "a team barrier (kmp_barrier.cpp)", is_barrier=True),
    hook("__kmpc_barrier_master __kmpc_copyprivate __kmpc_reduce __kmpc_end_reduce", Edge.WAIT,
         "a team barrier, or several, or half of one (kmp_barrier.cpp)"),
    hook("__kmpc_omp_taskwait __kmpc_omp_taskwait_deps_51 __kmpc_end_taskgroup __kmpc_omp_wait_deps "
         "__kmpc_omp_taskyield", Edge.WAIT, "waits for tasks, running them meanwhile (kmp_tasking.cpp)"),
    hook("__kmpc_critical __kmpc_critical_with_hint __kmpc_set_lock __kmpc_set_nest_lock omp_set_lock "
         "omp_set_nest_lock __kmpc_ordered __kmpc_doacross_wait", Edge.WAIT,
         "a lock or an order to wait for (kmp_lock.cpp)"),
    hook("__kmpc_omp_task __kmpc_omp_task_with_deps __kmpc_taskloop __kmpc_taskloop_5", Edge.CREATE_TASK,
         "hands a task over to be run by anybody (kmp_tasking.cpp)", instance_argument=3, function_word=1),
    hook("__kmpc_omp_task_alloc", Edge.LEARN, "a task's entry passes by (kmp_tasking.cpp)", learn_argument=6),
    LEGACY_ENTRIES,
    REGION_ENTRIES,
    *(h for h in Libgomp.hooks if h.edge == Edge.WAIT and not h.slow_path),
    TASK_ENTRIES,
)  # fmt: skip


_PART = regex(
    r"(?P<clang>.*?)\.omp[._]\w[\w.]*|"
    r"(?P<icx>.+?)\.DIR\.OMP\..*|"
    r"L_(?P<icc>\w+)_\d+__(?:par|task)\w*(?:\.\d+)?"
)
"""What clang, icx and icc call the parts of functions; the latter two are known from public listings alone."""

_LOCKS = (
    hook("__kmpc_critical __kmpc_critical_with_hint __kmpc_set_lock", Edge.LOCK, "takes a lock (kmp_lock.cpp)",
         instance_argument=3),
    hook("__kmpc_end_critical __kmpc_unset_lock", Edge.UNLOCK, "gives the lock back (kmp_lock.cpp)"),
    *LOCKS,
)  # fmt: skip


class Libomp(Agent):
    """Agent for LLVM libomp."""

    name = "libomp"
    library = regex(r"libomp[.\-]|libomp5[.\-]")
    marker = "__kmp_invoke_microtask"
    sign = b"OMP: Error #%1$d: %2$s"
    messages = regex(rb"[\w./\-]{0,200}src/(?:kmp|z)_\w{2,40}\.(?:cpp|h|inl)\0")  # its assertions name these
    outlined = regex(r"\.omp_task_entry\..*|.*\._omp_fn\.\d+")
    imports = regex(r"__kmpc_|GOMP_|omp_")
    functions = regex(rf"_?_?(kmp|KMP|ompt|GOMP|ompc)[_a-z]|_Z\w*__kmp|{API}")
    create = regex(
        r"__kmpc_(?:fork|omp_task$|omp_task_alloc|omp_task_with_deps|taskloop|serialized_parallel|push_num)|"
        r"__kmp_(?:fork_call|fork_team|serial|allocate_t|task_alloc|push_task|omp_task)|GOMP_(?:parallel(?!_end)|task$|taskloop)"
    )
    synchronize = regex(
        r".*(barrier|lock|critical|taskwait|ordered|atomic|(?<!no)wait|reduce|reduction|sync|taskgroup|doacross|join|"
        r"copyprivate|release)|GOMP_(?:loop|sections)_end(?:_cancel)?$|GOMP_(?:single_copy|parallel_end)"
    )
    schedule = regex(
        r".*(loop|dispatch|for_static|sections|single|masked|master|next|steal|taskyield|execute_tasks|invoke_task)"
    )
    hooks: tuple[Hook, ...] = _HOOKS
    lock_hooks = _LOCKS
    lets_go = True
    pauses = True

    def outlined_instance(self, name: str) -> int:
        """A task's entry has its task as second argument, a body that gcc outlined has its data as first."""
        return 1 if "._omp_fn." in name else 2

    def encloser(self, name: str) -> str | None:
        """The function that a region's or task's body was taken from, as far as its compiler tells.

        >>> Libomp().encloser("solve(int).omp_outlined.1"), Libomp().encloser(".omp_task_entry..4")
        ('solve(int)', '')
        """
        by_gcc = encloser_by_gcc(name)
        if by_gcc is not None:
            return by_gcc
        match = _PART.fullmatch(name)
        if match is None:
            return None
        function = match["clang"] or match["icx"] or match["icc"] or ""
        return "" if function.startswith("_Z") else function


class Libiomp5(Libomp):
    """Agent for Intel libiomp5."""

    name = "libiomp5"
    library = regex(r"libiomp5[.\-]")
    marker = ""
    sign = b""
