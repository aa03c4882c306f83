# SPDX-License-Identifier: Apache-2.0
"""Which samples are parallel overhead, and of which kind."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path as FilePath

import pytest

sys.path.insert(0, str(FilePath(__file__).parent))

from logical_stacks import AGENTS, FOLDER, frames
from parprof.files.dso_cache import DsoCache
from parprof.logical.overhead import OverheadKinds
from parprof.logical.threads import THREADS
from parprof.model import Frame
from parprof.runtimes import Agent
from parprof.symbols.symbolizer import Symbolizer
from symbol_programs import need_symbolic, open_dso

KINDS = OverheadKinds(FOLDER)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("main f", ""),
        ("main f GOMP_barrier gomp_x", "sync"),
        ("main f GOMP_critical_start gomp_mutex_lock_slow syscall", "sync"),
        ("main f GOMP_task gomp_x", "create"),
        ("main f GOMP_loop_dynamic_next", "schedule"),
        ("main f GOMP_loop_end gomp_x", "sync"),
        ("main f GOMP_loop_end_nowait", "schedule"),
        ("main f GOMP_parallel gomp_team_start pthread_create syscall", "create"),
        ("main f GOMP_parallel f._omp_fn.0 g", ""),
        ("main f GOMP_taskwait qsort", ""),  # the task's function jumped there
        ("main f GOMP_taskwait gomp_x malloc", "sync"),
        ("main f __kmpc_dispatch_next_4", "schedule"),
        ("main f __kmpc_global_thread_num", "other"),
        ("main f __kmpc_omp_task __kmp_acquire_queuing_lock", "sync"),
        ("main f __kmp_fork_barrier", "sync"),
        ("main f pthread_mutex_lock", "sync"),
        ("main malloc", ""),
        ("main f parallel_overhead_push", "tagged"),
        ("main f parallel-overhead:schedule", "schedule"),
        ("main parallel_overhead_push* helper*", "tagged"),
        ("main parallel_overhead_push malloc", "tagged"),
        ("main parallel_overhead_run work", ""),
    ],
)
def test_kinds(path: str, kind: str) -> None:
    assert KINDS.kind(frames(path)) == kind


def test_the_pattern_is_the_user_s() -> None:
    path = (Frame("main"), Frame("f", "/src/sync.h", 3))
    assert OverheadKinds(FOLDER).kind(path) == ""
    assert OverheadKinds(FOLDER, re.compile(r"sync\.h")).kind(path) == "tagged"


@pytest.mark.parametrize(
    ("name", "module", "owned"),
    [
        ("pthread_mutex_lock", "libc.so.6", True), ("___pthread_mutex_lock", "libc.so.6", True),
        ("pthread_cond_wait@@GLIBC_2.3.2", "libpthread.so.0", True), ("sem_post", "program", True),
        ("__lll_lock_wait", "libc.so.6", True), ("futex_wait", "program", False), ("__GI___pthread_join", "x", True),
        ("pthread_getspecific", "libc.so.6", False), ("malloc", "libc.so.6", False),
        ("std::thread::_M_start_thread(std::unique_ptr<std::thread::_State>, void (*)())", "libstdc++.so.6", True),
        ("std::this_thread::yield()", "program", False), ("execute_native_thread_routine", "libstdc++.so.6", True),
    ],
)  # fmt: skip
def test_the_threads_library(name: str, module: str, owned: bool) -> None:
    assert THREADS.owns(name, module) is owned


@pytest.mark.parametrize("agent", AGENTS)
def test_a_program_s_own_names_are_its_own(agent: Agent) -> None:
    for name in ("omp_matmul", "gompertz", "main", "omp_truth_phase"):
        assert not agent.owns(name, "program")
    assert agent.owns("GOMP_barrier", "static_program") and agent.owns("omp_get_thread_num", "static_program")


SOURCE = """
volatile double sink;
static inline __attribute__((always_inline)) void push(int *x)
{
#line 6 "parallel-overhead:create"
    for (int k = 0; k < 100; k++) __atomic_add_fetch(x, k, 5);
#line 8 "program.c"
}
__attribute__((noinline)) void parallel_overhead_steal(int n) { for (int i = 0; i < n; i++) sink += i; }
__attribute__((noinline)) void f(int n)
{
    int x = 0;
#pragma omp parallel for
    for (int i = 0; i < n; i++) { push(&x); sink += 1; }
#line 15 "hpctoolkit:parallel-overhead"
    for (int i = 0; i < n; i++) sink += 2;
#line 17 "program.c"
}
int main() { f(10); parallel_overhead_steal(3); }
"""


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_tags_in_a_real_program(compiler: str, tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch) -> None:
    need_symbolic()
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    monkeypatch.setenv("PARPROF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "program.c").write_text(SOURCE)
    command = [compiler, "-g", "-O2", "-fopenmp", "program.c", "-o", "program"]
    subprocess.run(command, check=True, cwd=tmp_path)
    kinds: dict[str, set[str]] = {}
    bodies = set()
    with DsoCache() as cache, Symbolizer() as symbolizer:
        dso = open_dso(cache, tmp_path / "program")
        assert dso.elf is not None
        for symbol in dso.elf.symbols():
            for address in range(symbol.value, symbol.value + symbol.size):
                path = tuple(reversed(symbolizer.frames(dso, address, False)))
                kinds.setdefault(path[0].name, set()).add(KINDS.kind(path))
                bodies.add(FOLDER.encloser(path[0].name))
    assert kinds["parallel_overhead_steal"] == {"tagged"}
    assert kinds["f"] == {"", "tagged"}
    (body,) = (name for name in kinds if FOLDER.encloser(name) is not None)
    assert kinds[body] == {"", "create"}
    assert bodies == {None, "f" if compiler == "gcc" else ""}
