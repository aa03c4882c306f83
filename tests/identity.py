# SPDX-License-Identifier: Apache-2.0
"""n x time = work + ready + stolen + idleness + stall, of programs that know their terms: tests/workloads/identity.c.

All of it is by cause, so a busy machine makes nothing wrong: time without a CPU is a term, and the kernel's own
``schedstat`` has it, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parprof.exporters.pprof_reader import read
from profiling import BUILD
from reports import record_command, report_of

HZ = 498
POOL = """
import multiprocessing, os, time
def busy(_):
    end = time.monotonic() + 0.1
    while time.monotonic() < end: pass
begin = time.monotonic()
with multiprocessing.get_context("fork").Pool(2) as pool: pool.map(busy, range(12), 1); pool.close(); pool.join()
print("cpu", sum(os.times()[:4]))  # since the start, as the recording is
print("elapsed", time.monotonic() - begin)
"""

MODES: dict[str, tuple[str, ...]] = {
    "lock": ("identity", "lock"),
    "lock, OpenMP": ("identity.gomp", "lock"),
    "all at once": ("identity", "once"),
    "all at once, OpenMP": ("identity.gomp", "once"),
    "in turn": ("identity", "turn"),
    "in turn, OpenMP": ("identity.gomp", "turn"),
    "2 threads": ("identity", "many", "2"),
    "8 threads": ("identity", "many", "8"),
    "8 threads, OpenMP": ("identity.gomp", "many", "8"),
    "children": ("identity", "children", "1000"),
}


@dataclass(frozen=True)
class Term:
    """One thing that both know, seconds."""

    name: str
    told_s: float
    """By the program and the kernel."""
    found_s: float


@dataclass(frozen=True)
class Run:
    """What a program told, and what the report says."""

    told: dict[str, float]
    report: dict[str, Any]
    notes: tuple[str, ...]

    @property
    def available_s(self) -> float:
        """n x time."""
        return float(self.report["process"]["cores"] * self.report["elapsed_s"])

    @property
    def is_exact(self) -> bool:
        """Whether each change of n_w was seen."""
        return self.report["totals"]["counted_idleness_s"] is not None

    @property
    def threads_s(self) -> float:
        """The integral of n_w: threads that worked, with a CPU or without."""
        return float(sum(n * seconds for n, seconds in enumerate(self.report["concurrency"])))

    @property
    def parted(self) -> list[str]:
        """Notes that idleness by samples is not that by changes of n_w."""
        return [note for note in self.notes if "idleness is" in note and "by samples" in note]

    def terms(self) -> list[Term]:
        """Those that the program knows."""
        told, totals = self.told, self.report["totals"]
        out = [Term("work", told["cpu"], totals["work_s"] + totals.get("profiling_s", 0.0))]
        if "waited" in told and self.is_exact:
            out.append(Term("work and without a CPU", told["cpu"] + told["waited"], self.threads_s))
        if told.get("stalled"):
            out.append(Term("nobody working", told["stalled"], self.report["concurrency"][0]))
        return out


def record(command: Sequence[object], folder: Path, *options: object) -> Run:
    """Record a program that prints ``name seconds`` lines. ``options``: more of `parprof record`."""
    profile = folder / "identity.pb.gz"
    done = subprocess.run(
        [*record_command(profile, "-F", HZ, *options), *map(str, command)], stdout=subprocess.PIPE, text=True,
        check=True, env={**os.environ, "OMP_WAIT_POLICY": "passive"},
    )  # fmt: skip
    pairs = (line.split() for line in done.stdout.splitlines())
    return Run(
        {name: float(seconds) for name, seconds in pairs}, report_of(profile), tuple(read(profile).notes)
    )


def record_mode(mode: str, folder: Path) -> Run:
    """One of `MODES`."""
    program, *words = MODES[mode]
    return record([BUILD / program, *words], folder)


def record_pool(folder: Path) -> Run:
    """Two processes of multiprocessing that are busy all the time."""
    return record([sys.executable, "-S", "-c", POOL], folder)


def record_quota(procs: Path, folder: Path) -> Run:
    """Two threads in a group that may use one core. ``procs``: see `quota.quota_group`.

    Each sample stands for itself, as error bounds take it: where they are dear it may be for up to 64.
    """
    command = ["sh", "-c", f"echo $$ > {procs}; exec {BUILD / 'identity'} many 2"]
    return record(command, folder, "--budget", 100)
