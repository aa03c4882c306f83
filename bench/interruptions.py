# SPDX-License-Identifier: Apache-2.0
"""For how long sampling takes the cores from a program, measured in it: percent of the time.

    python bench/interruptions.py [--times 7] [--seconds 5] [--hz 99,499,999] [--md]

A program on each core reads the time without end; what lies between two readings that are too far apart was taken from
it (``programs/interruptions.c``). By turns: by itself, under ``perf record`` without and with call paths, and under
``parprof record``; medians, with the least and the greatest. Paired runs of a program differ from one another by more
than what sampling takes; this does not, since it adds up the interruptions themselves. What it does not see are the
misses of caches afterwards. The program has one frame: walks of deep stacks are a row of ``overhead.py``.

A virtual machine asks its host for each interrupt of the timer, which takes most of the time. Needs root; perf's
columns are left out where there is no perf.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "daemon"), str(ROOT / "bench"), str(ROOT / "tests")]

from machine import describe  # noqa: E402

from reports import record_command  # noqa: E402

SOURCE = ROOT / "bench/programs/interruptions.c"
ALONE = "by itself"


def ways(hz: int, folder: Path) -> dict[str, list[str]]:
    """What stands before the program's command, by column."""
    found = {ALONE: []}
    if perf := shutil.which("perf"):
        sample = [perf, "record", "-q", "-e", "cpu-clock", "-F", str(hz), "-o", str(folder / "perf.data")]
        found |= {"perf": [*sample, "--"], "perf -g": [*sample, "-g", "--"]}
    return {**found, "parprof": record_command(folder / "profile.pb.gz", "-F", hz)}


def lost_percent(before: list[str], program: Path, seconds: float, folder: Path) -> float:
    """Of the time of all cores together."""
    cores = sorted(os.sched_getaffinity(0))
    each = " & ".join(f"taskset -c {core} {program} {seconds}" for core in cores)
    done = subprocess.run(
        [*before, "sh", "-c", f"{each} & wait"], cwd=folder, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "daemon")},
    )  # fmt: skip
    return statistics.mean(float(line.split()[1]) for line in done.stdout.splitlines())


def cell(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=7, help="runs of each kind (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run (default: %(default)g)")
    parser.add_argument("--hz", default="99,499,999", help="rates (default: %(default)s)")
    parser.add_argument("--md", action="store_true", help="print a table for Markdown")
    args = parser.parse_args()
    print(describe(), end="\n\n", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "interruptions"
        subprocess.run(["gcc", "-O2", str(SOURCE), "-o", str(program)], check=True)
        edge, between = ("| ", " | ") if args.md else ("", "\t")
        columns = list(ways(1, folder))
        print(edge + between.join(["Hz", *columns]) + edge[::-1])
        if args.md:
            print("|" + " --- |" * (len(columns) + 1))
        for hz in map(int, args.hz.split(",")):
            lost: dict[str, list[float]] = {column: [] for column in columns}
            for _ in range(args.times):
                for column, before in ways(hz, folder).items():
                    lost[column].append(lost_percent(before, program, args.seconds, folder))
            row = [str(hz), *(cell(lost[column]) for column in columns)]
            print(edge + between.join(row) + edge[::-1], flush=True)


if __name__ == "__main__":
    main()
