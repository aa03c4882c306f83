"""What profiling costs the target: runs without and with it, interleaved, as ratios.

    .venv/bin/python bench/overhead.py [--pairs 7] [--only REGEX] [--hz 99,499] [--skip-perf] [--md]

A program first finds out how many steps take it 3 seconds. Then it does so many in each run, timed by its own clock
from its first step: without a profiler, under ``parprof record``, and under ``perf record -g`` at the same rate where
there is a perf. Cells are medians over the pairs, with the smallest and the largest pair:

    whole   all of the run with a profiler / all of it without
    steady  the same of the median window of the last two thirds of the run
    CPU     of the process's CPU time in the whole run; for ping-pong this is CPU time per round trip
    cost    percent of the CPU time, as the profile says / as measured: CPU - 1

Rows of the daemon start a parprofd at its defaults, with a socket of its own and HTTP on a free port, and stop it
again, in turn; its cost figure is that of /metrics shortly before the program's end, which needs a run of more than
the daemon's interval of 10 s. A run that takes longer than ``--limit`` is ended and shows as ``>N``. OpenMP threads
are bound to cores (not where there are more threads than cores): now and then the scheduler leaves two that spin on
one core, with and without a profiler. Needs root, a quiet machine and time: some 25 s for a pair of a row at both
rates.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench")]

from machine import describe  # noqa: E402

BUILD = ROOT / "tests/workloads/build"
DEFAULT_HZ = 99
"""The daemon's rate."""
SETTLE_S = 3.0
"""From the moment that the daemon samples to the start of the program: it reads what already runs."""
START_S = 120.0
"""A new kernel has the daemon compile its programs."""


@dataclass(frozen=True)
class Row:
    """A program, and how it is profiled."""

    title: str
    command: tuple[str, ...]
    options: tuple[str, ...] = ()
    """Further options of ``parprof record``."""
    daemon: bool = False
    bound: bool = True
    """Whether OpenMP threads are bound to cores."""
    seconds: float = 3.0

    def environment(self) -> dict[str, str]:
        """Of all runs alike."""
        bound = {"OMP_PROC_BIND": "true"} if self.bound else {}
        return {**os.environ, **bound, "PYTHONPATH": str(ROOT / "daemon")}


def row(title: str, command: str, record: str = "", **more: Any) -> Row:
    """A row, of words with spaces between."""
    return Row(title, tuple(command.split()), tuple(record.split()), **more)


ROWS = (
    row("coarse 1.6 ms, libgomp", "region_rate.gomp --work-us 1600"),
    row("coarse 1.6 ms, libomp", "region_rate.omp --work-us 1600"),
    row("12,000 regions/s, libgomp", "region_rate.gomp --work-us 82"),
    row("12,000 regions/s, libomp", "region_rate.omp --work-us 82"),
    row("100,000 regions/s, libgomp", "region_rate.gomp --work-us 10"),
    row("100,000 regions/s, libomp", "region_rate.omp --work-us 10"),
    row("500,000 regions/s, libgomp", "region_rate.gomp --work-us 1.1"),
    row("500,000 regions/s, libomp", "region_rate.omp --work-us 1.1"),
    row("50,000 switches/s", "switch_rate"),
    row("100 frames deep", "deep_stack"),
    row("Fibonacci, 1 M tasks/s, libgomp", "task_fib.gomp --work-us 1.2"),
    row("Fibonacci, 1 M tasks/s, libomp", "task_fib.omp --work-us 1.5"),
    row("Fibonacci, regions of 1 s, libgomp", "task_fib.gomp --n 29"),
    row("Fibonacci, regions of 1 s, libomp", "task_fib.omp --n 32"),
    row("merge sort, 16 M, libgomp", "task_sort.gomp"),
    row("merge sort, 16 M, libomp", "task_sort.omp"),
    row("tasks with depend, 60 deep, libgomp", "task_deps.gomp"),
    row("tasks with depend, 60 deep, libomp", "task_deps.omp"),
    row("contended mutexes", "mutexes"),
    row("critical, --blame locks, libgomp", "critical.gomp", "--blame locks"),
    row("critical, libgomp", "critical.gomp"),
    row("OpenMP locks, 8 threads, libgomp", "omp_locks.gomp", bound=False),
    row("OpenMP locks, 8 threads, libomp", "omp_locks.omp", bound=False),
    row("ping-pong, daemon", "ping_pong", daemon=True),
    row("ping-pong, daemon, 15 s", "ping_pong", daemon=True, seconds=15.0),
    row("20,000 threads/s", "thread_churn"),
    row("a build: processes of 10 ms, two at a time", "process_churn"),
    row("dynamic loop, chunk 1, libgomp", "dynamic_loop.gomp"),
    row("dynamic loop, chunk 1, libomp", "dynamic_loop.omp"),
)


class RunFailed(Exception):
    """A run that gave no time."""


def launch(
    command: Sequence[str], environment: dict[str, str], limit_s: float = 600.0
) -> dict[str, Any] | None:
    """Run once; what the program prints of itself, or None if it took too long."""
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        end(process)
        return None
    found = next((line for line in out.splitlines() if line.startswith("{")), None)
    if found is None or process.returncode:
        words = (err.strip() or "nothing said").splitlines()[-1]
        raise RunFailed(f"{Path(command[0]).name} gave {process.returncode}: {words}")
    parsed: dict[str, Any] = json.loads(found)
    return parsed


def end(process: subprocess.Popen[str]) -> None:
    """End a run, first in a friendly way: the profiler should take its probes along."""
    for number, seconds in ((signal.SIGTERM, 20), (signal.SIGKILL, 60)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=seconds)
            break
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def fixed_steps(
    command: Sequence[str], seconds: float, environment: dict[str, str]
) -> tuple[list[str], dict[str, Any]]:
    """The command line of runs that all do the same, for about so long; and how the program did in a first one."""
    program = [str(BUILD / command[0]), *command[1:]]
    first = launch([*program, "--seconds", "1"], environment)
    assert first is not None
    units = max(round(seconds * 1e9 / first["mean_ns_per_unit"]), 3)
    work = ["--iterations", str(first["iterations"])] if first["iterations"] else []
    return [*program, *work, "--units", str(units), "--cold"], first


def parprof(*arguments: object) -> list[str]:
    """A ``parprof`` command."""
    return [sys.executable, "-m", "parprof", *map(str, arguments)]


def report(profile: Path, environment: dict[str, str]) -> dict[str, Any]:
    """What a profile says."""
    command = parprof("report", profile, "--json")
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RunFailed(f"parprof report: {(done.stderr.strip() or 'nothing said').splitlines()[-1]}")
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


@contextmanager
def daemon(directory: Path, frequency_hz: int, environment: dict[str, str]) -> Iterator[str]:
    """A parprofd at its defaults, which has settled; the address of its HTTP server."""
    log, config = directory / "daemon.log", directory / "parprofd.toml"
    socket = json.dumps(str(directory / "control.sock"))
    lines = ["[http]", 'listen = "127.0.0.1:0"', "[control]", f"socket = {socket}"]
    lines += ["[sampling]", f"frequency_hz = {frequency_hz}"] if frequency_hz != DEFAULT_HZ else []
    config.write_text("\n".join(lines) + "\n")
    with log.open("w") as output:
        command = [sys.executable, "-m", "parprof.service", "--config", str(config)]
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + START_S
        while ": sampling " not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RunFailed(f"parprofd does not sample: {log.read_text().strip()[-300:]}")
            time.sleep(0.1)
        time.sleep(SETTLE_S)
        yield re.findall(r"http at (\S+)", log.read_text())[-1]
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def scraped_cost(address: str, comm: str, costs: list[float]) -> None:
    """Add the daemon's cost figure of a process, in percent, if it has one by now."""
    with suppress(OSError), urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        found = re.findall(r"^parprofd_target_cost_ratio{(.*)} (\S+)$", answer.read().decode(), re.MULTILINE)
        costs.extend(100 * float(value) for labels, value in found if f'comm="{comm}"' in labels)


def steady_ns(windows: Sequence[int]) -> float:
    """The median window of the last two thirds."""
    return statistics.median(windows[len(windows) // 3 :])


@dataclass
class Ratios:
    """Of one profiler, pair by pair; infinite where a run took too long."""

    whole: list[float] = field(default_factory=list)
    steady: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def add(self, base: dict[str, Any], profiled: dict[str, Any] | None) -> None:
        """One more pair."""
        if profiled is None:
            for one in (self.whole, self.steady, self.cpu):
                one.append(math.inf)
            return
        self.whole.append(profiled["total_ns"] / base["total_ns"])
        self.steady.append(steady_ns(profiled["window_ns"]) / steady_ns(base["window_ns"]))
        self.cpu.append(profiled["cpu_ns"] / base["cpu_ns"])


class Measurement:
    """The pairs of one row at one rate."""

    def __init__(
        self, case: Row, frequency_hz: int, directory: Path, limit_s: float, with_perf: bool
    ) -> None:
        self.case, self.frequency_hz, self.limit_s = case, frequency_hz, limit_s
        self.ours, self.perf, self.costs = Ratios(), Ratios(), list[float]()
        self._directory, self._with_perf = directory, with_perf
        self._environment = case.environment()
        self._command, self._first = fixed_steps(case.command, case.seconds, self._environment)

    @property
    def rate(self) -> str:
        """What the program does in a second."""
        per_second = 1e9 / self._first["mean_ns_per_unit"]
        return f"{self._first.get('events_per_second', per_second):,.0f}"

    def pair(self) -> None:
        """One run of each kind."""
        base = launch(self._command, self._environment)
        assert base is not None
        profiled = self._by_daemon(base["total_ns"] / 1e9) if self.case.daemon else self._by_record()
        self.ours.add(base, profiled)
        if self._with_perf:
            self.perf.add(base, self._by_perf())

    def _by_record(self) -> dict[str, Any] | None:
        profile = self._directory / "profile.pb.gz"
        options = ["-q", "-F", self.frequency_hz, "-o", profile, *self.case.options]
        run = launch(parprof("record", *options, "--", *self._command), self._environment, self.limit_s)
        if run is not None:
            self.costs.append(report(profile, self._environment)["cost"]["target_percent"])
        return run

    def _by_daemon(self, usual_s: float) -> dict[str, Any] | None:
        with daemon(self._directory, self.frequency_hz, self._environment) as address:
            comm = Path(self._command[0]).name[:15]
            late = threading.Timer(0.9 * usual_s, scraped_cost, (address, comm, self.costs))
            late.start()
            try:
                return launch(self._command, self._environment, self.limit_s)
            finally:
                late.join()

    def _by_perf(self) -> dict[str, Any] | None:
        data = str(self._directory / "perf.data")
        options = ["-q", "-g", "-F", str(self.frequency_hz), "-o", data]
        return launch(["perf", "record", *options, "--", *self._command], self._environment, self.limit_s)

    def cells(self) -> list[str]:
        """A line of the table."""
        most = self.limit_s / self.case.seconds
        said = f"{statistics.median(self.costs):.2f}" if self.costs else "-"
        cpu = statistics.median(self.ours.cpu)
        measured = "-" if math.isinf(cpu) else f"{100 * (cpu - 1):.2f}"
        return [
            self.case.title, str(self.frequency_hz), self.rate,
            *(spread(ratios, most) for ratios in (self.ours.whole, self.ours.steady, self.ours.cpu)),
            *(spread(ratios, most) for ratios in (self.perf.whole, self.perf.steady)),
            f"{said} / {measured}",
        ]  # fmt: skip


def ratio(value: float, most: float) -> str:
    """With as many digits as mean something."""
    if math.isinf(value):
        return f">{most:.0f}"
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def spread(values: list[float], most: float) -> str:
    """Median, smallest and largest."""
    if not values:
        return "-"
    middle, low, high = (
        ratio(value, most) for value in (statistics.median(values), min(values), max(values))
    )
    return middle if len(values) == 1 else f"{middle} ({low}-{high})"


HEAD = [
    "program",
    "Hz",
    "a second",
    "whole",
    "steady",
    "CPU",
    "perf whole",
    "perf steady",
    "cost %: said / true",
]
WIDTHS = [36, 4, 11, 19, 19, 19, 19, 19, 19]


def line(cells: list[str], markdown: bool) -> str:
    """A line of the table, as text or Markdown."""
    if markdown:
        return f"| {' | '.join(cells)} |"
    left = f"{cells[0]:<{WIDTHS[0]}} {cells[1]:>{WIDTHS[1]}} {cells[2]:>{WIDTHS[2]}}"
    return "  ".join([left, *(f"{cell:<{width}}" for cell, width in zip(cells[3:], WIDTHS[3:], strict=True))])


def perf_works() -> bool:
    """Whether there is a perf, and it may sample."""
    if shutil.which("perf") is None:
        return False
    command = ["perf", "record", "-q", "-g", "-o", os.devnull, "--", "true"]
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose title or command matches")
    parser.add_argument("--hz", default="", help="default: 99,499; of the daemon: 99")
    parser.add_argument(
        "--limit", type=float, default=60.0, metavar="SECONDS", help="a run ends after so long"
    )
    parser.add_argument("--skip-perf", action="store_true")
    parser.add_argument("--md", action="store_true", help="print a Markdown table")
    return parser.parse_args()


def frequencies(case: Row, asked: str) -> list[int]:
    """Of a row, hertz."""
    return [int(one) for one in asked.split(",")] if asked else [DEFAULT_HZ, 499][: 1 if case.daemon else 2]


def main() -> None:
    args = options()
    with_perf = not args.skip_perf and perf_works()
    rule = [line(["---"] * len(HEAD), True)] if args.md else []
    print(describe(), "", line(HEAD, args.md), *rule, sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        for case in ROWS:
            if not re.search(args.only, f"{case.title} {' '.join(case.command)}"):
                continue
            for frequency_hz in frequencies(case, args.hz):
                try:
                    measurement = Measurement(case, frequency_hz, Path(directory), args.limit, with_perf)
                    for _ in range(args.pairs):
                        measurement.pair()
                except (RunFailed, OSError) as error:
                    print(f"{case.title} at {frequency_hz} Hz: {error}", file=sys.stderr, flush=True)
                    continue
                print(line(measurement.cells(), args.md), flush=True)


if __name__ == "__main__":
    main()
