# SPDX-License-Identifier: Apache-2.0
"""Which CPUs have sampling events, as CPUs come and go. The events are stand-ins, whose time a test sets; real ones, of
a CPU that really goes, are in tests/kernel/test_cpus.py, where that is possible."""

from __future__ import annotations

import errno
import os
import struct

import pytest

from parprof.kernel import bpf, perf_events, sampling
from parprof.kernel.sampling import SampleEvents

HZ = 100
LINK = 1000
"""What the descriptor of an event's link is more than the event's."""


class Machine:
    """CPUs, the clock, and for how long each CPU's event has counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.online = {0, 1}
        self.now_ns = 10**12
        self.refused: set[int] = set()
        self.events: dict[int, list[int]] = {}
        """By descriptor: CPU, and nanoseconds that it has counted."""
        self.closed: list[int] = []
        monkeypatch.setattr(sampling, "online_cpus", lambda: sorted(self.online))
        monkeypatch.setattr(perf_events, "open_on_cpu", self._open)
        monkeypatch.setattr(bpf, "link_perf_event", lambda program, event, cookie: event + LINK)
        monkeypatch.setattr(sampling.time, "monotonic_ns", lambda: self.now_ns)
        self._really_close = os.close
        monkeypatch.setattr(os, "read", lambda fd, size: struct.pack("<QQ", 0, self.events[fd][1]))
        monkeypatch.setattr(os, "close", self._close)

    def _open(self, name: str, frequency_hz: int, cpu: int) -> int:
        if cpu in self.refused or cpu not in self.online:
            raise OSError(errno.ENODEV, "no such CPU")
        fd = 5000 + 2000 * len(self.events)
        self.events[fd] = [cpu, 0]
        return fd

    def _close(self, fd: int) -> None:
        if fd in self.events or fd - LINK in self.events:
            self.closed.append(fd)
        else:  # of what an earlier test has left, and is collected now
            self._really_close(fd)

    def run(self, seconds: float, *cpus: int) -> None:
        """Time goes by, and the events of these CPUs count."""
        self.now_ns += int(seconds * 1e9)
        for fd, event in self.events.items():
            if event[0] in cpus and fd not in self.closed:
                event[1] += int(seconds * 1e9)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_nothing_is_missed_while_all_count(machine: Machine) -> None:
    events = SampleEvents(3, ["cpu-clock"], HZ)
    for _ in range(3):
        machine.run(1, 0, 1)
        assert events.follow_cpus() == 0
    assert not machine.closed


def test_away_and_back_between_two_looks(machine: Machine) -> None:
    events = SampleEvents(3, ["cpu-clock"], HZ)
    machine.run(1, 0, 1)
    events.follow_cpus()
    machine.run(0.5, 0)
    assert events.follow_cpus() == 50
    assert [machine.events[fd][0] for fd in machine.closed if fd in machine.events] == [1]
    machine.run(1, 0, 1)
    assert events.follow_cpus() == 0


def test_a_busy_drain_is_no_gap(machine: Machine) -> None:
    """The two clocks are not read at one moment."""
    events = SampleEvents(3, ["cpu-clock"], HZ)
    machine.run(1, 0, 1)
    machine.now_ns += 20_000_000
    assert events.follow_cpus() == 0
    assert not machine.closed


def test_away_over_several_looks_is_missed_once(machine: Machine) -> None:
    events = SampleEvents(3, ["cpu-clock"], HZ)
    machine.online = {0}
    machine.run(1, 0)
    assert events.follow_cpus() == 0  # an offline CPU runs nothing
    assert len(machine.closed) == 2  # the event and its link
    machine.run(1, 0)
    assert events.follow_cpus() == 0
    machine.online = {0, 1}
    machine.run(0.3, 0)
    assert events.follow_cpus() == 30
    machine.run(1, 0, 1)
    assert events.follow_cpus() == 0


def test_a_cpu_that_cannot_be_had_yet_is_tried_again(machine: Machine) -> None:
    events = SampleEvents(3, ["cpu-clock"], HZ)
    machine.online, machine.refused = {0, 1, 2}, {2}
    machine.run(0.1, 0, 1)
    assert events.follow_cpus() == 10
    machine.refused = set()
    machine.run(0.2, 0, 1)
    assert events.follow_cpus() == 20
    machine.run(1, 0, 1, 2)
    assert events.follow_cpus() == 0
    assert {cpu for cpu, _ in machine.events.values()} == {0, 1, 2}
