# SPDX-License-Identifier: Apache-2.0
"""n_w of a live process on libgomp, by a TeamBarrier: in Python what bpf/memory.bpf.c does at a sample.

As a command it reads n_w of a program of tests/workloads while that runs, and judges it by the program's log::

    $ PYTHONPATH=daemon:tests python tests/unit/gomp_process.py build/omp_truth.gomp skewed,barrier
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from parprof.files.elf import ElfFile
from parprof.plans import TeamBarrier
from parprof.runtimes.libgomp_memory import team_barrier, team_layout

_SEIZE, _INTERRUPT, _DETACH, _PEEKUSER = 0x4206, 0x4207, 17, 3
_FS_BASE = 21 * 8
"""Of ``fs_base`` in struct user (sys/user.h)."""


class ProcessMemory:
    """A file that a process maps, in its memory; an implementation of parprof.plans.Memory."""

    def __init__(self, pid: int, path: str, elf: ElfFile) -> None:
        with open(f"/proc/{pid}/maps", encoding="ascii") as maps:
            lines = [line.split() for line in maps if line.rstrip().endswith(path)]
        start = next(int(line[0].partition("-")[0], 16) for line in lines if int(line[2], 16) == 0)
        self._bias = start - elf.base
        self._elf = elf
        self._fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY)

    def read(self, address: int, size: int) -> bytes:
        return os.pread(self._fd, size, address)

    def address(self, vaddr: int) -> int:
        return self._bias + vaddr

    def symbol(self, name: str) -> int:
        found = self._elf.lookup([name]).get(name)
        return self._bias + found[0].value if found else 0

    def close(self) -> None:
        os.close(self._fd)


def fsbase_of(tid: int) -> int:
    """Where the thread-local storage of a thread of a child process begins. Stops it for a moment."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

    def ptrace(request: int, address: int = 0) -> int:
        ctypes.set_errno(0)
        value = libc.ptrace(request, tid, address, None)
        if ctypes.get_errno():
            raise OSError(ctypes.get_errno(), "ptrace")
        return int(value) & (1 << 64) - 1

    ptrace(_SEIZE)
    try:
        ptrace(_INTERRUPT)
        os.waitpid(tid, 0x40000000)  # __WALL
        return ptrace(_PEEKUSER, _FS_BASE)
    finally:
        ptrace(_DETACH)


def read_n_working(plan: TeamBarrier, memory: ProcessMemory, fsbase: int) -> int:
    """Threads of a thread's team that have yet to reach its barrier; 1 with no team."""
    (team,) = struct.unpack("<Q", memory.read(fsbase + plan.tls + plan.team, 8))
    for _ in range(4):  # a region in a region, without nesting, is a team of one thread
        if not team:
            return 1
        (total,) = struct.unpack("<I", memory.read(team + plan.total, 4))
        if total != 1:
            break
        (team,) = struct.unpack("<Q", memory.read(team + plan.outer_team, 8))
    (awaited,) = struct.unpack("<I", memory.read(team + plan.awaited, 4))
    (final,) = struct.unpack("<I", memory.read(team + plan.awaited_final, 4))
    if not total or awaited > total or final > total:
        raise ValueError(f"no barrier: total {total}, awaited {awaited}, final {final}")
    return max(1, min(awaited, final))


def mapped_libgomp(pid: int) -> str:
    """Path of the libgomp that a process maps, or of the program itself if it maps none."""
    with open(f"/proc/{pid}/maps", encoding="ascii") as maps:
        paths = [line.split()[-1] for line in maps]
    return next((p for p in paths if Path(p).name.startswith("libgomp")), os.readlink(f"/proc/{pid}/exe"))


def threads(pid: int) -> list[int]:
    return [int(tid) for tid in os.listdir(f"/proc/{pid}/task")]


def main() -> None:
    """Judge n_w read from memory by the log of a truth program."""
    from truth import Truth

    program, phases, *more = sys.argv[1:]
    with tempfile.NamedTemporaryFile() as log:
        child = subprocess.Popen(
            [program, phases, "--forever", *more], stdout=subprocess.PIPE,
            env={**os.environ, "PARPROF_TRUTH": log.name},
        )  # fmt: skip
        assert child.stdout and child.stdout.readline().startswith(b"ready")
        time.sleep(0.5)
        path = mapped_libgomp(child.pid)
        reads = []
        with ElfFile.open(path) as elf:
            memory = ProcessMemory(child.pid, path, elf)
            plan = team_barrier(team_layout(elf), memory)
            assert plan is not None
            print(plan)
            bases = {tid: fsbase_of(tid) for tid in threads(child.pid)}
            for _ in range(2000):
                for tid, base in bases.items():
                    before = time.monotonic_ns()
                    n = read_n_working(plan, memory, base)
                    reads.append((tid, before, time.monotonic_ns(), n))
                time.sleep(0.002)
        child.terminate()
        child.wait()
        truth = Truth.read(log.name)
    judged: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    cases: Counter[tuple[str, int, int]] = Counter()
    for tid, before, after, n in reads:
        function = truth.function_at(tid, before)
        if function is None or after - before > 50_000 or truth.near_edge(before, 100_000):
            continue
        judged[function] += 1
        if truth.working_at(before) != n:
            wrong[function] += 1
            cases[function, truth.working_at(before), n] += 1
    for function in judged:
        print(f"{function:24}{judged[function]:6} judged{wrong[function]:6} wrong")
    print(dict(cases))


if __name__ == "__main__":
    main()
