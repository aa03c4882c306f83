"""What any profiler pays at least for what ours looks at: programs that do nothing, in the same places.

    .venv/bin/python bench/least.py [--pairs 7] [--only REGEX] [--hz 499]

The programs of `bench/overhead.py`, in turn: without a profiler; with BPF programs of two instructions (return 0) at
context switches and at wake-ups; with timers on all CPUs and no program; with all of these; and under ``parprof
record``. Ratios of the whole run, medians over the rounds, with the smallest and the largest. What the one with all is
above 1 nobody can save who follows switches and samples at that rate. Needs root and a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import re
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "daemon")]

from machine import describe  # noqa: E402
from overhead import ROWS, fixed_steps, launch, parprof, spread  # noqa: E402

from parprof.kernel import bpf, perf_events  # noqa: E402

NOTHING = struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)
"""r0 = 0; exit."""


@contextmanager
def switches() -> Iterator[None]:
    """Programs that do nothing, at each context switch and wake-up."""
    opened = [bpf.program_load("raw_tracepoint", NOTHING, "nothing")]
    opened += [bpf.raw_tracepoint_open(name, opened[0]) for name in ("sched_switch", "sched_wakeup")]
    try:
        yield
    finally:
        for fd in reversed(opened):
            os.close(fd)


@contextmanager
def timers(frequency_hz: int) -> Iterator[None]:
    """Timers on all CPUs."""
    opened = [perf_events.open_on_cpu("cpu-clock", frequency_hz, cpu) for cpu in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for fd in opened:
            os.close(fd)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--only", default="50,000 switches")
    parser.add_argument("--hz", type=int, default=499)
    args = parser.parse_args()
    print(describe())
    with tempfile.TemporaryDirectory() as directory:
        record = parprof("record", "-q", "-F", args.hz, "-o", Path(directory) / "profile.pb.gz", "--")
        for case in ROWS:
            if case.daemon or not re.search(args.only, case.title):
                continue
            environment = case.environment()
            command, first = fixed_steps(case.command, case.seconds, environment)

            def run(prefix: list[str], *surroundings: Callable[[], object]) -> float:
                with ExitStack() as stack:
                    for one in surroundings:
                        stack.enter_context(one())  # type: ignore[arg-type]
                    found = launch([*prefix, *command], environment)  # noqa: B023
                assert found is not None
                return float(found["total_ns"])

            def ticking() -> object:
                return timers(args.hz)

            kinds: dict[str, Callable[[], float]] = {
                "programs at switches and wake-ups": lambda: run([], switches),
                "timers": lambda: run([], ticking),
                "both": lambda: run([], switches, ticking),
                "parprof record": lambda: run(record),
            }
            ratios: dict[str, list[float]] = {kind: [] for kind in kinds}
            for _ in range(args.pairs):
                for kind, profiled in kinds.items():
                    base_ns = run([])
                    ratios[kind].append(profiled() / base_ns)
            print(
                f"{case.title}: {first.get('events_per_second', 1e9 / first['mean_ns_per_unit']):,.0f} a second"
            )
            for kind, found in ratios.items():
                print(f"    {kind:36} {spread(found, 100.0)}")


if __name__ == "__main__":
    main()
