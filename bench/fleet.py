#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long the dashboards' queries take over many machines: 100 daemons' metrics in one Prometheus.

    .venv/bin/python bench/fleet.py [--nodes 100] [--minutes 60] [--processes 30] [--page FILE | --url URL]

Takes what one daemon serves on /metrics (of ``--page`` or ``--url``; else starts one, with ``--processes`` programs to
watch, which needs root), makes of it as many machines as ``--nodes`` says, whose counters grow as the real ones did on
average, and writes their last ``--minutes``, a sample each ``--scrape`` seconds, and what the recording rules of
grafana/rules make of them, into a Prometheus of its own (``prometheus`` from PATH). Then each query of the dashboards
is asked as Grafana asks it over the last hour, or the ``--minutes`` if these are fewer: panels as ranges, tables at one
time, annotations. Prints the slowest, and ends with 1 if one takes longer than ``--limit`` seconds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "daemon")]

import yaml  # noqa: E402
from machine import describe  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

GRAFANA = ROOT / "grafana"
JOB = "parprofd"
ROUND_S = 1800.0
"""So much of all machines is written before what comes after: Prometheus takes nothing that is an hour older than the
newest."""
RULES_S = 60
REPEATS = 3
GROWTH_S = 7200.0
"""What counters had before the page's time, too, so that all of the history is growth."""


@dataclass(frozen=True)
class Series:
    """One of a page: labels without job and instance, and how it goes on."""

    labels: dict[str, str]
    value: float
    per_second: float

    def at(self, seconds: float, factor: float) -> float:
        """Its value so long after the page, on a machine where all goes so much faster."""
        return max(self.value + self.per_second * factor * (seconds + GROWTH_S), 0.0)


def series_of(page: str) -> list[Series]:
    """What a page has. Counters grow by what they grew since the daemon began; times go on, the rest stays."""
    samples = [
        (sample.name, sample.labels, sample.value, family.type)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]
    told = {name: value for name, labels, value, _ in samples if not labels}
    lived_s = max(
        told.get("parprofd_snapshot_timestamp_seconds", 0) - told.get("process_start_time_seconds", 0), 1.0
    )
    out = []
    for name, labels, value, kind in samples:
        grows = value / lived_s if kind == "counter" else 0.0
        if name == "parprofd_snapshot_timestamp_seconds":
            grows = 1.0
        out.append(Series({"__name__": name, **labels}, value, grows))
    return out


# Remote write: protobuf (prometheus.WriteRequest), packed as snappy packs what it cannot make smaller.


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes((number & 0x7F | 0x80,))
        number >>= 7
    return out + bytes((number,))


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def sample(at_s: float, value: float) -> bytes:
    return field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + varint(round(1000 * at_s)))


def labels_of(labels: dict[str, str]) -> bytes:
    return b"".join(
        field(1, field(1, name.encode()) + field(2, value.encode()))
        for name, value in sorted(labels.items())
        if value
    )


def snappy(data: bytes) -> bytes:
    """As one literal."""
    return varint(len(data)) + bytes((63 << 2,)) + struct.pack("<I", len(data) - 1) + data


def request_of(
    series: list[Series], instance: str, times_s: list[float], now_s: float, factor: float
) -> bytes:
    """One machine's samples of some times. ``now_s``: when the page was."""
    parts = []
    for one in series:
        labels = labels_of({**one.labels, "job": JOB, "instance": instance})
        samples = b"".join(sample(at_s, one.at(at_s - now_s, factor)) for at_s in times_s)
        parts.append(field(1, labels + samples))
    return snappy(b"".join(parts))


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Prometheus:
    """A server of our own, which scrapes nobody."""

    def __init__(self, directory: Path) -> None:
        self._directory, self.address = directory, free_address()
        (directory / "prometheus.yaml").write_text("scrape_configs: []\n")
        with (directory / "log").open("a") as log:
            self._process = subprocess.Popen(
                ["prometheus", f"--config.file={directory / 'prometheus.yaml'}",
                 f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={self.address}",
                 "--web.enable-remote-write-receiver", "--storage.tsdb.retention.time=30d",
                 "--query.max-samples=500000000"],
                stdout=log, stderr=log,
            )  # fmt: skip
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            with (
                suppress(OSError),
                urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5) as answer,
            ):
                if answer.status == 200:
                    return
            if self._process.poll() is not None:
                break
            time.sleep(0.2)
        sys.exit(f"prometheus does not become ready:\n{(self._directory / 'log').read_text()[-2000:]}")

    def write(self, body: bytes) -> None:
        headers = {
            "Content-Encoding": "snappy", "Content-Type": "application/x-protobuf",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }  # fmt: skip
        request = urllib.request.Request(f"http://{self.address}/api/v1/write", body, headers)
        try:
            urllib.request.urlopen(request, timeout=300).close()
        except urllib.error.HTTPError as error:
            sys.exit(f"prometheus refuses what is written: {error.read().decode()[:500]}")

    def get(self, path: str, **query: str) -> tuple[float, Any]:
        """How long an answer takes, and the answer."""
        url = f"http://{self.address}/api/v1/{path}"
        began = time.perf_counter()
        try:
            with urllib.request.urlopen(url, urllib.parse.urlencode(query).encode(), timeout=300) as answer:
                data = answer.read()
        except urllib.error.HTTPError as error:
            sys.exit(f"{query}: {error.read().decode()[:500]}")
        return time.perf_counter() - began, json.loads(data)["data"]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(120)


@contextmanager
def server(directory: Path) -> Iterator[Prometheus]:
    found = Prometheus(directory)
    try:
        yield found
    finally:
        found.stop()


def fill(prometheus: Prometheus, series: list[Series], args: argparse.Namespace, now_s: float) -> int:
    """Write all machines' history. Returns how many samples that are."""
    count, whole_s = 0, 60 * args.minutes
    times_s = [now_s - whole_s + args.scrape * step for step in range(int(whole_s / args.scrape) + 1)]
    round_size = max(int(ROUND_S / args.scrape), 1)
    for start in range(0, len(times_s), round_size):
        part = times_s[start : start + round_size]
        for node in range(args.nodes):
            body = request_of(series, f"node{node:03}:9466", part, now_s, 0.5 + node / args.nodes)
            prometheus.write(body)
            count += len(series) * len(part)
    return count


def add_rules(prometheus: Prometheus, start_s: float, end_s: float) -> int:
    """Write what the recording rules would have made of it, one after the other, as some need others."""
    groups = yaml.safe_load((GRAFANA / "rules/recording.yaml").read_text())["groups"]
    count = 0
    for rule in (rule for group in groups for rule in group["rules"]):
        _, found = prometheus.get(
            "query_range", query=rule["expr"], start=f"{start_s:.0f}", end=f"{end_s:.0f}", step=f"{RULES_S}"
        )
        parts = []
        for series in found["result"]:
            samples = b"".join(sample(at, float(value)) for at, value in series["values"])
            parts.append(field(1, labels_of({**series["metric"], "__name__": rule["record"]}) + samples))
            count += len(series["values"])
        if parts:
            prometheus.write(snappy(b"".join(parts)))
    return count


def queries(args: argparse.Namespace, series: list[Series]) -> Iterator[tuple[str, str, bool]]:
    """Dashboard and panel, PromQL with the variables filled in, and whether it is asked of a range."""
    process = next(one.labels for one in series if one.labels["__name__"] == "parprof_process_info")
    for file in sorted((GRAFANA / "dashboards").glob("*.json")):
        board = json.loads(file.read_text())
        one_machine = file.stem in ("node", "process")
        values = {
            "$__rate_interval": f"{max(round(4 * args.scrape), 60)}s", "$__range": "1h",
            "$instance": "node001:9466" if one_machine else ".*",
            "$comm": process["comm"] if file.stem == "process" else ".*", "$pid": process.get("pid", ""),
            "$namespace": ".*", "$unit": ".*", "$pod": ".*", "$container": ".*",
        }  # fmt: skip

        def filled(text: str, values: dict[str, str] = values) -> str:
            for name, value in values.items():
                text = text.replace(name, value)
            return text

        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield (
                    f"{file.stem}: {panel['title']} {target['refId']}",
                    filled(target["expr"]),
                    target["range"],
                )
        for annotation in board["annotations"]["list"]:
            yield f"{file.stem}: mark {annotation['name']}", filled(annotation["expr"]), True


def time_queries(
    prometheus: Prometheus, args: argparse.Namespace, series: list[Series], now_s: float
) -> list[tuple[float, float, int, str]]:
    """Seconds at first and at best, number of series in the answer, and which it is."""
    span_s = min(60 * args.minutes, 3600)
    out = []
    for name, expression, is_range in queries(args, series):
        asked = {"query": expression, "time": f"{now_s:.0f}"}
        if is_range:
            asked = {"query": expression, "start": f"{now_s - span_s:.0f}", "end": f"{now_s:.0f}",
                     "step": f"{max(args.scrape, span_s / 1000):.0f}"}  # fmt: skip
        took = []
        found: Any = None
        for _ in range(REPEATS):
            seconds, found = prometheus.get("query_range" if is_range else "query", **asked)
            took.append(seconds)
        out.append((took[0], min(took), len(found["result"]), name))
    return out


def page_of(args: argparse.Namespace) -> str:
    """What a daemon serves."""
    if args.page:
        return Path(args.page).read_text()
    if args.url:
        with urllib.request.urlopen(args.url, timeout=60) as answer:
            return str(answer.read().decode())
    import daemon

    with tempfile.TemporaryDirectory() as name:
        options = argparse.Namespace(
            port=19467, frequency=99, everything=False, processes=args.processes, threads=4, work_us=2000,
            period_us=500_000, churn=0, churn_work_us=0, full_disk=False,
        )  # fmt: skip
        process = daemon.start_daemon(options, Path(name))
        load = daemon.Load(options, Path(name), 600)
        try:
            time.sleep(args.warm_up)
            for _ in range(30):
                with urllib.request.urlopen(f"http://127.0.0.1:{options.port}/metrics", timeout=60) as answer:
                    page = str(answer.read().decode())
                if page.count("\nparprof_process_info{") >= args.processes:
                    break
                time.sleep(5)
            return page
        finally:
            load.stop()
            process.terminate()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60, help="of history")
    parser.add_argument("--scrape", type=float, default=15, metavar="SECONDS")
    parser.add_argument("--processes", type=int, default=30, help="of the daemon that is started")
    parser.add_argument(
        "--warm-up", type=float, default=40, metavar="SECONDS", help="before its page is taken"
    )
    parser.add_argument("--page", metavar="FILE", help="a page of metrics instead")
    parser.add_argument("--url", help="where to get one")
    parser.add_argument("--limit", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--show", type=int, default=15, help="so many of the slowest queries")
    args = parser.parse_args()
    if shutil.which("prometheus") is None:
        sys.exit("prometheus is not in PATH: apt install prometheus")
    print(describe())
    series = series_of(page_of(args))
    if not any(one.labels["__name__"] == "parprof_process_info" for one in series):
        sys.exit("that page has no process: is it a daemon's that watches some?")
    now_s = float(round(time.time()))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        began = time.monotonic()
        with server(directory) as prometheus:
            samples = fill(prometheus, series, args, now_s)
            print(
                f"{args.nodes} nodes x {len(series):,} series = {args.nodes * len(series):,}; {samples:,} samples,"
                f" written in {time.monotonic() - began:.0f} s"
            )
            add_rules(prometheus, now_s - 60 * args.minutes + RULES_S, now_s)
            times = time_queries(prometheus, args, series, now_s)
    empty = [name for _, _, count, name in times if not count]
    times.sort(reverse=True)
    print(f"{'first':>7} {'best':>7} {'series':>7} query")
    for first, best, count, name in times[: args.show]:
        print(f"{first:>6.3f}s {best:>6.3f}s {count:>7} {name}")
    late = [name for first, _, _, name in times if first > args.limit]
    middle = times[len(times) // 2][0]
    print(
        f"{len(times)} queries: {len(late)} take longer than {args.limit:g} s; the middle one {middle:.3f} s"
    )
    print(f"without data: {len(empty)}: {', '.join(sorted(empty)) or '-'}")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
