# SPDX-License-Identifier: Apache-2.0
"""What the daemon itself takes, while it watches many processes, and whether it loses or leaks anything.

    .venv/bin/python bench/daemon.py [--minutes 5] [--processes 200] [--threads 5] [--churn 1000]

Starts ``parprofd`` and the processes, and prints a line each minute: CPU time of the daemon and of its helpers as
a share of one core, resident memory, descriptors, threads, entries of its BPF maps, and what became of the samples.
With ``--churn`` so many more processes are started and ended each second. "due" is how many samples the CPU time of
all these processes stands for, since the start; each of them has to be charged, or counted as lost under a reason
(as are those of other new processes of the machine, before it is decided about them). At the end the
processes are stopped, and a last line shows what the daemon keeps. Metrics are scraped as Prometheus does. Needs root.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "daemon")]

from machine import describe  # noqa: E402

from parprof.kernel import bpf  # noqa: E402

PROGRAMS = ROOT / "bench/programs"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
GET_FD_BY_ID = 14
HASH_MAPS = {"processes": "p", "threads": "t", "configs": "c", "mapping_lists": "m", "verdicts": "v"}
"""Maps whose entries are counted, and the letter that stands for them in the table."""
SETTLE_SECONDS = 20.0
"""From the end of the processes to the last line: two charges, and a second for stragglers."""


def cpu_s(pid: int, children: bool = False) -> float:
    """CPU time of a process; with ``children`` also of those that it has waited for."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11 : 15 if children else 13])) * TICK_S
    return 0.0


def descendants(pid: int) -> list[int]:
    """Children of a process, and theirs."""
    out: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                out += [child, *descendants(child)]
    return out


def status(pid: int, key: str) -> int:
    """A number of ``/proc/PID/status``."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{key}:\s*(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def map_entries(pid: int) -> dict[str, int]:
    """Number of entries of the daemon's BPF hash maps, by name."""
    out = {}
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        with suppress(OSError):
            facts = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
            if "map_id" not in facts:
                continue
            fd = bpf._bpf(GET_FD_BY_ID, struct.pack("<III", int(facts["map_id"]), 0, 0))[0]
            try:
                name = map_name(fd)
                if name in HASH_MAPS:
                    sizes = int(facts["key_size"]), int(facts["value_size"])
                    out[name] = sum(1 for _ in bpf.map_read_all(fd, *sizes))
            finally:
                os.close(fd)
    return out


def map_name(fd: int) -> str:
    """The name of a BPF map, of which the kernel keeps 15 characters."""
    import ctypes

    info = ctypes.create_string_buffer(80)
    bpf._bpf(bpf.OBJ_GET_INFO_BY_FD, struct.pack("<IIQ", fd, len(info), ctypes.addressof(info)))
    return info.raw[24:40].partition(b"\0")[0].decode()


def scrape(port: int) -> dict[str, float]:
    """The daemon's own counters, by series."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith(("parprofd_", "parprof_node"))
    }


class Load:
    """The processes that are watched."""

    def __init__(self, args: argparse.Namespace, build: Path, seconds: float) -> None:
        for name in ("many_threads", "churn"):
            command = ["gcc", "-O2", "-g", "-pthread", str(PROGRAMS / f"{name}.c"), "-o", str(build / name)]
            subprocess.run(command, check=True)
        work = [str(args.threads), str(args.work_us), str(args.period_us), str(seconds)]
        self.steady = [subprocess.Popen([build / "many_threads", *work]) for _ in range(args.processes)]
        self.churn: subprocess.Popen[bytes] | None = None
        if args.churn:
            command = [str(build / "churn"), str(args.churn), str(args.churn_work_us), str(seconds)]
            self.churn = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._last = 0.0

    def cpu_s(self) -> float:
        """CPU time of all of them so far."""
        now = sum(cpu_s(one.pid) for one in self.steady)
        now += cpu_s(self.churn.pid, children=True) if self.churn else 0.0
        self._last = max(self._last, now)
        return self._last

    def stop(self) -> str:
        """End them; what the churn says of itself."""
        for one in self.steady:
            one.terminate()
        for one in self.steady:
            one.wait()
        if self.churn is None:
            return ""
        self.churn.terminate()
        said = self.churn.communicate()[0]
        self.churn = None
        return said.decode().strip()


class Table:
    """A line for each minute."""

    def __init__(self, daemon: int, load: Load, port: int, frequency_hz: int) -> None:
        self._daemon, self._load, self._port, self._frequency_hz = daemon, load, port, frequency_hz
        self._cpu = (time.monotonic(), cpu_s(daemon), self._helpers())
        self.worst_cpu = self.worst_rss = 0.0

    def _helpers(self) -> float:
        return (
            cpu_s(self._daemon, children=True)
            - cpu_s(self._daemon)
            + sum(map(cpu_s, descendants(self._daemon)))
        )

    def _samples(self) -> tuple[float, Counter[str]]:
        series = scrape(self._port)
        lost: Counter[str] = Counter()
        for name, value in series.items():
            if found := re.fullmatch(r'parprofd_lost_total{reason="(.*)"}', name):
                lost[found[1]] = int(value)
        return series["parprofd_samples_total"], lost

    def head(self) -> str:
        return (
            f"{'minute':>6} {'CPU %':>6} {'helpers':>7} {'RSS MB':>6} {'fds':>4} {'threads':>7} "
            f"{'due':>8} {'charged':>8} {'lost':<24} BPF entries"
        )

    def line(self, minute: float) -> str:
        before_s, before_cpu, before_helpers = self._cpu
        self._cpu = now_s, cpu, helpers = time.monotonic(), cpu_s(self._daemon), self._helpers()
        seconds = now_s - before_s
        share = 100 * (cpu - before_cpu) / seconds
        rss_mb = status(self._daemon, "VmRSS") / 1024
        self.worst_cpu, self.worst_rss = max(self.worst_cpu, share), max(self.worst_rss, rss_mb)
        charged, lost = self._samples()
        due = self._load.cpu_s() * self._frequency_hz
        words = " ".join(f"{reason} {count}" for reason, count in lost.items() if count) or "-"
        entries = map_entries(self._daemon)
        maps = " ".join(f"{letter}{entries.get(name, 0)}" for name, letter in HASH_MAPS.items())
        fds = len(os.listdir(f"/proc/{self._daemon}/fd"))
        return (
            f"{minute:>6.1f} {share:>6.2f} {100 * max(helpers - before_helpers, 0) / seconds:>7.2f} {rss_mb:>6.1f} "
            f"{fds:>4} {status(self._daemon, 'Threads'):>7} {due:>8.0f} {charged:>8.0f} "
            f"{words:<24} {maps}"
        )


def ticks(seconds: float, every: float, port: int, scrape_s: float) -> Iterator[float]:
    """Sleep, scrape now and then, and yield the minutes so far whenever a line is due."""
    start = time.monotonic()
    next_scrape, next_line = start + scrape_s, start + every
    while next_line <= start + seconds + 1e-6:
        time.sleep(max(min(next_scrape if scrape_s else next_line, next_line) - time.monotonic(), 0))
        now = time.monotonic()
        if scrape_s and now >= next_scrape:
            next_scrape += scrape_s
            scrape(port)
        if now >= next_line:
            next_line += every
            yield (now - start) / 60


def start_daemon(args: argparse.Namespace, directory: Path) -> subprocess.Popen[bytes]:
    """``parprofd``, which is to watch these programs alone."""
    command = [
        sys.executable, "-m", "parprof.service", "--control-socket", str(directory / "control.sock"),
        "--http-listen", f"127.0.0.1:{args.port}", "--sampling-frequency-hz", str(args.frequency),
        "--log-level", "warning",
    ]  # fmt: skip
    if not args.everything:
        command += ["--select-mode", "listed", "--select-allow-comm", "many_threads,churn"]
    daemon = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT / "daemon")})
    for _ in range(600):
        time.sleep(0.2)
        if daemon.poll() is not None:
            sys.exit("parprofd ended")
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{args.port}/readyz", timeout=5) as answer,
        ):
            if answer.status == 200:
                return daemon
    sys.exit("parprofd does not become ready")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--every", type=float, default=60, metavar="SECONDS", help="a line so often")
    parser.add_argument("--processes", type=int, default=200)
    parser.add_argument("--threads", type=int, default=5)
    parser.add_argument("--work-us", type=int, default=1000, help="CPU time of each thread in a period")
    parser.add_argument("--period-us", type=int, default=1_000_000)
    parser.add_argument("--churn", type=float, default=0, metavar="RATE", help="processes started a second")
    parser.add_argument("--churn-work-us", type=int, default=100)
    parser.add_argument("--frequency", type=int, default=99)
    parser.add_argument("--scrape", type=float, default=15, metavar="SECONDS", help="0: only for the table")
    parser.add_argument("--port", type=int, default=19466)
    parser.add_argument("--warm-up", type=float, default=30, metavar="SECONDS", help="before the first line")
    parser.add_argument("--everything", action="store_true", help="watch all processes of the machine")
    args = parser.parse_args()
    print(describe())
    seconds = 60 * args.minutes
    with tempfile.TemporaryDirectory() as name:
        daemon = start_daemon(args, Path(name))
        load = Load(args, Path(name), args.warm_up + seconds + 3600)
        try:
            time.sleep(args.warm_up)
            table = Table(daemon.pid, load, args.port, args.frequency)
            print(table.head())
            for minute in ticks(seconds, args.every, args.port, args.scrape):
                print(table.line(minute), flush=True)
            said = load.stop()
            time.sleep(SETTLE_SECONDS)
            print(table.line(args.minutes), " after the end of all")
            print(f"worst: {table.worst_cpu:.2f} % of a core, {table.worst_rss:.1f} MB resident {said}")
        finally:
            load.stop()
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()


if __name__ == "__main__":
    main()
