# SPDX-License-Identifier: Apache-2.0
"""A run that is over before its samples have told where threads spin is judged by what they told in the end."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from reports import record_command, report_of

pytestmark = pytest.mark.beside

PROGRAM = """
#include <pthread.h>
#include <stdio.h>
#include <time.h>

const char build[] = BUILT;	/* nothing is known of a file that is a new one */
static volatile int turn, over;

static double cpu_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec + 1e-9 * t.tv_nsec;
}

#define WORK(name) \\
	__attribute__((noinline)) static double name(double seconds) \\
	{ \\
		double begin = cpu_s(), now = begin; \\
		volatile double x = 1; \\
		while (now - begin < seconds) { \\
			for (int i = 0; i < 10000; i++) \\
				x = x * 1.0000001; \\
			now = cpu_s(); \\
		} \\
		return now - begin; \\
	}
WORK(serial)
WORK(together)

__attribute__((noinline)) static void wait_until(int wanted)
{
	while (turn != wanted && !over)
		;
}

static void *help(void *nothing)
{
	while (wait_until(1), !over) {
		together(0.005);
		turn = 0;
	}
	return nothing;
}

int main(void)
{
	pthread_t thread;
	double alone = 0;

	pthread_create(&thread, 0, help, 0);
	for (int i = 0; i < 8; i++) {
		alone += serial(0.03);
		turn = 1;
		together(0.005);
		wait_until(0);
	}
	over = 1;
	pthread_join(thread, 0);
	printf("%f\\n", alone);
	return 0;
}
"""


@pytest.fixture
def new_program(tmp_path: Path) -> Path:
    output = tmp_path / "brief"
    built = f'-DBUILT="{os.urandom(16).hex()}"'
    command = ["gcc", "-O1", "-w", "-pthread", built, "-Wl,--build-id", "-x", "c", "-", "-o", str(output)]
    subprocess.run(command, input=PROGRAM.encode(), check=True)
    return output


def test_a_thread_that_spins_hides_no_serial_code_of_a_short_run(new_program: Path, tmp_path: Path) -> None:
    """0.3 s, in a program that was never seen before; one core has nothing to do for five sixths of it."""
    profile = tmp_path / "brief.pb.gz"
    told = subprocess.run(
        [*record_command(profile), str(new_program)], capture_output=True, text=True, check=True
    )
    alone_s = float(told.stdout)
    report = report_of(profile)
    assert report["totals"]["spin_s"] > 0.5 * alone_s
    # what others have of the idle core meanwhile, on a busy machine, is as much a part of it
    unused_s = {row["name"]: _unused_s(row["inclusive"]) for row in report["functions"]}
    assert unused_s["main"] == pytest.approx(alone_s, rel=0.25)
    assert unused_s["serial"] > 0.75 * unused_s["main"]
    assert report["totals"]["accounted"] == pytest.approx(1, abs=0.05)


def _unused_s(metrics: dict[str, float]) -> float:
    return metrics["idleness_s"] + metrics["stolen_s"]
