"""What the programs tell of traced processes, and that they tell nothing of others. Needs root."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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


class Napped(NamedTuple):
    """A thread that slept `NAPS` times."""

    tid: int
    sleeps: int
    """From when we came on, by the kernel's own account; with its end, if that is in there already."""


def switches(pid: int, kind: str) -> int:
    """Of a process's first thread: ``kind`` is voluntary (it went to sleep) or nonvoluntary."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"\n{kind}_ctxt_switches:")[2].split()[0])


def nap(kernel: BpfKernel, pause_s: float = 0.0) -> Napped:
    """A thread that sleeps so often."""
    kernel.await_walks()
    with subprocess.Popen([sys.executable, "-S", "-c", NAPPER], stdin=subprocess.PIPE) as process:
        await_reading(process.pid)  # the thread is known from its wake-up on, before it naps
        kernel.watch(process.pid, 1, WatchConfig())
        before = switches(process.pid, "voluntary")
        assert process.stdin
        process.stdin.write(b"\n")
        process.stdin.close()
        process.returncode, used = os.wait4(process.pid, 0)[1:]
    time.sleep(pause_s)
    kernel.drain()
    return Napped(process.pid, used.ru_nvcsw - before)


@pytest.mark.alone
def test_each_change_of_a_thread_is_told_once() -> None:
    with BpfKernel(["cpu-clock"], 99, waits=True, traced=TraceBounds(), budget=profiling.UNLIMITED) as kernel:
        tid, sleeps = nap(kernel)
        assert kernel.trace_log is not None
        records = [one for one in kernel.trace_log.threads() if one.tid == tid]
        waits = [one for one in kernel.trace_log.paths() if one.since_ns and one.key.tid == tid]
        assert not kernel.lost().get("trace_ring")
    places = [one.does & (WORKS | RUNS | QUEUES) for one in records]
    assert sum(place == 0 for place in places) >= len(waits) >= 0.9 * NAPS
    assert records[-1].does & ENDED
    assert [one.time_ns for one in records] == sorted(one.time_ns for one in records)
    # one that loses its CPU between setting the alarm and going to sleep sleeps for less than a nap, or not at all
    assert sleeps - 1 <= len(waits) <= sleeps
    assert sum(one.time_ns - one.since_ns > 900_000 for one in waits) >= 0.9 * NAPS
    woken = {one.time_ns for one in records}
    assert all(one.time_ns in woken for one in waits), "a wait ends where the thread is told to be awake"


LATE_SLEEPER = """
import signal, time
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append(True))
input()
while not told: pass
begun_ns = time.monotonic_ns()
time.sleep(0.05)
print(time.monotonic_ns() - begun_ns)
"""
"""Works until it is told to sleep, by SIGUSR1, and tells for how long it did."""


@dataclass
class LateSleeper:
    """It, while it works; once it has ended, for how long it slept at most, and whether it had lost its CPU before."""

    pid: int
    slept_ns: int = 0
    lost_cpu: bool = False


def be_more_urgent() -> None:
    """Than that program."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))


@contextmanager
def running_alone(kernel: BpfKernel) -> Iterator[LateSleeper]:
    """A program that works on a CPU of its own, then sleeps, and is watched when it works; no sample finds it."""
    kernel.await_walks()
    with subprocess.Popen(
        [sys.executable, "-S", "-c", LATE_SLEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        await_reading(process.pid)
        os.sched_setscheduler(process.pid, os.SCHED_FIFO, os.sched_param(1))
        be_more_urgent()  # else we get no CPU for a second on a busy machine, and a sample comes
        try:
            assert process.stdin and process.stdout
            begun_s = profiling.cpu_seconds(process.pid)
            process.stdin.write(b"\n")
            process.stdin.close()
            while profiling.cpu_seconds(process.pid) < begun_s + 0.03:
                time.sleep(0.005)
            kernel.watch(process.pid, 1, WatchConfig(), begun_ns=time.monotonic_ns())
            kernel.threads.add(process.pid, 1, process.pid, works=True, unknown=False)
            time.sleep(0.12)
            program = LateSleeper(process.pid)
            before = switches(process.pid, "nonvoluntary")
            yield program
            process.send_signal(signal.SIGUSR1)
            program.slept_ns = int(process.stdout.read())
            process.returncode, used = os.wait4(process.pid, 0)[1:]
            program.lost_cpu = used.ru_nivcsw > before
        finally:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
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
        for _ in range(8):  # until no sample, one a second, and no stopper of the kernel has come in between
            before = kernel.statistics()
            with running_alone(kernel) as program:
                pid = program.pid
                key = struct.pack("<I", pid)
                thread = kernel.scopes._object.get("threads", key, "thread")
                thread.generation, thread.wait_since_ns = 0, time.monotonic_ns() - 10**8
                kernel.scopes._object.put("threads", key, thread)
            after = kernel.statistics()
            if after["samples"] == before["samples"] and not program.lost_cpu:
                break
        assert kernel.trace_log is not None
        records = [one for one in kernel.trace_log.threads() if one.tid == pid]
        unseen, nap = waits_of(kernel, pid)[:2]
        assert after["missed_switches"] - before["missed_switches"] == 1
    assert unseen.time_ns - unseen.since_ns > 10**8
    assert nap.since_ns == unseen.time_ns and 45_000_000 < nap.time_ns - nap.since_ns <= program.slept_ns
    at_the_end = [one.does & (RUNS | WORKS) for one in records if one.time_ns == unseen.time_ns]
    assert at_the_end == [RUNS | WORKS, 0], "awake, and then asleep"


@pytest.mark.alone  # the program never gives its CPU away
def test_a_thread_of_which_nobody_knows_whether_it_sleeps_has_not_slept() -> None:
    """It works when we come, which its first sample tells, or that it goes to sleep."""
    with BpfKernel(["cpu-clock"], 1, waits=True, traced=TraceBounds(), budget=profiling.UNLIMITED) as kernel:
        for _ in range(3):  # a wake-up that a hypervisor hides is noticed when the program ends
            before = kernel.statistics()["missed_switches"]
            with running_alone(kernel) as program:
                pass
            if hidden_none := kernel.statistics()["missed_switches"] == before:
                break
        assert hidden_none
        nap = waits_of(kernel, program.pid)[0]
    assert 45_000_000 < nap.time_ns - nap.since_ns <= program.slept_ns


def take_its_cpu(pid: int) -> None:
    """For a moment."""
    cpu = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[36])
    os.sched_setaffinity(0, {cpu})
    time.sleep(0.001)


@pytest.mark.alone  # the program never gives its CPU away
def test_a_thread_that_loses_its_cpu_before_anything_else_is_told_of_it_has_not_slept() -> None:
    """It works when we come; on a busy machine the first that is told of it is that it is preempted."""
    with (
        BpfKernel(["cpu-clock"], 1, waits=True, traced=TraceBounds(), budget=profiling.UNLIMITED) as kernel,
        ThreadPoolExecutor(1, initializer=be_more_urgent) as urgent,
    ):
        urgent.submit(os.getpid).result()  # it runs
        for _ in range(8):  # until no sample, one a second, has shown it first, and no switch was hidden
            before = kernel.statistics()
            with running_alone(kernel) as program:
                urgent.submit(take_its_cpu, program.pid).result()
                sampled = kernel.statistics()["samples"] != before["samples"]
            if not sampled and kernel.statistics()["missed_switches"] == before["missed_switches"]:
                break
        assert kernel.trace_log is not None
        first = next(one for one in kernel.trace_log.threads() if one.tid == program.pid)
        nap = waits_of(kernel, program.pid)[0]
    assert 45_000_000 < nap.time_ns - nap.since_ns <= program.slept_ns
    assert first.does & (RUNS | WORKS | QUEUES) == WORKS | QUEUES, "it has no CPU, and wants one"


def test_nothing_is_told_of_processes_that_are_not_traced() -> None:
    with BpfKernel(["cpu-clock"], 99, waits=True, trace=True) as kernel:  # so that its ring is read
        nap(kernel)
        kinds = {raw[0] for raw in kernel._rings["trace"].read()}
        assert kinds <= {7}, "samples alone"
        assert kernel.trace_log is None


def test_what_finds_no_room_is_counted() -> None:
    with BpfKernel(
        ["cpu-clock"], 99, waits=True, traced=TraceBounds(), sizes={"trace": 4096}, budget=profiling.UNLIMITED
    ) as kernel:  # else it may be out in the middle: what is not told then finds room
        sleeps = nap(kernel).sleeps
        assert kernel.trace_log is not None
        kept = len(kernel.trace_log.threads()) + len(kernel.trace_log.paths())
        lost, missed = kernel.lost()["trace_ring"], kernel.statistics()["missed_switches"]
    assert 10 < kept < 4096 // 40
    # asleep, over, awake, on a CPU; but who was not seen to wake up is told to be on a CPU alone
    assert kept + lost + missed >= 4 * (sleeps - 1) > 3.6 * NAPS


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
