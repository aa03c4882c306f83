"""Where parprof keeps what it may make again: compiled programs, unwind tables, symbols."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """The directory of all caches. Each user of it checks that nobody else can write there.

    Raises:
        RuntimeError: the user has no home directory.
    """
    if os.environ.get("PARPROF_CACHE"):
        return Path(os.environ["PARPROF_CACHE"])
    if os.geteuid() == 0:
        return Path("/var/cache/parprof")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parprof"
