"""Acts on the breaker's alarms at once, in a thread of its own: the session's may be busy for seconds.

When a process has used up its budget (bpf/budget.bpf.c), the programs cut off the dearest kind of event. What is left
then is the trap of each probe, and the tracepoint of each switch; this thread takes them away.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from parprof.kernel.cpu_time import cpu_time_ns
from parprof.kernel.detach_worker import be_urgent
from parprof.kernel.records import Cost
from parprof.kernel.ringbuf import RingBuffer
from parprof.kernel.uprobes import ProbeSet
from parprof.values import dataclass


@dataclass(frozen=True, slots=True)
class Cut:
    """A kind of event does nothing any more in a process image."""

    pid: int
    image: int
    cost: Cost
    time_ns: int = 0
    """When: CLOCK_MONOTONIC."""
    cpu_ns: int = 0
    """CPU time that the process had used when we heard of it; 0: it is gone."""


class Alarms:
    """The thread, and the probes that it may take away. Ends with `close`."""

    def __init__(self, ring: RingBuffer, layout: Any, leave_switches: Callable[[int], None]) -> None:
        """``layout``: of a control record. ``leave_switches`` is called, in the thread, when switches are too dear.

        It is given since when, CLOCK_MONOTONIC.
        """
        self._ring = ring
        self._layout = layout
        self._leave_switches = leave_switches
        self._probes: dict[tuple[int, Cost], list[ProbeSet]] = {}
        self._lock = threading.Lock()
        self._cuts: deque[Cut] = deque()
        self._end = os.eventfd(0, os.EFD_CLOEXEC)
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Becomes readable when there are cuts to be taken."""
        self._thread = threading.Thread(target=self._run, name="alarms", daemon=True)
        self._thread.start()

    def guard(self, pid: int, cost: Cost, probes: ProbeSet) -> None:
        """Close these probes when that kind is cut off in this process."""
        with self._lock:
            self._probes.setdefault((pid, cost), []).append(probes)

    def forget(self, pid: int) -> None:
        """The process is watched no more."""
        with self._lock:
            for cost in Cost:
                self._probes.pop((pid, cost), None)

    def take(self) -> list[Cut]:
        """What was cut off since the last call."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        out = []
        while self._cuts:
            out.append(self._cuts.popleft())
        return out

    def _run(self) -> None:
        be_urgent()
        poller = select.epoll()
        poller.register(self._ring.fd, select.EPOLLIN)
        poller.register(self._end, select.EPOLLIN)
        while not any(fd == self._end for fd, _ in poller.poll()):
            for raw in self._ring.read():
                self._act(raw)
        poller.close()

    def _act(self, raw: bytes) -> None:
        record = self._layout.from_buffer_copy(raw)
        cpu_ns = cpu_time_ns(record.tgid) or 0
        cut = Cut(record.tgid, record.image, Cost(record.address), record.time_ns, cpu_ns)
        if cut.cost is Cost.SWITCH:
            self._leave_switches(cut.time_ns)
        kinds = (Cost.PROBE, Cost.LOCK) if cut.cost is Cost.PROBE else (cut.cost,)
        with self._lock:
            probes = [one for kind in kinds for one in self._probes.pop((cut.pid, kind), ())]
        for one in probes:
            one.close()
        self._cuts.append(cut)
        os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """End the thread."""
        os.eventfd_write(self._end, 1)
        self._thread.join()
        os.close(self._end)
        os.close(self.fd)
