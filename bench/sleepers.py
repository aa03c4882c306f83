"""What threads cost that only sleep: a program with 4, 2,000 and 10,000 of them beside the two that work.

    # .venv/bin/python bench/sleepers.py [--repeat 3]

Runs tests/workloads/sleepers by itself, under `record` and under `attach` in turn, and prints medians: how long its two
phases took (a second of work of one thread, then of two), how long `record` took in all, and until the profile was
there when the program had ended; what the program paid, and what the profiler took of a CPU; and which work and
idleness the serial function has, which is to be a second of each on two cores. Needs root; `chrt -r 1` in front helps
on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

from machine import describe  # noqa: E402

PROGRAM = str(ROOT / "tests/workloads/build/sleepers")
THREADS = (4, 2_000, 10_000)
SECONDS = ("1", "1")
START_SECONDS = 3.0
"""An attach has begun by then."""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "daemon")}
PARPROF = [sys.executable, "-m", "parprof"]
OPTIONS = ["-q", "--no-report", "--cores", "2", "-o"]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the program."""

    phases_s: float
    waited_s: float = 0.0
    """All of `record`; of `attach` what it took when the program had ended."""
    target_percent: float = 0.0
    profiler_percent: float = 0.0
    serial_s: float = 0.0
    idle_s: float = 0.0


def phases_s(output: str) -> float:
    """What the program says of itself."""
    return float(dict(line.split() for line in output.splitlines())["phases"])


def plain(threads: int) -> Run:
    """Without a profiler."""
    done = subprocess.run([PROGRAM, str(threads), *SECONDS], stdout=subprocess.PIPE, text=True, check=True)
    return Run(phases_s(done.stdout))


def recorded(threads: int, profile: str) -> Run:
    """Under `record`."""
    begun_s = time.monotonic()
    command = [*PARPROF, "record", *OPTIONS, profile, "--", PROGRAM, str(threads), *SECONDS]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=ENVIRONMENT)
    return judged(phases_s(done.stdout), time.monotonic() - begun_s, profile)


def attached(threads: int, profile: str) -> Run:
    """Under `attach`, whose threads sleep already."""
    program = [PROGRAM, str(threads), *SECONDS, "--wait"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        process.stdout.readline()
        command = [*PARPROF, "attach", *OPTIONS, profile, str(process.pid)]
        with subprocess.Popen(command, env=ENVIRONMENT) as profiler:
            time.sleep(START_SECONDS)
            process.stdin.write("\n")
            process.stdin.flush()
            output = process.stdout.read()
            process.wait()
            ended_s = time.monotonic()
    assert profiler.returncode == 0
    return judged(phases_s("ready 0\n" + output), time.monotonic() - ended_s, profile)


def judged(phases: float, waited_s: float, profile: str) -> Run:
    """With what the profile says."""
    command = [*PARPROF, "report", "--json", profile]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=ENVIRONMENT)
    report = json.loads(done.stdout)
    (serial,) = (one["inclusive"] for one in report["functions"] if one["name"] == "serial_here")
    return Run(
        phases, waited_s, report["cost"]["target_percent"], report["cost"]["daemon_percent"],
        serial["work_s"], serial["idleness_s"] + serial["stolen_s"],
    )  # fmt: skip


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    print(describe())
    print(
        f"{'threads':>7} {'how':<7} {'phases s':>8} {'waited s':>8} {'paid %':>6} {'CPU %':>6}  serial, idle s"
    )
    with tempfile.TemporaryDirectory(prefix="parprof-bench-") as folder:
        profile = str(Path(folder) / "profile.pb.gz")
        for threads in THREADS:
            runs: dict[str, list[Run]] = {"plain": [], "record": [], "attach": []}
            for _ in range(args.repeat):
                runs["plain"].append(plain(threads))
                runs["record"].append(recorded(threads, profile))
                runs["attach"].append(attached(threads, profile))
            for how, some in runs.items():
                phases, waited, paid, cpu, serial, idle = (
                    statistics.median(getattr(one, name) for one in some) for name in Run.__slots__
                )
                print(
                    f"{threads:>7,} {how:<7} {phases:8.3f} {waited:8.2f} {paid:6.2f} {cpu:6.1f}  "
                    f"{serial:.2f}, {idle:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
