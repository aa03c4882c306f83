# SPDX-License-Identifier: Apache-2.0
"""A program whose functions are probed, and what its code looks like meanwhile."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import profiling
from parprof.kernel.uprobes import Site

PROGRAM = profiling.BUILD / "pthread_truth"
INT3 = 0xCC


def within(seconds: float, what: Callable[[], object]) -> float:
    """Seconds until it is so."""
    start = time.monotonic()
    while not what():
        assert time.monotonic() < start + seconds
        time.sleep(0.002)
    return time.monotonic() - start


class Target:
    """A running program and some of its functions."""

    def __init__(self, process: subprocess.Popen[bytes], program: Path) -> None:
        self.process, self._program = process, program
        symbols = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
        named = [line.split() for line in symbols.splitlines() if len(line.split()) == 3]
        # not what the C library's start files bring along
        self.offsets = [int(v, 16) for v, kind, name in named if kind in "tT" and not name.startswith("_")][
            2:
        ]
        assert len(self.offsets) > 8
        first = Path(f"/proc/{process.pid}/maps").read_text().splitlines()[0]
        assert first.endswith(f"/{program.name}")
        self._base = int(first.split("-")[0], 16)  # in this program offsets in the file are those in memory
        self.plain = self.code()
        content = program.read_bytes()
        assert self.plain == bytes(content[offset] for offset in self.offsets)
        assert INT3 not in self.plain

    def code(self) -> bytes:
        """The first byte of each function, as it is in memory now."""
        with open(f"/proc/{self.process.pid}/mem", "rb", buffering=0) as memory:
            return b"".join(os.pread(memory.fileno(), 1, self._base + offset) for offset in self.offsets)

    def sites(self, count: int = 1000) -> list[Site]:
        return [Site(str(self._program), offset, 0, returns=True) for offset in self.offsets[:count]]

    def is_plain(self) -> bool:
        return self.code() == self.plain


@contextmanager
def running_target(program: Path = PROGRAM) -> Iterator[Target]:
    """One that works for ever, and must survive what is done to it."""
    process = subprocess.Popen([program, "balanced", "--forever"], stdout=subprocess.PIPE)
    try:
        assert process.stdout and process.stdout.readline().startswith(b"ready")
        target = Target(process, program)
        yield target
        assert process.poll() is None, "the target did not survive"
    finally:
        process.kill()
        process.communicate()
