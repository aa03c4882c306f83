"""Every hook of libgomp's agent has a wrapper in libparprof_span, and every wrapper a reason."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from parprof.plans import Edge
from parprof.runtimes.libgomp import LOCKS, Libgomp
from parprof.runtimes.libomp import Libomp
from scale_programs import library

_WRAPPED = {Edge.REGION, Edge.LEARN, Edge.WAIT, Edge.CREATE_TASK, Edge.LOCK, Edge.UNLOCK}
BESIDE_HOOKS = re.compile(
    # chunks, which are strands; where groups and singles begin; locks that are only tried
    r"GOMP_loop_\w*(start|next|end_nowait)|GOMP_sections2?_(start|next|end_nowait)|GOMP_taskgroup_start"
    r"|GOMP_single_(start|copy_end)|GOMP_ordered_end|omp_(set|test|unset)(_nest)?_lock_?"
    # the same of LLVM's runtime
    r"|GOMP_doacross_(ull_)?post|__kmpc_doacross_(init|post|fini)"
    r"|__kmpc_(dist_)?dispatch_(init|next)_[48]u?|__kmpc_taskgroup|__kmpc_(end_)?(single|master|masked)"
    r"|__kmpc_(end_ordered|unset_nest_lock|atomic_(start|end))"
    # reductions, in which threads may wait; regions and tasks that one thread executes
    r"|__kmpc_(reduce|end_reduce)_nowait|__kmpc_(end_)?barrier_master(_nowait)?"
    r"|__kmpc_(end_)?serialized_parallel|__kmpc_omp_task_(begin|complete)_if0|__kmpc_task_allow_completion_event"
    # the first call of which makes the runtime ready
    r"|__kmpc_(global_thread_num|push_num_teams)|omp_(get_max|set_num)_threads|omp_init(_nest)?_lock"
    # how many processors there seem to be, and that threads may be bound to
    r"|omp_get_num_procs_?|sched_[gs]etaffinity|pthread_([gs]et|attr_set)affinity_np|sysconf|get_nprocs(_conf)?"
    r"|pthread_(mutex_(lock|trylock|timedlock|clocklock|unlock)|spin_(lock|trylock|unlock))"
    r"|pthread_rwlock_((|try|timed|clock)(rd|wr)lock|unlock)"
    # threads of POSIX, where no runtime is followed
    r"|pthread_once|sem_(init|close|post|wait|trywait|timedwait|clockwait)"
    r"|pthread_(create|join|barrier_(init|wait)|cond_(signal|broadcast|wait|timedwait|clockwait))"
    # by what Rust's and C++'s libraries wait; in front of that they yield
    r"|syscall|sched_yield"
    # an end without destructors
    r"|_exit|_Exit|f?execve|execv(p|pe)?|execveat|execl[ep]?"
    # the begin and the end of each function, in programs that are built so
    r"|__cyg_profile_func_(enter|exit)"
    # what other runtimes call, and tests
    r"|parprof_span_\w+"
)


def exported(path: str) -> set[str]:
    done = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True)
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines()}


@pytest.fixture(scope="module")
def wrappers() -> set[str]:
    return exported(str(library()))


@pytest.fixture(scope="module")
def libgomp() -> set[str]:
    done = subprocess.run(["gcc", "-print-file-name=libgomp.so"], capture_output=True, text=True, check=True)
    return exported(str(Path(done.stdout.strip()).resolve()))


def hooked(libgomp: set[str]) -> set[str]:
    patterns = [hook.pattern for hook in (*Libgomp.hooks, *LOCKS) if hook.edge in _WRAPPED]
    found = {name for name in libgomp for pattern in patterns if pattern.fullmatch(name)}
    assert len(found) > 40
    return found | hooked_of_llvm()


def hooked_of_llvm() -> set[str]:
    """By the names in the hooks' patterns, so that no runtime need be here."""
    patterns = [hook.pattern for hook in (*Libomp.hooks, *Libomp.lock_hooks) if hook.edge in _WRAPPED]
    found = {name for pattern in patterns for name in re.findall(r"__kmpc_\w+", pattern.pattern)}
    assert len(found) > 20
    return found


def test_each_hook_has_its_wrapper(wrappers: set[str], libgomp: set[str]) -> None:
    assert hooked(libgomp) - wrappers == set()


def test_each_wrapper_has_its_hook_or_its_reason(wrappers: set[str], libgomp: set[str]) -> None:
    beside = wrappers - hooked(libgomp)
    assert {name for name in beside if not BESIDE_HOOKS.fullmatch(name)} == set()


def test_each_way_to_begin_or_continue_a_loop_has_its_wrapper(wrappers: set[str], libgomp: set[str]) -> None:
    ways = {name for name in libgomp if re.fullmatch(r"GOMP_(loop|sections)_\w*(start|next)", name)}
    assert ways - wrappers == set()
