# SPDX-License-Identifier: Apache-2.0
"""What `parprof record` at 1,000 samples a second takes from eight programs that compute, beside gprof.

    python bench/gprof.py [--pairs N] [--seconds S]

By turns: a program by itself, the same under `parprof record -F 1000`, under `perf record` at that rate without call
paths (what the kernel's timer takes by itself; left out where there is no perf), and built with -pg. CPU time by the
program's own clock. Then the program of froyd-2005's figure 1, whose two arcs take half of the time each: what record
and gprof say of it.
What runs beside slows a program down, never up: compared are the least times, and, to show how far one run
is from another, the medians of the pairs. froyd-2005 has 2 to 7 % for its sampler and up to 263 % for gprof. Needs
root, gcc and gprof.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "daemon"), str(ROOT / "bench"), str(ROOT / "tests")]

from machine import describe  # noqa: E402

from reports import record_command  # noqa: E402

SOURCE = ROOT / "bench/programs/cpu_bound.c"
PATTERNS = ROOT / "tests/workloads/call_patterns.c"
COLUMNS = ("record", "perf", "gprof")
PROGRAMS = ("fib", "matrix", "sort", "sieve", "hash", "bodies", "fractal", "trees")


def build(folder: Path) -> tuple[Path, Path]:
    """The program, and the same for gprof."""
    plain, probed = folder / "plain", folder / "probed"
    flags = ["gcc", "-O2", "-g", str(SOURCE), "-lm", "-o"]
    subprocess.run([*flags, str(plain)], check=True)
    subprocess.run([*flags, str(probed), "-pg"], check=True)
    return plain, probed


def cpu_s(command: list[str], folder: Path) -> float:
    """The CPU seconds that the program says it used."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "daemon")},
    )  # fmt: skip
    return float(done.stdout)


def figure_1(record: list[str], folder: Path) -> None:
    """Seconds and calls of ``c`` by caller: ``a`` calls it twice, ``b`` four times for half of the work each."""
    flags = ["gcc", "-O2", "-g", "-pthread", "-DUNIT_NS=1000000000L", str(PATTERNS), "-o"]
    plain, probed = folder / "patterns", folder / "patterns.pg"
    subprocess.run([*flags, str(plain)], check=True)
    subprocess.run([*flags, str(probed), "-pg"], check=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "daemon")}
    subprocess.run([*record, str(plain), "figure1"], cwd=folder, check=True, env=environment)
    report = [sys.executable, "-m", "parprof", "report", "out", "--json"]
    text = subprocess.run(report, cwd=folder, check=True, env=environment, stdout=subprocess.PIPE).stdout
    sampled = {caller: [0.0, 0] for caller in "ab"}
    for path in json.loads(text)["paths"]:
        frames = [name for name in path["frames"] if not name.startswith("[")]
        for caller, found in sampled.items():
            if any(frames[at : at + 2] == [caller, "c"] for at in range(len(frames))):
                found[0] += path["work_s"]
                found[1] += int(path.get("activations", 0)) if frames[-1] == "c" else 0
    subprocess.run([str(probed), "figure1"], cwd=folder, check=True)
    graph = subprocess.run(
        ["gprof", "-b", "-q", str(probed)], cwd=folder, capture_output=True, text=True, check=True
    )
    by_gprof = {caller: _arc(graph.stdout, caller) for caller in "ab"}
    print("\nfigure 1 of froyd-2005: c, which takes as long from a (2 calls) as from b (4)")
    for name, arcs in (("record", sampled), ("gprof", by_gprof)):
        all_s = sum(seconds for seconds, _ in arcs.values())
        for caller, (seconds, calls) in arcs.items():
            each = f"{seconds / calls * 1e3:7.1f} ms a call" if calls else ""
            print(
                f"{name:<8} from {caller}: {calls} calls {seconds:6.3f} s {100 * seconds / all_s:5.1f} % {each}"
            )


def _arc(graph: str, caller: str) -> tuple[float, int]:
    """Seconds and calls of ``c`` by a caller, in gprof's call graph."""
    for entry in graph.split("-" * 47):
        lines = entry.splitlines()
        own = next((at for at, line in enumerate(lines) if line.startswith("[") and " c [" in line), None)
        for line in lines[:own] if own is not None else ():
            words = line.split()
            if len(words) == 5 and words[3] == caller:
                return float(words[0]) + float(words[1]), int(words[2].partition("/")[0])
    raise SystemExit("gprof's call graph has no such arc")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    print(describe())
    print(f"{'program':<8} {'CPU s':>6}", *(f"{name + ' %':>9} {'median':>7}" for name in COLUMNS))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain, probed = build(folder)
        record = record_command(Path("out"), "-F", 1000)
        perf = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "1000", "-o", "perf.data", "--"]
        for program in PROGRAMS:
            one_s = cpu_s([str(plain), program, "20"], folder) / 20
            what = [program, str(max(round(args.seconds / one_s), 1))]
            commands = {"record": [*record, str(plain)], "perf": [*perf, str(plain)], "gprof": [str(probed)]}
            if shutil.which("perf") is None:
                del commands["perf"]
            alone: list[float] = []
            under: dict[str, list[float]] = {name: [] for name in commands}
            for _ in range(args.pairs):
                alone.append(cpu_s([str(plain), *what], folder))
                for column, command in commands.items():
                    under[column].append(cpu_s([*command, *what], folder))
            row = f"{program:<8} {min(alone):6.2f}"
            for column in COLUMNS:
                if not (times := under.get(column)):
                    row += f" {'-':>9} {'-':>7}"
                    continue
                more = statistics.median(time / bare for time, bare in zip(times, alone, strict=True))
                row += f" {100 * (min(times) / min(alone) - 1):9.1f} {100 * (more - 1):7.1f}"
            print(row, flush=True)
        figure_1(record, folder)


if __name__ == "__main__":
    main()
