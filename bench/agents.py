"""What profiling costs a program of each runtime: paired runs with and without it, interleaved, as ratios.

    .venv/bin/python bench/agents.py [--pairs 5] [--frequency 499]

The programs do a fixed number of steps (tests/workloads); their own log says how long that took from the first work
to the last. Needs root and a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "daemon"), str(ROOT / "bench"), str(ROOT / "tests")]

from machine import describe  # noqa: E402

from parprof.commands.spawn import Child  # noqa: E402
from parprof.kernel.engine import BpfKernel  # noqa: E402
from parprof.session.session import Session  # noqa: E402
from truth import Truth  # noqa: E402

BUILD = ROOT / "tests/workloads/build"
REPEAT = ["--repeat", "4"]
PROGRAMS = {
    "libgomp": ["omp_truth.gomp", "balanced,skewed,barrier,tasks", *REPEAT],
    "libomp": ["omp_truth.omp", "balanced,skewed,barrier,tasks", *REPEAT],
    "oneTBB": ["tbb_truth", "all", *REPEAT],
    "OpenCilk stand-in": ["spawn_truth.opencilk", "all", *REPEAT],
    "Cilk Plus stand-in": ["spawn_truth.cilkplus", "all", *REPEAT],
    "Cilk-5 stand-in": ["cilk5_truth", "all", *REPEAT],
    "pthreads": ["pthread_truth", "balanced,skewed,barrier", *REPEAT],
}


STEPS_PER_US = 500
"""Close to a microsecond of work, but always the same."""


def span_s(log: Path) -> float:
    """From the first work of a program to the last."""
    intervals = Truth.read(log).intervals
    return (max(one.exit_ns for one in intervals) - min(one.enter_ns for one in intervals)) / 1e9


def bare_s(command: list[str], log: Path) -> float:
    """Time without profiling."""
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return span_s(log)


def profiled_s(command: list[str], log: Path, frequency_hz: int) -> tuple[float, str]:
    """Time with profiling; and the n_w source."""
    with BpfKernel(["cpu-clock"], frequency_hz) as kernel:
        session = Session(kernel)
        try:
            child = Child(command)
            session.watch(child.pid, follow=True, stop=True)
            child.release()
            while child.poll() is None:
                session.step(0.05)
            session.finish()
            target = [one for one in session.targets.values() if one.pid == child.pid][-1]
            return span_s(log), target.n_w_source
        finally:
            session.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--frequency", type=int, default=499)
    args = parser.parse_args()
    directory = tempfile.TemporaryDirectory()
    log = Path(directory.name) / "log"
    os.environ |= {"PARPROF_TRUTH": str(log), "PARPROF_STEPS_PER_US": str(STEPS_PER_US)}
    print(describe(), flush=True)
    print(f"{'runtime':20} {'source':10} {'ratio':>7} {'least':>7} {'most':>7}   ({args.frequency} Hz)")
    for name, (program, *arguments) in PROGRAMS.items():
        if not (BUILD / program).exists():
            print(f"{name:20} not built")
            continue
        command = [str(BUILD / program), *arguments]
        bare_s(command, log)
        ratios, source = [], ""
        for _ in range(args.pairs):
            before = bare_s(command, log)
            with_s, source = profiled_s(command, log, args.frequency)
            ratios.append(with_s / before)
        print(
            f"{name:20} {source:10} {statistics.median(ratios):7.3f} {min(ratios):7.3f} {max(ratios):7.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
