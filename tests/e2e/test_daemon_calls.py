# SPDX-License-Identifier: Apache-2.0
"""Few long calls, or many short ones: `parprof attach` tells them apart alone and through a daemon. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import daemon_process as dp
from parprof.exporters import pprof
from parprof.metrics import ACTIVATIONS
from parprof.model import Profile
from parprof.service.losses import LOST_MEANWHILE

pytestmark = [pytest.mark.alone, pytest.mark.skipif(os.geteuid() != 0, reason="needs root and real BPF")]

LONG_MS, SHORT_MS = 100, 0.5
PROGRAM = r"""
#include <time.h>
#define PLAIN __attribute__((noinline, noclone))
#define STEPS 4000
static volatile long sink;

static inline long used_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static inline void use(long ns)
{
	long end = used_ns() + ns;

	while (used_ns() < end)
		for (volatile int i = 0; i < STEPS; i++)
			;
}

static PLAIN void step(long ns)
{
	use(ns);
	sink++;
}

static PLAIN void few(void)
{
	step(LONG_NS);
	use(LONG_NS / 4);
}

static PLAIN void many(void)
{
	for (int i = 0; i < LONG_NS / SHORT_NS; i++) {
		step(SHORT_NS);
		use(SHORT_NS / 4);
	}
	sink++;
}

int main(void)
{
	for (;;) {
		few();
		many();
		sink++;
	}
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of its time is in calls of 100 ms, half in calls of half a millisecond."""
    path = tmp_path_factory.mktemp("bin") / (dp.PREFIX + "fewmany")
    sizes = [f"-DLONG_NS={int(LONG_MS * 1e6)}L", f"-DSHORT_NS={int(SHORT_MS * 1e6)}L"]
    subprocess.run(
        ["gcc", "-O1", "-g", *sizes, "-x", "c", "-", "-o", path], input=PROGRAM.encode(), check=True
    )
    return path


def per_call_ms(profile: Profile) -> dict[str, tuple[float, float]]:
    """By the caller of `step`: how often it was called, and the CPU time of a call."""
    calls, cpu_ns = Counter[str](), Counter[str]()
    for row in profile.samples:
        names = [frame.name for frame in row.path if not frame.is_loop]
        if "step" in names:
            caller = names[names.index("step") - 1]
            cpu_ns[caller] += int(row.metrics.cpu_ns)
            calls[caller] += int(row.metrics[ACTIVATIONS]) if names[-1] == "step" else 0
    return {
        caller: (calls[caller], cpu_ns[caller] / 1e6 / calls[caller]) for caller in calls if calls[caller]
    }


def test_attach_through_the_daemon_tells_calls_apart_as_it_does_alone(program: Path, tmp_path: Path) -> None:
    found, told = dict[str, dict[str, tuple[float, float]]](), dict[str, str]()
    with dp.running(tmp_path / "parprofd") as daemon, dp.started(program) as target:
        daemon.sampled(target.pid)
        for way, socket in (
            ("through", daemon.socket),
            ("alone", tmp_path / "nobody.sock"),
            ("again", daemon.socket),
        ):
            out = tmp_path / f"{way}.pb.gz"
            done = dp.parprof("attach", target.pid, "-d", "4", "-o", out, PARPROF_SOCKET=str(socket))
            assert done.returncode == 0, done.stderr
            profile = pprof.read(out)
            found[way], told[way] = per_call_ms(profile), done.stderr
            for at, row in enumerate(profile.samples if way != "alone" else ()):
                parts = sum(part.rows[at][ACTIVATIONS] for part in profile.intervals if at in part.rows)
                assert parts == row.metrics[ACTIVATIONS], "each call has its time"
            assert "activations" not in profile.extra.get(LOST_MEANWHILE, "")
            report = dp.parprof("report", out, "-v").stdout
            assert "ms/call" in report
        used = daemon.fresh().functions(target.pid)
    assert used and "main" not in used, "who only calls is none of the costly functions"
    for way in ("through", "again"):
        assert "measured by parprofd" in told[way] and "counts calls" not in told[way]
        assert found[way]["many"][1] == pytest.approx(found["alone"]["many"][1], rel=0.3)
        assert found[way]["many"][0] > 5 * found[way]["few"][0]
    for way, by_caller in found.items():
        calls, per_ms = by_caller["few"]
        # each that was seen, and those in which the measurement began and ended are not whole
        assert -0.5 < calls - calls * per_ms / LONG_MS < 2.1, way
