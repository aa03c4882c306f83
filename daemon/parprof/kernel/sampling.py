"""What the programs hang on: tracepoints, and for the sampler a perf event for each event and CPU."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

from parprof.errors import KernelUnsupported
from parprof.kernel import bpf, perf_events
from parprof.kernel.cpus import online_cpus
from parprof.kernel.objects import LoadedObject

LIVES = (
    ("sched_process_exit", "on_exit"),
    ("sched_process_exec", "on_exec"),
    ("sched_process_fork", "on_fork"),
)
"""Tracepoints of the life of threads and processes: always followed."""
SWITCHES = (
    ("sched_switch", "on_switch"),
    ("sched_wakeup", "on_wakeup"),
    ("sched_wakeup_new", "on_wakeup"),
)
"""Those that tell which threads sleep: as long as that is not too dear."""

_STANDS_STILL_NS = 50_000_000


class Tracepoints:
    """Programs at tracepoints of the kernel, as raw ones."""

    def __init__(self, loaded: LoadedObject, pairs: Sequence[tuple[str, str]]) -> None:
        """``pairs``: tracepoint and program."""
        self._object = loaded
        self._pairs = pairs
        self._descriptors: list[int] = []

    @property
    def attached(self) -> bool:
        """Whether they are there."""
        return bool(self._descriptors)

    def attach(self) -> None:
        """Attach them.

        Raises:
            KernelUnsupported: there is no such tracepoint here.
        """
        for tracepoint, program in self._pairs:
            fd = self._object.program(program)
            try:
                self._descriptors.append(bpf.raw_tracepoint_open(tracepoint, fd))
            except OSError as error:
                self.detach()
                raise KernelUnsupported(f"tracepoint {tracepoint}: {error.strerror}") from error

    def detach(self) -> None:
        """Take them away, if they are there."""
        _close(self._descriptors)


class _OfCpu:
    """The events of one CPU, the clock's first, and for how long that one has counted."""

    def __init__(self, descriptors: list[int]) -> None:
        self.descriptors = descriptors
        self._looked_ns = time.monotonic_ns()
        self._enabled_ns = self._time_enabled()

    def _time_enabled(self) -> int:
        return int(struct.unpack("<QQ", os.read(self.descriptors[0], 16))[1])

    def stood_still_ns(self) -> int:
        """For how long it did not count since the last call, though the CPU is there now; 0 if it counts.

        The kernel ends the events of a CPU that goes offline, and does not bring them back with it.
        """
        now_ns, before_ns = time.monotonic_ns(), self._looked_ns
        try:
            enabled_ns = self._time_enabled()
        except OSError:
            return now_ns - before_ns
        stood_ns = now_ns - before_ns - (enabled_ns - self._enabled_ns)
        self._looked_ns, self._enabled_ns = now_ns, enabled_ns
        return stood_ns if stood_ns > _STANDS_STILL_NS else 0


class SampleEvents:
    """Open until `close`."""

    def __init__(self, program: int, names: Sequence[str], frequency_hz: int) -> None:
        """``program``: descriptor of the sampler.

        Raises:
            KernelUnsupported: an event cannot be had at this rate.
        """
        self._program = program
        self._names = tuple(names)
        self.frequency_hz = frequency_hz
        self._of_cpu = self._open_all(frequency_hz)
        self._looked_ns = time.monotonic_ns()

    def _open_all(self, frequency_hz: int) -> dict[int, _OfCpu]:
        out: dict[int, _OfCpu] = {}
        try:
            for cpu in online_cpus():
                out[cpu] = self._open(cpu, frequency_hz)
        except KernelUnsupported:
            _close_all(out)
            raise
        return out

    def _open(self, cpu: int, frequency_hz: int) -> _OfCpu:
        opened: list[int] = []
        for index, name in enumerate(self._names):
            try:
                opened.append(perf_events.open_on_cpu(name, frequency_hz, cpu))
                cookie = perf_events.cookie_of(name, index)
                opened.append(bpf.link_perf_event(self._program, opened[-1], cookie))
            except OSError as error:
                _close(opened)
                raise KernelUnsupported(
                    f"perf event {name} at {frequency_hz} Hz on CPU {cpu}: {error.strerror}"
                ) from error
        return _OfCpu(opened)

    def set_frequency(self, frequency_hz: int) -> None:
        """Sample at another rate from now on.

        Raises:
            KernelUnsupported: it is refused; the old one stays.
        """
        before, self._of_cpu = self._of_cpu, self._open_all(frequency_hz)
        self.frequency_hz = frequency_hz
        _close_all(before)

    def follow_cpus(self) -> int:
        """Sample on the CPUs that are online now: some may have come, or gone and come back, as all but one do when a
        machine is suspended.

        Returns how many samples may have been missed on those since the last call; less if they came late.
        """
        online, now_ns, missed_ns = set(online_cpus()), time.monotonic_ns(), 0
        for cpu in self._of_cpu.keys() - online:
            _close(self._of_cpu.pop(cpu).descriptors)
        for cpu in online - self._of_cpu.keys():
            missed_ns += now_ns - self._looked_ns
            self._try(cpu)
        for cpu in self._of_cpu.keys() & online:
            stood_ns = self._of_cpu[cpu].stood_still_ns()
            if stood_ns:
                missed_ns += stood_ns
                _close(self._of_cpu.pop(cpu).descriptors)
                self._try(cpu)
        self._looked_ns = now_ns
        return -(-missed_ns * self.frequency_hz // 10**9)

    def _try(self, cpu: int) -> None:
        with suppress(KernelUnsupported):  # one that has just gone again, say: the next time
            self._of_cpu[cpu] = self._open(cpu, self.frequency_hz)

    def close(self) -> None:
        """Sample no more."""
        _close_all(self._of_cpu)


def _close_all(events: dict[int, _OfCpu]) -> None:
    for of_cpu in events.values():
        _close(of_cpu.descriptors)
    events.clear()


def _close(descriptors: list[int]) -> None:
    for fd in descriptors:
        with suppress(OSError):
            os.close(fd)
    descriptors.clear()
