# SPDX-License-Identifier: Apache-2.0
"""Programs of a parallel region, built in several ways: the compiler, and the load map while one runs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parprof.files.dso_cache import DsoCache
from parprof.process.loadmap import LoadMap


def gcc(*arguments: str | Path) -> str:
    """What the compiler prints."""
    return subprocess.run(["gcc", *arguments], capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def running(*command: str | Path) -> Iterator[LoadMap]:
    """The load map of a program that says that it has been through its region, by the line "ready"."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    cache = DsoCache()
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield LoadMap.read(process.pid, None, cache)
    finally:
        process.communicate(b"\n", 20)
        cache.close()
