# SPDX-License-Identifier: Apache-2.0
"""Resident memory of the profiler with the largest libraries of the machine in the target.

``python bench/memory.py [LIBRARY ...]`` (as root) starts a process that loads them, profiles it from a fresh
process for three seconds, twice (the second time with all unwind tables on disk), and prints what that process
holds after each step. The bound is 80 MB and 8 bytes for each row of the unwind tables.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "daemon"), str(Path(__file__).parent)]

LIKELY = ("libLLVM-14.so.1", "libclang-cpp.so.14", "libLLVM-15.so.1")
BOUND_MB, ROW_BYTES = 80.0, 8
_SECONDS = 3.0
_TARGET = (
    "import ctypes, sys\nkept = [ctypes.CDLL(name) for name in sys.argv[1:]]\nprint('ready', flush=True)\n"
    "while True: sum(range(1000))\n"
)


def resident_mb() -> tuple[float, float, float]:
    """(resident, of that private and anonymous, highest so far)."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return tuple(int(status[key].split()[0]) / 1e3 * 1.024 for key in ("VmRSS", "RssAnon", "VmHWM"))  # type: ignore[return-value]


def say(step: str) -> None:
    now, anonymous, highest = resident_mb()
    print(f"  {step:<34} {now:7.1f} {anonymous:7.1f} {highest:7.1f}", flush=True)


def profile(pid: int) -> None:
    """What `parprof attach` does, with the memory after each step."""
    from parprof.kernel.engine import BpfKernel
    from parprof.session.session import Session

    say("imports")
    with BpfKernel(["cpu-clock"], 499) as kernel:
        session = Session(kernel)
        say("programs loaded")
        session.watch(pid)
        say("attached")
        while session.watched.placer.is_waiting:
            session.step(0.05)
        say("tables placed")
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end:
            session.step(0.05)
        say(f"profiled for {_SECONDS:g} s")
        rows = kernel.store.used_words
        now, _, highest = resident_mb()
        bound = BOUND_MB + rows * ROW_BYTES / 1e6
        print(
            f"  words of unwind tables: {rows:,}; bound {bound:.1f} MB; resident {now:.1f}, highest {highest:.1f}"
        )
        session.finish()
        session.close()


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] == "--profile":
        profile(int(sys.argv[2]))
        return
    import machine

    print(machine.describe())
    libraries = sys.argv[1:] or list(LIKELY[:2])
    command = [sys.executable, "-c", _TARGET, *libraries]
    target = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert target.stdout is not None
    try:
        if target.stdout.readline() != b"ready\n":
            sys.exit(f"cannot load {' '.join(libraries)}")
        with tempfile.TemporaryDirectory() as cache:
            for which in ("tables built", "tables from disk"):
                print(f"{which}: {' '.join(libraries)}; MB      resident    anon highest")
                subprocess.run(
                    [sys.executable, __file__, "--profile", str(target.pid)],
                    check=True,
                    env={**os.environ, "PARPROF_CACHE": cache},
                )
    finally:
        target.kill()
        target.wait()
        target.stdout.close()


if __name__ == "__main__":
    main()
