# SPDX-License-Identifier: Apache-2.0
"""What an execution trace adds to each event of a traced process: python bench/trace.py [PAIRS].

Pairs of measurements with and without a trace, by the kernel's BPF statistics: nanoseconds for each run of a program.
Two threads that hand a byte to and fro (context switches, wake-ups and waits), and small tasks of OpenMP (work edges).
Needs root.
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "daemon"), str(ROOT / "bench")]

from machine import describe  # noqa: E402

from parprof.commands.spawn import Child  # noqa: E402
from parprof.kernel import bpf  # noqa: E402
from parprof.kernel.engine import BpfKernel  # noqa: E402
from parprof.kernel.records import Budget  # noqa: E402
from parprof.kernel.trace import TraceBounds  # noqa: E402
from parprof.session.session import Session  # noqa: E402
from parprof.session.sources import Source  # noqa: E402

_PING_PONG = """
import os, threading
a, b = os.pipe(), os.pipe()
def pong():
    for _ in range(20000): os.read(a[0], 1); os.write(b[1], b"x")
threading.Thread(target=pong).start()
for _ in range(20000): os.write(a[1], b"x"); os.read(b[0], 1)
"""
COMMANDS = {
    ("on_switch", "on_wakeup"): [sys.executable, "-S", "-c", _PING_PONG],
    ("on_edge",): [
        str(ROOT / "tests/workloads/build/omp_truth.gomp"), "tasks", "--unit-ms", "0.2", "--repeat", "500",
    ],
}  # fmt: skip


def run_ns(command: list[str], traced: bool) -> tuple[dict[str, float], int]:
    """Nanoseconds for each run of each program, and how many records were lost."""
    bounds = TraceBounds(1 << 30, 3600.0) if traced else None
    with BpfKernel(["cpu-clock"], 999, budget=Budget(1.0, 10**12), waits=True, traced=bounds) as kernel:
        session = Session(kernel, wanted_source=Source.EXACT, one_job=True)
        enabled = bpf.enable_stats()
        try:
            child = Child(command)
            session.watch(child.pid, follow=True, stop=True)
            child.release()
            while child.poll() is None:
                session.step(0.02)
            took = kernel.run_time_ns()
            session.finish()
        finally:
            os.close(enabled)
            session.close()
        return {name: ns / runs for name, (ns, runs) in took.items() if runs}, kernel.lost().get(
            "trace_ring", 0
        )


def main() -> None:
    """Print a row for each program."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(describe())
    for programs, command in COMMANDS.items():
        found = [(run_ns(command, False)[0], *run_ns(command, True)) for _ in range(pairs)]
        for name in programs:
            without = statistics.median(one[name] for one, _, _ in found)
            with_it = statistics.median(one[name] for _, one, _ in found)
            more = [b[name] - a[name] for a, b, _ in found]
            print(
                f"{name}: {without:,.0f} ns a run, with a trace {with_it:,.0f}: {statistics.median(more):+,.0f} "
                f"(median of {pairs} pairs, {min(more):+,.0f} to {max(more):+,.0f}); "
                f"{sum(lost for _, _, lost in found)} records lost"
            )


if __name__ == "__main__":
    main()
