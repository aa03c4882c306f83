# SPDX-License-Identifier: Apache-2.0
"""A real parprofd watches real programs; what it serves is held against what they did. Needs root."""

from __future__ import annotations

import ctypes
import gzip
import io
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

import daemon_process as dp
from daemon_process import DaemonProcess
from parprof import pprof_pb2
from parprof.exporters import pprof, pprof_reader
from parprof.metrics import IDLENESS, STALL, WAIT, WORK
from parprof.model import Profile
from parprof.service.losses import LOST_MEANWHILE
from parprof.service.push import pyroscope_pb2
from profiling import cpu_seconds
from push_server import serving
from reports import report_of
from truth import Truth

pytestmark = [pytest.mark.beside, pytest.mark.skipif(os.geteuid() != 0, reason="needs root and real BPF")]

STAMP = "parprofd_snapshot_timestamp_seconds"
OF_PROCESS = (
    "parprof_work_seconds_total", "parprof_idleness_seconds_total", "parprof_overhead_seconds_total",
    "parprof_spin_seconds_total", "parprof_cores", "parprof_parallel_efficiency_ratio",
)  # fmt: skip
OF_DAEMON = (
    "parprofd_samples_total", "parprofd_probe_hits_total", "parprofd_target_cost_ratio", "parprofd_processes",
    "parprofd_drain_seconds", "parprofd_build_info", "process_resident_memory_bytes", "process_cpu_seconds_total",
)  # fmt: skip


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with dp.running(tmp_path_factory.mktemp("parprofd")) as running:
        yield running


@pytest.fixture(scope="module")
def spinner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dp.build(tmp_path_factory.mktemp("bin"), "spinner")


def between(truth: Truth, start_ns: int, end_ns: int) -> Truth:
    """What was true from then until then."""
    cut = []
    for one in truth.intervals:
        enter_ns, exit_ns = max(one.enter_ns, start_ns), min(one.exit_ns, end_ns)
        if enter_ns < exit_ns:
            share = (exit_ns - enter_ns) / one.wall_ns
            cut.append(replace(one, enter_ns=enter_ns, exit_ns=exit_ns, cpu_ns=round(one.cpu_ns * share)))
    return Truth(cut)


@pytest.mark.alone
def test_an_openmp_program_is_found_and_measured(daemon: DaemonProcess, tmp_path: Path) -> None:
    with dp.openmp(tmp_path, "omp") as target:
        pid = target.pid
        first = daemon.page_when("the program", lambda page: page.info(pid).get("n_w_source") == "exact")
        info = first.info(pid)
        assert (info["comm"], info["runtime"], info["uid"]) == (f"{dp.PREFIX}omp", "libgomp", "0")
        first = daemon.fresh()  # the interval in which the probes came is over
        start_s = first.value(STAMP)
        last = daemon.page_when("three seconds more", lambda page: page.value(STAMP) >= start_s + 3)
        assert target.poll() is None
        target.terminate()
        assert target.wait(dp.WAIT_S) == 0, "the program came to harm"
    for name in OF_PROCESS:
        (labels, _), *more = last.of(name, pid=str(pid))
        assert not more and labels.keys() == {"comm", "pid", "cgroup", "runtime"}
    for name in OF_DAEMON:
        assert last.of(name), name
    states = {labels["state"]: value for labels, value in last.of("parprof_threads", pid=str(pid))}
    assert states.keys() == {"working", "spinning", "blocked"} and sum(states.values()) == 2
    cores = last.value("parprof_cores", pid=str(pid))
    assert cores == min(2, len(os.sched_getaffinity(0)))

    def grown(kind: str) -> float:
        name = f"parprof_{kind}_seconds_total"
        return last.value(name, pid=str(pid)) - first.value(name, pid=str(pid))

    offset_ns = time.time_ns() - time.monotonic_ns()
    start_ns, end_ns = (round(page.value(STAMP) * 1e9) - offset_ns for page in (first, last))
    expected = between(Truth.read(tmp_path / "omp.truth"), start_ns, end_ns).expected(2).values()
    work_s, idle_s = (sum(column) / 1e9 for column in zip(*expected, strict=True))
    assert grown("work") == pytest.approx(work_s, rel=0.15)
    assert 0 < grown("idleness") <= grown("work") * (cores - 1)
    assert grown("work") + grown("idleness") <= 1.1 * cores * (end_ns - start_ns) / 1e9
    efficiency = (grown("work") - grown("overhead")) / (grown("work") + grown("idleness"))
    assert efficiency == pytest.approx(work_s / (work_s + idle_s), abs=0.07)
    functions = sum(
        value for _, value in last.of("parprof_function_work_seconds_total", pid=str(pid), function="burn")
    )
    assert functions > 0.5 * last.value("parprof_work_seconds_total", pid=str(pid))
    assert last.value("parprofd_probe_hits_total", runtime="libgomp") > 0


@pytest.mark.skipif(shutil.which("go") is None, reason="needs go tool pprof: apt install golang-go")
def test_its_profiles_open_in_go_tool_pprof(daemon: DaemonProcess, tmp_path: Path) -> None:
    with dp.openmp(tmp_path, "ompgo") as target:
        daemon.sampled(target.pid, 1.0)
        status, body = daemon.get(f"/profiles/{target.pid}.pb.gz?seconds=30")
        assert status == 200
        assert target.pid in {entry["pid"] for entry in json.loads(daemon.get("/profiles")[1])["profiles"]}
    file = tmp_path / "out.pb.gz"
    file.write_bytes(body)
    done = subprocess.run(
        ["go", "tool", "pprof", "-top", "-cum", "-sample_index=idleness", str(file)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "skewed_long" in done.stdout and "burn" in done.stdout


def read(file: Path) -> Profile:
    return pprof_reader.read_from(io.BytesIO(file.read_bytes()))


def frequency_of(file: Path) -> float:
    done = dp.parprof("report", file, "--json")
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout)["frequency_hz"])


def loops_of(file: Path, least_share: float) -> set[str]:
    """The loops of a profile that have this share of its samples."""
    counts: Counter[str] = Counter()
    for sample in pprof.read(file).samples:
        for name in ["", *{frame.name for frame in sample.path if frame.is_loop}]:
            counts[name] += sample.metrics.samples
    whole = counts.pop("")
    return {name for name, count in counts.items() if count >= least_share * whole}


def sections_of(report: str) -> set[str]:
    """What a report has, by the beginnings of its lines, and its columns."""
    heads = {line.partition(":")[0] for line in report.splitlines() if re.match(r"[a-z ]+: ", line)}
    columns = next(line for line in report.splitlines() if line.split()[:2] == ["idle", "idle"])
    return heads | set(columns.split())


def stall_share(report: dict[str, Any]) -> float:
    """Of all core time."""
    account = report["totals"]
    return float(account["stall_s"] / (report["process"]["cores"] * report["elapsed_s"]))


WAYS = ("through", "alone")
"""To attach: through a daemon, and without it."""


def profile_of(way: str, folder: Path) -> Path:
    """Where `both_ways` leaves it."""
    return folder / f"{way}.pb.gz"


def both_ways(daemon: DaemonProcess, pid: int, seconds: float, folder: Path) -> str:
    """Attach in both of `WAYS` at the same time: what is said then."""
    sockets = {"through": daemon.socket, "alone": folder / "nobody.sock"}

    def attach(way: str) -> str:
        command = ("attach", pid, "-d", seconds, "-o", profile_of(way, folder))
        done = dp.parprof(*command, PARPROF_SOCKET=str(sockets[way]))
        assert done.returncode == 0, done.stderr
        return done.stderr

    with ThreadPoolExecutor(len(WAYS)) as pool:
        return "".join(pool.map(attach, WAYS))


@pytest.mark.alone
def test_attach_through_the_daemon_has_loops(daemon: DaemonProcess, tmp_path: Path) -> None:
    """The same as without it, and the same sections and columns, those of calls among them."""
    told, stall = {}, {}
    with dp.openmp(tmp_path, "omploop", "serial,critical") as target:
        daemon.sampled(target.pid)
        both_ways(daemon, target.pid, 3, tmp_path)
    for way in WAYS:
        out = profile_of(way, tmp_path)
        told[way] = sections_of(dp.parprof("report", out, "-v").stdout)
        stall[way] = stall_share(report_of(out))
    through, alone = (profile_of(way, tmp_path) for way in WAYS)
    found = loops_of(through, 0.02)
    assert {"loop at phases.h:126-128", "loop at omp_truth.c:74-77", "loop at truth.h:93-106"} <= found
    assert found <= loops_of(alone, 0.005) and loops_of(alone, 0.05) <= found
    sections = {"process", "sampled", "effort", "lost", "cost", "samples", "verdict", "wait", "accounted"}
    assert sections <= told["through"]
    # what is below a thousandth of all core time is told or not, as it happens: see `_NEGLIGIBLE`
    assert stall["through"] == pytest.approx(stall["alone"], abs=0.005)
    assert {"calls", "ms/call"} <= told["alone"] <= told["through"] | {"stall"}


def test_attach_through_the_daemon_tells_what_was_when_and_in_which_thread(tmp_path: Path) -> None:
    """However long the daemon's own intervals are; and what the cost was for. Others have theirs as usual."""
    out, tables = tmp_path / "out.pb.gz", {"profiles": {"interval_seconds": 60}}
    with (
        dp.running(tmp_path / "parprofd", tables) as daemon,
        dp.openmp(tmp_path, "ompwhen") as target,
        dp.openmp(tmp_path, "ompother") as other,
    ):
        daemon.wait("they are watched", lambda: {target.pid, other.pid} <= daemon.page().pids())
        done = daemon.parprof("attach", target.pid, "-d", "8", "-o", out)
        assert done.returncode == 0, done.stderr
        threads = {int(task.name) for task in Path(f"/proc/{target.pid}/task").iterdir()}
        status, body = daemon.get(f"/profiles/{other.pid}.pb.gz?seconds=600")
        assert status == 200
    profile = pprof.read(out)
    assert {row.origin.tid for row in profile.samples if row.metrics.samples} == threads
    assert len(threads) == 2 < len(profile.intervals) and "than" in done.stderr
    assert sum(one.end_s - one.begin_s for one in profile.intervals) == pytest.approx(
        profile.duration_s, rel=0.02
    )
    for at, row in enumerate(profile.samples):
        parts = [part.rows[at] for part in profile.intervals if at in part.rows]
        for metric in (WORK, IDLENESS, STALL, WAIT):
            whole = sum(part[metric] for part in parts)
            assert whole == pytest.approx(row.metrics[metric], rel=0.001, abs=2e4)  # files have microseconds
    shares = {key: float(value) for key, value in profile.extra.items() if key.startswith("cost_")}
    budget = shares.pop("cost_budget_percent")
    assert budget == 1 and shares["cost_timer_percent"] > 0 and shares["cost_samples_percent"] > 0
    assert sum(shares.values()) == pytest.approx(profile.target_cost_percent, rel=0.2)
    assert profile.daemon_cost_percent > 0
    others = pprof_reader.read_from(io.BytesIO(body))
    assert {row.origin.tid for row in others.samples} == {0}
    assert others.total()[WORK] > 0 and others.duration_s > 4


def test_attach_goes_through_the_daemon_where_there_is_one(daemon: DaemonProcess, tmp_path: Path) -> None:
    with dp.openmp(tmp_path, "ompat") as target:
        daemon.sampled(target.pid)
        through, alone = tmp_path / "through.pb.gz", tmp_path / "alone.pb.gz"
        done = daemon.parprof("attach", target.pid, "-d", "2", "-o", through)
        assert done.returncode == 0, done.stderr
        assert "skewed_long" in done.stdout
        assert frequency_of(through) == 499, "the command's, not the daemon's own"
        said = "measured by parprofd, at 499 Hz; attach alone"
        assert said in dp.parprof("report", through, "-v").stdout.replace("\n", " ") and said in done.stderr
        # of all processes: if it is nothing, this one lost nothing
        lost = read(through).extra[LOST_MEANWHILE]
        assert ("what the daemon lost" in done.stderr) == bool(lost) and lost in done.stderr
        assert "of this process alone" not in done.stderr and "undecided" not in lost
        # or less, where the governor finds that too dear
        daemon.page_when("its own rate", lambda page: page.value("parprofd_frequency_hertz") <= 199)
        nowhere = str(tmp_path / "nobody.sock")
        done = dp.parprof("attach", target.pid, "-d", "1", "-o", alone, PARPROF_SOCKET=nowhere)
        assert done.returncode == 0, done.stderr
        assert "skewed_long" in done.stdout
        assert frequency_of(alone) == 499
        assert target.poll() is None


def test_attach_through_the_daemon_has_nothing_of_before(tmp_path: Path, spinner: Path) -> None:
    """A program that is stopped when it begins was busy until then, in the same long interval."""
    tables = {"profiles": {"interval_seconds": 10}}
    out = tmp_path / "out.pb.gz"
    with dp.running(tmp_path / "parprofd", tables) as daemon, dp.started(spinner) as target:
        daemon.wait("it is watched", lambda: daemon.page().info(target.pid))  # a scrape begins an interval
        time.sleep(1)
        os.kill(target.pid, signal.SIGSTOP)
        done = daemon.parprof("attach", target.pid, "-d", "1", "-o", out)
        assert done.returncode == 0, done.stderr
        told = report_of(out)
        assert told["totals"]["samples"] == 0 and told["duration_s"] < 6
        os.kill(target.pid, signal.SIGCONT)
        assert daemon.parprof("attach", target.pid, "-d", "2", "-o", out).returncode == 0
        told = report_of(out)
        assert told["totals"]["samples"] > 10 and 1.9 < told["duration_s"] < 6


@pytest.mark.alone
def test_attach_through_the_daemon_takes_the_seconds_and_the_rate_asked_for(
    tmp_path: Path, spinner: Path
) -> None:
    """However long the daemon's own intervals are, and whatever its own rate; and that one comes back."""
    out, tables = (
        tmp_path / "out.pb.gz",
        {"profiles": {"interval_seconds": 10}, "sampling": {"frequency_hz": 19}},
    )
    busy = [sys.executable, "-S", "-c", "while True: pass"]
    with dp.running(tmp_path / "parprofd", tables) as daemon, dp.started(*busy) as target:
        for seconds, hz in ((3, 499), (2, 199)):
            time.sleep(0.5)
            before_s = cpu_seconds(target.pid)
            done = daemon.parprof("attach", target.pid, "-d", seconds, "-F", hz, "-q", "-o", out)
            used_s = cpu_seconds(target.pid) - before_s
            assert done.returncode == 0 and done.stderr == "", done.stderr
            told = report_of(out)
            assert seconds <= told["duration_s"] < seconds + 0.5
            assert told["frequency_hz"] == hz
            assert told["totals"]["samples"] / hz == pytest.approx(told["totals"]["work_s"], rel=0.02)
            assert 0.1 < told["totals"]["work_s"] < 1.05 * used_s + 0.02, (
                "the command takes longer than the profile"
            )
            daemon.page_when("its own rate", lambda page: page.value("parprofd_frequency_hertz") == 19)
        moves = dict.fromkeys(
            (labels["from"], labels["to"])
            for labels, value in daemon.page().of("parprofd_governor_transitions_total")
            if value
        )
        assert {
            ("19 Hz", "499 Hz"),
            ("499 Hz", "19 Hz"),
            ("19 Hz", "199 Hz"),
            ("199 Hz", "19 Hz"),
        } <= moves.keys()


def test_attach_through_the_daemon_counts_time_without_samples(tmp_path: Path, spinner: Path) -> None:
    """A program that stands still for most of the seconds that are measured."""
    out = tmp_path / "out.pb.gz"
    with dp.running(tmp_path / "parprofd") as daemon, dp.started(spinner) as target:
        daemon.sampled(target.pid, 0.1)
        pauses = [threading.Timer(1, os.kill, (target.pid, signal.SIGSTOP)),
                  threading.Timer(4, os.kill, (target.pid, signal.SIGCONT))]  # fmt: skip
        for pause in pauses:
            pause.start()
        done = daemon.parprof("attach", target.pid, "-d", "5", "-o", out)
        assert done.returncode == 0, done.stderr
        told = report_of(out)
        assert 4.5 < told["duration_s"] < 8 and told["totals"]["samples"] > 10


def test_a_scrape_is_of_now(tmp_path: Path, spinner: Path) -> None:
    """However long the daemon's own interval is: rates over a few scrapes do not swing."""
    tables = {"profiles": {"interval_seconds": 60}}
    with dp.running(tmp_path / "parprofd", tables) as daemon, dp.started(spinner) as target:
        daemon.wait("it is watched", lambda: daemon.page().info(target.pid))
        stamps, seconds = [], []
        for _ in range(4):
            time.sleep(2.1)
            page, now_s = daemon.page(), time.time()
            stamps.append(now_s - page.value(STAMP))
            seconds.append(page.samples_of(target.pid))
        assert max(stamps) < 2, "each is of a moment ago"
        assert all(after > before for before, after in zip(seconds, seconds[1:], strict=False))
        first, second = daemon.page().value(STAMP), daemon.page().value(STAMP)
        assert first == second, "but not more often than every two seconds"


HALF = """
import sys, time
work_s, sleep_s = map(float, sys.argv[1:])
def work(end_s):
    while time.monotonic() < end_s: pass
def half():
    time.sleep(sleep_s)
while True:
    work(time.monotonic() + work_s)
    half()
"""


@pytest.mark.alone
@pytest.mark.parametrize("seconds", [0.1, 1.5])
def test_attach_through_the_daemon_accounts_for_all_core_time(
    seconds: float, daemon: DaemonProcess, tmp_path: Path
) -> None:
    """Of a program that sleeps half of the time, now and then for longer than the daemon's intervals take. Both ways
    measure the same time."""
    with dp.started(sys.executable, "-S", "-c", HALF, seconds, seconds) as target:
        time.sleep(0.5)
        assert "accounts for" not in both_ways(daemon, target.pid, 6, tmp_path)
    for way in WAYS:
        told = report_of(profile_of(way, tmp_path))
        cores, elapsed_s = told["process"]["cores"], told["elapsed_s"]
        assert told["totals"]["accounted"] == pytest.approx(1, abs=0.02), way
        assert 5.9 < elapsed_s < told["duration_s"] + 0.1
        asleep_s = told["totals"]["wait_s"]  # of its one thread; where the machine is busy it turns slower
        assert told["concurrency"][0] == pytest.approx(asleep_s, rel=0.02, abs=0.02), way
        assert elapsed_s / 4 - seconds / 2 < asleep_s < elapsed_s / 2 + seconds / 2 + 0.1, way
        assert told["concurrency"][0] == pytest.approx(told["totals"]["stall_s"] / cores, rel=0.02)
        found = {row["name"]: row["inclusive"]["stall_s"] for row in told["functions"]}
        # of a sleep that was under way when we came nobody knows where it is
        assert -0.02 < told["totals"]["stall_s"] - found["half"] < cores * 1.02 * seconds + 0.1, way
        assert found["[waits: sleep]"] == pytest.approx(found["half"]), way


NAPS = """
import threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
def naps():
    time.sleep(0.3)
while True:
    end = time.monotonic() + 0.1
    while time.monotonic() < end: pass
    naps()
"""


@pytest.mark.alone
def test_attach_through_the_daemon_tells_where_threads_wait(daemon: DaemonProcess, tmp_path: Path) -> None:
    """Cut at both ends: a thread sleeps all the time, for ten minutes."""
    with dp.started(sys.executable, "-S", "-c", NAPS) as target:
        time.sleep(0.5)
        done = daemon.parprof("attach", target.pid, "-d", "3", "-o", tmp_path / "naps.pb.gz")
        assert done.returncode == 0, done.stderr
        done = dp.parprof("report", tmp_path / "naps.pb.gz", "--json")
    report = json.loads(done.stdout)
    waited_s, duration_s = report["totals"]["wait_s"], report["duration_s"]
    naps = next(row for row in report["functions"] if row["name"] == "naps")["inclusive"]
    assert naps["wait_s"] == pytest.approx(0.75 * duration_s, rel=0.15)
    assert naps["stall_s"] == pytest.approx(report["process"]["cores"] * naps["wait_s"], rel=0.05)
    assert waited_s - naps["wait_s"] == pytest.approx(duration_s, rel=0.1)


def test_nobody_waits_for_longer_than_was_measured(daemon: DaemonProcess, tmp_path: Path) -> None:
    """However long it takes to begin and to end what is measured, as where many attach at once: the time of a thread
    that sleeps all the time, and that of the process, begin and end together."""
    with ExitStack() as stack:
        targets = [stack.enter_context(dp.started(sys.executable, "-S", "-c", NAPS)) for _ in range(5)]
        time.sleep(0.5)
        outs = [tmp_path / f"{target.pid}.pb.gz" for target in targets]
        with ThreadPoolExecutor() as pool:
            attached = [
                pool.submit(daemon.parprof, "attach", target.pid, "-d", "2", "-o", out)
                for target, out in zip(targets, outs, strict=True)
            ]
        for one in attached:
            assert one.result().returncode == 0, one.result().stderr
    for target, out in zip(targets, outs, strict=True):
        found = pprof.read(out)
        waits_s: dict[int, float] = defaultdict(float)
        for row in found.samples:
            waits_s[row.origin.tid] += row.metrics[WAIT] / 1e9
        longest_s = max(waits_s.values())  # of who sleeps all the time
        assert waits_s[target.pid] < longest_s
        assert 0.9 * found.elapsed_s < longest_s < found.elapsed_s + 1e-3


def test_attach_to_what_the_selection_leaves_out(daemon: DaemonProcess, tmp_path: Path) -> None:
    program = dp.build(tmp_path, "left", "spin_unselected").rename(tmp_path / "other")
    with dp.started(program) as target:
        daemon.fresh()
        assert target.pid not in daemon.page().pids()
        done = daemon.parprof("attach", target.pid, "-d", "2", "-o", tmp_path / "out.pb.gz")
        assert done.returncode == 0, done.stderr
        assert "spin_unselected" in done.stdout
        daemon.page_when("an end to it", lambda page: target.pid not in page.pids())
        assert target.poll() is None


def test_top_and_status(daemon: DaemonProcess, tmp_path: Path) -> None:
    with dp.openmp(tmp_path, "omptop") as target:
        daemon.sampled(target.pid, 0.5)
        top = daemon.parprof("top", "--once", "--json")
        assert top.returncode == 0, top.stderr
        row = next(row for row in json.loads(top.stdout)["processes"] if row["pid"] == target.pid)
        assert row["comm"] == f"{dp.PREFIX}omptop" and row["runtime"] == "libgomp" and row["cores"] == 2
        plain = daemon.parprof("top", "--once")
        assert plain.returncode == 0 and str(target.pid) in plain.stdout
    status = daemon.parprof("status", "--json")
    assert status.returncode == 0, status.stderr
    said = json.loads(status.stdout)
    assert said["healthy"] and said["ready"] and said["samples"] > 0
    assert "well" in daemon.parprof("status").stdout


def test_fork(daemon: DaemonProcess, spinner: Path) -> None:
    with dp.started(spinner, "fork") as target:
        assert target.stdout is not None
        child = int(target.stdout.readline())
        page = daemon.page_when("both", lambda page: {target.pid, child} <= page.pids())
        assert page.info(child)["comm"] == page.info(target.pid)["comm"] == spinner.name
        os.kill(child, signal.SIGKILL)
        page = daemon.page_when("the child's end", lambda page: child not in page.pids())
        assert target.pid in page.pids()


def test_exec_is_another_program(daemon: DaemonProcess, spinner: Path, tmp_path: Path) -> None:
    after = dp.named(tmp_path, "after", "omp_truth.gomp")
    with dp.started(spinner, "exec", after, "skewed", "--forever") as target:
        before = daemon.sampled(target.pid)
        assert before.info(target.pid)["comm"] == spinner.name
        assert before.info(target.pid)["runtime"] == "none"
        target.send_signal(signal.SIGUSR1)
        page = daemon.page_when(
            "the new image", lambda page: page.info(target.pid).get("runtime") == "libgomp"
        )
        assert page.info(target.pid)["comm"] == after.name
        assert not page.of("parprof_work_seconds_total", comm=spinner.name, pid=str(target.pid))
        page = daemon.sampled(target.pid, 0.5)
        assert page.of("parprof_function_work_seconds_total", pid=str(target.pid), comm=after.name)


def test_exec_of_what_is_left_out(daemon: DaemonProcess, spinner: Path, tmp_path: Path) -> None:
    out = tmp_path / "leftout"
    out.write_bytes(spinner.read_bytes())
    out.chmod(0o755)
    with dp.started(spinner, "exec", out) as target:
        daemon.sampled(target.pid)
        target.send_signal(signal.SIGUSR1)
        daemon.page_when("no series of it", lambda page: target.pid not in page.pids())
        daemon.fresh()
        assert target.pid not in daemon.page().pids()


def test_exec_of_what_is_selected(daemon: DaemonProcess, spinner: Path, tmp_path: Path) -> None:
    out = tmp_path / "notyet"
    out.write_bytes(spinner.read_bytes())
    out.chmod(0o755)
    with dp.started(out, "exec", spinner) as target:
        daemon.fresh()
        assert target.pid not in daemon.page().pids()
        target.send_signal(signal.SIGUSR1)
        page = daemon.page_when("the new image", lambda page: target.pid in page.pids())
        assert page.info(target.pid)["comm"] == spinner.name


_CLONE3 = 435


def start_as(pid: int, program: Path) -> bool:
    """Start a program under a PID that is free; False if it was not."""
    wanted = (ctypes.c_int * 1)(pid)
    arguments = struct.pack("<11Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(wanted), 1, 0)
    buffer = ctypes.create_string_buffer(arguments, len(arguments))
    made = int(ctypes.CDLL(None).syscall(_CLONE3, buffer, ctypes.c_size_t(len(arguments))))
    if made == 0:
        os.execv(program, [program])
    return made == pid


@pytest.mark.alone  # somebody else could take it
def test_a_pid_that_is_used_again(daemon: DaemonProcess, spinner: Path, tmp_path: Path) -> None:
    second = dp.build(tmp_path, "second", "spin_again")
    with dp.started(spinner) as target:
        pid = target.pid
        first = daemon.sampled(pid, 0.5)
        assert "burn" in first.functions(pid)
    if not start_as(pid, second):
        pytest.skip("the PID was taken by another process, or clone3 with set_tid is not permitted")
    try:
        page = daemon.page_when("the new one", lambda page: page.info(pid).get("comm") == second.name)
        assert not page.of("parprof_work_seconds_total", comm=spinner.name)
        page = daemon.page_when("its function", lambda page: "spin_again" in page.functions(pid))
        assert "burn" not in page.functions(pid)
        profile = gzip.decompress(daemon.get(f"/profiles/{pid}.pb.gz?seconds=60")[1])
        assert b"spin_again" in profile and b"burn" not in profile
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_series_go_with_their_process(daemon: DaemonProcess, spinner: Path) -> None:
    with dp.started(spinner) as target:
        before = daemon.sampled(target.pid, 0.3)
    after = daemon.page_when("its end", lambda page: target.pid not in page.pids())
    assert not [s for s in after.samples if s[1].get("pid") == str(target.pid)]
    name = "parprof_node_work_seconds_total"
    assert after.value(name) >= before.value(name) > 0


@contextmanager
def cgroup_of(pid: int) -> Iterator[str]:
    """Move a process to a new cgroup of version 2; its path."""
    root = next((p for p in map(Path, ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"))
                 if (p / "cgroup.procs").exists() and (p / "cgroup.controllers").exists()), None)  # fmt: skip
    if root is None:
        pytest.skip("no cgroup v2 is mounted")
    group = root / f"parprof-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no cgroup can be made here")
    try:
        (group / "cgroup.procs").write_text(str(pid))
        yield f"/{group.name}"
    finally:
        (root / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def test_selection_and_reload(daemon: DaemonProcess, tmp_path: Path) -> None:
    """Two programs, of which each new configuration leaves out the one that the last one let in."""
    one, two = dp.build(tmp_path, "one"), dp.build(tmp_path, "two")
    ours = {"comm": [dp.PREFIX + "*"]}
    try:
        with dp.started(one) as this, dp.of_nobody(two) as other, cgroup_of(other.pid) as group:
            daemon.page_when("both", lambda page: {this.pid, other.pid} <= page.pids())
            for rule in ({"comm": ["*.two"]}, {"uid": [dp.NOBODY]}):
                daemon.reload(dp.selecting(**rule))
                daemon.page_when(
                    f"{rule} alone", lambda page: page.pids() & {this.pid, other.pid} == {other.pid}
                )
                rule = {"pid": [other.pid]} if "comm" in rule else {"cgroup": [group]}
                daemon.reload(dp.selecting(deny=rule, **ours))
                daemon.page_when(
                    f"{rule} denied", lambda page: page.pids() & {this.pid, other.pid} == {this.pid}
                )
            assert group in Path(f"/proc/{other.pid}/cgroup").read_text()
            daemon.reload({})
            daemon.page_when("both again", lambda page: {this.pid, other.pid} <= page.pids())
            assert daemon.page().info(other.pid)["cgroup"] == group
    finally:
        daemon.reload({})


def test_a_wrong_configuration_is_refused_at_start_and_ignored_at_reload(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    wrong = '[sampling]\nfrequency_hz = 99\n\n[http]\nlisten = "127.0.0.1:0"\n[select]\nmod = "all"\n'
    file = tmp_path / "wrong.toml"
    file.write_text(wrong)
    done = dp.as_user("parprof.service.main", 0, "--config", file)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.endswith(f" {file}:7: select.mod: unknown key; did you mean select.mode?\n")
    assert len(done.stderr.splitlines()) == 1
    file.write_text("[sampling]\nfrequency_hz = 0\n")
    done = dp.as_user("parprof.service.main", 0, "--config", file)
    assert done.returncode == 2 and f"{file}:2: sampling.frequency_hz" in done.stderr
    daemon.config.write_text(wrong)
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait("a complaint", lambda: "not reloaded: " in daemon.log())
    assert f"{daemon.config}:7: select.mod" in daemon.log()
    daemon.reload({})


def test_push(tmp_path: Path) -> None:
    with serving() as store, dp.openmp(tmp_path, "omppush") as target:
        tables = {
            "push": {"interval_s": 1.0, "spool": str(tmp_path / "spool"), "labels": {"site": "here"}},
            "push.pyroscope": {"url": store.url},
        }
        with dp.running(tmp_path / "parprofd", tables) as daemon:
            received = store.wait_for(2)
            daemon.page_when(
                "its count", lambda p: p.value("parprofd_pushed_profiles_total", outcome="sent") >= 2
            )
        assert target.poll() is None
    message = pyroscope_pb2.PushRequest()
    message.ParseFromString(received[-1].body)
    labels = {pair.name: pair.value for pair in message.series[0].labels}
    assert labels["service_name"] == f"{dp.PREFIX}omppush"
    assert (labels["site"], labels["runtime"]) == ("here", "libgomp")
    profile = pprof_pb2.Profile()
    profile.ParseFromString(gzip.decompress(message.series[0].samples[0].raw_profile))
    names = {profile.string_table[function.name] for function in profile.function}
    assert "skewed_long" in names
    assert sum(sample.value[0] for sample in profile.sample) > 0
