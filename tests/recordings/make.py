#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the recordings beside it: real programs of known truth, as `parprof record --save-facts` has them.

Run it as root after `make workloads`, with the project's Python; without arguments it makes all of them again::

    # .venv/bin/python tests/recordings/make.py libgomp cpython

Of a few recordings the one is kept in which the machine left the program alone most, for what another program preempted
is no fault that a test should look for; `chrt -r 1` in front helps on a busy one. Names of directories are replaced by
neutral ones.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "daemon"), str(ROOT / "tests")]

from truth import Truth  # noqa: E402

BUILD = ROOT / "tests/workloads/build"
CORES = 2
MAX_BYTES = 100_000
_ATTEMPTS = 3
_LEAST_CPU_SHARE = 0.93
"""Of the time in which the program's threads worked they must have had a CPU for this share."""


@dataclass(frozen=True)
class Workload:
    """A program to record. ``seconds``: attach to it for so long, because it never ends."""

    command: tuple[str, ...]
    options: tuple[str, ...] = ()
    seconds: float = 0.0


OPENMP = ("serial,balanced,skewed,barrier,lock,nested,tasks,taskwait", "--repeat", "3")
RECORDINGS = {
    "libgomp": Workload((f"{BUILD}/omp_truth.gomp", *OPENMP)),
    "libgomp_memory": Workload(
        (f"{BUILD}/omp_truth.gomp", "serial,balanced,skewed,barrier", "--repeat", "4"),
        ("--n-w-source", "memory"),
    ),
    "libomp": Workload((f"{BUILD}/omp_truth.omp", *OPENMP), ("--budget", "100")),
    "pthreads": Workload((f"{BUILD}/pthread_truth", "serial,balanced,skewed,lock", "--repeat", "4")),
    "opencilk": Workload((f"{BUILD}/spawn_truth.opencilk", "tree", "--unit-ms", "20", "--repeat", "2")),
    "cilk5": Workload((f"{BUILD}/cilk5_truth", "tree", "--unit-ms", "20", "--repeat", "2")),
    "cpython": Workload(("/usr/bin/python3", "-S", f"{ROOT}/tests/workloads/chains.py", "main"), seconds=2.5),
}


def parprof(*arguments: str, log: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "daemon"), "PARPROF_TRUTH": str(log)}
    command = [sys.executable, "-m", "parprof", *arguments]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def record(workload: Workload, facts: Path, log: Path) -> None:
    """Run the program and save its facts."""
    options = ["-q", "-F", "999", "--cores", str(CORES), "-o", "/dev/null", "--save-facts", str(facts)]
    options += workload.options
    if not workload.seconds:
        parprof("record", *options, "--", *workload.command, log=log)
        return
    with subprocess.Popen(workload.command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout and process.stdout.readline().startswith(b"ready")
            parprof("attach", *options, "-d", str(workload.seconds), str(process.pid), log=log)
        finally:
            process.kill()


def scrubbed(text: str) -> str:
    """Without the names of this machine's directories."""
    text = text.replace(str(ROOT / "tests"), "").replace(str(ROOT), "")
    assert str(Path.home()) + "/" not in text and str(ROOT) not in text, "a name of this machine is left"
    return text


def truth_of(log: Path) -> dict[str, tuple[float, float]]:
    """Work and idleness of each function, in seconds; nothing if the program keeps no log."""
    if not log.exists():
        return {}
    return {name: (work / 1e9, idle / 1e9) for name, (work, idle) in Truth.read(log).expected(CORES).items()}


def cpu_share(log: Path) -> float:
    """How much of the time in which they worked the threads had a CPU."""
    if not log.exists():
        return 1.0
    intervals = Truth.read(log).intervals
    return sum(one.cpu_ns for one in intervals) / sum(one.wall_ns for one in intervals)


def make(name: str, workload: Workload) -> None:
    """Record until the machine left the program alone, and write the result."""
    best = 0.0
    for _ in range(_ATTEMPTS):
        with tempfile.TemporaryDirectory() as scratch:
            facts, log = Path(scratch) / "facts", Path(scratch) / "log"
            record(workload, facts, log)
            share = cpu_share(log)
            if share > best:
                best = share
                text = scrubbed(gzip.decompress(facts.read_bytes()).decode())
                packed = gzip.compress(text.encode(), 9, mtime=0)
                assert len(packed) < MAX_BYTES, f"{name} has {len(packed)} bytes"
                (HERE / f"{name}.facts").write_bytes(packed)
                truth = json.dumps(truth_of(log), indent=1) + "\n"
                (HERE / f"{name}.truth.json").write_text(truth)
            if share >= _LEAST_CPU_SHARE:
                break
    print(f"{name}: {len(packed)} bytes; its threads had a CPU for {best:.1%} of their work")


def main() -> None:
    """Make those that are named, or all."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", choices=[*RECORDINGS, []], metavar="NAME")
    for name in parser.parse_args().names or RECORDINGS:
        make(name, RECORDINGS[name])


if __name__ == "__main__":
    main()
