"""GNU libgomp (gcc's OpenMP).

A worker waits in the library's pool until the library calls an outlined function, ``NAME._omp_fn.N``, for a
region or a task. The master calls ``GOMP_parallel``, which starts the team, runs the outlined function in
the master too, and ends with the team's barrier: all of it is waiting but for the outlined function.
Creating a task is not waiting: it is work, and the report tells it apart as overhead.
"""

from __future__ import annotations

import re

from parprof.runtimes import Edge, Hook, hook

REGION_ENTRIES = hook(
    "GOMP_parallel GOMP_parallel_loop_* GOMP_parallel_sections GOMP_parallel_reductions GOMP_teams_reg",
    Edge.REGION,
    "starts the team, runs the outlined function and waits for the team (gcc libgomp/parallel.c)",
    learn_argument=1,
)
LEGACY_ENTRIES = hook(
    "GOMP_parallel_start GOMP_parallel_loop_*_start GOMP_parallel_sections_start",
    Edge.LEARN,
    "gcc before 4.9: returns with the team running, the master calls the body itself",
    learn_argument=1,
)
TASK_ENTRIES = hook(
    "GOMP_task GOMP_taskloop GOMP_taskloop_ull",
    Edge.LEARN,
    "the outlined function of a task passes by (gcc libgomp/task.c)",
    learn_argument=1,
)


class Libgomp:
    """Agent for GNU libgomp."""

    name = "libgomp"
    library = re.compile(r"libgomp[.-]")
    marker = "GOMP_parallel"
    outlined = re.compile(r".*\._omp_fn\.\d+")
    return_probes = True
    hooks: tuple[Hook, ...] = (
        LEGACY_ENTRIES,
        REGION_ENTRIES,
        hook("GOMP_barrier GOMP_barrier_cancel GOMP_loop_end GOMP_loop_end_cancel GOMP_sections_end "
             "GOMP_sections_end_cancel GOMP_single_copy_start GOMP_workshare_task_reduction_unregister "
             "GOMP_parallel_end",
             Edge.WAIT, "a team barrier (gcc libgomp/barrier.c, loop.c)"),
        hook("GOMP_taskwait GOMP_taskwait_depend GOMP_taskgroup_end", Edge.WAIT,
             "waits for tasks, running them meanwhile (gcc libgomp/task.c)"),
        hook("GOMP_critical_start GOMP_critical_name_start GOMP_atomic_start omp_set_lock", Edge.WAIT,
             "a lock: waits only on its slow path (gcc libgomp/critical.c)", slow_path=True),
        hook("omp_set_nest_lock GOMP_ordered_start GOMP_doacross_wait GOMP_doacross_ull_wait", Edge.WAIT,
             "waits for other threads (gcc libgomp/ordered.c)"),
        TASK_ENTRIES,
    )  # fmt: skip
