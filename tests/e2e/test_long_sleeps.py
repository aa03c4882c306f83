# SPDX-License-Identifier: Apache-2.0
"""Long sleeps among very many short ones, while context switches are too dear to be followed: each is told, where it
was and for how long. All is compared with the program's own clock.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from reports import record_command, report_of

SLEEPS = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#define NEVER_INLINED __attribute__((noinline, noclone))
static volatile int over;
static double longs, alls;
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static void asleep(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &t, 0);
}
NEVER_INLINED void naps_here(void)
{
    double end = now() + 60e-6;
    while (now() < end);
    asleep(20e-6);
    __asm__ volatile("");
}
NEVER_INLINED void sleeps_long_here(double seconds)
{
    double begun = now();
    asleep(seconds);
    longs += now() - begun;
}
NEVER_INLINED void all_sleep_here(double seconds)
{
    double begun = now();
    asleep(seconds);
    alls += now() - begun;
}
static void *naps(void *unused)
{
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
    while (!over) naps_here();
    return unused;
}
int main(int argc, char **argv)
{
    int beside = argc > 1 && atoi(argv[1]);
    pthread_t napper;
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
    if (beside) pthread_create(&napper, 0, naps, 0);
    for (int turn = 0; turn < 3; turn++) {
        for (double end = now() + 0.9; now() < end;) naps_here();
        if (beside) sleeps_long_here(0.9);
    }
    over = 1;
    if (beside) pthread_join(napper, 0);
    for (double end = now() + 0.1; now() < end;) naps_here();
    all_sleep_here(0.8);
    for (double end = now() + 0.2; now() < end;) naps_here();
    printf("%.6f %.6f\n", longs, alls);
    return 0;
}
"""


def recorded(folder: Path, beside: int) -> tuple[dict[str, Any], float, float]:
    """The report; for how long the main thread slept beside one that naps, and while nobody did anything."""
    program, profile = folder / "sleeps", folder / "sleeps.pb.gz"
    build = ["gcc", "-O1", "-g", "-pthread", "-xc", "-", "-o", program]
    subprocess.run(build, input=SLEEPS, text=True, check=True)
    command = [*record_command(profile), str(program), str(beside)]
    words = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return report_of(profile), float(words[0]), float(words[1])


def of(report: dict[str, Any], function: str, metric: str) -> float:
    """What a function has, with all that it calls."""
    found = [row for row in report["functions"] if row["name"] == function]
    return float(found[0]["inclusive"][metric]) if found else 0.0


@pytest.mark.parametrize("beside", [0, 1])
def test_long_sleeps_are_told_though_switches_are_too_dear(tmp_path: Path, beside: int) -> None:
    """One among thousands of naps of the same thread; several beside another thread that naps."""
    report, longs_s, alls_s = recorded(tmp_path, beside)
    assert of(report, "sleeps_long_here", "wait_s") == pytest.approx(longs_s, rel=0.08)
    assert of(report, "all_sleep_here", "wait_s") == pytest.approx(alls_s, rel=0.05)
    stall_s = of(report, "all_sleep_here", "stall_s") / report["process"]["cores"]
    assert stall_s == pytest.approx(alls_s, rel=0.05)
