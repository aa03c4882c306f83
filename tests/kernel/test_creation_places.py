# SPDX-License-Identifier: Apache-2.0
"""Below which functions work is created, where what is nearest to its creation on the stack does not tell."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

import profiling

pytestmark = pytest.mark.beside

CREATORS = """
#include <pthread.h>
#include <string.h>
#include <time.h>
#define NEVER_INLINED __attribute__((noinline, noclone))
static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
NEVER_INLINED void *burn(void *seconds)
{
    double end = cpu_s() + *(double *)seconds;
    while (cpu_s() < end)
        __asm__ volatile("");
    return 0;
}
/* has as many bytes of the stack for itself as functions have that work on a block or a line */
NEVER_INLINED void share_out(double seconds)
{
    char block[BYTES];
    memset(block, 1, sizeof block);
#ifdef _OPENMP
#pragma omp parallel num_threads(2)
    burn(&seconds);
#else
    pthread_t other;
    pthread_create(&other, 0, burn, &seconds);
    burn(&seconds);
    pthread_join(other, 0);
#endif
    __asm__ volatile("" ::"r"(block) : "memory");
}
NEVER_INLINED void step(double seconds)
{
    char block[BYTES];
    memset(block, 1, sizeof block);
    share_out(seconds);
    __asm__ volatile("" ::"r"(block) : "memory");
}
NEVER_INLINED void left(void) { step(0.003); __asm__ volatile(""); }
NEVER_INLINED void right(void) { step(0.012); __asm__ volatile(""); }
int main(void)
{
    for (int i = 0; i < 80; i++) {
        left();
        right();
    }
    return 0;
}
"""


@pytest.mark.parametrize("frame_bytes", [100, 3000])
@pytest.mark.parametrize("options", [["-fopenmp"], ["-pthread"]], ids=["regions", "threads"])
def test_what_a_helper_creates_is_each_callers_own(
    tmp_path: Path, frame_bytes: int, options: list[str]
) -> None:
    """GIVEN two functions that share work out by turns through others THEN each has its own time."""
    program = tmp_path / "creators"
    build = ["gcc", "-O2", "-g", f"-DBYTES={frame_bytes}", *options, "-xc", "-", "-o", program]
    subprocess.run(build, input=CREATORS.encode(), check=True)
    worked = Counter[str]()
    for row in profiling.rows_of_program(program):
        names = [frame.name for frame in row.path]
        if "burn" in names:
            who = next((name for name in ("left", "right") if name in names), "nobody")
            worked[who] += round(row.metrics.work_ns / 1e6)
    assert worked["nobody"] <= 0.01 * worked.total()
    assert worked["left"] == pytest.approx(2 * 80 * 3, rel=0.2), worked
    assert worked["right"] == pytest.approx(2 * 80 * 12, rel=0.15), worked
