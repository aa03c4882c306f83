"""Whether idleness is right where tasks and loops have the source of n_w change by itself.

    .venv/bin/python bench/truth_of_tasks.py [--only REGEX] [--seconds 4] [--hz 499] [--repeat 1] [--totals] [--md]

Programs run under ``parprof record`` with OMP_WAIT_POLICY=passive, so that a thread that waits takes no CPU time.
They know the truth: idleness = n x wall - CPU, both of the whole process, read by itself after its last step.

    delay     time in which threads were ready without a CPU; part of n x wall - CPU, but not idleness
    error     reported less true idleness, as percent of n x wall; and of the true idleness; and of n x wall again
              where the delay is taken from the truth
    sum       work + delay + idleness, of n x wall: more than 100 % cannot be
    spin      what the report says; libomp yields while it waits for tasks, which is CPU time to the program's clock
              and idleness to us: its truth is a lower bound, by as much

Each program then runs again with ``--n-w-source sampled`` and ``exact``. A second table has the shares of idleness by
function (of 2 % or more) of the three; "off" is the larger distance of the first from the others, in percentage
points. Where probes are dear, the run with exact has an eighth of the steps. Needs root and a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench")]

from machine import describe  # noqa: E402
from overhead import RunFailed, fixed_steps, launch, parprof, report  # noqa: E402

CASES = (
    ("merge sort", "task_sort"),
    ("Fibonacci", "task_fib --work-us 1 --n 26"),
    ("Fibonacci and serial", "task_fib --work-us 1 --serial 3000000"),
    ("dynamic loop", "dynamic_loop"),
    ("dynamic loop and serial", "dynamic_loop --serial 700000"),
)
"""Serial parts take about as long as the parallel ones."""
RUNTIMES = {"libgomp": "gomp", "libomp": "omp"}
LIMIT_S = 120.0
LEAST_SHARE = 2.0
"""Functions with less of the idleness, in percent, have no line."""
EXACT_PART = 8
"""The run with probes for each edge has so much less to do."""
HEAD = [
    "program", "source", "n x wall s", "CPU s", "delay s", "true s", "reported s", "error % of n x wall", "of true",
    "less delay", "spin s", "sum %",
]  # fmt: skip
FUNCTIONS_HEAD = ["program", "function", "default %", "sampled %", "exact %", "off"]


@dataclass(frozen=True)
class Outcome:
    """One profiled run: what the program knows, and what the profile says. Seconds."""

    source: str
    capacity_s: float
    cpu_s: float
    delay_s: float
    idleness_s: float
    work_s: float
    spin_s: float
    shares: dict[str, float]
    """Percent of the idleness, by function, without its callees."""

    @property
    def true_s(self) -> float:
        """n x wall - CPU."""
        return self.capacity_s - self.cpu_s

    @property
    def errors(self) -> tuple[float, float, float]:
        """Percent of n x wall, of the truth, and of n x wall less the delay."""
        off_s = self.idleness_s - self.true_s
        return (
            100 * off_s / self.capacity_s,
            100 * off_s / self.true_s if self.true_s > 0 else float("inf"),
            100 * (off_s + self.delay_s) / self.capacity_s,
        )

    def cells(self, title: str) -> list[str]:
        """A line of the first table."""
        seconds = (self.capacity_s, self.cpu_s, self.delay_s, self.true_s, self.idleness_s)
        total = 100 * (self.work_s + self.delay_s + self.idleness_s) / self.capacity_s
        return [
            title, self.source, *(f"{one:.2f}" for one in seconds), *(f"{one:+.1f}" for one in self.errors),
            f"{self.spin_s:.2f}", f"{total:.1f}",
        ]  # fmt: skip


def environment() -> dict[str, str]:
    """Of all runs."""
    return {**os.environ, "OMP_WAIT_POLICY": "passive", "PYTHONPATH": str(ROOT / "daemon")}


def shares_of(said: dict[str, Any]) -> dict[str, float]:
    """Percent of the idleness of a report, by the names of functions."""
    whole = said["totals"]["idleness_s"] or 1.0
    shares: dict[str, float] = {}
    for one in said["functions"]:
        shares[one["name"]] = shares.get(one["name"], 0.0) + 100 * one["exclusive"]["idleness_s"] / whole
    return shares


def measure(command: list[str], frequency_hz: int, directory: Path, source: str = "") -> Outcome | None:
    """One run under ``parprof record``; None if it took too long."""
    profile = directory / "profile.pb.gz"
    forced = ["--n-w-source", source] if source else []
    record = parprof("record", "-q", "-F", frequency_hz, "-o", profile, *forced, "--", *command)
    run = launch(record, environment(), LIMIT_S)
    if run is None:
        return None
    said = report(profile, environment())
    totals, process = said["totals"], said["process"]
    return Outcome(
        source=process["n_w_source"],
        capacity_s=process["cores"] * run["process_wall_ns"] / 1e9,
        cpu_s=run["process_cpu_ns"] / 1e9,
        delay_s=run["run_delay_ns"] / 1e9,
        idleness_s=totals["idleness_s"],
        work_s=totals["work_s"],
        spin_s=totals["spin_s"],
        shares=shares_of(said),
    )


def eighth(command: list[str]) -> list[str]:
    """The same program with fewer units, at least one."""
    at = command.index("--units") + 1
    return [*command[:at], str(max(int(command[at]) // EXACT_PART, 1)), *command[at + 1 :]]


def function_lines(title: str, outcomes: list[Outcome | None]) -> list[list[str]]:
    """Lines of the second table: the default, then the forced ones."""
    shares = [one.shares if one else None for one in outcomes]
    names = {name for one in shares if one for name, share in one.items() if share >= LEAST_SHARE}
    first = shares[0] or {}
    lines = []
    for name in sorted(names, key=lambda name: -first.get(name, 0.0)):
        values = [None if one is None else one.get(name, 0.0) for one in shares]
        off = max((abs(first.get(name, 0.0) - one) for one in values[1:] if one is not None), default=0.0)
        cells = ["-" if one is None else f"{one:.1f}" for one in values]
        lines.append([title, name, *cells, f"{off:.1f}"])
    return lines


def table(head: list[str], lines: list[list[str]], markdown: bool) -> str:
    """As text or Markdown."""
    if markdown:
        rows = [head, ["---"] * len(head), *lines]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)
    widths = [max(len(row[column]) for row in [head, *lines]) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if column < 2 else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, *lines]
    )


def middle(outcomes: list[Outcome]) -> Outcome:
    """The run with the median error."""
    wanted = statistics.median_low([one.errors[0] for one in outcomes])
    return next(one for one in outcomes if one.errors[0] == wanted)


def case(
    title: str, words: list[str], args: argparse.Namespace, directory: Path
) -> tuple[list[str], list[list[str]]]:
    """The lines of both tables."""
    command, _ = fixed_steps(words, args.seconds, environment())
    found = [measure(command, args.hz, directory) for _ in range(args.repeat)]
    in_time = [one for one in found if one is not None]
    if not in_time:
        return [title, f"more than {LIMIT_S:.0f} s", *["-"] * (len(HEAD) - 2)], []
    outcome = middle(in_time)
    if args.totals:
        return outcome.cells(title), []
    sampled = measure(command, args.hz, directory, "sampled")
    exact = measure(eighth(command), args.hz, directory, "exact")
    return outcome.cells(title), function_lines(title, [outcome, sampled, exact])


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="programs whose title matches")
    parser.add_argument("--seconds", type=float, default=4.0, help="time of a run without profiling")
    parser.add_argument("--hz", type=int, default=499)
    parser.add_argument(
        "--repeat", type=int, default=1, help="runs, of which the one with the median error is shown"
    )
    parser.add_argument("--totals", action="store_true", help="no table by function")
    parser.add_argument("--md", action="store_true", help="print Markdown tables")
    return parser.parse_args()


def main() -> None:
    args = options()
    print(describe(), flush=True)
    totals: list[list[str]] = []
    functions: list[list[str]] = []
    with tempfile.TemporaryDirectory() as directory:
        for name, command in CASES:
            program, *words = command.split()
            for runtime, suffix in RUNTIMES.items():
                title = f"{name}, {runtime}"
                if not re.search(args.only, title):
                    continue
                try:
                    total, lines = case(title, [f"{program}.{suffix}", *words], args, Path(directory))
                except (RunFailed, OSError) as error:
                    print(f"{title}: {error}", file=sys.stderr, flush=True)
                    continue
                totals.append(total)
                functions += lines
                print(f"measured: {title}", file=sys.stderr, flush=True)
    print("", table(HEAD, totals, args.md), sep="\n")
    if functions:
        print("", table(FUNCTIONS_HEAD, functions, args.md), sep="\n")


if __name__ == "__main__":
    main()
