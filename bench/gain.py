"""What reports say that a fix would gain at best (`x if fixed`) against what it gains: programs with a known loss, and
the same with it mended (bench/programs/gain_pairs.c).

    # .venv/bin/python bench/gain.py [--repeat 7] [CASE ...]

Prints a row a program: the bound (median of three profiles of the program that is not mended), the real speed-up
(median of pairs without a profiler, with their range), and the ratio of the second to the first, which must not be
above 1 by more than the noise. In `half` the mended one is serial for half of that time all the same; in all others the
fix is complete, so that the bound should be reached. `removed`: the code is not run at all, which saves its work, too;
that is predicted from all of its effort. Needs root, gcc, and two cores that nobody else uses: pairs beside which
others worked are dropped (`chrt -r 1` in front helps; then --busy takes all pairs).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

from alone import run, wait_until_idle  # noqa: E402
from machine import describe  # noqa: E402

NOISE = 0.05
"""By so much the real speed-up may be above the bound, and below it where the fix is complete."""
THREADS = {"OMP_NUM_THREADS": "2"}


@dataclass(frozen=True, slots=True)
class Case:
    """A loss, and what is done about it."""

    name: str
    function: str
    """Whose row has the bound."""
    fix: str
    is_complete: bool = True
    is_removed: bool = False


CASES = (
    Case("serial", "prepare", "made parallel"),
    Case("half", "prepare", "half of it made parallel", is_complete=False),
    Case("removed", "prepare", "not run at all", is_removed=True),
    Case("critical", "sum_in_turn", "a reduction"),
    Case("imbalance", "triangle", "schedule(dynamic), large pieces first"),
    Case("sleep", "settle", "no sleep"),
    Case("read", "feeder", "read ahead by a thread"),
    Case("lock", "update_locked", "a copy for each thread"),
)


class Programs:
    """The pairs, built in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._profile = folder / "profile.pb.gz"
        self._program = str(folder / "gain_pairs")
        source = ROOT / "bench/programs/gain_pairs.c"
        flags = ["-O2", "-g", "-Wall", "-Wextra", "-fopenmp", "-pthread", "-fno-optimize-sibling-calls"]
        subprocess.run(["gcc", *flags, source, "-o", self._program], check=True)

    def bound(self, case: Case) -> float:
        """What a profile says."""
        command = (self._program, case.name, "lost")
        options = ("-q", "--no-report", "-F", "999", "--cores", "2", "-o", self._profile)
        self._parprof("record", *options, "--", *command)
        report = json.loads(self._parprof("report", "--json", self._profile))
        (row,) = (one for one in report["functions"] if one["name"] == case.function)
        if case.is_removed:
            whole = _effort_s(report["totals"])
            return whole / (whole - _effort_s(row["inclusive"]))
        return float(row["gain_bound"])

    @staticmethod
    def _parprof(*arguments: str | Path) -> str:
        variables = {**os.environ, **THREADS, "PYTHONPATH": str(ROOT / "daemon")}
        command = [sys.executable, "-m", "parprof", *arguments]
        return subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True).stdout

    def speed_ups(self, case: Case, repeat: int, *, is_busy: bool) -> tuple[list[float], int]:
        """Of pairs, and how many pairs were disturbed."""
        found: list[float] = []
        dropped = 0
        while len(found) < repeat and dropped < 2 * repeat:
            if not is_busy:
                wait_until_idle()
            lost, mended = (run([self._program, case.name, how], THREADS) for how in ("lost", "mended"))
            if is_busy or (lost.is_alone and mended.is_alone):
                found.append(lost.seconds / mended.seconds)
            else:
                dropped += 1
        return found, dropped


def _effort_s(metrics: dict[str, Any]) -> float:
    return float(metrics["work_s"] + metrics["idleness_s"] + metrics["stall_s"])


def _judged(case: Case, ratio: float) -> str:
    if ratio > 1 + NOISE:
        return "ABOVE THE BOUND"
    if case.is_complete and ratio < 1 - NOISE:
        return "not reached"
    return "holds, reached" if case.is_complete else "holds"


def main() -> int:
    """Measure those that are named, or all. Exit code 1: a bound does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="CASE")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--busy", action="store_true", help="take pairs beside which others worked, too")
    args = parser.parse_args()
    print(describe())
    heads = f"{'loss':<10} {'fix':<37} {'bound':>6} {'real':>6} {'from':>6} {'to':>6} {'ratio':>6}"
    print(f"{heads}  pairs dropped; judged")
    is_wrong = False
    with tempfile.TemporaryDirectory(prefix="parprof-bench-") as folder:
        programs = Programs(Path(folder))
        for case in CASES:
            if args.names and case.name not in args.names:
                continue
            bound = statistics.median(programs.bound(case) for _ in range(3))
            found, dropped = programs.speed_ups(case, args.repeat, is_busy=args.busy)
            if not found:
                print(f"{case.name:<10} {case.fix:<37} {bound:6.2f}   never undisturbed in {dropped} pairs")
                continue
            middle = statistics.median(found)
            judged = _judged(case, middle / bound)
            is_wrong |= judged.isupper()
            print(
                f"{case.name:<10} {case.fix:<37} {bound:6.2f} {middle:6.2f} {min(found):6.2f} {max(found):6.2f} "
                f"{middle / bound:6.3f}  {dropped}; {judged}",
                flush=True,
            )
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
