# SPDX-License-Identifier: Apache-2.0
"""What the daemon itself takes, while it watches many processes, and whether it loses or leaks anything.

    .venv/bin/python bench/daemon.py [--minutes 5] [--processes 200] [--threads 5] [--churn 1000]
        [--attach 20] [--reload 30] [--full-disk] [--ring-mb 1]
        [--python 2]

Starts ``parprofd`` and the processes, and prints a line each minute: CPU time of the daemon and of its helpers as
a share of one core, resident memory of both, descriptors, threads, entries of its BPF maps, and what became of the
samples. With ``--churn`` so many more processes are started and ended each second; with ``--attach`` every so many
seconds one of them is attached to through the daemon, with ``--reload`` the configuration is changed and read again;
with ``--full-disk`` its cache and what it would push are on a file system that is full during the third quarter. The
last columns of a line count these since the start. "kept" is what the profiles of the last minutes take, in MB, up to
16 or ``--ring-mb``: that alone may grow. With ``--python`` there are so many services in Python beside these, of
which nearly each sample has a stack that nobody has seen, and interpreters that live for a second or two, one after
the other. A soak: ``--minutes 120 --churn 100 --python 2 --attach 20 --reload 30 --full-disk``. "due" is how many
samples the CPU time of all these processes stands for, since the start; each of them has to be charged, or counted as
lost under a reason (as are those of other new processes of the machine, before it is decided about them). At the end
the processes are stopped, and a last line shows what the daemon keeps, and whether memory grew from the second to the
last quarter. Metrics are scraped as Prometheus does. Needs root.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "daemon")]

from machine import describe  # noqa: E402

from parprof.kernel import bpf  # noqa: E402
from parprof.service.config.text import toml_value  # noqa: E402

PROGRAMS = ROOT / "bench/programs"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "daemon")}
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
GET_FD_BY_ID = 14
HASH_MAPS = {"processes": "p", "threads": "t", "configs": "c", "mapping_lists": "m", "verdicts": "v"}
"""Maps whose entries are counted, and the letter that stands for them in the table."""
PYTHON = "bench_python"
"""The name of interpreters of this bench's own."""
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


class Interpreters:
    """Python programs: services, and what lives for a moment, one after the other."""

    def __init__(self, build: Path) -> None:
        self._python = build / PYTHON
        self._python.symlink_to("/usr/bin/python3")
        self._end, self._ended_cpu_s = threading.Event(), 0.0
        self._now: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def start(self, share: float, seconds: float) -> subprocess.Popen[bytes]:
        """One that works for a share of the time, and for so many seconds of CPU time."""
        command = [self._python, "-E", "-S", PROGRAMS / "ever_new.py", str(share), str(seconds)]
        return subprocess.Popen([str(word) for word in command])

    def cpu_s(self) -> float:
        """CPU time of those that live for a moment."""
        now = self._now
        return self._ended_cpu_s + (cpu_s(now.pid) if now else 0.0)

    def stop(self) -> None:
        self._end.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._end.is_set():
            self._now = self.start(0.3, 0.5)
            used_s = 0.0
            while self._now.poll() is None:
                used_s = max(cpu_s(self._now.pid), used_s)
                self._end.wait(0.05)
                if self._end.is_set():
                    self._now.terminate()
            self._now, self._ended_cpu_s = None, self._ended_cpu_s + used_s


class Load:
    """The processes that are watched."""

    def __init__(self, args: argparse.Namespace, build: Path, seconds: float) -> None:
        for name in ("many_threads", "churn"):
            command = ["gcc", "-O2", "-g", "-pthread", str(PROGRAMS / f"{name}.c"), "-o", str(build / name)]
            subprocess.run(command, check=True)
        work = [str(args.threads), str(args.work_us), str(args.period_us), str(seconds)]
        self.steady = [subprocess.Popen([build / "many_threads", *work]) for _ in range(args.processes)]
        self._interpreters = Interpreters(build) if args.python else None
        if self._interpreters:
            self.steady += [self._interpreters.start(0.1, seconds) for _ in range(args.python)]
        self.churn: subprocess.Popen[bytes] | None = None
        if args.churn:
            command = [str(build / "churn"), str(args.churn), str(args.churn_work_us), str(seconds)]
            self.churn = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._last = 0.0

    def cpu_s(self) -> float:
        """CPU time of all of them so far."""
        now = sum(cpu_s(one.pid) for one in self.steady)
        now += cpu_s(self.churn.pid, children=True) if self.churn else 0.0
        now += self._interpreters.cpu_s() if self._interpreters else 0.0
        self._last = max(self._last, now)
        return self._last

    def stop(self) -> str:
        """End them; what the churn says of itself."""
        if self._interpreters:
            self._interpreters.stop()
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


class Disturbances:
    """What happens to the daemon meanwhile, on a thread of its own, and how that went."""

    def __init__(self, args: argparse.Namespace, directory: Path, daemon: int, load: Load) -> None:
        self._args, self._directory, self._daemon, self._load = args, directory, daemon, load
        self._end = threading.Event()
        self.attached = self.refused = self.reloads = 0
        self.attach_s = 0.0
        self.problem = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def words(self) -> str:
        """For the table."""
        out = []
        if self._args.attach:
            mean_s = self.attach_s / self.attached if self.attached else 0.0
            out.append(f"attached {self.attached} ({mean_s:.1f} s each), refused {self.refused}")
        if self._args.reload:
            out.append(f"reloaded {reloads_in(self._directory)} of {self.reloads}")
        if self._args.full_disk:
            out.append("disk full" if (disk_of(self._directory) / "rest").exists() else "disk free")
        return ", ".join(out) + (f"; {self.problem}" if self.problem else "")

    def stop(self) -> None:
        self._end.set()
        self._thread.join(60)

    def _run(self) -> None:
        start = time.monotonic()
        attach_s, reload_s = self._args.attach or math.inf, self._args.reload or math.inf
        next_attach, next_reload = start + attach_s, start + reload_s
        quarter_s = 15 * self._args.minutes
        while not self._end.wait(0.2):
            now = time.monotonic()
            if now >= next_attach:
                next_attach = now + attach_s
                self._attach()
            if now >= next_reload:
                next_reload = now + reload_s
                self.reloads += 1
                write_configuration(self._args, self._directory, extra=self.reloads % 2)
                os.kill(self._daemon, signal.SIGHUP)
            if self._args.full_disk:
                since_s = now - start - self._args.warm_up
                fill_disk(self._directory, 2 * quarter_s <= since_s < 3 * quarter_s)

    def _attach(self) -> None:
        target = self._load.steady[(self.attached + self.refused) % len(self._load.steady)]
        command = [
            sys.executable, "-m", "parprof", "attach", str(target.pid), "-d", "2", "-q", "--no-report",
            "-o", str(self._directory / "attach.pb.gz"), "--socket", str(self._directory / "control.sock"),
        ]  # fmt: skip
        began = time.monotonic()
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
        if done.returncode:
            self.refused += 1
            self.problem = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "attach failed"
        else:
            self.attached += 1
            self.attach_s += time.monotonic() - began


def reloads_in(directory: Path) -> int:
    """How many the daemon's log tells of."""
    return (directory / "log").read_text().count(": reloaded: ")


def complaints(directory: Path) -> str:
    """What its log warns of: each kind of line once, with how often."""
    lines = [
        line
        for line in (directory / "log").read_text().splitlines()
        if re.search("warn|error|Trace", line, re.I)
    ]
    kinds = Counter(re.sub(r"\d+", "N", line.partition(": ")[2] or line)[:150] for line in lines)
    said = "".join(f"\n  {count} x {kind}" for kind, count in kinds.most_common(10))
    return f"its log warns {len(lines)} times{said}"


def disk_of(directory: Path) -> Path:
    """The small file system."""
    return directory / "disk"


def fill_disk(directory: Path, wanted: bool) -> None:
    """Take all that is left of it, or give that back."""
    rest = disk_of(directory) / "rest"
    if not wanted:
        rest.unlink(missing_ok=True)
        return
    with suppress(OSError), rest.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))


class Table:
    """A line for each minute."""

    def __init__(
        self, daemon: int, load: Load, port: int, frequency_hz: int, disturbances: Disturbances
    ) -> None:
        self._disturbances = disturbances
        self.memory_mb: list[float] = []
        self.beside_profiles_mb: list[float] = []
        self._daemon, self._load, self._port, self._frequency_hz = daemon, load, port, frequency_hz
        self._cpu = (time.monotonic(), cpu_s(daemon), self._helpers())
        self.worst_cpu = self.worst_rss = 0.0

    def _helpers(self) -> float:
        return (
            cpu_s(self._daemon, children=True)
            - cpu_s(self._daemon)
            + sum(map(cpu_s, descendants(self._daemon)))
        )

    @staticmethod
    def _samples(series: Mapping[str, float]) -> tuple[float, Counter[str]]:
        lost: Counter[str] = Counter()
        for name, value in series.items():
            if found := re.fullmatch(r'parprofd_lost_total{reason="(.*)"}', name):
                lost[found[1]] = int(value)
        return series["parprofd_samples_total"], lost

    def head(self) -> str:
        return (
            f"{'minute':>6} {'CPU %':>6} {'helpers':>7} {'RSS MB':>6} {'kept':>5} {'helpers':>7} {'fds':>4} "
            f"{'threads':>7} {'due':>8} {'charged':>8} {'lost':<24} BPF entries"
        )

    def line(self, minute: float) -> str:
        before_s, before_cpu, before_helpers = self._cpu
        self._cpu = now_s, cpu, helpers = time.monotonic(), cpu_s(self._daemon), self._helpers()
        seconds = now_s - before_s
        share = 100 * (cpu - before_cpu) / seconds
        rss_mb = status(self._daemon, "VmRSS") / 1024
        helpers_mb = 0.0
        for child in descendants(self._daemon):
            with suppress(OSError):
                helpers_mb += status(child, "VmRSS") / 1024
        self.memory_mb.append(rss_mb)
        self.worst_cpu, self.worst_rss = max(self.worst_cpu, share), max(self.worst_rss, rss_mb)
        series = scrape(self._port)
        kept_mb = series["parprofd_profiles_bytes"] / (1 << 20)
        self.beside_profiles_mb.append(rss_mb - kept_mb)
        charged, lost = self._samples(series)
        due = self._load.cpu_s() * self._frequency_hz
        words = " ".join(f"{reason} {count}" for reason, count in lost.items() if count) or "-"
        entries = map_entries(self._daemon)
        maps = " ".join(f"{letter}{entries.get(name, 0)}" for name, letter in HASH_MAPS.items())
        fds = len(os.listdir(f"/proc/{self._daemon}/fd"))
        return (
            f"{minute:>6.1f} {share:>6.2f} {100 * max(helpers - before_helpers, 0) / seconds:>7.2f} {rss_mb:>6.1f} "
            f"{kept_mb:>5.1f} {helpers_mb:>7.1f} {fds:>4} {status(self._daemon, 'Threads'):>7} "
            f"{due:>8.0f} {charged:>8.0f} {words:<24} {maps} {self._disturbances.words}"
        )

    def growth(self) -> str:
        """Resident memory in the second and in the last quarter of the lines, its mean."""
        quarter = len(self.memory_mb) // 4
        if not quarter:
            return "too few lines to tell whether memory grows"
        words = []
        for name, values in (
            ("resident", self.memory_mb),
            ("beside the profiles kept", self.beside_profiles_mb),
        ):
            second, last = sum(values[quarter : 2 * quarter]) / quarter, sum(values[-quarter:]) / quarter
            words.append(
                f"{name} {second:.1f} MB in the second quarter, {last:.1f} in the last ({last - second:+.1f})"
            )
        return "; ".join(words)


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
    write_configuration(args, directory)
    environment = dict(ENVIRONMENT)
    if args.full_disk:
        disk = disk_of(directory)
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "parprof-bench", disk], check=True)
        environment["PARPROF_CACHE"] = str(disk / "cache")
    command = [sys.executable, "-m", "parprof.service", "--config", str(directory / "parprofd.toml")]
    with (directory / "log").open("w") as log:
        daemon = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    for _ in range(600):
        time.sleep(0.2)
        if daemon.poll() is not None:
            sys.exit(f"parprofd ended: {(directory / 'log').read_text()[-1000:]}")
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{args.port}/readyz", timeout=5) as answer,
        ):
            if answer.status == 200:
                return daemon
    sys.exit("parprofd does not become ready")


def write_configuration(args: argparse.Namespace, directory: Path, extra: int = 0) -> None:
    """The daemon's; with ``extra`` one that is as good, but not the same."""
    tables: dict[str, dict[str, Any]] = {
        "control": {"socket": str(directory / "control.sock")},
        "http": {"listen": f"127.0.0.1:{args.port}"},
        "sampling": {"frequency_hz": args.frequency},
    }
    denied = ["bench-denied"] if extra else []
    if not args.everything:
        tables["select"] = {"mode": "listed"}
        tables["select.allow"] = {"comm": ["many_threads", "churn", PYTHON]}
    tables["select.deny"] = {"comm": denied}
    if args.ring_mb:
        tables["profiles"] = {"ring_bytes": args.ring_mb << 20}
    if args.full_disk:
        tables["push"] = {"spool": str(disk_of(directory) / "push"), "interval_s": 10}
        tables["push.pyroscope"] = {"url": "http://127.0.0.1:9"}  # where nobody listens
    lines: list[str] = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {toml_value(value)}" for key, value in table.items())]
    (directory / "parprofd.toml").write_text("\n".join(lines) + "\n")


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
    parser.add_argument("--python", type=int, default=0, metavar="SERVICES", help="programs in Python, too")
    parser.add_argument("--churn-work-us", type=int, default=100)
    parser.add_argument("--frequency", type=int, default=99)
    parser.add_argument("--scrape", type=float, default=15, metavar="SECONDS", help="0: only for the table")
    parser.add_argument(
        "--ring-mb", type=int, default=0, help="memory for recent profiles: 1 fills in minutes"
    )
    parser.add_argument("--port", type=int, default=19466)
    parser.add_argument("--warm-up", type=float, default=30, metavar="SECONDS", help="before the first line")
    parser.add_argument("--everything", action="store_true", help="watch all processes of the machine")
    parser.add_argument("--attach", type=float, default=0, metavar="SECONDS", help="attach for 2 s so often")
    parser.add_argument(
        "--reload", type=float, default=0, metavar="SECONDS", help="change its configuration so often"
    )
    parser.add_argument("--full-disk", action="store_true", help="of cache and push, in the third quarter")
    args = parser.parse_args()
    print(describe())
    seconds = 60 * args.minutes
    with tempfile.TemporaryDirectory() as name:
        daemon = start_daemon(args, Path(name))
        load = Load(args, Path(name), args.warm_up + seconds + 3600)
        disturbances = Disturbances(args, Path(name), daemon.pid, load)
        try:
            time.sleep(args.warm_up)
            table = Table(daemon.pid, load, args.port, args.frequency, disturbances)
            print(table.head())
            for minute in ticks(seconds, args.every, args.port, args.scrape):
                print(table.line(minute), flush=True)
            print(table.growth())
            disturbances.stop()
            said = load.stop()
            time.sleep(SETTLE_SECONDS)
            print(table.line(args.minutes), " after the end of all")
            print(f"worst: {table.worst_cpu:.2f} % of a core, {table.worst_rss:.1f} MB resident {said}")
            print(complaints(Path(name)))
        finally:
            disturbances.stop()
            load.stop()
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()
            if args.full_disk:
                subprocess.run(["umount", disk_of(Path(name))], check=True)


if __name__ == "__main__":
    main()
