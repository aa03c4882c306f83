"""What the programs tell of traced processes, and that they tell nothing of others. Needs root."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import profiling
from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import WatchConfig
from parprof.kernel.trace import ENDED, QUEUES, RUNS, WORKS, TraceBounds
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
    with BpfKernel(["cpu-clock"], 99, waits=True, traced=TraceBounds()) as kernel:
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
