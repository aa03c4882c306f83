"""Which programs are stopped when they start.

`record` stops a program at exec, and when its libraries are mapped, so that no region or sample of it is missed.
That takes milliseconds each time: a build that starts a thousand compilers would wait for us most of the time. An
executable that was seen to live a whole life without anything to probe is taken to do so again, and is not stopped;
its probes are placed if it lives on.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from parprof.errors import ParprofError
from parprof.kernel.engine import BpfKernel
from parprof.kernel.plain_programs import PlainPrograms
from parprof.session.target import Target


class Stops:
    """Learns from each process that ends."""

    def __init__(self, plain: PlainPrograms) -> None:
        """``plain``: what the kernel is told."""
        self._plain = plain

    def judge(self, target: Target) -> None:
        """A process image has ended: is its executable to be stopped the next time?

        That of an interpreter is, for it runs other programs each time.
        """
        if not target.program or not target.stops or not target.has_started:
            return
        if target.plan.agents or target.language is not None:
            self._plain.remove(target.program)
        elif not target.was_trusted:
            self._plain.add(target.program)


def let_go(kernel: BpfKernel) -> None:
    """Watch no process any more, and have those go on that were stopped for us: nobody will see to them."""
    with suppress(OSError, ParprofError):
        watched = set(kernel.images())
        for pid in watched:
            kernel.unwatch(pid, has_threads=False)
        watched.update(record.pid for record in kernel.control_records() if record.stopped)
        for pid in watched:
            with suppress(OSError):
                os.kill(pid, signal.SIGCONT)
