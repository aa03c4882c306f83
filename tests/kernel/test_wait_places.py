# SPDX-License-Identifier: Apache-2.0
"""Below which functions threads sleep, where what is nearest to them on the stack does not tell."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

import profiling
from parprof.metrics import WAIT

pytestmark = pytest.mark.beside

WAITS = """
#include <stdio.h>
#include <time.h>
#define NEVER_INLINED __attribute__((noinline, noclone))
/* has more of the stack for itself than a place is known by, as functions have that write a line of a log */
NEVER_INLINED void nap(long us)
{
    char line[BYTES];
    struct timespec pause = {0, us * 1000};
    snprintf(line, sizeof line, "%ld", us);
    nanosleep(&pause, 0);
    __asm__ volatile("" ::"r"(line) : "memory");
}
/* as has who calls it */
NEVER_INLINED void log_line(long us)
{
    char line[BYTES];
    __asm__ volatile("" ::"r"(line) : "memory");
    nap(us);
    __asm__ volatile("" ::"r"(line) : "memory");
}
NEVER_INLINED void left(void) { log_line(5000); __asm__ volatile(""); }
NEVER_INLINED void right(void) { log_line(15000); __asm__ volatile(""); }
int main(void)
{
    for (int i = 0; i < 120; i++) {
        left();
        right();
    }
    return 0;
}
"""


@pytest.mark.parametrize("frame_bytes", [300, 600, 5000])
def test_waits_of_a_helper_are_each_callers_own(tmp_path: Path, frame_bytes: int) -> None:
    """GIVEN two functions that sleep by turns in a third one THEN each has its own time."""
    program = tmp_path / "naps"
    build = ["gcc", "-O2", "-g", f"-DBYTES={frame_bytes}", "-xc", "-", "-o", program]
    subprocess.run(build, input=WAITS.encode(), check=True)
    slept = Counter[str]()
    for row in profiling.rows_of_program(program):
        names = [frame.name for frame in row.path]
        who = next((name for name in ("left", "right") if name in names), "nobody")
        slept[who] += round(row.metrics[WAIT] / 1e6)
    assert slept["nobody"] <= 20
    assert slept["left"] == pytest.approx(120 * 5, rel=0.15), slept
    assert slept["right"] == pytest.approx(120 * 15, rel=0.15), slept


def test_the_place_of_a_wait_in_vfork() -> None:
    """The C library keeps the return address in a register meanwhile: make and shells wait there for their children."""
    rows = profiling.rows_of_program(profiling.BUILD / "vforks")
    waits = [row for row in rows if row.metrics[WAIT] and row.path[-1].name == "[waits: child]"]
    assert sum(row.metrics[WAIT] for row in waits) / 1e9 > 0.6
    for row in waits:
        assert [frame.name for frame in row.path if not frame.is_loop][:2] == ["main", "start_child"], (
            row.path
        )
