"""What was idle on the machine in truth: parprof.service.machine."""

from __future__ import annotations

import os
import time

from parprof.service.machine import IdleTime, unused_share


def test_idle_time_is_no_more_than_there_is() -> None:
    idle, began = IdleTime(), time.monotonic()
    time.sleep(0.3)
    taken_ns = idle.take_ns()
    cores = os.cpu_count() or 1
    assert 0 <= taken_ns <= cores * (1e9 * (time.monotonic() - began) + 3e7)


def test_processes_share_what_was_idle() -> None:
    assert unused_share(0.0, 1e9) == 0.0
    assert unused_share(2e9, 1e9) == 0.5
    assert unused_share(1e9, 2e9) == 1.0
