"""What `parprof scale` costs its target: CPU time of the same program with and without the library, in pairs.

    .venv/bin/python bench/scale.py [--threads 1,2] [--repeat 5] [--compiler clang] [--hooks]

Prints a row a program: the median ratio of the pairs and their spread, then the geometric mean, and what one task and
one region cost. With --hooks the program beside the plain one is built by `parprof cc --scale`. No root. schardl-2015
figure 11 has a geometric mean of 1.9 and at most 7.4, serially, for programs compiled for it, with a row for each call
site; without hooks ours are not recompiled, and have a row for each call of the runtime.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "daemon")]

from machine import describe  # noqa: E402

from parprof.instruments.span import LIBRARY, compile_command, environment  # noqa: E402

SOURCE = ROOT / "tests/workloads/span_forms.c"
PROGRAMS = (
    ("fib", 26), ("quicksort", 1_000_000), ("multiply", 64), ("wavefront", 100), ("pipeline", 3000),
    ("triangle", 12_000), ("large_chunk", 60_000), ("guided", 60_000), ("critical", 30_000), ("taskloop", 60_000),
)  # fmt: skip
TASKS_OF_FIB_26 = 196_417
REGIONS = 300_000


def cpu_seconds(command: list[str], variables: dict[str, str]) -> float:
    """User and system time of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=variables, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Bench:
    """The program and the library, built in a folder of their own."""

    def __init__(self, folder: Path, repeat: int, compiler: str, has_hooks: bool) -> None:
        self._folder = folder
        self._repeat = repeat
        self._library = str(LIBRARY.path())
        self._program = str(folder / "span_forms")
        command = [compiler, "-O2", "-g", "-fopenmp", str(SOURCE), "-o", self._program]
        subprocess.run(command, check=True)
        self._measured = self._program
        if has_hooks:
            self._measured += ".hooks"
            subprocess.run(compile_command([*command[:-1], self._measured]), check=True)

    def pairs(self, form: str, size: int, threads: int) -> list[tuple[float, float]]:
        """CPU seconds without and with the library, run by turns."""
        ours = environment(self._library, str(self._folder), threads)
        plain = {name: value for name, value in ours.items() if name.startswith("OMP_")}
        arguments = [form, str(size)]
        found = []
        for _ in range(self._repeat):
            without = cpu_seconds([self._program, *arguments], {**os.environ, **plain})
            found.append((without, cpu_seconds([self._measured, *arguments], {**os.environ, **ours})))
            for record in self._folder.glob("*.span"):
                record.unlink()
        return found


def added_s(pairs: list[tuple[float, float]]) -> float:
    """What a program costs more."""
    return statistics.median(after - before for before, after in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--compiler", default="gcc", help="gcc (GNU libgomp) or clang (LLVM libomp)")
    parser.add_argument("--hooks", action="store_true", help="with a row for each call site")
    args = parser.parse_args()
    print(describe())
    with tempfile.TemporaryDirectory(prefix="parprof-bench-") as folder:
        bench = Bench(Path(folder), args.repeat, args.compiler, args.hooks)
        for threads in map(int, args.threads.split(",")):
            print(f"\n{threads} threads\n{'program':<14} {'ratio':>6} {'from':>6} {'to':>6}  plain s")
            medians = []
            start_s = added_s(bench.pairs("procs", 1, threads))
            for form, size in PROGRAMS:
                pairs = bench.pairs(form, size, threads)
                ratios = sorted(after / before for before, after in pairs)
                medians.append(statistics.median(ratios))
                print(f"{form:<14} {medians[-1]:6.2f} {ratios[0]:6.2f} {ratios[-1]:6.2f} {pairs[0][0]:8.3f}")
                if form == "fib":
                    print(f"{'  a task':<14} {(added_s(pairs) - start_s) / TASKS_OF_FIB_26 * 1e9:6.0f} ns")
            print(f"{'geometric mean':<14} {math.prod(medians) ** (1 / len(medians)):6.2f}")
            pairs = bench.pairs("region_rate", REGIONS, threads)
            region_ns = (added_s(pairs) - start_s) / REGIONS * 1e9
            print(f"{'a region':<14} {region_ns:6.0f} ns, with all its members' shares")
            print(f"{'the start':<14} {start_s * 1e3:6.1f} ms, which is not in the two")


if __name__ == "__main__":
    main()
