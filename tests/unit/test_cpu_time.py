"""CPU time of processes, of spans of time: parprof.kernel.cpu_time."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from parprof.kernel.cpu_time import CpuTime

MS = 1_000_000
BURNED_NS = 20 * MS
PID_MAX = 1 << 22
"""The largest that Linux gives."""


def burn() -> None:
    until_ns = time.process_time_ns() + BURNED_NS
    while time.process_time_ns() < until_ns:
        pass


def test_clocks_tell_what_was_used_between_two_calls() -> None:
    used, own = CpuTime(), [os.getpid()]
    before_ns = time.process_time_ns()
    first_ns = used.used_ns(own, 0, by_clocks=True)
    began_ns = time.process_time_ns()
    burn()
    ended_ns = time.process_time_ns()
    then_ns = used.used_ns(own, 0, by_clocks=True)
    assert before_ns <= first_ns <= began_ns
    assert ended_ns - began_ns <= then_ns - first_ns <= time.process_time_ns() - before_ns


def test_a_process_that_has_ended_has_used_what_was_seen_of_it() -> None:
    used = CpuTime()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        while not (seen_ns := used.used_ns([child.pid], 0, by_clocks=True)):
            time.sleep(0.001)
        used.look()
        child.communicate(b"\n")
    later_ns = used.used_ns([], 0, by_clocks=True)
    assert later_ns >= seen_ns
    assert used.used_ns([], 0, by_clocks=True) == later_ns


def test_samples_tell_it_where_processes_come_and_go() -> None:
    """What clocks saw meanwhile is not counted again."""
    used, own = CpuTime(), [os.getpid()]
    first_ns = used.used_ns(own, 50 * MS, by_clocks=True)
    burn()
    assert used.used_ns(own, 80 * MS, by_clocks=False) == first_ns + 30 * MS
    before_ns = time.process_time_ns()
    burn()
    then_ns = used.used_ns(own, 200 * MS, by_clocks=True)
    assert first_ns + 30 * MS + BURNED_NS <= then_ns
    assert then_ns - first_ns - 30 * MS <= time.process_time_ns() - before_ns + BURNED_NS


def test_samples_that_are_too_few_take_nothing_from_the_clocks() -> None:
    """They never hit what runs with interrupts off: setting timers, changing threads."""
    used, own = CpuTime(), [os.getpid()]
    first_ns = used.used_ns(own, 50 * MS, by_clocks=True)
    burn()
    assert used.used_ns(own, 65 * MS, by_clocks=False) >= first_ns + BURNED_NS


def test_a_pid_of_nobody_has_used_nothing() -> None:
    assert CpuTime().used_ns([PID_MAX + 1], 0, by_clocks=True) == 0
