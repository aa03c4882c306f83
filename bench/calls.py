# SPDX-License-Identifier: Apache-2.0
"""What counting a call costs the program, at cheap and at dear places: python bench/calls.py [--seconds S] [--pairs N].

Paired runs of a program that calls a function some two million times a second (tests/workloads/calls_truth.c), by
itself and counted without a limit; what a call costs is the difference of the time that each takes. The function begins
with a mov, where a probe is dear; at its calls it is cheap. Beside it, from the kernel's own statistics: what our
program took. The last row is `parprof calls --times`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "daemon"))

from machine import describe  # noqa: E402

from parprof.files.elf import ElfFile  # noqa: E402
from parprof.kernel import bpf  # noqa: E402
from parprof.kernel.call_counts import CallProbe, map_sizes  # noqa: E402
from parprof.kernel.engine import BpfKernel  # noqa: E402
from parprof.kernel.records import Budget  # noqa: E402
from parprof.session.session import Session  # noqa: E402

PROGRAM = ROOT / "tests/workloads/build/calls_truth"
FUNCTION = "leaf"


def places() -> dict[str, CallProbe]:
    """The function's entry, and the calls of it in the loop that is measured."""
    from parprof.calls.search import search

    with ElfFile.open(str(PROGRAM)) as elf:
        (routine,) = search(elf, [FUNCTION], []).routines
        (copy,) = routine.copies
        (storm,) = elf.lookup(["storm"])["storm"]
        inside = [at for at in copy.places if storm.value <= at.vaddr < storm.value + storm.size]
        assert len(inside) == 1 and inside[0].knows_caller
        entry, call = elf.file_offset(copy.vaddr), elf.file_offset(inside[0].vaddr)
        assert entry is not None and call is not None
        return {
            "call instruction": CallProbe(str(PROGRAM), call, 0, knows_caller=True),
            "entry, a mov": CallProbe(str(PROGRAM), entry, 0, dear=True),
        }


def call_ns(seconds: float, probe: CallProbe | None, with_statistics: bool = False) -> tuple[float, float]:
    """Nanoseconds for each call, and what our program took of them; to know that makes calls dearer."""
    command = [PROGRAM, "wait", f"storm={seconds}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout and process.stdout.readline() == "ready\n"
        if probe is None:
            return 1e9 / float(process.communicate("\n")[0]), 0.0
        with BpfKernel(["cpu-clock"], 499, budget=Budget(1.0, 10**12), sizes=map_sizes()) as kernel:
            session = Session(kernel)
            session.watch(process.pid)
            probes = kernel.calls.attach([probe], process.pid)
            statistics_fd = bpf.enable_stats() if with_statistics else -1
            try:
                each_ns = 1e9 / float(process.communicate("\n")[0])
                took = {name: t for name, t in kernel.run_time_ns().items() if name == "on_call"}
                total_ns, runs = took.get("on_call", (0, 0))
            finally:
                if with_statistics:
                    os.close(statistics_fd)
                probes.close()
                session.close()
            return each_ns, total_ns / max(runs, 1)


def timed_call_ns(seconds: float) -> float:
    """Nanoseconds for each call whose time is taken, with `parprof calls --times`: its entry and exits are probed."""
    command = [sys.executable, "-m", "parprof", "calls", "-q", "--times", "--force", "-f", FUNCTION]
    done = subprocess.run(
        [*command, "-o", os.devnull, "--", str(PROGRAM), f"storm={seconds}"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "daemon")}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return 1e9 / float(done.stdout.split()[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--pairs", type=int, default=7)
    args = parser.parse_args()
    print(describe())
    for name, probe in places().items():
        costs = []
        for _ in range(args.pairs):
            bare_ns, _ = call_ns(args.seconds, None)
            counted_ns, _ = call_ns(args.seconds, probe)
            costs.append(counted_ns - bare_ns)
        _, program_ns = call_ns(args.seconds, probe, with_statistics=True)
        print(
            f"{name}: {statistics.median(costs):,.0f} ns a call (median of {args.pairs} pairs, "
            f"{min(costs):,.0f} to {max(costs):,.0f}), of which our program {program_ns:,.0f}"
        )
    costs = []
    for _ in range(args.pairs):
        bare_ns, _ = call_ns(args.seconds, None)
        costs.append(timed_call_ns(args.seconds) - bare_ns)
    print(
        f"--times, entry (a mov) and exit: {statistics.median(costs):,.0f} ns a call (median of {args.pairs} pairs, "
        f"{min(costs):,.0f} to {max(costs):,.0f})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
