"""What profiling costs the target: paired runs without and with it, interleaved, as ratios.

    .venv/bin/python bench/overhead.py [--pairs 7] [--only NAME]

Each row is the median over the pairs of (median window with profiling / median window without), with the
smallest and the largest pair. The same, for the total time, stands behind. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench")]

from machine import describe  # noqa: E402

BUILD = ROOT / "tests/workloads/build"
CASES = (
    ("coarse 1.6 ms, libgomp", ["region_rate.gomp", "--work-us", "1600"], (99, 999)),
    ("coarse 1.6 ms, libomp", ["region_rate.omp", "--work-us", "1600"], (99, 999)),
    ("12,000/s, libgomp", ["region_rate.gomp", "--work-us", "82"], (99, 499)),
    ("12,000/s, libomp", ["region_rate.omp", "--work-us", "82"], (99, 499)),
    ("100,000/s, libgomp", ["region_rate.gomp", "--work-us", "10"], (99, 499)),
    ("100,000/s, libomp", ["region_rate.omp", "--work-us", "10"], (99, 499)),
    ("50,000 switches/s", ["switch_rate"], (99, 499)),
    ("100 frames deep", ["deep_stack"], (99, 999)),
)


def run(command: list[str], frequency: int) -> dict[str, Any]:
    """Run once; ``frequency`` 0 means without profiling. The program prints its own time as JSON."""
    full = [str(BUILD / command[0]), *command[1:]]
    if frequency:
        full = [
            sys.executable,
            "-m",
            "parprof",
            "record",
            "-q",
            "-F",
            str(frequency),
            "-o",
            os.devnull,
            "--",
            *full,
        ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "daemon")}
    done = subprocess.run(
        full, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    )
    line = next(line for line in done.stdout.decode().splitlines() if line.startswith("{"))
    parsed: dict[str, Any] = json.loads(line)
    return parsed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    print(describe())
    print(f"{'program':<24} {'Hz':>4}  {'window: median (min-max)':<30} total: median (min-max)")
    for title, command, frequencies in CASES:
        if args.only not in title:
            continue
        first = run([*command, "--seconds", "2"], 0)
        count = "--regions" if "region" in command[0] else "--units"
        fixed = [*command[:1], "--iterations", str(first["iterations"]), count, str(first["units"])]
        for frequency in frequencies:
            middle, total = [], []
            for _ in range(args.pairs):
                base, profiled = run(fixed, 0), run(fixed, frequency)
                middle.append(statistics.median(profiled["window_ns"]) / statistics.median(base["window_ns"]))
                total.append(profiled["total_ns"] / base["total_ns"])
            cells = [f"{statistics.median(r):.3f} ({min(r):.3f}-{max(r):.3f})" for r in (middle, total)]
            print(f"{title:<24} {frequency:>4}  {cells[0]:<30} {cells[1]}", flush=True)


if __name__ == "__main__":
    main()
