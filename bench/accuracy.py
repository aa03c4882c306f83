"""Idleness and work, measured through `parprof record`, against the programs' own log.

    .venv/bin/python bench/accuracy.py [--frequency 999] [--repeat 20]

Prints one row a function: true and measured idleness, and the error. Needs root and a quiet machine: the
truth comes from CPU time, but a preempted thread's interval stretches.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "daemon")]

from machine import describe  # noqa: E402

from profiling import by_function  # noqa: E402
from truth import Truth  # noqa: E402

BUILD = ROOT / "tests/workloads/build"
PROGRAMS = (
    ("omp_truth.gomp", "serial,balanced,skewed,barrier,dynamic,critical,lock,tasks"),
    ("omp_truth.omp", "serial,balanced,skewed,barrier,dynamic,critical,lock,tasks"),
    ("pthread_truth", "serial,balanced,skewed,barrier,lock,io"),
)


def run(program: str, phases: str, frequency: int, repeat: int) -> tuple[Truth, Path]:
    folder = Path(tempfile.mkdtemp(prefix="parprof-accuracy-"))
    log, out = folder / "log", folder / "out.pb.gz"
    subprocess.run(
        [sys.executable, "-m", "parprof", "record", "-q", "-F", str(frequency), "--cores", "2", "-o", str(out), "--",
         str(BUILD / program), phases, "--repeat", str(repeat)],
        env={**os.environ, "PARPROF_TRUTH": str(log), "PYTHONPATH": str(ROOT / "daemon")},
        stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    return Truth.read(log), out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frequency", type=int, default=999)
    parser.add_argument("--repeat", type=int, default=20)
    args = parser.parse_args()
    print(describe())
    print(f"{'program':<15} {'function':<22} {'idle true':>9} {'measured':>9} {'error':>7} {'work':>7}")
    for program, phases in PROGRAMS:
        truth, out = run(program, phases, args.frequency, args.repeat)
        expected = truth.expected(cores=2)
        measured = by_function(out)
        work = {name: work_ns / 1e9 for name, (work_ns, _) in measured.items()}
        idle = {name: idle_ns / 1e9 for name, (_, idle_ns) in measured.items()}
        true_total = sum(idle_ns for _, idle_ns in expected.values()) / 1e9
        total = sum(idle.get(name, 0) for name in expected)
        for name, (work_ns, idle_ns) in sorted(expected.items(), key=lambda row: -row[1][1]):
            if idle_ns < 0.05e9 and work_ns < 0.05e9:
                continue
            seconds = idle_ns / 1e9
            error = f"{100 * (idle.get(name, 0) - seconds) / seconds:+6.1f}%" if seconds > 0.1 else "      -"
            work_error = 100 * (work.get(name, 0) * 1e9 - work_ns) / work_ns
            print(
                f"{program:<15} {name:<22} {seconds:9.3f} {idle.get(name, 0):9.3f} {error} {work_error:+6.1f}%"
            )
        print(
            f"{program:<15} {'TOTAL':<22} {true_total:9.3f} {total:9.3f} {100 * (total / true_total - 1):+6.1f}%"
        )


if __name__ == "__main__":
    main()
