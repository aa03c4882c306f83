"""What the programs hang on: tracepoints, and for the sampler a perf event for each event and CPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from parprof.errors import KernelUnsupported
from parprof.kernel import bpf, perf_events
from parprof.kernel.objects import LoadedObject

LIVES = (
    ("sched_process_exit", "on_exit"),
    ("sched_process_exec", "on_exec"),
    ("sched_process_fork", "on_fork"),
    ("sched_wakeup_new", "on_wakeup"),
)
"""Tracepoints of the life of threads and processes: always followed."""
SWITCHES = (("sched_switch", "on_switch"), ("sched_wakeup", "on_wakeup"))
"""Those that tell which threads sleep: as long as that is not too dear."""


class Tracepoints:
    """Programs at tracepoints of the scheduler."""

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
        self._cpus = perf_events.online_cpus()
        self._descriptors = self._open(frequency_hz)

    def _open(self, frequency_hz: int) -> list[int]:
        opened: list[int] = []
        for index, name in enumerate(self._names):
            for cpu in perf_events.online_cpus():
                try:
                    opened.append(perf_events.open_on_cpu(name, frequency_hz, cpu))
                    opened.append(bpf.link_perf_event(self._program, opened[-1], index))
                except OSError as error:
                    _close(opened)
                    raise KernelUnsupported(
                        f"perf event {name} at {frequency_hz} Hz on CPU {cpu}: {error.strerror}"
                    ) from error
        return opened

    def set_frequency(self, frequency_hz: int) -> None:
        """Sample at another rate from now on.

        Raises:
            KernelUnsupported: it is refused; the old one stays.
        """
        before, self._descriptors = self._descriptors, self._open(frequency_hz)
        self.frequency_hz = frequency_hz
        _close(before)

    def follow_cpus(self) -> None:
        """Sample on the CPUs that are online now."""
        cpus = perf_events.online_cpus()
        if cpus != self._cpus:
            self._cpus = cpus
            with suppress(KernelUnsupported):  # one that has just gone again: the next time
                self.set_frequency(self.frequency_hz)

    def close(self) -> None:
        """Sample no more."""
        _close(self._descriptors)


def _close(descriptors: list[int]) -> None:
    for fd in descriptors:
        with suppress(OSError):
            os.close(fd)
    descriptors.clear()
