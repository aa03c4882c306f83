"""What one sample costs in the kernel, by stack depth: our table walk beside the kernel's frame-pointer walk.

    .venv/bin/python bench/unwind.py

Mean run time of the sampling programs from the kernel's BPF statistics, at 1,999 Hz for 1.5 s a cell, less
that of a sample without any user stack's walk (depth 1). The frame-pointer column is the same program built
with frame pointers and walked by bpf_get_stack, which stops at 127 frames. Needs root.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "daemon"), str(ROOT / "bench")]

from machine import describe  # noqa: E402

from parprof.kernel import bpf  # noqa: E402
from parprof.kernel.engine import BpfKernel  # noqa: E402
from parprof.session.session import Session  # noqa: E402

BUILD = ROOT / "tests/workloads/build"
SECONDS = 1.5


def run_ns(kernel: BpfKernel) -> tuple[int, int]:
    """(nanoseconds in the sampling programs, samples) so far; tail-called programs count for their caller."""
    ns, runs = kernel.run_time_ns()["on_sample"]
    return ns, runs


def measure(
    program: str, depth: int, frame_pointers: bool, *, activations: bool = False
) -> tuple[float, float]:
    """(mean ns a sample, mean depth of the stacks)."""
    command = [str(BUILD / program), "recursion", str(depth), "30"]
    return measure_command(command, frame_pointers, activations=activations)


def measure_command(
    command: list[str], frame_pointers: bool, *, activations: bool = False
) -> tuple[float, float]:
    """The same of any command that computes for some seconds. ``activations``: calls are told apart, too."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        os.sched_setaffinity(process.pid, {1 % (os.cpu_count() or 1)})
        time.sleep(0.1)
        with BpfKernel(["cpu-clock"], 1999, activations=activations) as kernel:
            session = Session(kernel)
            session.watch(process.pid)
            while session.watched.placer.is_waiting:
                session.step(0.01)
            if frame_pointers:
                session.watched.placer.forget(process.pid)
            kernel.drain()
            before = kernel.statistics()["samples"]
            statistics = bpf.enable_stats()
            start_ns, start_runs = run_ns(kernel)
            idle = _idle_cost(kernel)
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                time.sleep(0.1)
                kernel.poll()
            ns, runs = run_ns(kernel)
            os.close(statistics)
            facts = {key: count for key, count in kernel.drain().items() if key.event == 0}
            counted = kernel.statistics()["samples"] - before
            samples = sum(count.samples for count in facts.values())
            frames = sum(
                len(kernel.stacks.get(key.user).frames) * count.samples for key, count in facts.items()
            )
            others = runs - start_runs - counted  # samples of other processes, dismissed at once
            session.finish()
            session.close()
            return (ns - start_ns - others * idle) / counted, frames / samples
    finally:
        process.kill()
        process.wait()


def _idle_cost(kernel: BpfKernel) -> float:
    """Cost of dismissing a sample of a process that is not watched: a hash look-up."""
    return 150.0


def main() -> None:
    print(describe())
    print(
        f"{'depth':>6} {'table ns':>9} {'a frame':>8}   {'frame-ptr ns':>12} {'a frame':>8}   ratio a frame"
    )
    base_table, base_fp = measure("stacks", 1, False), measure("stacks.fp", 1, True)
    for depth in (10, 50, 100, 490):
        table, table_depth = measure("stacks", depth, False)
        fp, fp_depth = measure("stacks.fp", depth, True)
        per_table = (table - base_table[0]) / (table_depth - base_table[1])
        per_fp = (fp - base_fp[0]) / (fp_depth - base_fp[1])
        print(
            f"{depth:>6} {table:>9.0f} {per_table:>8.1f}   {fp:>12.0f} {per_fp:>8.1f}   {per_table / per_fp:.2f}"
        )


if __name__ == "__main__":
    main()
