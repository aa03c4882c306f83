# SPDX-License-Identifier: Apache-2.0
"""A machine's metrics against the kernel's own account: they add up to its cores, however many programs there are."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pytest
from psutil import Process

import daemon_process as dp
from parprof.service.agreement import WINDOW_SECONDS

pytestmark = pytest.mark.beside

SECONDS = 6.0
CORES = os.cpu_count() or 1
NEAR = 0.03
"""Of a core."""


def idle_s() -> float:
    """Core time that the kernel says was idle, waiting for a disk included."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def waited_s(pid: int) -> float:
    """How long the threads of a process were runnable and had no CPU, by the kernel's account."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[1]) for task in tasks) / 1e9


class Waited:
    """How long each of some processes has had no CPU, as read from then to then (seconds since the epoch)."""

    def __init__(self, pids: list[int]) -> None:
        self.begin_s = time.time()
        self.seconds = [waited_s(pid) for pid in pids]
        self.end_s = time.time()


class Look:
    """The metrics as of this moment, and the kernel's account right before and after they were charged."""

    def __init__(self, daemon: dp.DaemonProcess, pids: list[int]) -> None:
        before_s, waited = None, [Waited(pids)]
        while True:
            self.idle_before_s = idle_s()
            cpu_before_s = sum(map(cpu_s, pids))
            waited.append(Waited(pids))
            self.page = daemon.page()
            waited.append(Waited(pids))
            self.time_s = self.page.value("parprofd_snapshot_timestamp_seconds")
            if before_s is not None and self.time_s != before_s:
                break
            before_s = self.time_s
            time.sleep(0.1)  # it was charged a moment ago, and is told again
        self.idle_after_s, self.cpu_s = idle_s(), (cpu_before_s + sum(map(cpu_s, pids))) / 2
        self.waited_before_s = [one for one in waited if one.end_s <= self.time_s][-1].seconds
        self.waited_after_s = next(one for one in waited if one.begin_s >= self.time_s).seconds

    def of(self, kind: str) -> float:
        """One of the machine's times."""
        return self.page.value(f"parprof_node_{kind}_seconds_total")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dp.DaemonProcess]:
    with dp.running(tmp_path_factory.mktemp("parprofd")) as running:
        yield running


def test_time_without_a_cpu_is_told_by_process(tmp_path: Path, daemon: dp.DaemonProcess) -> None:
    """Eight programs share a CPU, so each waits for it; how long the kernel knows, whoever else runs there.

    The first test of all: no other program is watched yet.
    """
    alone = dp.build(tmp_path, "crowd")
    cpu = max(os.sched_getaffinity(0))
    with ExitStack() as programs:
        running = [
            programs.enter_context(
                dp.started(
                    alone, "name", f"{alone.name}{n}", preexec_fn=lambda: os.sched_setaffinity(0, {cpu})
                )
            )
            for n in range(8)
        ]
        pids = [process.pid for process in running]
        daemon.page_when("all of them", lambda page: page.pids() == set(pids))
        begin = Look(daemon, pids)
        time.sleep(SECONDS)
        end = Look(daemon, pids)
    least_s, most_s = waited_between(begin, end)
    for pid, least, most in zip(pids, least_s, most_s, strict=True):
        found_s = [look.page.value("parprof_ready_seconds_total", pid=str(pid)) for look in (begin, end)]
        assert least > 0.1 * SECONDS
        assert is_between(found_s[1] - found_s[0], least, most)
    assert is_between(end.of("ready") - begin.of("ready"), sum(least_s), sum(most_s))


def waited_between(begin: Look, end: Look) -> tuple[list[float], list[float]]:
    """How long each process had no CPU between two looks by the kernel's account, at least and at most: it is told by
    the daemon, of a moment between those before and after each look, which may lie apart on a busy machine."""
    least = zip(begin.waited_after_s, end.waited_before_s, strict=True)
    most = zip(begin.waited_before_s, end.waited_after_s, strict=True)
    return [after - before for before, after in least], [after - before for before, after in most]


def is_between(found_s: float, least_s: float, most_s: float) -> bool:
    """Within a twentieth, and 0.05 s."""
    return min(0.95 * least_s, least_s - 0.05) <= found_s <= max(1.05 * most_s, most_s + 0.05)


@pytest.fixture(scope="module")
def exact(
    daemon: dp.DaemonProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[subprocess.Popen[bytes]]:
    """A program whose every change of n_w is seen. It runs while the machine's times are looked at, whoever is beside
    it: the first comparison is over its first 20 s."""
    with dp.openmp(tmp_path_factory.mktemp("exact"), "exact", "skewed,serial") as program:
        daemon.page_when("the process", lambda page: page.info(program.pid).get("n_w_source") == "exact")
        yield program


@pytest.mark.parametrize(("more_parallel", "serial"), [(0, 0), (0, 1), (2, 2)], ids=["one", "two", "five"])
def test_a_machine_adds_up_to_its_cores(
    tmp_path: Path,
    daemon: dp.DaemonProcess,
    exact: subprocess.Popen[bytes],
    more_parallel: int,
    serial: int,
) -> None:
    """The interval is the same for both, so it does not matter what else runs."""
    alone, parallel = dp.build(tmp_path, "alone"), 1 + more_parallel
    with ExitStack() as programs:
        running = [exact]
        running += [
            programs.enter_context(dp.openmp(tmp_path, f"team{number}", "skewed,tasks"))
            for number in range(more_parallel)
        ]
        running += [
            programs.enter_context(dp.started(alone, "name", f"{alone.name}{n}")) for n in range(serial)
        ]
        pids = [process.pid for process in running]
        daemon.page_when("all of them", lambda page: page.pids() == set(pids))
        begin = Look(daemon, pids)
        time.sleep(SECONDS)
        end = Look(daemon, pids)
    elapsed_s, near_s = end.time_s - begin.time_s, NEAR * (end.time_s - begin.time_s)
    work_s, spin_s, profiling_s, unused_s, idle, idleness_s = (
        end.of(kind) - begin.of(kind) for kind in ("work", "spin", "profiling", "unused", "idle", "idleness")
    )
    assert end.page.value("parprof_node_cores") == CORES
    assert end.idle_before_s - begin.idle_after_s - near_s <= idle
    assert idle <= end.idle_after_s - begin.idle_before_s + near_s
    assert work_s + spin_s + profiling_s == pytest.approx(end.cpu_s - begin.cpu_s, abs=near_s * CORES)
    assert work_s + spin_s + profiling_s + idle <= CORES * elapsed_s + near_s
    assert 0 <= unused_s <= min(idle, idleness_s) + 1e-6
    assert {int(labels["pid"]) for labels, _ in end.page.of("parprof_unused_seconds_total")} == set(
        pids[:parallel]
    )


def test_exact_and_sampled_idleness_are_compared_and_agree(
    daemon: dp.DaemonProcess, exact: subprocess.Popen[bytes]
) -> None:
    """Over each 20 s of a process whose every change of n_w is seen."""
    assert exact.poll() is None

    def compared() -> bool:
        return daemon.page().value("parprofd_idleness_checks_total") > 0

    # while switches are too dear to be followed, as on a busy machine, not every change is seen: it begins anew
    daemon.wait("a comparison", compared, 5 * WINDOW_SECONDS)
    page = daemon.page()
    lives_s = time.time() - Process(exact.pid).create_time()
    assert 1 <= page.value("parprofd_idleness_checks_total") <= lives_s / WINDOW_SECONDS
    assert page.value("parprofd_idleness_disagreements_total") == 0
