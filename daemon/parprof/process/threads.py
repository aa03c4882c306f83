"""The threads of a process: which there are, and what they do, as far as ``/proc`` tells."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

CodeRanges = Sequence[tuple[int, int]]
"""Executable mappings of parallel runtimes, [start, end)."""
_MOST_ASKED = 1024
"""Threads: some 20 us each."""


def thread_ids(pid: int, most: int | None = None) -> list[int]:
    """The threads of a process, ``most`` of them at most, as we number them.

    Raises:
        OSError: the process is gone, or not for us to see.
    """
    with os.scandir(f"/proc/{pid}/task") as tasks:
        return [int(task.name) for task in islice(tasks, most)]


def system_call(pid: int, tid: int) -> str:
    """The line of ``/proc`` that says where a thread is in the kernel.

    It begins with the number of the call, or "-1"; what follows are its arguments, then the stack pointer and the
    instruction pointer in hexadecimal. "running" of a thread that has a CPU or wants one.

    Raises:
        OSError: the thread is gone, or not for us to see.
    """
    return Path(f"/proc/{pid}/task/{tid}/syscall").read_text()


def guess_threads(pid: int, runtime: CodeRanges | None) -> Iterator[tuple[int, bool]]:
    """Each thread and whether it is thought to work once it runs. ``runtime`` None: the process has none."""
    with suppress(OSError):
        for tid in thread_ids(pid):
            works = tid == pid or runtime is None
            if runtime is not None and (waits := sleeps_in_runtime(pid, tid, runtime)) is not None:
                works = not waits
            yield tid, works


def is_running(pid: int) -> bool:
    """Whether any thread of it has a CPU or wants one."""
    with suppress(OSError):
        for tid in thread_ids(pid):
            with suppress(OSError):
                if b") R" in Path(f"/proc/{pid}/task/{tid}/stat").read_bytes():
                    return True
    return False


def waited_for_cpu_s(pid: int) -> float:
    """For how long its threads that live have waited for a CPU while they could run, in all; 0 where nobody knows."""
    waited_ns = 0
    with suppress(OSError):
        for tid in thread_ids(pid, _MOST_ASKED):
            with suppress(OSError, ValueError, IndexError):
                waited_ns += int(Path(f"/proc/{pid}/task/{tid}/schedstat").read_bytes().split()[1])
    return waited_ns / 1e9


def sleeps_in_runtime(pid: int, tid: int, runtime: CodeRanges) -> bool | None:
    """Whether a blocked thread's system call was made by the runtime; None when it runs or can't be told."""
    try:
        words = system_call(pid, tid).split()
        if len(words) < 3:
            return None  # "running"
        sp, pc = int(words[-2], 16), int(words[-1], 16)
        if _within(runtime, pc):
            return True
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(sp)
            return _within(runtime, struct.unpack("<Q", memory.read(8))[0])
    except (OSError, ValueError, struct.error, OverflowError):
        return None


def _within(ranges: CodeRanges, address: int) -> bool:
    return any(start <= address < end for start, end in ranges)
