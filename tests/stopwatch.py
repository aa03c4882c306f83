# SPDX-License-Identifier: Apache-2.0
"""How long something took, as far as it was not the machine's other load that made it take longer."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path


class Stopwatch:
    """Wall time, less the time in which threads of this process were ready to run and had no core.

    For upper bounds on what waits (for a clock, for a child): what computes is judged by `time.process_time`.
    """

    def __init__(self) -> None:
        self._begin_s = time.monotonic()
        self._delayed_ns = _delays_ns()

    @property
    def seconds(self) -> float:
        """Since it was made."""
        wall_s = time.monotonic() - self._begin_s
        delayed_ns = sum(ns - self._delayed_ns.get(thread, 0) for thread, ns in _delays_ns().items())
        return wall_s - delayed_ns / 1e9


def _delays_ns() -> dict[str, int]:
    """What each thread of this process has waited for a core; nothing where the kernel does not count that."""
    out = {}
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):
            out[thread] = int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1])
    return out
