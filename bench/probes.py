"""What it takes to place the probes of an OpenMP program, and to take them away, by mechanism.

    .venv/bin/python bench/probes.py [--processes 8]

Programs run side by side under one session; each mechanism is forced in turn. For the first process and for the others:
milliseconds to attach, descriptors held, milliseconds that our thread takes to close; and for all: seconds until the
kernel is done with closing. Needs root.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "daemon")]

from machine import describe  # noqa: E402

import profiling  # noqa: E402
from parprof.files.dso_cache import DsoCache  # noqa: E402
from parprof.kernel.detacher import detacher  # noqa: E402
from parprof.probes.plan import make_plan  # noqa: E402
from parprof.process.loadmap import LoadMap  # noqa: E402


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def measure(mechanism: str, program: str, count: int) -> None:
    probers = ExitStack()
    prober = probers.enter_context(profiling.prober(mechanism))
    cache = DsoCache()
    processes, attached, took_ms, held = [], [], [], []
    for _ in range(count):
        command = [profiling.BUILD / program, "balanced", "--forever"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout and process.stdout.readline()
        processes.append(process)
        sites = make_plan(LoadMap.read(process.pid, None, cache)).sites
        before, began = descriptors(), time.monotonic()
        attached.append(prober.attach(sites, process.pid))
        took_ms.append(1e3 * (time.monotonic() - began))
        held.append(descriptors() - before)
    close_ms = []
    began = time.monotonic()
    for probes in attached[1:]:
        start = time.monotonic()
        probes.close()
        close_ms.append(1e3 * (time.monotonic() - start))
    while detacher.pending:
        time.sleep(0.001)
    others_s = time.monotonic() - began
    began = time.monotonic()
    attached[0].close()
    probers.close()
    while detacher.pending:
        time.sleep(0.001)
    last_s = time.monotonic() - began
    for process in processes:
        process.kill()
        process.communicate()
    print(
        f"{mechanism:8} {program:16} {len(sites):5} {took_ms[0]:9.1f} {statistics.median(took_ms[1:]):9.1f} "
        f"{held[0]:7} {statistics.median(held[1:]):7.0f} {statistics.median(close_ms):9.2f} "
        f"{others_s / (count - 1):11.3f} {last_s:8.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=8)
    args = parser.parse_args()
    print(describe())
    print(f"{'':25} {'':5} {'attach, ms':>19} {'descriptors':>15} {'close, ms':>9} {'detached, s':>20}")
    print(f"{'':25} {'sites':>5}" + f" {'first':>9} {'others':>9}" + f" {'first':>7} {'others':>7}", end="")
    print(f" {'':9} {'each other':>11} {'last':>8}")
    for mechanism in profiling.mechanisms():
        for program in ("omp_truth.gomp", "omp_truth.omp"):
            measure(mechanism, program, args.processes)


if __name__ == "__main__":
    main()
