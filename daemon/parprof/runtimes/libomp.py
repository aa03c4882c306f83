"""LLVM libomp and Intel libiomp5, which share one source.

Every thread runs region bodies through the exported ``__kmp_invoke_microtask``, so that regions need no
symbols of the application. Programs that gcc built call the ``GOMP_*`` entries of the same library, which
call the outlined function directly.
"""

from __future__ import annotations

import re

from parprof.runtimes import Edge, Hook, hook
from parprof.runtimes.libgomp import LEGACY_ENTRIES, REGION_ENTRIES, TASK_ENTRIES, Libgomp

_HOOKS = (
    hook("__kmp_invoke_microtask", Edge.WORK, "runs a region's body (kmp z_Linux_asm.S)"),
    hook("__kmpc_fork_call __kmpc_fork_call_if __kmpc_fork_teams", Edge.REGION,
         "starts the team and waits for it (kmp_csupport.cpp)"),
    hook("__kmpc_barrier __kmpc_cancel_barrier __kmpc_barrier_master __kmpc_copyprivate __kmpc_reduce "
         "__kmpc_end_reduce", Edge.WAIT, "a team barrier (kmp_barrier.cpp)"),
    hook("__kmpc_omp_taskwait __kmpc_omp_taskwait_deps_51 __kmpc_end_taskgroup __kmpc_omp_wait_deps "
         "__kmpc_omp_taskyield", Edge.WAIT, "waits for tasks, running them meanwhile (kmp_tasking.cpp)"),
    hook("__kmpc_critical __kmpc_critical_with_hint __kmpc_set_lock __kmpc_set_nest_lock omp_set_lock "
         "omp_set_nest_lock __kmpc_ordered __kmpc_doacross_wait", Edge.WAIT,
         "a lock or an order to wait for (kmp_lock.cpp)"),
    hook("__kmpc_omp_task_alloc", Edge.LEARN, "a task's entry passes by (kmp_tasking.cpp)", learn_argument=6),
    LEGACY_ENTRIES,
    REGION_ENTRIES,
    *(h for h in Libgomp.hooks if h.edge == Edge.WAIT and not h.slow_path),
    TASK_ENTRIES,
)  # fmt: skip


class Libomp:
    """Agent for LLVM libomp."""

    name = "libomp"
    library = re.compile(r"libomp[.\-]|libomp5[.\-]")
    marker = "__kmp_invoke_microtask"
    outlined = re.compile(r"\.omp_task_entry\..*|.*\._omp_fn\.\d+")
    return_probes = True
    hooks: tuple[Hook, ...] = _HOOKS


class Libiomp5(Libomp):
    """Agent for Intel libiomp5."""

    name = "libiomp5"
    library = re.compile(r"libiomp5[.\-]")
