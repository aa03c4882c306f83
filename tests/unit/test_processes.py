# SPDX-License-Identifier: Apache-2.0
"""parprof.process.identity with real processes, and with made-up cgroup trees."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parprof.errors import TargetError
from parprof.process import cgroups
from parprof.process.cgroups import Quota, Throttled, cgroup_members, cgroup_quota, throttled
from parprof.process.identity import (
    allowance,
    inspect,
    is_alive,
    parent_of,
    parse_stat,
)
from parprof.session.cores import QuotaWatch
from quota import NoQuota, quota_group


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in 10 s"
        time.sleep(0.01)


def test_a_process_from_start_to_end() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        wait_until(lambda: inspect(child.pid).command == "sleep 60")
        process = inspect(child.pid)
        assert process.comm == "sleep"
        assert process.exe.endswith("sleep") or "busybox" in process.exe or "coreutils" in process.exe
        assert is_alive(process)
    finally:
        child.kill()
    wait_until(lambda: not is_alive(process))
    with pytest.raises(TargetError, match="ended but its parent has not collected it"):
        inspect(child.pid)
    child.wait()
    assert not is_alive(process)
    with pytest.raises(TargetError, match=f"no process {child.pid}"):
        inspect(child.pid)
    with pytest.raises(TargetError, match="has ended"):
        allowance(child.pid)


def test_the_parent() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert parent_of(child.pid) == os.getpid()
        assert parent_of(os.getpid()) == os.getppid()
    finally:
        child.kill()
        child.wait()
    assert parent_of(child.pid) == 0
    assert parent_of(0) == 0


def test_another_process_with_the_same_pid_is_not_alive() -> None:
    process = inspect(os.getpid())
    assert is_alive(process)
    assert not is_alive(type(process)(process.pid, process.start_ticks + 1, process.comm, "", ""))


def test_command_line_is_quoted_and_visible() -> None:
    script = "import time; print('ready', flush=True); time.sleep(60)"
    child = subprocess.Popen(
        [sys.executable, "-c", script, "two words", "esc\x1b[31m\nend"], stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None and child.stdout.readline()
        command = inspect(child.pid).command
        assert "'two words'" in command
        assert "\\x1b[31m\\x0aend" in command
        assert command.isprintable()
    finally:
        child.kill()
        child.communicate()


def test_threads_name_their_process() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        pid = os.getpid()
        with pytest.raises(
            TargetError, match=f"PID {thread.native_id} is a thread of process {pid}: attach to {pid}"
        ):
            inspect(thread.native_id or 0)
    finally:
        stop.set()
        thread.join()


def test_kernel_thread() -> None:
    if not Path("/proc/2/comm").exists() or Path("/proc/2/comm").read_text() != "kthreadd\n":
        pytest.skip("no kernel threads to be seen here (a container)")
    with pytest.raises(TargetError, match="kernel threads have no user code"):
        inspect(2)


@pytest.mark.parametrize("pid", [0, -1, 1 << 22, 1 << 40])
def test_no_such_process(pid: int) -> None:
    with pytest.raises(TargetError, match="no process"):
        inspect(pid)


def test_stat_with_a_hostile_comm() -> None:
    tail = b" S 1 7 7 0 -1 4194304 " + b"0 " * 10 + b"9 0 55 0 0"
    stat = parse_stat(b"7 (a) R 1 (b)) " + tail.lstrip())
    assert stat is not None
    assert (stat.comm, stat.state, stat.threads, stat.start_ticks) == (b"a) R 1 (b)", "S", 9, 55)
    for damaged in (b"", b"7", b"7 (a", b"7 (a) S", b"7 (a) S " + b"x " * 40, b")" * 100):
        assert parse_stat(damaged) is None


def test_allowed_cores_follows_affinity() -> None:
    mine = os.sched_getaffinity(0)
    assert 1 <= allowance(os.getpid()).cores <= len(mine)
    if len(mine) < 2:
        pytest.skip("one core only")
    child = subprocess.Popen(["sleep", "60"], preexec_fn=lambda: os.sched_setaffinity(0, {min(mine)}))
    try:
        assert allowance(child.pid).cores == 1
    finally:
        child.kill()
        child.wait()


def test_allowed_cores_counts_all_threads() -> None:
    """A runtime that binds its threads leaves the first one a single core; the process still has more."""
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2 or allowance(os.getpid()).cores < 2:
        pytest.skip("one core only")
    script = (
        "import os, threading, time\n"
        "def bind(core):\n    os.sched_setaffinity(threading.get_native_id(), {core})\n    time.sleep(60)\n"
        f"[threading.Thread(target=bind, args=(c,)).start() for c in {mine[1:]}]\n"
        f"os.sched_setaffinity(os.getpid(), {{{mine[0]}}})\n"
        "time.sleep(.2); print('ready', flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        assert allowance(child.pid).cores == allowance(os.getpid()).cores
    finally:
        child.kill()
        child.communicate()


@pytest.fixture
def one_core() -> Iterator[Path]:
    """The ``cgroup.procs`` of a group that may use one core."""
    try:
        with quota_group(1.0) as procs:
            yield procs
    except NoQuota as error:
        pytest.skip(str(error))


LEADER_ENDS = """
import ctypes, os, sys, threading
open(sys.argv[1], "w").write(str(os.getpid()))
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_who_ends_is_not_taken_for_one_without_a_quota(one_core: Path) -> None:
    """With version 1 a thread that has ended is in the root's group."""
    with subprocess.Popen(["sh", "-c", f"echo $$ > {one_core}; read line"], stdin=subprocess.PIPE) as child:
        wait_until(lambda: allowance(child.pid).quota is not None)
        process = inspect(child.pid)
        assert child.stdin is not None
        child.stdin.close()
        wait_until(lambda: not is_alive(process))
        with pytest.raises(TargetError, match="has ended"):
            allowance(child.pid)


def test_a_process_whose_first_thread_has_ended_keeps_its_quota(one_core: Path) -> None:
    command = [sys.executable, "-c", LEADER_ENDS, str(one_core)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        try:
            wait_until(lambda: Path(f"/proc/{child.pid}/stat").read_text().split(") ")[1][0] == "Z")
            found = allowance(child.pid)
            assert found.quota is not None and found.cores == 1
        finally:
            child.kill()


def quota_cores(membership: str, root: Path) -> int:
    found = cgroup_quota(membership, root)
    assert found is not None
    return found.cores


def test_quota_version_2(tmp_path: Path) -> None:
    deep = tmp_path / "a/b"
    deep.mkdir(parents=True)
    assert cgroup_quota("0::/a/b\n", tmp_path) is None
    (deep / "cpu.max").write_text("max 100000\n")
    assert cgroup_quota("0::/a/b\n", tmp_path) is None
    (tmp_path / "a/cpu.max").write_text("150000 100000\n")
    assert quota_cores("0::/a/b\n", tmp_path) == 2
    (deep / "cpu.max").write_text("5000 100000\n")
    assert quota_cores("0::/a/b\n", tmp_path) == 1
    assert quota_cores("0::/a/gone\n", tmp_path) == 2
    assert cgroup_quota("0::/../b\n", tmp_path) is None


def test_quota_version_1_and_hybrid(tmp_path: Path) -> None:
    group = tmp_path / "cpu/jobs/one"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    membership = "5:memory:/x\n4:cpu,cpuacct:/jobs/one\n0::/u\n"
    assert cgroup_quota(membership, tmp_path) is None
    (group.parent / "cpu.cfs_quota_us").write_text("300000\n")
    (group.parent / "cpu.cfs_period_us").write_text("100000\n")
    assert quota_cores(membership, tmp_path) == 3
    (tmp_path / "unified/u").mkdir(parents=True)
    (tmp_path / "unified/u/cpu.max").write_text("200000 100000\n")
    assert quota_cores(membership, tmp_path) == 2


@pytest.mark.parametrize(
    "text", ["", "max", "x y", "1 0", "0 100000", "-5 100000", "1 2 3", "9" * 999 + " 1", "\0\xff"]
)
def test_quota_that_makes_no_sense(tmp_path: Path, text: str) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert cgroup_quota("0::/\n::\n\n:cpu:\n", tmp_path) is None


def test_who_is_in_a_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "a" / "b" / "c"
    inner.mkdir(parents=True)
    (tmp_path / "a" / "cgroup.procs").write_text("1\n")
    (tmp_path / "a" / "b" / "cgroup.procs").write_text("7\n8\n")
    (inner / "cgroup.procs").write_text("9\n")
    monkeypatch.setattr(cgroups, "membership_of", lambda pid: "5:cpu:/\n0::/a/b\n")
    assert cgroup_members(7, tmp_path) == [7, 8, 9]
    with pytest.raises(TargetError, match="--scope tree"):
        cgroup_members(1, tmp_path)  # it has moved meanwhile
    for alone in ("0::/\n", "0::/../b\n", "", "nonsense"):
        monkeypatch.setattr(cgroups, "membership_of", lambda pid, text=alone: text)
        with pytest.raises(TargetError, match="--scope tree"):
            cgroup_members(7, tmp_path)


def test_what_a_quota_has_stopped(tmp_path: Path) -> None:
    watch, stat = QuotaWatch(), tmp_path / "cpu.stat"
    watch.look(None)
    assert watch.remarks() == []
    stat.write_text("nr_periods 9\nnr_throttled 5\nthrottled_usec 500000\n")
    watch.look(Quota(2, tmp_path))
    assert watch.remarks() == []  # that was before us
    stat.write_text("nr_periods 99\nnr_throttled 12\nthrottled_usec 1750000\n")
    watch.look(None)
    (text,) = watch.remarks()
    assert "(2 cores)" in text and "7 times, for 1.25 s" in text
    stat.unlink()
    watch.look(None)  # its cgroup is gone with its last process
    assert watch.remarks() == [text]
    stat.write_text("nr_throttled 1\nthrottled_time 2500000000\n")
    assert throttled(tmp_path) == Throttled(1, 2.5)
    for nonsense in ("", "nr_throttled x\nthrottled_time 1\n", "\0\n\n ", "nr_throttled 1\n"):
        stat.write_text(nonsense)
        assert throttled(tmp_path) is None
