# SPDX-License-Identifier: Apache-2.0
"""CPUs that go and come back while we sample."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from parprof.kernel.engine import BpfKernel
from parprof.session.session import Session
from profiling import cpu_seconds, run_while_it_works

SWITCH = Path("/sys/devices/system/cpu/cpu1/online")
SPIN = "import os; os.sched_setaffinity(0, {1})\nwhile True: pass"


@pytest.fixture
def cpu1() -> Iterator[Path]:
    if not SWITCH.exists():
        pytest.skip("CPU 1 cannot be taken offline here")
    try:
        yield SWITCH
    finally:
        SWITCH.write_text("1")


def is_sampled(session: Session, pid: int) -> bool:
    """Whether there are 100 clock samples of a process within two seconds of its CPU time."""
    before, end_s = session.samples(), cpu_seconds(pid) + 2
    while cpu_seconds(pid) < end_s and session.samples() - before <= 100:
        session.step()
        session.drain()
    return session.samples() - before > 100


def test_a_cpu_that_comes_back_is_sampled_again(cpu1: Path) -> None:
    """As a suspend does to all CPUs but one: away and back between two drains."""
    with BpfKernel(["cpu-clock"], 199) as kernel:
        session = Session(kernel)
        process = subprocess.Popen([sys.executable, "-S", "-c", SPIN])
        try:
            session.watch(process.pid)
            assert is_sampled(session, process.pid)
            assert "cpu_gap" not in kernel.lost()
            begun_s = time.monotonic()
            cpu1.write_text("0")
            cpu1.write_text("1")
            os.sched_setaffinity(process.pid, {1})  # the kernel moved it
            time.sleep(0.5)
            session.drain()
            assert 0 < kernel.lost()["cpu_gap"] < 199 * max(4, time.monotonic() - begun_s)
            assert is_sampled(session, process.pid)
        finally:
            process.kill()
            process.wait()
            session.close()


def test_a_cpu_that_is_away_for_a_while(cpu1: Path) -> None:
    with BpfKernel(["cpu-clock"], 199) as kernel:
        cpu1.write_text("0")
        for _ in range(3):
            kernel.drain()
        assert "cpu_gap" not in kernel.lost()  # nothing runs there
        cpu1.write_text("1")
        time.sleep(0.1)
        kernel.drain()
        assert kernel.lost()["cpu_gap"] > 0
        before = kernel.lost()["cpu_gap"]
        kernel.drain()
        assert kernel.lost()["cpu_gap"] == before


BUSY = "while True: pass"


@pytest.mark.beside
def test_the_rate_changes_while_samples_are_taken() -> None:
    """Each part weighed with its own rate is the CPU time that was used: none is lost, none counted twice."""
    with BpfKernel(["cpu-clock"], 99) as kernel:
        session = Session(kernel)
        process = subprocess.Popen([sys.executable, "-S", "-c", BUSY])
        try:
            session.watch(process.pid)
            session.drain()
            session.take()
            began_s, sampled_s = cpu_seconds(process.pid), 0.0
            for hz in (499, 19, 99, 499, 19, 499):
                run_while_it_works(session, process.pid, 1.5)
                session.drain()
                counts = session.take()
                kernel.set_frequency(hz)
                sampled_s += sum(count.samples for count in counts.facts.values()) / counts.frequency_hz
            session.drain()
            sampled_s += sum(count.samples for count in session.take().facts.values()) / kernel.frequency_hz
            assert sampled_s == pytest.approx(cpu_seconds(process.pid) - began_s, rel=0.05)
            assert sampled_s > 8
        finally:
            process.kill()
            process.wait()
            session.close()
