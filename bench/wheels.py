"""How soon `attach` has its first sample, and what it takes, on programs of packages that people install.

    .venv/bin/python bench/wheels.py [--runs 5] [--only bare,numpy] [--venv DIR]

Packages come from PyPI into a virtual environment (a temporary one, or the one given, which is kept). Each program runs
for ever on two threads while parprof attaches to it for half a second; then it runs once, from its first import to
its end, under `record`. One row for each program, medians of the runs:

    cold    seconds from the command to the first sample that counts, with an empty cache (but for the BPF programs)
    first   the same with a warm cache: unwind tables and probes are there by then, so it has its full path. The cache
            is warm when an attach takes as much CPU time as the one before
    CPU     seconds of CPU time of that command, its children included
    RSS     MiB, the largest resident set of the command
    cut     percent of the stacks of the attach that are cut short
    record  percent of the stacks under `record` that are complete

Then `record -- true`. The program takes both cores of a small machine, so what is measured is waiting for a core, too:
``--nice`` lets it give way. Needs root, gcc, a network and a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from machine import describe

BARE = """
#include <stdio.h>
volatile double sum;
int main(int argc, char **argv) {
    puts("ready"); fflush(stdout);
    for (int turn = 0; argc > 1 || turn < 200; turn++) {
#pragma omp parallel for
        for (int i = 0; i < 64; i++) for (int k = 0; k < 20000; k++) sum += k;
    }
}
"""
LOOP = """
import sys
{imports}
{prepare}
print("ready", flush=True)
turn = 0
while len(sys.argv) > 1 or turn < {turns}:
    turn += 1
    {step}
"""
DRIVER = """
import os, sys, time
from parprof.kernel.engine import BpfKernel
watch, started = BpfKernel.watch, float(os.environ["STARTED"])
def timed(*arguments, **options):
    watch(*arguments, **options)
    print("first", time.monotonic() - started, file=sys.stderr)
BpfKernel.watch = timed
from parprof.__main__ import main
sys.exit(main())
"""


_MOST_TRIES = 12


@dataclass(frozen=True)
class Program:
    """A program and the packages that it needs."""

    name: str
    packages: tuple[str, ...] = ()
    imports: str = ""
    prepare: str = ""
    step: str = ""
    turns: int = 20


PROGRAMS = (
    Program("bare"),
    Program("python", step="sum(i * i % 7 for i in range(40_000))", turns=200),
    Program(
        "numpy",
        ("numpy",),
        "import numpy as np",
        "a = np.random.rand(300, 300)",
        "sum(i * i % 7 for i in range(40_000)); a @ a",
        200,
    ),
    Program(
        "scikit-learn",
        ("scikit-learn",),
        "import numpy as np; from sklearn.ensemble import HistGradientBoostingClassifier as C",
        "x = np.random.default_rng(0).normal(size=(20_000, 20)); y = x[:, 0] * x[:, 1] > 0",
        "C(max_iter=30).fit(x, y)",
        4,
    ),
    Program(
        "numba",
        ("numba",),
        "import numpy as np; from numba import njit, prange",
        "@njit(parallel=True)\ndef f(a):\n    s = 0.0\n    for i in prange(a.size):\n        s += a[i] ** .5\n"
        "    return s\na = np.ones(1_000_000); f(a)",
        "f(a)",
        400,
    ),
    Program("torch", ("torch",), "import torch", "a = torch.rand(400, 400)", "a @ a", 300),
)


@dataclass
class Row:
    """What was measured of one program."""

    cold_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)
    cut_percent: list[float] = field(default_factory=list)
    whole_percent: list[float] = field(default_factory=list)


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "2",
        "OPENBLAS_NUM_THREADS": "2",
        "NUMBA_NUM_THREADS": "2",
        **more,
    }


def command_of(program: Program, work: Path, python: Path) -> list[str]:
    if program.name == "bare":
        out = work / "bare"
        build = ["gcc", "-O2", "-g", "-fopenmp", "-x", "c", "-", "-o", out]
        subprocess.run(build, input=BARE, text=True, check=True)
        return [str(out)]
    script = work / f"program_{program.name}.py"  # not named as what it imports
    script.write_text(
        LOOP.format(imports=program.imports, prepare=program.prepare, step=program.step, turns=program.turns)
    )
    return [str(python), str(script)]


@contextmanager
def running(command: list[str], nice: int) -> Iterator[int]:
    process = subprocess.Popen(
        ["nice", "-n", str(nice), *command, "forever"], stdout=subprocess.PIPE, env=environment()
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n", "it does not start"
        time.sleep(1)
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def cut_percent(report: str) -> float:
    found = re.search(r"([\d.]+) % of the stacks are cut short", report)
    return float(found[1]) if found else 0.0


def attach(pid: int, cache: Path, out: Path) -> tuple[float, float, float, float]:
    """Seconds to the first sample, CPU seconds, MiB, percent of stacks cut short."""
    before = os.times()
    with tempfile.TemporaryFile("w+") as report, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, "attach", str(pid), "-d", "0.5", "-q", "-o", out],
            env=environment(PARPROF_CACHE=str(cache), STARTED=str(time.monotonic())),
            stdout=report,
            stderr=errors,
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        after = os.times()
        report.seek(0)
        errors.seek(0)
        told = errors.read()
        found = re.search(r"^first ([\d.]+)$", told, re.MULTILINE)
        assert process.returncode == 0 and found, told
        cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
        return float(found[1]), cpu_s, used.ru_maxrss / 1024, cut_percent(report.read())


def fill(pid: int, cache: Path, out: Path) -> None:
    """Attach until all is on disk that can be: an attach waits for the tables of large libraries for some seconds only.

    A gigabyte of them, as torch with CUDA has, takes three or four.
    """
    kept = -1
    for _ in range(_MOST_TRIES):
        attach(pid, cache, out)
        before, kept = kept, sum(1 for one in cache.rglob("*") if one.is_file())
        if kept == before:
            return


def record(command: list[str], cache: Path, out: Path) -> tuple[float, str]:
    """Seconds, and the report."""
    started_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "parprof", "record", "-q", "-o", out, "--", *command],
        env=environment(PARPROF_CACHE=str(cache)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return time.monotonic() - started_s, done.stdout


def measure(program: Program, command: list[str], runs: int, nice: int, cache: Path, out: Path) -> Row:
    row = Row()
    with running(command, nice) as pid:
        with tempfile.TemporaryDirectory() as empty:
            shutil.copytree(cache / "bpf", Path(empty) / "bpf")
            shutil.copytree(cache / "prices", Path(empty) / "prices")
            row.cold_s.append(attach(pid, Path(empty), out)[0])
        fill(pid, cache, out)
        for _ in range(runs):
            first_s, cpu_s, rss_mib, cut = attach(pid, cache, out)
            row.first_s.append(first_s)
            row.cpu_s.append(cpu_s)
            row.rss_mib.append(rss_mib)
            row.cut_percent.append(cut)
    for _ in range(max(runs // 2, 1)):
        row.whole_percent.append(100 - cut_percent(record(command, cache, out)[1]))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default=",".join(program.name for program in PROGRAMS))
    parser.add_argument("--nice", type=int, default=0, help="of the programs")
    parser.add_argument("--venv", type=Path, help="with the packages, or to be made")
    args = parser.parse_args()
    print(describe())
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        venv, cache, out = args.venv or work / "venv", work / "cache", work / "profile.pb.gz"
        python = venv / "bin/python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        record(["true"], cache, out)
        print("| program | cold s | first s | CPU s | RSS MiB | cut % | record % |\n" + "| --- " * 7 + "|")
        for program in PROGRAMS:
            if program.name not in args.only.split(","):
                continue
            if program.packages:
                pip = [python, "-m", "pip", "-q", "install", "--disable-pip-version-check"]
                if subprocess.run([*pip, *program.packages]).returncode:
                    print(f"| {program.name} | cannot be installed |")
                    continue
            row = measure(program, command_of(program, work, python), args.runs, args.nice, cache, out)
            cells = (row.cold_s, row.first_s, row.cpu_s, row.rss_mib, row.cut_percent, row.whole_percent)
            print(
                f"| {program.name} | " + " | ".join(f"{statistics.median(cell):.2f}" for cell in cells) + " |"
            )
        seconds = [record(["true"], cache, out)[0] for _ in range(args.runs)]
        print(f"\nrecord -- true: {statistics.median(seconds):.2f} s")


if __name__ == "__main__":
    main()
