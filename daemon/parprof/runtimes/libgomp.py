"""GNU libgomp (gcc's OpenMP).

A worker waits in the library's pool until the library calls an outlined function, ``NAME._omp_fn.N``, for a
region or a task. The master calls ``GOMP_parallel``, which starts the team, runs the outlined function in
the master too, and ends with the team's barrier: all of it is waiting but for the outlined function.
Creating a task is not waiting: it is work, and the report tells it apart as overhead.
"""

from __future__ import annotations

from collections.abc import Mapping

from parprof.files.dso import Dso
from parprof.files.elf import ElfFile
from parprof.patterns import regex
from parprof.plans import Edge, Hook, Memory, MemoryPlan
from parprof.runtimes import Agent, hook
from parprof.runtimes.libgomp_memory import TeamLayout, holds_for, team_barrier, team_layout

REGION_ENTRIES = hook(
    "GOMP_parallel GOMP_parallel_loop_* GOMP_parallel_sections GOMP_parallel_reductions GOMP_teams_reg",
    Edge.REGION,
    "starts the team, runs the outlined function and waits for the team (gcc libgomp/parallel.c)",
    learn_argument=1,
    instance_argument=2,
)
LEGACY_ENTRIES = hook(
    "GOMP_parallel_start GOMP_parallel_loop_*_start GOMP_parallel_sections_start",
    Edge.LEARN,
    "gcc before 4.9: returns with the team running, the master calls the body itself",
    learn_argument=1,
)
TASK_ENTRIES = hook(
    "GOMP_task GOMP_taskloop GOMP_taskloop_ull",
    Edge.CREATE_TASK,
    "makes a task of an outlined function (gcc libgomp/task.c)",
    learn_argument=1,
)
TARGET_ENTRIES = hook(
    "GOMP_target_ext",
    Edge.CREATE_TASK,
    "with nowait, makes a task of what is offloaded; without a device it runs here (gcc libgomp/target.c)",
    learn_argument=2,
)


API = r"omp_(?:[gs]et|in|is|init|destroy|test|unset|capture|display|pause|fulfill|target)_"
"""The functions that OpenMP itself names: a program's own may begin with ``omp_``, too."""
_PART = regex(r"(.+?)\._omp_(?:cpy)?fn\.\d+")


def encloser_by_gcc(name: str) -> str | None:
    """The function that gcc outlined a body from; None for another function.

    >>> encloser_by_gcc("ns::solve(int)._omp_fn.3")
    'ns::solve(int)'
    """
    match = _PART.match(name)
    return match[1] if match else None


LOCKS = (
    hook("GOMP_critical_start GOMP_atomic_start", Edge.LOCK, "takes the one nameless lock (gcc libgomp/critical.c)"),
    hook("GOMP_critical_name_start omp_set_lock", Edge.LOCK, "takes a lock (gcc libgomp/critical.c, lock.c)",
         instance_argument=1),
    hook("GOMP_critical_end GOMP_atomic_end GOMP_critical_name_end omp_unset_lock", Edge.UNLOCK,
         "gives the lock back"),
)  # fmt: skip


class Libgomp(Agent):
    """Agent for GNU libgomp."""

    name = "libgomp"
    library = regex(r"libgomp[.-]")
    marker = "GOMP_parallel"
    is_imitated = True
    sign = b"\nlibgomp: "
    messages = regex(
        rb"\nlibgomp: |Thread creation failed: %s|Out of memory allocating %lu bytes|omp_fulfill_event: %p event|"
        rb"unknown omp_depend_t dependence type|thread %d: task with event %p finished|Could not get CPU affinity set|"
        rb"Logical CPU |Out of memory trying to allocate places list|None of the places contain usable|"
        rb"Number of places reduced from|Duplicate node|Copying of %s object|device finalization failed|"
        rb"device initialization failed|Trying to (?:map into device|update) \[|error in freeing device memory|"
        rb"Library too old for offload|GOMP_target_enter_exit_data unhandled|no device active|"
        rb"unknown device type %u|overflow in omp_capture_affinity|OMP_TARGET_OFFLOAD is set to MANDATORY|"
        rb"cannot find omp_|(?:fatal error: )?error directive encountered"
    )
    outlined = regex(r".*\._omp_fn\.\d+")
    lock_hooks = LOCKS
    lets_go = True
    pauses = True
    imports = regex(r"GOMP_|omp_")
    functions = regex(rf"_?(GOMP|gomp|GOACC|goacc)_|{API}")
    create = regex(
        r"GOMP_(?:parallel(?!_end)|task$|taskloop|teams|target)|gomp_(?:team_start|new_team|malloc_task|init_task)"
    )
    synchronize = regex(
        r".*(barrier|lock|critical|taskwait|ordered|atomic|(?<!no)wait|reduction|sync|taskgroup|doacross)|"
        r"GOMP_(?:loop|sections)_end(?:_cancel)?$|GOMP_(?:single_copy|parallel_end)"
    )
    schedule = regex(r".*(loop|sections|single|iter_|dynamic|guided|run_task|next)")
    hooks: tuple[Hook, ...] = (
        LEGACY_ENTRIES,
        REGION_ENTRIES,
        hook(
            "GOMP_barrier GOMP_barrier_cancel GOMP_loop_end GOMP_loop_end_cancel GOMP_sections_end "
            "GOMP_sections_end_cancel GOMP_workshare_task_reduction_unregister",
            Edge.WAIT,
            "a team barrier (gcc libgomp/barrier.c, loop.c)",
            is_barrier=True,
        ),
        hook(
            "GOMP_single_copy_start GOMP_parallel_end",
            Edge.WAIT,
            "the barrier of a team, but not of all of it (gcc libgomp/single.c), or its last (parallel.c)",
        ),
        hook(
            "GOMP_taskwait GOMP_taskwait_depend GOMP_taskgroup_end",
            Edge.WAIT,
            "waits for tasks, running them meanwhile (gcc libgomp/task.c)",
        ),
        hook(
            "GOMP_critical_start GOMP_critical_name_start GOMP_atomic_start omp_set_lock",
            Edge.WAIT,
            "a lock: waits only on its slow path (gcc libgomp/critical.c)",
            slow_path=True,
        ),
        hook(
            "omp_set_nest_lock GOMP_ordered_start GOMP_doacross_wait GOMP_doacross_ull_wait",
            Edge.WAIT,
            "waits for other threads (gcc libgomp/ordered.c)",
        ),
        TASK_ENTRIES,
        TARGET_ENTRIES,
    )

    def encloser(self, name: str) -> str | None:
        """The function that a region's or task's body was outlined from."""
        return encloser_by_gcc(name)

    def code_layout(self, elf: ElfFile) -> tuple[int, ...]:
        """A `TeamLayout`."""
        return team_layout(elf)

    def memory(self, dso: Dso, process: Memory, code_layout: tuple[int, ...] = ()) -> MemoryPlan | None:
        """The thread's team and its barrier. None while ld.so has yet to relocate the library: ask again."""
        return (
            team_barrier(TeamLayout(*code_layout), process)
            if len(code_layout) == len(TeamLayout._fields)
            else None
        )

    def memory_spoilt_by(self, imported: set[str] | None, environment: Mapping[str, str]) -> str:
        """Waits that are not at the team's barrier."""
        if imported is None:
            return "a static program does not say what it uses of the runtime"
        return holds_for(imported, environment)
