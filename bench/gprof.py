# SPDX-License-Identifier: Apache-2.0
"""What `parprof record` at 1,000 samples a second takes from eight programs that compute, beside gprof.

    python bench/gprof.py [--pairs N] [--seconds S]

By turns: a program by itself, the same under `parprof record -F 1000`, and built with -pg. CPU time by the program's
own clock. What runs beside slows a program down, never up: compared are the least times, and, to show how far one run
is from another, the medians of the pairs. froyd-2005 has 2 to 7 % for its sampler and up to 263 % for gprof. Needs
root and gcc.
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
sys.path[:0] = [str(ROOT / "daemon"), str(ROOT / "bench")]

from machine import describe  # noqa: E402

SOURCE = ROOT / "bench/programs/cpu_bound.c"
PROGRAMS = ("fib", "matrix", "sort", "sieve", "hash", "bodies", "fractal", "trees")


def build(folder: Path) -> tuple[Path, Path]:
    """The program, and the same for gprof."""
    plain, probed = folder / "plain", folder / "probed"
    flags = ["gcc", "-O2", "-g", str(SOURCE), "-lm", "-o"]
    subprocess.run([*flags, str(plain)], check=True)
    subprocess.run([*flags, str(probed), "-pg"], check=True)
    return plain, probed


def cpu_s(command: list[str], folder: Path) -> float:
    """The CPU seconds that the program says it used."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "daemon")},
    )  # fmt: skip
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    print(describe())
    print(f"{'program':<8} {'CPU s':>6} {'record %':>9} {'median':>7} {'gprof %':>8} {'median':>7}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain, probed = build(folder)
        record = [
            sys.executable,
            "-m",
            "parprof",
            "record",
            "-q",
            "--no-report",
            "-F",
            "1000",
            "-o",
            "out",
            "--",
        ]
        for program in PROGRAMS:
            one_s = cpu_s([str(plain), program, "20"], folder) / 20
            what = [program, str(max(round(args.seconds / one_s), 1))]
            alone, recorded, with_gprof = [], [], []
            for _ in range(args.pairs):
                alone.append(cpu_s([str(plain), *what], folder))
                recorded.append(cpu_s([*record, str(plain), *what], folder))
                with_gprof.append(cpu_s([str(probed), *what], folder))
            row = f"{program:<8} {min(alone):6.2f}"
            for times, width in ((recorded, 9), (with_gprof, 8)):
                more = statistics.median(time / bare for time, bare in zip(times, alone, strict=True))
                row += f" {100 * (min(times) / min(alone) - 1):{width}.1f} {100 * (more - 1):7.1f}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
