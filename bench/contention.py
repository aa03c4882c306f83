"""What it costs that all threads of a process change one n_w, where they do it at the same time on several CPUs.

    .venv/bin/python bench/contention.py [--rounds 9]

First an atomic addition by itself: alone, with another CPU that changes another counter, and the same counter; and
reading a counter that another CPU changes, which is what sums for each CPU would cost at each sample. Then the program
at context switches, in place: two threads that wake each other on one CPU, the same on both CPUs by two processes (an
entry each), and on both CPUs by one process (one entry). Medians and ranges over the rounds, in which the cases take
turns. Needs root and two CPUs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "daemon")]

from machine import describe  # noqa: E402

import profiling  # noqa: E402
from parprof.kernel import bpf  # noqa: E402
from parprof.kernel.engine import BpfKernel  # noqa: E402
from parprof.session.session import Session  # noqa: E402

SECONDS = 1.0
ATOMICS = {
    "alone": "atomic addition, alone",
    "apart": "another CPU changes another counter",
    "shared": "another CPU changes the same",
    "read": "reading what another CPU changes, the more",
}
SWITCHES = {
    "on one CPU": [["0"]],
    "on two CPUs, two processes": [["0"], ["1"]],
    "on two CPUs, one process": [["0", "1"]],
}


def build(directory: Path) -> Path:
    """Compile the program."""
    program = directory / "contention"
    source = ROOT / "bench/programs/contention.c"
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-pthread", source, "-o", program], check=True)
    return program


def atomics(program: Path) -> dict[str, float]:
    """Nanoseconds of each case."""
    out = subprocess.run([program, "atomics"], capture_output=True, text=True, check=True).stdout
    return {name: float(ns) for name, ns in (line.split() for line in out.splitlines())}


def run_ns(kernel: BpfKernel) -> tuple[int, int]:
    """(nanoseconds, runs) of the program at context switches so far, whoever switched."""
    return kernel.run_time_ns()["on_switch"]


def switches(program: Path, kernel: BpfKernel, cpus: list[list[str]]) -> float:
    """Nanoseconds of a run of the program at a context switch of the processes on these CPUs."""
    processes = [subprocess.Popen([program, "switches", *some], stdout=subprocess.PIPE) for some in cpus]
    session = Session(kernel)
    try:
        for process in processes:
            assert process.stdout and process.stdout.readline() == b"ready\n"
        before = run_ns(kernel)
        time.sleep(SECONDS / 2)
        not_watched = [after - then for after, then in zip(run_ns(kernel), before, strict=True)]
        dismissal_ns = not_watched[0] / not_watched[1]
        for process in processes:
            session.watch(process.pid)
        time.sleep(0.2)
        before, counted = run_ns(kernel), kernel.statistics()["switches"]
        time.sleep(SECONDS)
        counted = kernel.statistics()["switches"] - counted
        ns, runs = (after - then for after, then in zip(run_ns(kernel), before, strict=True))
        return (ns - max(runs - counted, 0) * dismissal_ns) / counted
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        session.finish()
        session.close()


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    found: dict[str, list[float]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory() as directory,
        BpfKernel(["cpu-clock"], 49, budget=profiling.UNLIMITED) as kernel,
    ):
        program = build(Path(directory))
        statistics_on = bpf.enable_stats()
        for _ in range(rounds):
            for name, ns in atomics(program).items():
                found[ATOMICS[name]].append(ns)
            for name, cpus in SWITCHES.items():
                found[f"context switch, {name}"].append(switches(program, kernel, cpus))
        os.close(statistics_on)
    print(describe())
    for name, values in found.items():
        print(f"{name:46} {statistics.median(values):8.1f} ns ({min(values):.1f}-{max(values):.1f})")


if __name__ == "__main__":
    main()
