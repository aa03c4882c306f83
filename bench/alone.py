"""Elapsed times that nobody disturbed: waits until the machine is idle, and says when others worked beside a run."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

IDLE_SHARE = 0.97
"""Of all cores' time over half a second, before a run may begin."""
OTHERS_SHARE = 0.05
"""Of all cores' time during a run that others may take."""
MAX_WAIT_SECONDS = 30.0
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Elapsed:
    """One run."""

    seconds: float
    is_alone: bool
    """Nobody else worked meanwhile."""


def busy_seconds() -> float:
    """Of all cores, since boot: what they did not idle, the hypervisor's share too."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) * TICK_SECONDS


def wait_until_idle() -> None:
    """Or until we have waited long enough: then the run will be dropped."""
    cores, end_s = os.cpu_count() or 1, time.monotonic() + MAX_WAIT_SECONDS
    while time.monotonic() < end_s:
        before_s = busy_seconds()
        time.sleep(0.5)
        if busy_seconds() - before_s < (1 - IDLE_SHARE) * 0.5 * cores:
            return


def run(command: Sequence[str], variables: Mapping[str, str]) -> Elapsed:
    """Run a command with these variables beside our own."""
    busy_s, used_s, start_s = busy_seconds(), _children_seconds(), time.monotonic()
    subprocess.run(command, env={**os.environ, **variables}, check=True)
    seconds = time.monotonic() - start_s
    others_s = busy_seconds() - busy_s - (_children_seconds() - used_s)
    return Elapsed(seconds, others_s < OTHERS_SHARE * seconds * (os.cpu_count() or 1))


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
