# SPDX-License-Identifier: Apache-2.0
"""The time that a report speaks of begins where sampling does, not where parprof began to prepare for it."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from parprof.kernel.engine import BpfKernel
from parprof.session.session import Session
from parprof.session.target import Target

pytestmark = pytest.mark.beside

PREPARING_S = 1.5
SPIN = [sys.executable, "-S", "-c", "while True: sum(range(1000))"]


def test_what_is_read_before_takes_no_time_of_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = Target.prepare

    def slow(target: Target, *arguments: object) -> None:
        time.sleep(PREPARING_S)
        prepare(target, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Target, "prepare", slow)
    process = subprocess.Popen(SPIN)
    try:
        with BpfKernel(["cpu-clock"], 199) as kernel:
            session = Session(kernel, one_job=True, by_interval=True)
            target = session.watch(process.pid)
            began_s = time.time()
            end_s = time.monotonic() + 0.5
            while time.monotonic() < end_s:
                session.step()
            session.finish()
            measured = session.measurement(target)
            session.close()
    finally:
        process.kill()
        process.wait()
    elapsed_s = measured.scopes[0].elapsed_ns / 1e9
    assert elapsed_s - 0.01 <= measured.duration_s < elapsed_s + PREPARING_S / 2
    assert abs(measured.started_s - began_s) < PREPARING_S / 2
    assert measured.intervals and measured.intervals[0].begin_ns == 0
    counted = [one for one in measured.intervals if one.facts]
    assert counted and counted[0].begin_ns < PREPARING_S / 2 * 1e9
