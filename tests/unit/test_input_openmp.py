"""`parprof input` on OpenMP programs of both runtimes: what is handed over is known to the cell; theirs is none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from input_programs import build, measure, points

__all__ = ["build"]
pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="for x86-64")
BUILDS = ("valgrind", "valgrind clang", "gcc", "clang")

TASKS = """
#include <omp.h>
#include <semaphore.h>
#define ROUTINE __attribute__((noinline)) void
static volatile long sink __attribute__((aligned(64)));
static sem_t done;
ROUTINE use(long a, long b) { sink = a + b; sem_post(&done); }
ROUTINE use_shared(const long *from, long n) { sink = from[n]; sem_post(&done); }
ROUTINE await(int n) { while (n--) sem_wait(&done); } /* so all tasks are the other thread's */
ROUTINE give(void)
{
    for (long at = 0; at < 100; at++) {
        long twice = 2 * at;
#pragma omp task firstprivate(at, twice)
        use(at, twice);
    }
    await(100);
}
ROUTINE share(long first)
{
    long values[8];
    for (long at = 0; at < 8; at++) values[at] = first ^ at;
    for (long at = 0; at < 60; at++) {
#pragma omp task firstprivate(at) shared(values)
        use_shared(values, at % 8);
    }
    await(60);
}
ROUTINE order(void)
{
    static long token;
    for (long at = 0; at < 30; at++) {
#pragma omp task firstprivate(at) depend(inout: token)
        use(at, at);
    }
    await(30);
}
ROUTINE loop_of_tasks(void)
{
#pragma omp taskloop num_tasks(10) nogroup
    for (long at = 0; at < 80; at++) use(at, at);
    await(80);
}
ROUTINE at_once(void)
{
    for (long at = 0; at < 7; at++) {
#pragma omp task firstprivate(at) if (0)
        use(at, at);
    }
    await(7);
}
ROUTINE chunks(void)
{
#pragma omp for schedule(dynamic, 5)
    for (long at = 0; at < 100; at++) sink = at;
#pragma omp for schedule(guided)
    for (unsigned long at = 0; at < 100; at++) sink = at;
#pragma omp for schedule(runtime)
    for (long at = 0; at < 100; at++) sink = at;
#pragma omp for ordered
    for (long at = 0; at < 100; at++) {
#pragma omp ordered
        sink = at;
    }
}
int main(void)
{
    sem_init(&done, 0, 0);
#pragma omp parallel num_threads(2)
    {
#pragma omp single
        give();
#pragma omp single
        share(5);
#pragma omp single
        order();
#pragma omp single
        loop_of_tasks();
#pragma omp single
        at_once();
        chunks();
    }
    return 0;
}
"""
ROUTINES = ("give", "share", "order", "loop_of_tasks", "at_once", "chunks", "await", "use")


@pytest.mark.parametrize("how", BUILDS)
def test_tasks_and_loops(build: Any, how: str, tmp_path: Path) -> None:
    """Arguments of a task are input from the thread that made it, the runtime's own data and a loop's bounds none.

    A task of clang's finds what it shares by two pointers, one of gcc's by one.
    """
    source = tmp_path / "tasks.c"
    source.write_text(TASKS)
    found = measure(build(source, how, "-fopenmp"))
    own = {name: {(point["trms"], point["rms"]) for point in points(found, name)} for name in ROUTINES}
    assert own == dict.fromkeys(ROUTINES, {(0, 0)})
    tasks = {one["calls"]: one["points"] for one in found["routines"] if "omp_" in one["name"]}
    shared = 4 if how.endswith("clang") else 3
    expected = {100: (2, 200), 60: (shared, (shared - 1) * 60 + 8), 30: (1, 30), 10: (2, 20)}
    for n, (cells, induced) in expected.items():
        (point,) = tasks[n]
        assert (point["trms"], point["rms"], point["induced"]) == (cells, cells, induced), n


REGIONS = """
#include <omp.h>
#include <stdlib.h>
#define ROUTINE __attribute__((noinline)) void
#define EIGHT(x) x##0, x##1, x##2, x##3, x##4, x##5, x##6, x##7
#define SUM(x) x##0 + x##1 + x##2 + x##3 + x##4 + x##5 + x##6 + x##7
static volatile long sink __attribute__((aligned(64))), one = 1;
ROUTINE fill(long *to) { for (int at = 0; at < 512; at++) to[at] = at; }
ROUTINE by_the_other(void)
{
    long values[512];
#pragma omp parallel num_threads(2)
    if (omp_get_thread_num() == 1) fill(values);
}
ROUTINE in_region(long n) { sink = n; }
ROUTINE region(void)
{
#pragma omp parallel for num_threads(2)
    for (int at = 0; at < 2; at++) in_region(at);
}
ROUTINE many(void)
{
    long EIGHT(a), EIGHT(b), EIGHT(c), EIGHT(d), EIGHT(e);
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = b0 = b1 = b2 = b3 = b4 = b5 = b6 = b7 = one;
    c0 = c1 = c2 = c3 = c4 = c5 = c6 = c7 = d0 = d1 = d2 = d3 = d4 = d5 = d6 = d7 = one;
    e0 = e1 = e2 = e3 = e4 = e5 = e6 = e7 = one;
#pragma omp parallel num_threads(2)
    if (SUM(a) + SUM(b) + SUM(c) + SUM(d) + SUM(e) != 40) abort();
#pragma omp parallel num_threads(2) if (one == 2)
    if (SUM(a) != 8) abort();
#pragma omp parallel num_threads(2)
    if (SUM(a) + SUM(b) != 16) abort();
#pragma omp atomic
    a0++;
#pragma omp parallel num_threads(2) reduction(+: EIGHT(b))
    b0 += a0;
    if (b0 != 5) abort();
}
int main(void) { for (int at = 0; at < 3; at++) { by_the_other(); region(); many(); } return 0; }
"""


@pytest.mark.parametrize("how", BUILDS)
def test_regions(build: Any, how: str, tmp_path: Path) -> None:
    """What the runtime has on its stack for a region is no other thread's, though one had written there before.

    Regions of up to 40 variables come through whole.
    """
    source = tmp_path / "regions.c"
    source.write_text(REGIONS)
    found = measure(build(source, how, "-fopenmp"))
    assert sum(point["induced"] for point in points(found, "region")) == 0
    assert {point["trms"] for point in points(found, "region")} == {0}
    assert {(point["trms"], point["induced"]) for point in points(found, "by_the_other")} == {(0, 0)}


PLUG = """
static volatile long sink;
__attribute__((noinline)) void use(long a, long b) { sink = a + b; }
void plugged(void)
{
#pragma omp parallel num_threads(2)
#pragma omp single
    for (long at = 0; at < 50; at++) {
#pragma omp task firstprivate(at)
        use(at, at);
    }
}
"""
LOADS = """
#include <dlfcn.h>
int main(int argc, char **argv)
{
    void *plug = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    void (*plugged)(void) = (void (*)(void))dlsym(plug, "plugged");
    for (int at = 0; at < 3; at++) plugged();
    return 0;
}
"""


@pytest.mark.parametrize("how", BUILDS)
def test_a_runtime_that_only_a_plugin_has(build: Any, how: str, tmp_path: Path) -> None:
    """The program itself has no OpenMP: only the plugin can find the functions of its runtime."""
    plug, source = tmp_path / "plug_of_tasks.c", tmp_path / "loads_tasks.c"
    plug.write_text(PLUG)
    source.write_text(LOADS)
    library = build(plug, how, "-fopenmp", "-shared", "-fPIC")
    found = measure(build(source, how), str(library))
    assert {(one["trms"], one["rms"]) for one in points(found, "use")} == {(0, 0)}
    assert sum(one["calls"] for one in points(found, "use")) == 150
    (tasks,) = (one["points"] for one in found["routines"] if "omp_" in one["name"] and one["calls"] == 150)
    assert {(one["trms"], one["rms"]) for one in tasks} == {(1, 1)}
