"""What the programs tell of traced processes, and that they tell nothing of others. Needs root."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import profiling
from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import WatchConfig
from parprof.kernel.trace import ENDED, QUEUES, RUNS, WORKS, PathRecord, TraceBounds
from truth import Truth

pytestmark = pytest.mark.beside

NAPS = 200
NAPPER = f"import time\ninput()\nfor _ in range({NAPS}): time.sleep(0.001)"


def await_reading(pid: int) -> None:
    """Until a process sleeps in read(0, ...)."""
    deadline = time.monotonic() + 20
    while not Path(f"/proc/{pid}/syscall").read_text().startswith("0 0x0 "):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def nap(kernel: BpfKernel, pause_s: float = 0.0) -> int:
    """A thread that sleeps so often; its id."""
    kernel.await_walks()
    with subprocess.Popen([sys.executable, "-S", "-c", NAPPER], stdin=subprocess.PIPE) as process:
        await_reading(process.pid)  # the thread is known from its wake-up on, before it naps
        kernel.watch(process.pid, 1, WatchConfig())
        assert process.stdin
        process.stdin.write(b"\n")
        process.stdin.close()
        process.wait()
    time.sleep(pause_s)
    kernel.drain()
    return process.pid


@pytest.mark.alone
def test_each_change_of_a_thread_is_told_once() -> None:
    with BpfKernel(["cpu-clock"], 99, waits=True, traced=TraceBounds(), budget=profiling.UNLIMITED) as kernel:
        tid = nap(kernel)
        assert kernel.trace_log is not None
        records = [one for one in kernel.trace_log.threads() if one.tid == tid]
        waits = [one for one in kernel.trace_log.paths() if one.since_ns]
        assert not kernel.lost().get("trace_ring")
    places = [one.does & (WORKS | RUNS | QUEUES) for one in records]
    assert sum(place == 0 for place in places) >= NAPS
    assert records[-1].does & ENDED
    assert [one.time_ns for one in records] == sorted(one.time_ns for one in records)
    slept = [one for one in waits if one.key.tid == tid and one.time_ns - one.since_ns > 900_000]
    assert NAPS <= len(slept) <= NAPS + 10
    woken = {one.time_ns for one in records}
    assert all(one.time_ns in woken for one in slept), "a wait ends where the thread is told to be awake"


LATE_SLEEPER = """
import time
input()
end = time.monotonic() + 0.6
while time.monotonic() < end: pass
time.sleep(0.05)
"""


@contextmanager
def running_alone(kernel: BpfKernel) -> Iterator[int]:
    """A program that works on a CPU of its own, then sleeps, and is watched when it works; no sample finds it."""
    kernel.await_walks()
    with subprocess.Popen([sys.executable, "-S", "-c", LATE_SLEEPER], stdin=subprocess.PIPE) as process:
        await_reading(process.pid)
        os.sched_setscheduler(process.pid, os.SCHED_FIFO, os.sched_param(1))
        assert process.stdin
        process.stdin.write(b"\n")
        process.stdin.close()
        time.sleep(0.2)
        kernel.watch(process.pid, 1, WatchConfig(), begun_ns=time.monotonic_ns())
        kernel.add_thread(process.pid, 1, process.pid, works=True, unknown=False)
        yield process.pid
        process.wait()
    kernel.drain()


def waits_of(kernel: BpfKernel, tid: int) -> list[PathRecord]:
    assert kernel.trace_log is not None
    return [one for one in kernel.trace_log.paths() if one.since_ns and one.key.tid == tid]


@pytest.mark.alone  # the program never gives its CPU away
def test_a_thread_that_goes_to_sleep_was_awake_though_nobody_told_of_it() -> None:
    """Some hypervisors hide their agent from tracing: what it wakes, and whom it leaves a CPU to, is not told.

    Nor is it to be told here: the thread is said to sleep since 0.1 s while it runs. Its wait ends, at the latest,
    where the next one begins; it is not forgotten for that one.
    """
    with BpfKernel(["cpu-clock"], 1, waits=True, traced=TraceBounds(), budget=profiling.UNLIMITED) as kernel:
        for _ in range(8):  # until no sample, one a second, has come in between
            before = kernel.statistics()
            with running_alone(kernel) as pid:
                key = struct.pack("<I", pid)
                thread = kernel.scopes._object.get("threads", key, "thread")
                thread.generation, thread.wait_since_ns = 0, time.monotonic_ns() - 10**8
                kernel.scopes._object.put("threads", key, thread)
            after = kernel.statistics()
            if after["samples"] == before["samples"]:
                break
        assert kernel.trace_log is not None
        records = [one for one in kernel.trace_log.threads() if one.tid == pid]
        unseen, nap = waits_of(kernel, pid)[:2]
        assert after["missed_switches"] - before["missed_switches"] == 1
    assert unseen.time_ns - unseen.since_ns > 10**8
    assert nap.since_ns == unseen.time_ns and nap.time_ns - nap.since_ns > 45_000_000
    at_the_end = [one.does & (RUNS | WORKS) for one in records if one.time_ns == unseen.time_ns]
    assert at_the_end == [RUNS | WORKS, 0], "awake, and then asleep"


@pytest.mark.alone  # the program never gives its CPU away
def test_a_thread_of_which_nobody_knows_whether_it_sleeps_has_not_slept() -> None:
    """It works when we come, which its first sample tells, or that it goes to sleep."""
    with BpfKernel(["cpu-clock"], 1, waits=True, traced=TraceBounds(), budget=profiling.UNLIMITED) as kernel:
        with running_alone(kernel) as pid:
            pass
        nap = waits_of(kernel, pid)[0]
        assert kernel.statistics()["missed_switches"] == 0
    assert 45_000_000 < nap.time_ns - nap.since_ns < 150_000_000


def test_nothing_is_told_of_processes_that_are_not_traced() -> None:
    with BpfKernel(["cpu-clock"], 99, waits=True, trace=True) as kernel:  # so that its ring is read
        nap(kernel)
        kinds = {raw[0] for raw in kernel._rings["trace"].read()}
        assert kinds <= {7}, "samples alone"
        assert kernel.trace_log is None


def test_what_finds_no_room_is_counted() -> None:
    with BpfKernel(["cpu-clock"], 99, waits=True, traced=TraceBounds(), sizes={"trace": 4096}) as kernel:
        nap(kernel)
        assert kernel.trace_log is not None
        kept = len(kernel.trace_log.threads()) + len(kernel.trace_log.paths())
        lost = kernel.lost()["trace_ring"]
    assert 10 < kept < 4096 // 40
    assert kept + lost >= 4 * NAPS  # asleep, over, awake, on a CPU


def test_it_ends_in_the_kernel_when_a_bound_is_met() -> None:
    with BpfKernel(["cpu-clock"], 99, waits=True, traced=TraceBounds(records_bytes=4096)) as kernel:
        with subprocess.Popen([sys.executable, "-S", "-c", NAPPER], stdin=subprocess.PIPE) as process:
            kernel.watch(process.pid, 1, WatchConfig())
            assert process.stdin and kernel.trace_log is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            while not kernel.trace_log.met:
                kernel.poll()
                time.sleep(0.005)
            kernel.poll()
            assert 4096 <= kernel.trace_log.kept_bytes < 4096 + 200
            before = kernel._rings["trace"]._producer[:8]
            process.wait()
            assert kernel._rings["trace"]._producer[:8] == before, "no record came after that"


@pytest.mark.alone
def test_states_agree_with_the_log_of_each_thread(tmp_path: Path) -> None:
    """Source "exact": who is told to work is in a work function of the log, but near its edges."""
    from parprof.commands.spawn import Child
    from parprof.session.session import Session

    log = tmp_path / "log"
    with BpfKernel(["cpu-clock"], 99, waits=True, traced=TraceBounds(), budget=profiling.UNLIMITED) as kernel:
        session = Session(kernel, one_job=True)
        command = [
            "env",
            f"PARPROF_TRUTH={log}",
            str(profiling.BUILD / "omp_truth.omp"),
            "skewed,barrier,lock",
        ]
        child = Child(command)
        session.watch(child.pid, follow=True, stop=True)
        child.release()
        profiling.run_until(session, lambda: child.poll() is not None)
        session.finish()
        assert kernel.trace_log is not None
        records = kernel.trace_log.threads()
        session.close()
    truth = Truth.read(log)
    judged = wrong = 0
    for tid in truth.threads:
        own = [one for one in records if one.tid == tid]
        for one, after in zip(own, own[1:], strict=False):
            middle = (one.time_ns + after.time_ns) // 2
            inside = truth.function_at(tid, middle)
            if after.time_ns - one.time_ns > 1_000_000 and truth.start_ns < middle < truth.end_ns:
                judged += 1
                wrong += bool(inside) != bool(one.does & WORKS)
    assert judged > 10
    assert wrong <= 0.05 * judged
