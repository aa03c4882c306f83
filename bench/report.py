# SPDX-License-Identifier: Apache-2.0
"""Reports of big profiles: how long `parprof report` takes, and how much memory.

``.venv/bin/python bench/report.py [--paths 60000] [--depth 40] [--alike 0]`` writes a profile of random call paths
and prints time, CPU time and peak resident memory of each view of it, and of its JSON, each in a process of its own.
Random paths share next to nothing. ``--alike``: so many outermost frames, by default 25, are the same in all paths, as
those from a program's entry to where its work is handed out are in real programs. Nothing calls these again, but with
``--recursive``: then most paths recur, which is folded step by step, and is the worst that a program can do.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "daemon")]

from machine import describe  # noqa: E402

from parprof.attribution.concurrency import levels_of  # noqa: E402
from parprof.exporters import pprof  # noqa: E402
from parprof.metrics import Metrics  # noqa: E402
from parprof.model import Frame, Origin, PathSample, ProcessInfo, Profile  # noqa: E402

FUNCTIONS = 400
SAMPLE_NS = 2_004_008
"""CPU time that a sample stands for, at 499 Hz."""
WAYS = {
    "context": (),
    "callers": ("--view", "callers"),
    "flat": ("--view", "flat"),
    "concurrency": ("--view", "concurrency"),
    "physical": ("--physical",),
    "JSON": ("--json",),
}


class Cost(NamedTuple):
    """What a command took."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def random_profile(paths: int, depth: int, alike: int, recursive: bool = False, seed: int = 1) -> Profile:
    """A profile of ``paths`` samples, each on a path of its own with ``depth`` frames."""
    dice = random.Random(seed)
    frames = [
        Frame(f"function_{n}", f"file_{n % 37}.c", 10 + n, 5, "/bin/program", "", 0x1000 + 16 * n)
        for n in range(FUNCTIONS + alike)
    ]
    trunk = tuple(frames[:alike] if recursive else frames[FUNCTIONS:])
    samples = []
    for _ in range(paths):
        path = (*trunk, *dice.choices(frames[:FUNCTIONS], k=depth - alike))
        idle = dice.choice((0, 0, SAMPLE_NS))
        metrics = Metrics(samples=1, work_ns=SAMPLE_NS, idleness_ns=idle)
        levels = levels_of(SAMPLE_NS, 1 if idle else 2, 2)
        samples.append(PathSample(path, metrics, Origin(1, "program", "program", "none"), levels=levels))
    return Profile(ProcessInfo(1, "program", "program", cores=2), paths / 499 / 2, 499, samples)


def measure(command: list[str]) -> Cost:
    """Run a command, its output thrown away."""
    begun = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {child.returncode}")
    return Cost(time.perf_counter() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What reports of big profiles cost.")
    parser.add_argument("--paths", type=int, default=60_000)
    parser.add_argument("--depth", type=int, default=40)
    parser.add_argument("--alike", type=int, default=25)
    parser.add_argument("--recursive", action="store_true")
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    args = parser.parse_args()
    print(describe())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "big.pb.gz")
        pid = os.fork()  # in a child: this process stays small
        if not pid:
            pprof.write(random_profile(args.paths, args.depth, args.alike, args.recursive), path)
            os._exit(0)
        if os.waitpid(pid, 0)[1]:
            raise SystemExit("the profile could not be written")
        size_mb = path.stat().st_size / 1e6
        print(f"{args.paths} paths of {args.depth} frames, {args.alike} of them the same, {size_mb:.1f} MB")
        print(f"{'':11} {'wall s':>7} {'CPU s':>7} {'peak MB':>8}")
        for name in args.ways:
            cost = measure([sys.executable, "-m", "parprof", "report", *WAYS[name], str(path)])
            print(f"{name:11} {cost.wall_s:7.2f} {cost.cpu_s:7.2f} {cost.peak_mb:8.0f}", flush=True)


if __name__ == "__main__":
    main()
