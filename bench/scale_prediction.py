"""What `parprof scale` predicts for two threads against what two threads reach: elapsed times of the plain program.

    .venv/bin/python bench/scale_prediction.py [--repeat 7] [--compiler clang]

Prints a row a program: the predictions (at best; burdened, with the runtime's own code as the run had it), the real
speed-up (medians, with the spread of the pairs), and the ratio of the first to it. No root. It needs two cores that
nobody else uses: before each pair it waits until the machine is idle, and drops pairs beside which others worked; it
says how many. What is "at best" leaves out bandwidth, caches, the clock's dependence on how many cores work, and the
runtime itself, which make the real one smaller.
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
sys.path[:0] = [str(ROOT / "daemon")]

from alone import Elapsed, run, wait_until_idle  # noqa: E402
from machine import describe  # noqa: E402

from parprof.instruments.span import LIBRARY, environment  # noqa: E402
from parprof.scale.model import predict  # noqa: E402
from parprof.scale.record import read_record  # noqa: E402

SOURCE = ROOT / "tests/workloads/span_forms.c"
PROGRAMS = (
    ("triangle", 20_000), ("large_chunk", 200_000), ("guided", 200_000), ("critical", 60_000), ("wavefront", 150),
    ("multiply", 64), ("quicksort", 3_000_000), ("taskloop", 200_000),
)  # fmt: skip


class Programs:
    """The forms, built in a folder of their own."""

    def __init__(self, folder: Path, compiler: str) -> None:
        self._folder = folder
        self._library = str(LIBRARY.path())
        self._program = str(folder / "span_forms")
        subprocess.run([compiler, "-O2", "-g", "-fopenmp", str(SOURCE), "-o", self._program], check=True)

    def elapsed(self, form: str, size: int, threads: int) -> Elapsed:
        """A plain run."""
        variables = {"OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": "true"}
        return run([self._program, form, str(size)], variables)

    def predicted(self, form: str, size: int) -> tuple[float, float]:
        """For two threads: at best, and burdened."""
        ours = environment(self._library, str(self._folder), 2)
        subprocess.run([self._program, form, str(size)], env={**os.environ, **ours}, check=True)
        (file,) = self._folder.glob("*.span")
        record = read_record(str(file))
        file.unlink()
        found = predict(record, lambda where: ())
        return found.speedup, found.burdened


def real(programs: Programs, form: str, size: int, repeat: int) -> tuple[list[float], int]:
    """The speed-ups of undisturbed pairs, and how many were disturbed."""
    found, dropped = [], 0
    while len(found) < repeat and dropped < 2 * repeat:
        wait_until_idle()
        one, two = (programs.elapsed(form, size, threads) for threads in (1, 2))
        if one.is_alone and two.is_alone:
            found.append(one.seconds / two.seconds)
        else:
            dropped += 1
    return found, dropped


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--compiler", default="gcc", help="gcc (GNU libgomp) or clang (LLVM libomp)")
    args = parser.parse_args()
    print(describe())
    heads = f"{'program':<14} {'predicted':>9} {'burdened':>8} {'real':>6} {'from':>6} {'to':>6} {'ratio':>6}"
    print(f"{heads}  pairs dropped")
    with tempfile.TemporaryDirectory(prefix="parprof-bench-") as folder:
        programs = Programs(Path(folder), args.compiler)
        for form, size in PROGRAMS:
            runs = [programs.predicted(form, size) for _ in range(3)]
            predicted, burdened = (statistics.median(one) for one in zip(*runs, strict=True))
            ratios, dropped = real(programs, form, size, args.repeat)
            if not ratios:
                print(f"{form:<14} {predicted:9.2f} {burdened:8.2f}   never undisturbed in {dropped} pairs")
                continue
            middle = statistics.median(ratios)
            print(
                f"{form:<14} {predicted:9.2f} {burdened:8.2f} {middle:6.2f} {min(ratios):6.2f} {max(ratios):6.2f} "
                f"{predicted / middle:6.3f}  {dropped}",
                flush=True,
            )


if __name__ == "__main__":
    main()
