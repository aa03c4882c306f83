"""What `parprof input` costs the target: CPU time and memory with it as ratios of those without, in pairs.

    .venv/bin/python bench/input.py [--pairs 3] [--only REGEX] [--builds valgrind,gcc,clang] [--apart]

A program (bench/programs/input_cost.c, -O2) first finds out how often to repeat its work for a third of a second of
CPU time. Then it runs without and with the tool, in turn; CPU time is user and system time of the process by wait4,
memory its largest resident set (VmHWM), told only where that is at least 8 MB without the tool. Cells are medians over
the pairs. The start of the tool is in it, the report is not. Names with omp_ have two OpenMP threads, which
wait without spinning: CPU time of threads that spin says how busy the machine is. The last line has the geometric
means.

With --apart: what threads cost that processes do not. Each program that there is with one thread and with two runs
with one, with two, and as two processes of one thread and half the work each, side by side, all without and with the
tool; cells are medians and ranges of the slowdown.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "daemon")]

from machine import describe  # noqa: E402

from parprof.input import runtime  # noqa: E402

SOURCE = ROOT / "bench/programs/input_cost.c"
PROGRAMS = (
    *("triad", "fib", "fib_counted", "quicksort", "matrix", "tree", "words", "hash", "stencil"),
    *("omp_triad", "omp_quicksort", "omp_matrix", "omp_stencil"),
)
NATIVE_S = 0.3
BIG_KB = 8 << 10


class Cost(NamedTuple):
    """What a process took."""

    cpu_s: float
    resident_kb: int


def run(command: Sequence[str], environment: Mapping[str, str]) -> Cost:
    variables = {**os.environ, "OMP_WAIT_POLICY": "passive", **environment}
    child = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL)
    resident_kb, pid = 0, 0
    while not pid:  # rusage's largest resident set would be that of this process, which forked it
        with suppress(OSError):
            found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{child.pid}/status").read_text())
            resident_kb = max(resident_kb, int(found[1]) if found else 0)
        time.sleep(0.005)
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    return Cost(usage.ru_utime + usage.ru_stime, resident_kb)


def build(directory: Path, how: str) -> tuple[Path, Path]:
    """The program without and with what the tool needs in it."""
    compiler = "clang" if how == "clang" else "gcc"
    plain, built = directory / f"plain-{compiler}", directory / f"built-{how}"
    command = [compiler, "-O2", "-g", "-fopenmp", str(SOURCE), "-o"]
    subprocess.run([*command, str(plain)], check=True)
    if how == "valgrind":
        return plain, plain
    subprocess.run(runtime.compile_command([*command, str(built)]), check=True)
    return plain, built


def repeats(program: Path, name: str) -> int:
    times = 1
    while True:
        cpu_s = run([str(program), name, str(times)], {}).cpu_s
        if cpu_s >= NATIVE_S / 4:
            return max(1, round(times * NATIVE_S / cpu_s))
        times *= 4


def measure(plain: Path, built: Path, how: str, name: str, pairs: int) -> tuple[float, float]:
    """Median slowdown by CPU time, and growth of memory, 0 where there is little."""
    times = str(repeats(plain, name))
    tool = "valgrind" if how == "valgrind" else "tsan"
    cpu, memory = [], []
    for _ in range(pairs):
        without = run([str(plain), name, times], {})
        with tempfile.TemporaryDirectory() as records:
            start = runtime.plan(tool, [str(built), name, times], Path(records))
            cost = run(start.command, start.environment)
        cpu.append(cost.cpu_s / without.cpu_s)
        if without.resident_kb >= BIG_KB:
            memory.append(cost.resident_kb / without.resident_kb)
    return statistics.median(cpu), statistics.median(memory or [0.0])


def together(commands: Sequence[Sequence[str]], tool: str) -> float:
    """CPU time of commands that run at the same time; ``tool``: under which, if any."""
    with tempfile.TemporaryDirectory() as scratch:
        children = []
        for number, command in enumerate(commands):
            environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
            if tool:
                records = Path(scratch, str(number))
                records.mkdir()
                start = runtime.plan(tool, command, records)
                command, environment = start.command, {**environment, **start.environment}
            children.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
        cpu_s = 0.0
        for child in children:
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            if child.returncode:
                raise SystemExit(f"{child.args!r} ended with {child.returncode}")
            cpu_s += usage.ru_utime + usage.ru_stime
    return cpu_s


def measure_apart(plain: Path, built: Path, how: str, name: str, pairs: int) -> list[str]:
    """The slowdown with one thread, with two, and of two processes."""
    half = max(1, repeats(plain, name) // 2)
    tool = "valgrind" if how == "valgrind" else "tsan"
    slowdowns: list[list[float]] = [[], [], []]
    for _ in range(pairs):
        for column, (words, n) in enumerate((((name, 2), 1), ((f"omp_{name}", 2), 1), ((name, 1), 2))):
            arguments = [words[0], str(words[1] * half)]
            without = together([[str(plain), *arguments]] * n, "")
            slowdowns[column].append(together([[str(built), *arguments]] * n, tool) / without)
    return [f"{statistics.median(one):.2f} ({min(one):.2f}-{max(one):.2f})" for one in slowdowns]


def report_apart(
    names: Sequence[str], builds: Sequence[str], programs: Mapping[str, tuple[Path, Path]], pairs: int
) -> None:
    """A row for each program and build."""
    print("\n| program | one thread | two threads | two processes |\n|---|---|---|---|")
    for name in names:
        if f"omp_{name}" in PROGRAMS:
            for how in builds:
                cells = measure_apart(*programs[how], how, name, pairs)
                print(f"| {name}, {how} | {' | '.join(cells)} |", flush=True)


def mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values if value))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--builds", default="valgrind,gcc,clang")
    parser.add_argument("--apart", action="store_true")
    args = parser.parse_args()
    builds = args.builds.split(",")
    names = [name for name in PROGRAMS if re.search(args.only, name)]
    if not names:
        parser.error(f"--only {args.only}: a regular expression; the programs are {', '.join(PROGRAMS)}")
    print(describe())
    if args.apart:
        with tempfile.TemporaryDirectory(prefix="parprof-bench-") as scratch:
            programs = {how: build(Path(scratch), how) for how in builds}
            report_apart(names, builds, programs, args.pairs)
        return
    print(f"\n| program | {' | '.join(f'{how}: time | memory' for how in builds)} |")
    print(f"|{'---|' * (1 + 2 * len(builds))}")
    columns: dict[str, list[tuple[float, float]]] = {how: [] for how in builds}
    with tempfile.TemporaryDirectory(prefix="parprof-bench-") as scratch:
        programs = {how: build(Path(scratch), how) for how in builds}
        for name in names:
            cells = []
            for how in builds:
                cpu, memory = measure(*programs[how], how, name, args.pairs)
                columns[how].append((cpu, memory))
                cells.append(f"{cpu:.1f} | {memory:.1f}" if memory else f"{cpu:.1f} | ")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
    last = [
        f"{mean([c for c, _ in columns[how]]):.1f} | {mean([m for _, m in columns[how]]):.1f}"
        for how in builds
    ]
    print(f"| geometric mean | {' | '.join(last)} |")


if __name__ == "__main__":
    main()
